"""A shard holds what was played, once each, and draws from it."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_envs import RUN, Player, check_values, make_schema, stamps_of_block

from sb3_extra_buffers.distributed.blocks import Schema
from sb3_extra_buffers.distributed.checkpoints import load_shard, save_shard
from sb3_extra_buffers.distributed.client import open_reply
from sb3_extra_buffers.distributed.shard import Reply, Shard
from sb3_extra_buffers.storage import StorageError


def all_batches(schema: Schema, reply: Reply) -> list[np.ndarray]:
    """The batches of a reply, one after the other."""
    batches = [open_reply(schema, reply)(number) for number in range(reply.batches)]
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


@given(
    n_envs=st.integers(1, 3),
    is_dict=st.booleans(),
    method=st.sampled_from(["delta", "gzip/1", "rle"]),
    n_steps=st.integers(1, 5),
    coded=st.booleans(),
    blocks=st.integers(1, 6),
    slots=st.integers(1, 4),
    alpha=st.sampled_from([None, 0.6]),
)
def test_samples_were_played(
    n_envs: int, is_dict: bool, method: str, n_steps: int, coded: bool, blocks: int, slots: int, alpha: float | None
) -> None:
    schema = make_schema(n_envs, 16, is_dict, method)
    shard = Shard(schema, slots * schema.cells, RUN, n_steps=n_steps, gamma=0.9, alpha=alpha, seed=0)
    player = Player(schema, 1, 2)
    for number in range(blocks):
        assert shard.add(tuple(player.block())).added
        reply = shard.sample(8, 3, coded)
        assert coded == (reply.chunks is not None)
        stamps = check_values(schema, all_batches(schema, reply), n_steps, 0.9)
        held = range(max(number + 1 - slots, 0), number + 1)
        assert set(stamps) <= set().union(*(stamps_of_block(schema, (1, 2, block)) for block in held))
        # Transitions are numbered in the order of blocks, then of steps, then of n_envs.
        step = np.array(stamps) & 0xFFFF
        env = np.array(stamps) >> 16 & 3
        assert reply.insertions.tolist() == (step * n_envs + env).tolist()


def test_all_cells_are_drawn_alike() -> None:
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 3 * schema.cells, RUN, seed=1), Player(schema)
    for _ in range(5):
        shard.add(tuple(player.block()))
    counts = np.bincount(shard.sample(96 * 200).insertions, minlength=160)
    assert not counts[:64].any() and counts[64:].min() > 100 and counts[64:].max() < 320


@given(order=st.lists(st.integers(0, 5), min_size=1, max_size=40), lag=st.integers(0, 6))
def test_a_block_is_added_once(order: list[int], lag: int) -> None:
    """Whatever comes twice, late or out of order."""
    schema = make_schema(1, 16)
    player = Player(schema)
    messages = [tuple(player.block(max(sequence - lag, 0))) for sequence in range(6)]
    shard = Shard(schema, 64 * schema.cells, RUN)
    added: list[int] = []
    floor = 0
    for sequence in order:
        ack = shard.add(messages[sequence])
        expected = sequence not in added and sequence >= floor
        floor = max(floor, min(max(sequence - lag, 0), sequence))
        assert (ack.added, ack.sequence) == (expected, sequence)
        added += [sequence] * expected
    assert len(set(added)) == len(added) == shard.blocks
    assert shard.duplicates == len(order) - len(added)
    # What was acknowledged long ago is not remembered one by one.
    ((settled, known),) = shard.seen.values()
    assert all(number >= settled for number in known)


def test_priorities() -> None:
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 2 * schema.cells, RUN, alpha=1.0, eps=1e-3, seed=0), Player(schema)
    shard.add(tuple(player.block()))
    shard.add(tuple(player.block()))
    wanted = np.array([5, 40])
    everything = np.arange(64)
    assert shard.update_priorities(everything, np.zeros(64)) == 0
    assert shard.update_priorities(wanted, np.array([3.0, 1.0])) == 0
    reply = shard.sample(400, 2)
    drawn = np.bincount(reply.insertions, minlength=64)
    assert drawn[5] > 2 * drawn[40] > 100 and reply.total == pytest.approx(3.001 + 1.001 + 62e-3)
    assert reply.shares[reply.insertions == 5] == pytest.approx(3.001)
    # A new block has the highest priority so far, and takes the place of the oldest, whose priorities are nobody's.
    shard.add(tuple(player.block()))
    assert shard.update_priorities(np.array([5, 40, 70, 96, -1]), np.full(5, 2.0)) == 3
    assert shard.sample(8).total == pytest.approx(32 * 3.001 + 31e-3 - 3.001 + 2 * 2.001)
    with pytest.raises(ValueError, match="finite"):
        shard.update_priorities(np.array([70]), np.array([np.nan]))
    with pytest.raises(ValueError, match="no priorities"):
        Shard(schema, 1, RUN).update_priorities(np.array([], np.int64), np.array([]))


def test_an_empty_shard_says_so() -> None:
    shard = Shard(make_schema(), 64, RUN, number=3)
    with pytest.raises(ValueError, match="shard 3 is empty"):
        shard.sample(4)


def test_acknowledgements_carry_room_and_policy() -> None:
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 320, RUN, 1, 4), Player(schema)
    assert not shard.ask(0).may_play
    shard.steer(33, 7, "where it is")
    # There is room for a block of 32 and for one more transition, for which another block may be begun.
    assert [shard.ask(collector).may_play for collector in (0, 0, 5, 6)] == [True, True, True, False]
    assert shard.stats().reserved == 64
    assert shard.add(tuple(player.block())) == (1, 4, 0, True, False, 7, "where it is")
    shard.release(5)
    assert shard.stats().reserved == 0
    shard.steer(0, 6, "an old one")
    assert shard.ask(0) == (1, 4, -1, False, False, 7, "where it is")


def test_stats_tell_of_each_episode_once() -> None:
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 320, RUN), Player(schema)
    asked: list[float] = []
    for _ in range(4):
        shard.add(tuple(player.block()))
        stats = shard.stats(len(asked))
        asked += [reward for reward, *_ in stats.episodes]
        assert stats.n_episodes == len(asked) and stats.newest == {(0, 0): player.builder.sequence - 1}
    assert asked == [float(step) for step in range(64) if step % 7 == 6 for _ in range(2)]
    shard.steer(0, 100)
    assert shard.stats(len(asked)).newest == {}
    shard.add(tuple(player.block()))  # whose policy was that of step 64
    assert [shard.stats().policy_lag for _ in range(2)] == [36, 36]
    assert stats.added == stats.size == 128 and stats.wire_bytes > 0


def test_what_is_held_is_counted() -> None:
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 3 * schema.cells, RUN), Player(schema)
    for _ in range(7):
        shard.add(tuple(player.block()))
        held = sum(len(data) for slot in shard.kept if slot is not None for chunks in slot.chunks for data in chunks)
        assert shard.stats().held_bytes == held > 0


@pytest.mark.parametrize("alpha", [None, 0.6])
def test_a_checkpoint_goes_on(tmp_path: Path, alpha: float | None) -> None:
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 3 * schema.cells, RUN, alpha=alpha), Player(schema)
    messages = [tuple(player.block()) for _ in range(6)]
    for message in messages[:5]:
        shard.add(message)
    if alpha is not None:
        shard.update_priorities(np.array([100, 101]), np.array([9.0, 8.0]))
    assert save_shard(shard, tmp_path / "s", "one") == 160
    other = Shard(schema, 3 * schema.cells, RUN, incarnation=1, alpha=alpha)
    assert load_shard(other, tmp_path / "s", "one") == 160
    assert other.drawer.total(other.size) == shard.drawer.total(shard.size)
    rows, n_envs = map(np.ravel, np.meshgrid(np.arange(48), np.arange(2)))
    for mine, theirs in zip(shard.table.read(rows, n_envs), other.table.read(rows, n_envs), strict=True):
        assert np.array_equal(mine, theirs)
    assert [other.add(message).added for message in messages] == [False] * 5 + [True]
    check_values(schema, other.sample(64).arrays)
    # Saving again writes what is new.
    before = sum(path.stat().st_size for path in (tmp_path / "s").iterdir())
    save_shard(other, tmp_path / "s", "two", "one")
    assert sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) < before + 3 * len(messages[5][-1]) + 2500
    for changed in (
        Shard(schema, 32, RUN),
        Shard(schema, 96, RUN, 1),
        Shard(schema, 96, b"x" * 16),
        Shard(make_schema(1), 96, RUN),
    ):
        with pytest.raises(StorageError):
            load_shard(changed, tmp_path / "s", "two")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    schema = make_schema(1, 16)
    shard, player = Shard(schema, 64, RUN), Player(schema)
    shard.add(tuple(player.block()))
    save_shard(shard, tmp_path, "one")
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        for place in range(0, len(data), 7):
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            with pytest.raises(StorageError):
                load_shard(Shard(schema, 64, RUN), tmp_path, "one")
        path.write_bytes(data)
    assert load_shard(Shard(schema, 64, RUN), tmp_path, "one") == 16


def test_two_threads_at_once() -> None:
    """One adds while the other samples and a third one saves nothing: every sample was played."""
    schema = make_schema(2, 16)
    shard, player = Shard(schema, 4 * schema.cells, RUN, seed=0), Player(schema)
    shard.add(tuple(player.block()))
    messages = [tuple(player.block()) for _ in range(60)]
    failed: list[BaseException] = []

    def read() -> None:
        try:
            for number in itertools.count():
                check_values(schema, all_batches(schema, shard.sample(8, 2, bool(number % 2))))
                if shard.blocks == 61:
                    return
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for message in messages:
        shard.add(message)
    reader.join(60)
    assert not failed and not reader.is_alive()
