"""Samples as the learner gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from network import Network
from numbered_envs import RUN, Player, check_values, make_schema

from sb3_extra_buffers.distributed.blocks import MissingError
from sb3_extra_buffers.distributed.client import Client, pack_indices, unpack_indices
from sb3_extra_buffers.distributed.shard import Shard

SCHEMA = make_schema(2, 16)


def make_client(blocks: tuple[int, ...], alpha: float | None = None, prefetch: int = 3) -> tuple[Network, Client]:
    """As many shards, with so many blocks each."""
    network = Network([Shard(SCHEMA, 640, RUN, number, alpha=alpha, seed=5) for number in range(len(blocks))])
    network.on_wait = network.run
    client = Client(network, network.handles, SCHEMA, prefetch, timeout=1.0, seed=0, now=network.now)
    for number, shard in enumerate(network.shards):
        player = Player(SCHEMA, number)
        for _ in range(blocks[number]):
            shard.add(tuple(player.block()))
        client.weigh(number, 0, shard.drawer.total(shard.size))
    return network, client


@given(
    calls=st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["", "kill", "add", "drop"])), min_size=1, max_size=12),
    coded=st.booleans(),
)
def test_batches_were_played(calls: list[tuple[int, str]], coded: bool) -> None:
    network, client = make_client((2, 1, 3))
    client.coded = [coded, False, True]
    players = [Player(SCHEMA, number, 1) for number in range(3)]
    incarnations = [0, 0, 0]

    def find_again(lost: int) -> None:
        for shard in network.shards:
            client.weigh(shard.number, shard.incarnation, shard.size)

    client.on_lost = find_again
    for place, (batch_size, event) in enumerate(calls):
        which = place % 3
        if event == "kill":
            incarnations[which] += 1
            network.replace(which, Shard(SCHEMA, 640, RUN, which, incarnations[which]))
            network.shards[which].add(tuple(players[which].block()))
        elif event == "add":
            network.shards[which].add(tuple(players[which].block()))
        elif event == "drop":
            network.drop(place)
        try:
            batch = client.sample(batch_size)
        except MissingError as error:
            assert event == "drop" or any(said == "drop" for _, said in calls), error
            continue
        assert len(check_values(SCHEMA, batch.values)) == batch_size == len(batch.indices) == len(batch.probabilities)


def test_shards_are_drawn_by_their_share() -> None:
    _, client = make_client((1, 3, 0), prefetch=1)
    drawn = np.bincount([unpack_indices(client.sample(1).indices)[0][0] for _ in range(400)], minlength=3)
    assert drawn[2] == 0 and 70 < drawn[0] < 130


def test_batches_are_asked_for_ahead() -> None:
    network, client = make_client((1,), prefetch=4)
    submitted: list[tuple[Any, ...]] = []
    submit = network.submit

    def note(handle: Any, call: str, args: tuple[Any, ...]) -> int:
        submitted.append((handle.shard.number, call, *args))
        return submit(handle, call, args)

    network.submit = note  # type: ignore[method-assign]
    for _ in range(8):
        client.sample(2)
    assert submitted == [(0, "sample", 2, 4, False)] * 4  # two were used up, two are under way
    assert client.sample(3).values[-1].shape == (3, 1)  # another size is another question
    assert client.received == 8 * 2 + 3 * 4


def test_old_totals_do_not_make_weights_wrong() -> None:
    """A shard that was drawn too often, because its total was old, has smaller weights for that."""
    network, client = make_client((1, 1), alpha=1.0, prefetch=1)
    everything = np.arange(32)
    network.shards[0].update_priorities(everything, np.full(32, 3.0))
    client.weigh(0, 0, 32.0)  # what it was before
    seen = {}
    for _ in range(20):
        batch = client.sample(4)
        shard = int(unpack_indices(batch.indices)[0][0])
        seen.setdefault(shard, []).append(batch.probabilities.copy())
    # The first answer of shard 0 was asked for with a chance of 1/2, and came when it was known to have 3/4 of all.
    assert seen[0][0] == pytest.approx(0.5 / 32 * 128) or seen[0][0] == pytest.approx(0.5 / 32 * 64)
    # From then on what is drawn is right: the probability is the share.
    assert seen[0][-1] == pytest.approx(3.0) and seen[1][-1] == pytest.approx(1.0)


def test_priorities_go_back() -> None:
    network, client = make_client((1, 1), alpha=1.0)
    indices = np.concatenate(
        [pack_indices(0, 0, np.array([3])), pack_indices(1, 0, np.array([4, 5])), pack_indices(1, 1, np.array([6]))]
    )
    client.update_priorities(indices, np.array([7.0, 8.0, 9.0, 10.0]))
    network.run()
    leaves = [shard.drawer.tree.leaves for shard in network.shards]  # type: ignore[attr-defined]
    assert leaves[0][3] == pytest.approx(7, rel=1e-5) and leaves[1][[4, 5, 6]] == pytest.approx([8, 9, 1], rel=1e-5)
    with pytest.raises(IndexError, match="no shard 9"):
        client.update_priorities(pack_indices(9, 0, np.array([1])), np.array([1.0]))


@given(shard=st.integers(0, 4095), incarnation=st.integers(0, 1000), insertion=st.integers(0, (1 << 43) - 1))
def test_indices(shard: int, incarnation: int, insertion: int) -> None:
    packed = pack_indices(shard, incarnation, np.array([insertion]))
    assert packed[0] >= 0
    assert [int(part[0]) for part in unpack_indices(packed)] == [shard, incarnation % 256, insertion]


def test_a_shard_is_lost_once() -> None:
    """Two calls to it were under way: when the second one fails, there is another shard in its place already."""
    network, client = make_client((1,), prefetch=1)
    client._size = 2
    client._ask()
    assert len(network.calls) == 2
    network.replace(0, Shard(SCHEMA, 640, RUN, 0, 1)).shard.add(tuple(Player(SCHEMA).block()))
    lost = []

    def replace(shard: int) -> None:
        lost.append(shard)
        client.weigh(0, 1, 32.0)

    client.on_lost = replace
    for _ in range(4):
        client.sample(2)
    assert lost == [0]


def test_who_does_not_answer_is_named() -> None:
    lost: list[int] = []

    def pass_time(shard: int = -1) -> None:
        network.time += 0.6
        lost.extend([shard] * (shard >= 0))

    for blocks, what in (((1, 0), r"no shard has any transitions; shards \[0\] have not"), ((0, 0), "no shard has any")):
        network, client = make_client(blocks)
        network.on_wait, client.on_lost = pass_time, pass_time
        with pytest.raises(MissingError, match=what):
            client.sample(2)
    assert set(lost) == {0}
    network, client = make_client((1, 1))  # they are replaced, and never answer
    network.on_wait, client.on_lost = pass_time, lambda shard: client.weigh(shard, 0, 32.0)
    with pytest.raises(MissingError, match=r"shards \[.*\] have not answered within 1 s"):
        client.sample(2)
