"""Blocks: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import zlib
from dataclasses import replace
from typing import Any

import pytest
from numbered_envs import EPISODE, RUN, Player, make_schema

from sb3_extra_buffers.distributed.blocks import Block, BlockError, Schema, deflate, unpack, wire_bytes
from sb3_extra_buffers.distributed.shard import Shard

SCHEMA = make_schema()
BLOCKS = [player.block() for player in (Player(SCHEMA, 3, 1),) for _ in range(3)]


def test_a_block_has_a_name_and_the_episodes_that_have_ended_in_it() -> None:
    for sequence, block in enumerate(BLOCKS):
        first = sequence * SCHEMA.block_steps
        assert block.name == (3, 1, sequence) and block.policy_version == first
        ended = [step for step in range(first, first + SCHEMA.block_steps) if step % EPISODE == EPISODE - 1]
        assert block.episodes == tuple((float(step), EPISODE, 0.5, -1) for step in ended for _ in range(SCHEMA.n_envs))
        columns, chunks = unpack(SCHEMA, block.sizes, block.data)
        assert [len(column) for column in columns] == [SCHEMA.block_steps] * len(SCHEMA.columns) and len(chunks) == 1
        assert type(pickle.loads(pickle.dumps(tuple(block)))) is tuple and wire_bytes(tuple(block)) < len(block.data) + 400


def test_a_shard_needs_neither_torch_nor_sb3() -> None:
    code = (
        "import sys, pickle; from sb3_extra_buffers.distributed.shard import Shard\n"
        f"shard = Shard(pickle.loads({pickle.dumps(SCHEMA)!r}), 64, {RUN!r})\n"
        f"assert shard.add({tuple(BLOCKS[0])!r}).added and shard.sample(4).batches == 1\n"
        "print([name for name in ('torch', 'stable_baselines3', 'gymnasium', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_every_flipped_bit_is_found() -> None:
    block, shard, body = BLOCKS[0], Shard(SCHEMA, 1, RUN), zlib.decompress(BLOCKS[0].data)
    damaged = [block.data[:size] for size in range(len(block.data))]
    for place in range(len(block.data)):
        changed = bytearray(block.data)
        changed[place] ^= 1 << place % 8
        damaged.append(bytes(changed))
    for data in damaged:
        with contextlib.suppress(zlib.error):  # a few bits of a stream mean nothing
            if zlib.decompress(data) == body:
                continue
        with pytest.raises(BlockError, match="is damaged"):
            shard.add(tuple(block._replace(data=data)))
    assert shard.blocks == 0 and shard.refused > 1.9 * len(block.data) and shard.stats().newest == {}
    assert shard.add(tuple(block)).added


def test_damage_below_the_stream_is_found() -> None:
    """The checksum of a chunk finds what was wrong before it was deflated."""
    block, body = BLOCKS[0], bytearray(zlib.decompress(BLOCKS[0].data))
    size, shard = sum(sum(sizes) for sizes in block.sizes), Shard(SCHEMA, 1, RUN)
    for place in range(len(body) - size, len(body), 11):
        body[place] ^= 16
        with pytest.raises(BlockError, match="is damaged"):
            shard.add(tuple(block._replace(data=deflate(bytes(body)))))
        body[place] ^= 16
    for sizes in ((), ((size - 1,),), ((size, 1),), ((),)):
        with pytest.raises(BlockError, match="is damaged"):
            shard.add(tuple(block._replace(sizes=sizes)))
    assert shard.blocks == 0


@pytest.mark.parametrize(
    ("schema", "run"),
    [
        (SCHEMA, b"another run....."),
        (make_schema(n_envs=3), RUN),
        (make_schema(block_steps=32), RUN),
        (make_schema(is_dict=False), RUN),
        (make_schema(method="gzip/1"), RUN),
    ],
)
def test_blocks_of_others_are_refused(schema: Schema, run: bytes) -> None:
    with pytest.raises(BlockError, match=r"block \(3, 1, 0\) is of another run or holds other observations"):
        Shard(schema, 64, run).add(tuple(BLOCKS[0]))


def test_a_schema_is_the_same_elsewhere() -> None:
    for schema in (SCHEMA, make_schema(1, 64, False, "zstd/3")):
        again: Any = pickle.loads(pickle.dumps(schema))
        assert again == schema and again.digest == schema.digest
    assert SCHEMA.digest != make_schema(1).digest and isinstance(BLOCKS[0], Block)


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
