"""Blocks as bytes: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_lanes import EPISODE, RUN, Player, make_schema

from sb3_extra_buffers.distributed.block import HEADER_BYTES, Name, decode_block, read_name
from sb3_extra_buffers.distributed.errors import BlockError
from sb3_extra_buffers.distributed.schema import Schema
from sb3_extra_buffers.distributed.shard import Shard
from sb3_extra_buffers.storage._core import checksum

SCHEMA = make_schema()
MESSAGES = [player.block() for player in (Player(SCHEMA, 3, 1),) for _ in range(3)]


def test_a_block_comes_back() -> None:
    for sequence, message in enumerate(MESSAGES):
        block = decode_block(message, SCHEMA, RUN)
        assert block.name == Name(3, 1, sequence) == read_name(message)
        assert block.first_step == block.policy_version == sequence * SCHEMA.block_steps
        again = replace(block, chunks=[[bytes(chunk) for chunk in chunks] for chunks in block.chunks])
        assert again.encode() == message
        ended = [
            step for step in range(block.first_step, block.first_step + SCHEMA.block_steps) if step % EPISODE == EPISODE - 1
        ]
        told = [(episode.lane, episode.step + block.first_step, episode.reward) for episode in block.episodes]
        assert told == [(lane, step, float(step)) for step in ended for lane in range(SCHEMA.lanes)]


def test_nothing_of_a_block_is_a_pickle() -> None:
    """Whoever reads blocks runs no code that is in them."""
    code = "import sys, pickle; pickle.loads = pickle.load = pickle.Unpickler = None\n" + (
        "from sb3_extra_buffers.distributed.shard import Shard\nfrom sb3_extra_buffers.distributed.schema import Schema\n"
        f"shard = Shard(Schema.from_json({SCHEMA.to_json()!r}), 64, {RUN!r})\n"
        f"assert shard.add(bytes.fromhex({MESSAGES[0].hex()!r})).added and shard.sample(4).batches == 1\n"
        "print([name for name in ('torch', 'stable_baselines3', 'gymnasium', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_every_flipped_bit_is_found() -> None:
    message = MESSAGES[0]
    shard = Shard(SCHEMA, 1, RUN)
    for place in range(len(message)):
        damaged = bytearray(message)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(BlockError):
            shard.add(bytes(damaged))
    for size in range(len(message)):
        with pytest.raises(BlockError):
            shard.add(message[:size])
    assert shard.blocks == 0 and shard.refused == 2 * len(message)
    assert shard.add(message).added


@given(data=st.data())
def test_hostile_bodies_are_refused(data: st.DataObject) -> None:
    """Somebody who computes checksums can write what they like, and it is either a block or refused."""
    message = MESSAGES[0]
    head = bytearray(message[:HEADER_BYTES])
    body = bytearray(zlib.decompress(message[HEADER_BYTES:-4]))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, 160), st.integers(0, len(body) - 1)))
        body[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    if data.draw(st.booleans()):
        head[-4:] = struct.pack("<I", len(body))
    packed = bytes(head) + zlib.compress(bytes(body), 1)
    shard = Shard(SCHEMA, 64, RUN)
    try:
        shard.add(packed + struct.pack("<I", checksum(packed)))
    except BlockError:
        assert shard.blocks == 0
    else:
        shard.sample(32)


def test_a_bomb_is_refused() -> None:
    for said in (1 << 16, (1 << 32) - 1):
        packed = MESSAGES[0][: HEADER_BYTES - 4] + struct.pack("<I", said) + zlib.compress(bytes(1 << 28), 1)
        with pytest.raises(BlockError, match=r"bytes"):
            decode_block(packed + struct.pack("<I", checksum(packed)), SCHEMA, RUN)


def test_what_is_packed_in_another_way_is_refused() -> None:
    flags = struct.calcsize("<8sH")
    packed = bytearray(MESSAGES[0][:-4])
    packed[flags] |= 2
    with pytest.raises(BlockError, match="packed in a way that is not known here"):
        decode_block(bytes(packed) + struct.pack("<I", checksum(bytes(packed))), SCHEMA, RUN)


@pytest.mark.parametrize(
    ("schema", "run", "what"),
    [
        (SCHEMA, b"another run.....", "another run"),
        (make_schema(lanes=3), RUN, "other observations"),
        (make_schema(block_steps=32), RUN, "other observations"),
        (make_schema(is_dict=False), RUN, "other observations"),
    ],
)
def test_blocks_of_others_are_refused(schema: Schema, run: bytes, what: str) -> None:
    with pytest.raises(BlockError, match=what):
        Shard(schema, 64, run).add(MESSAGES[0])


def test_a_schema_as_text() -> None:
    for schema in (SCHEMA, make_schema(1, 64, False, "zstd/3")):
        assert Schema.from_json(schema.to_json()) == schema
        assert Schema.from_json(schema.to_json()).digest == schema.digest
    assert SCHEMA.digest != make_schema(1).digest
    for text in (
        "{}",
        "[]",
        SCHEMA.to_json().replace('"lanes"', '"lines"'),
        SCHEMA.to_json().replace('"version":1', '"version":2'),
    ):
        with pytest.raises(ValueError):
            Schema.from_json(text)


@pytest.mark.parametrize("steps", [0, 8, 24, 8192])
def test_block_steps_are_checked(steps: int) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        make_schema(block_steps=steps)


def test_actions_that_do_not_fit_are_refused() -> None:
    player = Player(replace(SCHEMA, stored_action_dtype="|u1"))
    with pytest.raises(ValueError, match="do not fit"):
        player.step()
    assert player.builder.steps == 0


def test_a_block_is_sealed_when_it_is_complete() -> None:
    player = Player(SCHEMA)
    with pytest.raises(ValueError, match="0 of 16 steps"):
        player.builder.seal()
    for _ in range(SCHEMA.block_steps):
        player.step()
    with pytest.raises(ValueError, match="complete"):
        player.step()
    assert player.builder.seal()
