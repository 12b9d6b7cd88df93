"""Samples on the wire: in another order there, within bounds, and made by several threads at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_lanes import RUN, Player, check_values, make_schema

from sb3_extra_buffers.distributed.deflate import deflate, inflate
from sb3_extra_buffers.distributed.replies import Reply, open_reply
from sb3_extra_buffers.distributed.shard import Shard
from sb3_extra_buffers.storage import StorageError

SCHEMA = make_schema(2, 16)


MESSAGES = [player.block() for player in (Player(SCHEMA),) for _ in range(4)]


def make_shard(blocks: int = 3, slots: int = 3) -> Shard:
    shard = Shard(SCHEMA, slots * SCHEMA.cells, RUN, seed=3)
    for message in MESSAGES[:blocks]:
        shard.add(message)
    return shard


@given(data=st.binary(max_size=3000), spare=st.integers(0, 100))
def test_streams_come_back(data: bytes, spare: int) -> None:
    packed = deflate(data)
    assert inflate(packed, len(data) + spare) == zlib.decompress(packed) == data
    if data:
        with pytest.raises(ValueError, match="more than"):
            inflate(packed, len(data) - 1)
    for damaged in (packed[:-1], packed + b"x", b"x" + packed, b""):
        with pytest.raises(ValueError):
            inflate(damaged, len(data))


def test_a_stream_of_a_machine_without_isal_is_the_same_to_others() -> None:
    code = "import sys; sys.modules['isal'] = None\n" + (
        "from sb3_extra_buffers.distributed.deflate import deflate\nprint(deflate(b'abc' * 99).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert inflate(bytes.fromhex(done.stdout), 297) == b"abc" * 99, done.stderr


@given(batches=st.integers(1, 3), batch_size=st.integers(1, 8), blocks=st.integers(1, 4))
def test_rows_are_in_the_order_of_play(batches: int, batch_size: int, blocks: int) -> None:
    shard = make_shard(blocks)
    reply = shard.sample(batch_size, batches, True)
    assert reply.places is not None and sorted(reply.places.tolist()) == list(range(batch_size * batches))
    # The first lane of a block, its second lane, the next block: steps never go back within a lane.
    block, cell = np.divmod(reply.insertions[np.argsort(reply.places)] % shard.capacity, SCHEMA.cells)
    keys = list(zip(block.tolist(), (cell % 2).tolist(), (cell // 2).tolist(), strict=True))
    assert all(one <= other for one, other in pairwise(keys))
    for number in range(batches):
        values = open_reply(SCHEMA, reply)(number)
        stamps = check_values(SCHEMA, values)
        part = slice(number * batch_size, (number + 1) * batch_size)
        assert [2 * (stamp & 0xFFFF) + (stamp >> 16 & 3) for stamp in stamps] == reply.insertions[part].tolist()


def test_a_reply_is_not_inflated_without_end() -> None:
    reply = make_shard().sample(8, 1, True)
    assert reply.chunks is not None

    def with_chunk(data: bytes) -> Reply:
        return reply._replace(chunks=[[data]])

    most = SCHEMA.most_bytes(8)
    for bomb in (deflate(bytes(most + 1)), deflate(bytes(64 * most))):
        with pytest.raises(StorageError, match=r"shard 0 are damaged: it has more than"):
            open_reply(SCHEMA, with_chunk(bomb))
    for damaged in (b"", reply.chunks[0][0][:-3], b"no stream"):
        with pytest.raises(StorageError, match="damaged"):
            open_reply(SCHEMA, with_chunk(damaged))
    with pytest.raises(StorageError):
        open_reply(SCHEMA, with_chunk(deflate(b"no chunk")))


def test_several_threads_sample_at_once() -> None:
    shard, player = make_shard(), Player(SCHEMA, 1)
    failed: list[BaseException] = []

    def read(coded: bool) -> None:
        try:
            for _ in range(30):
                reply = shard.sample(8, 2, coded)
                for number in range(2):
                    check_values(SCHEMA, open_reply(SCHEMA, reply)(number))
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read, args=(coded,)) for coded in (True, True, False)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        shard.add(player.block())
    assert not failed


def test_a_coder_that_has_failed_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make_shard()
    shard.sample(8, 1, True)
    assert shard._coder._table is not None
    frames = type(shard._coder._table.frames[0])
    write, calls = frames.write, [0]

    def fail(self: object, row: int, *rest: object) -> None:
        calls[0] += 1
        if calls[0] == 5:
            raise MemoryError
        write(self, row, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(frames, "write", fail)
    with pytest.raises(MemoryError):
        shard.sample(8, 1, True)
    monkeypatch.undo()
    check_values(SCHEMA, open_reply(SCHEMA, shard.sample(8, 1, True))(0))
