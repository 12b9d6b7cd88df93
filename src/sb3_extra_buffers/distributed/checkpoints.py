"""Shards in directories: every block is a part, so saving again writes only those that are new."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from sb3_extra_buffers.distributed.block import Block, Name, decode_block
from sb3_extra_buffers.distributed.drawing import PriorityDrawer
from sb3_extra_buffers.distributed.shard import Shard, Slot
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.directory import Replacement, SavedDirectory

KIND = "shard"
_PRIORITIES = "priorities"


def save_shard(shard: Shard, path: str | os.PathLike[str]) -> int:
    """
    Save a shard; it may be written to meanwhile.

    :param shard: The shard
    :param path: The directory; what was saved there before is replaced in one step
    :return: Transitions that it counted at that moment
    """
    steps, arrays = shard.schema.block_steps, shard.table.arrays
    with shard.table.lock:
        blocks, added = shard.blocks, shard.added
        numbers = range(max(blocks - shard.slots, 0), blocks)
        kept = [shard.kept[number % shard.slots] for number in numbers]
        drawer = shard.drawer
        shares = np.array(drawer.tree.leaves) if isinstance(drawer, PriorityDrawer) else None
        highest = drawer.highest if isinstance(drawer, PriorityDrawer) else 1.0
        copies = {name: array.copy() for name, array in arrays.items()}
        seen = [[*who, settled, sorted(known)] for who, (settled, known) in shard.seen.items()]
    nbytes = sum(len(data) for slot in kept if slot is not None for chunks in slot.chunks for data in chunks)
    with Replacement(path, nbytes) as files:
        names = []
        for number, slot in zip(numbers, kept, strict=True):
            assert slot is not None
            first = number % shard.slots * steps
            names.append(_put_block(shard, slot, {name: copy[first : first + steps] for name, copy in copies.items()}, files))
        body: dict[str, Any] = {
            "kind": KIND,
            "schema": shard.schema.to_json(),
            "run": shard.run.hex(),
            "number": shard.number,
            "capacity": shard.capacity,
            "blocks": blocks,
            "names": names,
            "seen": seen,
            "highest": highest,
            "priorities": None if shares is None else _put_shares(shares, files),
        }
        files.commit(body)
    return added


def _put_block(shard: Shard, slot: Slot, columns: dict[str, Any], files: Replacement) -> str:
    name = "block-{}-{}-{}".format(*slot.name)
    try:
        return files.keep(name)  # what a block holds follows from its name
    except KeyError:
        pass
    ordered = [columns[column.name] for column in shard.schema.columns]
    rest = 0, slot.policy_version, slot.first_step, ordered, slot.chunks, slot.splits
    return files.put(name, Block(shard.schema, shard.run, Name(*slot.name), *rest).encode())


def _put_shares(shares: Any, files: Replacement) -> str:
    data = shares.tobytes()
    return files.put(f"{_PRIORITIES}-{hashlib.blake2b(data, digest_size=12).hexdigest()}", data)


def load_shard(shard: Shard, path: str | os.PathLike[str]) -> int:
    """
    Fill an empty shard with what was saved of it, or of an earlier incarnation.

    :param shard: The shard
    :param path: The directory
    :return: Transitions that it counts then; ``StorageError`` where it was saved of another one
    """
    saved = SavedDirectory(path)
    said = saved.body
    try:
        if said["kind"] != KIND or said["schema"] != shard.schema.to_json() or said["run"] != shard.run.hex():
            raise ValueError("it holds other observations or actions, or is of another run")
        if (said["number"], said["capacity"]) != (shard.number, shard.capacity):
            raise ValueError(
                f"it is shard {said['number']} of {said['capacity']} transitions, not shard {shard.number} of "
                f"{shard.capacity}; restore with the same number of shards and the same buffer_size"
            )
        blocks, names = said["blocks"], said["names"]
        if type(blocks) is not int or not isinstance(names, list) or len(names) != min(blocks, shard.slots) or blocks < 0:
            raise ValueError(f"{blocks!r} blocks do not fit")
        seen = {(int(c), int(i)): (int(settled), set(map(int, known))) for c, i, settled, known in said["seen"]}
        shard.blocks = blocks - len(names)
        for name in names:
            block = decode_block(bytes(saved.read(name)), shard.schema, shard.run)
            shard.put(block)
        shard.seen = seen
        if isinstance(shard.drawer, PriorityDrawer) and said["priorities"] is not None:
            shares = np.frombuffer(saved.read(said["priorities"]), np.float64)
            shard.drawer.tree.set(np.arange(shard.capacity), shares)
            shard.drawer.highest = float(said["highest"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StorageError(f"{saved.path} is not what this shard was saved to: {error}") from error
    return shard.added
