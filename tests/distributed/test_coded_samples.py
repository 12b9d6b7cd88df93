"""Samples on the wire: in another order there, and made by several threads at once."""

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
from numbered_envs import RUN, Player, check_values, make_schema

from sb3_extra_buffers.distributed.blocks import deflate
from sb3_extra_buffers.distributed.client import open_reply
from sb3_extra_buffers.distributed.shard import Shard
from sb3_extra_buffers.storage import StorageError

SCHEMA = make_schema(2, 16)


MESSAGES = [tuple(player.block()) for player in (Player(SCHEMA),) for _ in range(4)]


def make_shard(blocks: int = 3, slots: int = 3) -> Shard:
    shard = Shard(SCHEMA, slots * SCHEMA.cells, RUN, seed=3)
    for message in MESSAGES[:blocks]:
        shard.add(message)
    return shard


def test_a_stream_of_a_machine_without_isal_is_the_same_to_others() -> None:
    code = "import sys; sys.modules['isal'] = None\n" + (
        "from sb3_extra_buffers.distributed.blocks import deflate\nprint(deflate(b'abc' * 99).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert zlib.decompress(bytes.fromhex(done.stdout)) == b"abc" * 99 == zlib.decompress(deflate(b"abc" * 99)), done.stderr


@given(batches=st.integers(1, 3), batch_size=st.integers(1, 8), blocks=st.integers(1, 4))
def test_rows_are_in_the_order_of_play(batches: int, batch_size: int, blocks: int) -> None:
    shard = make_shard(blocks)
    reply = shard.sample(batch_size, batches, True)
    assert reply.places is not None and sorted(reply.places.tolist()) == list(range(batch_size * batches))
    # The first environment of a block, its second one, the next block: steps never go back within an environment.
    block, cell = np.divmod(reply.insertions[np.argsort(reply.places)] % shard.capacity, SCHEMA.cells)
    keys = list(zip(block.tolist(), (cell % 2).tolist(), (cell // 2).tolist(), strict=True))
    assert all(one <= other for one, other in pairwise(keys))
    for number in range(batches):
        values = open_reply(SCHEMA, reply)(number)
        stamps = check_values(SCHEMA, values)
        part = slice(number * batch_size, (number + 1) * batch_size)
        assert [2 * (stamp & 0xFFFF) + (stamp >> 16 & 3) for stamp in stamps] == reply.insertions[part].tolist()


def test_a_damaged_reply_is_refused() -> None:
    reply = make_shard().sample(8, 1, True)
    assert reply.chunks is not None
    for damaged in (b"", reply.chunks[0][0][:-3], b"no stream"):
        with pytest.raises(StorageError, match="samples of shard 0 are damaged"):
            open_reply(SCHEMA, reply._replace(chunks=((damaged,),)))
    with pytest.raises(StorageError):
        open_reply(SCHEMA, reply._replace(chunks=((deflate(b"no chunk"),),)))


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
        shard.add(tuple(player.block()))
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
