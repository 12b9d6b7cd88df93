"""Blocks on their way: calls fail, answers are lost, actors die, and nothing is lost unannounced or added twice."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from network import Network
from numbered_envs import RUN, Player, check_values, make_schema, stamps_of_block

from sb3_extra_buffers.distributed.checkpoints import load_shard, save_shard
from sb3_extra_buffers.distributed.clock import Clock
from sb3_extra_buffers.distributed.collector import Outbox
from sb3_extra_buffers.distributed.shard import Shard

SCHEMA = make_schema(2, 16)
SHARDS, COLLECTORS, SLOTS = 2, 2, 64

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["play"] * 4 + ["deliver"] * 6 + ["fail", "lose answer", "wait", "save", "tell", "kill shard", "kill collector"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


class Cluster:
    """What a fleet does, without processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network([self.new_shard(number, 0) for number in range(SHARDS)])
        self.clock = Clock(SHARDS, SCHEMA.cells)
        self.players = [Player(SCHEMA, number) for number in range(COLLECTORS)]
        self.outboxes = [self.new_outbox(number) for number in range(COLLECTORS)]
        self.announced = self.retired_blocks = self.acknowledged = 0
        # What each shard has acknowledged, by name, as collectors have heard.
        self.promised: list[set[tuple[int, int, int]]] = [set() for _ in range(SHARDS)]

    def new_shard(self, number: int, incarnation: int) -> Shard:
        shard = Shard(SCHEMA, SLOTS * SCHEMA.cells, RUN, number, incarnation)
        shard.steer(1 << 40)
        return shard

    def new_outbox(self, number: int) -> Outbox:
        outbox = Outbox(self.network, list(self.network.handles), number, self.network.now)
        for handle in self.network.handles:
            outbox.replace(handle.shard.number, handle, handle.shard.incarnation)
        return outbox

    def pump(self, number: int) -> None:
        outbox, before = self.outboxes[number], list(self.outboxes[number]._unacknowledged)
        outbox.poll(0)
        for sequence in set(before) - set(outbox._unacknowledged):
            self.acknowledged += 1
            self.promised[outbox.shard_of(sequence)].add((number, self.players[number].who[1], sequence))

    def play(self, number: int) -> None:
        self.pump(number)
        if self.outboxes[number].has_room():
            self.outboxes[number].push(self.players[number].block(self.outboxes[number].settled))

    def save(self, number: int) -> None:
        save_shard(self.network.shards[number], self.folder / str(number), "saved")

    def kill_shard(self, number: int) -> None:
        old = self.network.shards[number]
        new = self.new_shard(number, old.incarnation + 1)
        restored = load_shard(new, self.folder / str(number), "saved") if (self.folder / str(number)).exists() else 0
        handle = self.network.replace(number, new)
        players = zip(self.players, self.outboxes, strict=True)
        told = {player.who: outbox.replace(number, handle, new.incarnation) for player, outbox in players}
        lost = self.clock.replace(number, new.incarnation, restored, new.seen, told, new.capacity)
        held = {tuple(slot.name) for slot in new.kept if slot is not None}
        gone = self.promised[number] - held
        assert lost >= len(gone) * SCHEMA.cells, "a loss was not announced"
        self.promised[number] &= held
        self.announced += lost

    def note(self, shard: Shard) -> None:
        stats = shard.stats()
        self.clock.note(stats.shard, stats.incarnation, stats.added, stats.newest)

    def kill_collector(self, number: int) -> None:
        incarnation = self.players[number].who[1] + 1
        if incarnation < 4:
            for shard in self.network.shards:  # what only this collector knows would be unknown
                self.note(shard)
            self.retired_blocks += self.players[number].builder.sequence
            self.players[number], self.outboxes[number] = Player(SCHEMA, number, incarnation), self.new_outbox(number)

    def happen(self, event: str, which: int) -> None:
        network = self.network
        actions: dict[str, Any] = {
            "play": lambda: self.play(which % COLLECTORS),
            "deliver": lambda: network.deliver(which),
            "fail": lambda: network.fail(which),
            "lose answer": lambda: network.deliver(which, answers=False),
            "save": lambda: self.save(which % SHARDS),
            "tell": lambda: self.note(network.shards[which % SHARDS]),
            "kill shard": lambda: self.kill_shard(which % SHARDS),
            "kill collector": lambda: self.kill_collector(which % COLLECTORS),
        }
        if event == "wait":
            network.time += 6.0
            for number in range(COLLECTORS):
                self.pump(number)
        else:
            actions[event]()

    def check(self) -> None:
        """Everything that was promised is there, nothing is there twice, and all of it was played."""
        everywhere: list[tuple[int, int, int]] = []
        for shard in self.network.shards:
            names = [tuple(slot.name) for slot in shard.kept if slot is not None]
            assert len(names) == len(set(names)) == shard.blocks, "a block was added twice"
            assert self.promised[shard.number] <= set(names), "a block was acknowledged and is not there"
            assert all((collector + sequence) % SHARDS == shard.number for collector, _, sequence in names)
            everywhere += names
            if names:
                rows = np.arange(len(names) * SCHEMA.block_steps).repeat(2)
                *values, actions, rewards, dones, timeouts = shard.table.read(rows, np.tile([0, 1], len(rows) // 2))
                final = (dones & ~timeouts).astype(np.float32)[:, None]
                stamps = check_values(SCHEMA, [*values, actions, rewards[:, None], final, np.full((len(rows), 1), 0.99)])
                assert set(stamps) == set().union(*(stamps_of_block(SCHEMA, name) for name in names))
        assert len(everywhere) == len(set(everywhere)), "a block is in two shards"


@example(events=[("play", 0), ("deliver", 0), ("play", 0), ("deliver", 0), ("save", 0), ("kill shard", 0)])
@given(events=EVENTS)
def test_nothing_is_lost_unannounced_or_added_twice(events: list[tuple[str, int]]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        cluster = Cluster(folder)
        for event, which in events:
            cluster.happen(event, which)
        cluster.check()
        # Once the network works again, everything that is on its way arrives.
        for _ in range(4):
            cluster.network.run()
            cluster.network.time += 6.0
            for number in range(COLLECTORS):
                cluster.pump(number)
        assert all(outbox.settled == outbox.sequence for outbox in cluster.outboxes)
        cluster.check()
        for shard in cluster.network.shards:
            cluster.note(shard)
        played = cluster.retired_blocks + sum(player.builder.sequence for player in cluster.players)
        # A block counts once, however often it was sent, and to however many incarnations of its shard.
        assert cluster.acknowledged * SCHEMA.cells <= cluster.clock.total <= played * SCHEMA.cells
        assert cluster.clock.lost == cluster.announced <= played * SCHEMA.cells
    finally:
        shutil.rmtree(folder)


def test_a_collector_waits_for_room() -> None:
    network = Network([Shard(SCHEMA, 640, RUN, number) for number in range(2)])
    player, outbox = Player(SCHEMA), Outbox(network, list(network.handles), 0, network.now)
    outbox.poll(0)
    assert not outbox.has_room() and [call[2] for call in network.calls] == ["ask"]
    outbox.poll(0)
    assert len(network.calls) == 1  # it does not ask twice at once
    network.run()
    outbox.poll(0)
    assert not outbox.has_room()
    network.shards[0].steer(1, 3, "policy")
    outbox.poll(0)
    network.run()
    outbox.poll(0)
    assert outbox.has_room() and outbox.newest is not None and outbox.newest[-2:] == (3, "policy")
    outbox.push(player.block())
    assert not outbox.has_room() and outbox.waits_for() == [0]  # the next block is for the other shard
    assert (outbox.settled, outbox.sequence) == (0, 1)
    network.run()
    outbox.poll(0)
    assert (outbox.settled, outbox.sequence) == (1, 1)
    assert network.shards[0].stats().reserved == 0


def test_a_call_that_has_failed_is_made_again() -> None:
    """Ray takes an actor for unavailable, whether or not the call was carried out."""
    network = Network([Shard(SCHEMA, 640, RUN)])
    network.shards[0].steer(640)
    player, outbox = Player(SCHEMA), Outbox(network, list(network.handles), 0, network.now)
    for fail in (lambda: network.deliver(answers=False), network.fail):
        for what in ("ask", "add"):
            outbox.poll(0)
            if what == "add":
                outbox.push(player.block())
            elif outbox.has_room():
                continue
            fail()
            outbox.poll(0)
            outbox.poll(0)
            assert what not in [call[2] for call in network.calls]  # not at once
            network.time += 2.0
            outbox.poll(0)
            assert what in [call[2] for call in network.calls]
            network.run()
            outbox.poll(0)
            assert outbox.settled == outbox.sequence
    assert outbox.resent == 2 and network.shards[0].blocks == 2 and network.shards[0].duplicates == 1


def test_an_answer_of_a_shard_that_was_given_up_does_not_count() -> None:
    network = Network([Shard(SCHEMA, 640, RUN)])
    network.shards[0].steer(640)
    player, outbox = Player(SCHEMA), Outbox(network, list(network.handles), 0, network.now)
    outbox.poll(0)
    network.run()
    outbox.poll(0)
    outbox.push(player.block())
    (ref, old, call, args) = network.calls.pop()

    def replace() -> None:
        """While the collector waits, the shard is replaced; it was only stopped, and goes on."""
        network.on_wait = lambda: None
        network.answers[ref] = getattr(old.shard, call)(*args)
        outbox.replace(0, network.replace(0, Shard(SCHEMA, 640, RUN, 0, 1)), 1)

    network.on_wait = replace
    outbox.poll(0)
    assert outbox.settled == 0 and outbox.resent == 1
    network.run()
    outbox.poll(0)
    assert outbox.settled == 1 and network.shards[0].blocks == 1
