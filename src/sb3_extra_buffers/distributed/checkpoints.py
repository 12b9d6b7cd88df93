"""
Checkpoints: a directory for each shard, models, and a manifest that says which of them belong together.

A save gives its checkpoint a new name. Each shard adds a state of that name to its directory and keeps the state that the
manifest names; blocks that both have are written once. The model goes to a file of that name. Then the manifest is
replaced, in one step, and from then on the new checkpoint counts. At last ``model.zip`` becomes that of the checkpoint;
``load_manifest`` does that, too, in case the process was killed before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sb3_extra_buffers.distributed.blocks import pack, unpack
from sb3_extra_buffers.distributed.shard import PriorityDrawer, Shard, Slot
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.directory import DamagedFileError, Replacement, SavedDirectory

_SHARD, _FLEET = "shard", "fleet"
MODEL = "model.zip"
NUMBERS = "n_collectors", "envs_per_collector", "n_shards", "block_steps"
"""Options that a restored fleet must have, too."""
DEFAULTS = (
    *("max_lead", "publish_every", "exploration", "on_shard_loss", "checkpoint_every", "compression_method"),
    *("timeout", "start_timeout", "seed"),
)
"""Options that a restored fleet has unless it is given others."""


# -- shards ---------------------------------------------------------------------------------------------------------------


def save_shard(shard: Shard, path: str | os.PathLike[str], name: str, keep: str | None = None) -> int:
    """
    Save a shard, which may be written to meanwhile, under the name of a checkpoint. Of what was saved in the directory before,
    the checkpoint ``keep`` stays. Return the transitions that the shard counted.
    """
    steps, arrays = shard.schema.block_steps, shard.table.arrays
    with shard.table.lock:
        blocks, added = shard.blocks, shard.added
        numbers = range(max(blocks - shard.slots, 0), blocks)
        kept = [shard.kept[number % shard.slots] for number in numbers]
        drawer = shard.drawer
        shares = np.array(drawer.tree.leaves) if isinstance(drawer, PriorityDrawer) else None
        highest = drawer.highest if isinstance(drawer, PriorityDrawer) else 1.0
        copies = [arrays[column.name].copy() for column in shard.schema.columns]
        seen = [[*who, settled, sorted(known)] for who, (settled, known) in shard.seen.items()]
    nbytes = sum(len(data) for slot in kept if slot is not None for chunks in slot.chunks for data in chunks)
    old = _state_of(path, keep)
    with Replacement(path, nbytes) as files:
        states = {}
        if old is not None:
            with contextlib.suppress(KeyError, DamagedFileError):  # what is damaged cannot be kept
                names = [_block_name(old["run"], held["name"]) for held in old["held"]]
                for part in (*names, *([] if old["priorities"] is None else [old["priorities"]])):
                    files.keep(part)
                states[keep] = old
        held = []
        for number, slot in zip(numbers, kept, strict=True):
            assert slot is not None
            first = number % shard.slots * steps
            held.append(_put_block(shard, slot, [copy[first : first + steps] for copy in copies], files))
        states[name] = {
            "schema": shard.schema.digest,
            "run": shard.run.hex(),
            "number": shard.number,
            "capacity": shard.capacity,
            "blocks": blocks,
            "held": held,
            "seen": seen,
            "highest": highest,
            "priorities": None if shares is None else _put_shares(shares, files),
        }
        files.commit({"kind": _SHARD, "states": states})
    return added


def _state_of(path: str | os.PathLike[str], name: str | None) -> Any:
    if name is None:
        return None
    try:
        return SavedDirectory(path).body["states"].get(name)
    except (OSError, StorageError, KeyError, AttributeError, TypeError):
        return None


def _block_name(run: str, name: Sequence[int]) -> str:
    return "block-{}-{}-{}-{}".format(run, *name)


def _put_block(shard: Shard, slot: Slot, columns: list[Any], files: Replacement) -> dict[str, Any]:
    part = _block_name(shard.run.hex(), slot.name)
    try:
        files.keep(part)  # what a block holds follows from its name
    except (KeyError, DamagedFileError):
        files.put(part, pack(columns, slot.chunks)[1])
    sizes = [[len(chunk) for chunk in of_key] for of_key in slot.chunks]
    return {"name": slot.name, "splits": slot.splits, "sizes": sizes}


def _put_shares(shares: Any, files: Replacement) -> str:
    data = shares.tobytes()
    return files.put(f"priorities-{hashlib.blake2b(data, digest_size=12).hexdigest()}", data)


def load_shard(shard: Shard, path: str | os.PathLike[str], checkpoint: str) -> int:
    """Fill an empty shard with what was saved of it under the name of a checkpoint. Return the transitions that it counts."""
    saved = SavedDirectory(path)
    try:
        if saved.body["kind"] != _SHARD or checkpoint not in saved.body["states"]:
            raise ValueError(f"it holds no checkpoint {checkpoint}")
        state = saved.body["states"][checkpoint]
        if state["schema"] != shard.schema.digest or state["run"] != shard.run.hex():
            raise ValueError("it holds other observations or actions, or is of another run")
        if (state["number"], state["capacity"]) != (shard.number, shard.capacity):
            raise ValueError(
                f"it is shard {state['number']} of {state['capacity']} transitions, not shard {shard.number} of "
                f"{shard.capacity}; restore with the same number of shards and the same buffer_size"
            )
        blocks, held = state["blocks"], state["held"]
        if type(blocks) is not int or not isinstance(held, list) or len(held) != min(blocks, shard.slots) or blocks < 0:
            raise ValueError(f"{blocks!r} blocks do not fit")
        seen = {(int(c), int(i)): (int(settled), set(map(int, known))) for c, i, settled, known in state["seen"]}
        shard.blocks = blocks - len(held)
        for block in held:
            collector, incarnation, sequence = map(int, block["name"])
            name = collector, incarnation, sequence
            data = saved.read(_block_name(state["run"], name))
            columns, chunks = unpack(shard.schema, block["sizes"], data)
            splits = tuple((int(axis), int(group)) for axis, group in block["splits"])
            shard.put(Slot(name, splits, chunks), columns)
        shard.seen = seen
        if isinstance(shard.drawer, PriorityDrawer) and state["priorities"] is not None:
            shares = np.frombuffer(saved.read(state["priorities"]), np.float64)
            shard.drawer.tree.set(np.arange(shard.capacity), shares)
            shard.drawer.highest = float(state["highest"])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise StorageError(f"{saved.path} is not what this shard was saved to: {error}") from error
    return shard.added


# -- fleets ---------------------------------------------------------------------------------------------------------------


class Manifest(NamedTuple):
    """What a checkpoint says."""

    name: str
    run: bytes
    incarnation: int
    """The highest of all collectors."""
    settings: dict[str, Any]
    model: str | None
    """Name of the file of the model."""


def save_fleet(
    folder: str,
    save_shards: Callable[[str, str | None], None],
    model: Any,
    run: bytes,
    incarnation: int,
    settings: dict[str, Any],
) -> str:
    """
    Save all shards and the model, and then the manifest, which makes them count. ``save_shards`` saves them as ``save_shard``
    does, under the name of a checkpoint, and keeps another one. Return the name.
    """
    os.makedirs(folder, exist_ok=True)
    try:
        old: Manifest | None = read_manifest(folder)
    except (OSError, StorageError):
        old = None
    name, file = secrets.token_hex(8), None
    save_shards(name, None if old is None else old.name)
    if model is not None:
        file = f"model-{name}.zip"
        model.save(os.path.join(folder, file))
        _sync(os.path.join(folder, file))
    elif old is not None and old.run == run:
        file = old.model
    about = {"run": run.hex(), "incarnation": incarnation, "settings": settings, "model": file}
    with Replacement(os.path.join(folder, _FLEET)) as files:
        files.commit({"kind": _FLEET, "name": name, **about})
    _place_model(folder, file)
    for left in os.listdir(folder):
        if left.startswith("model-") and left.endswith(".zip") and left != file:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, left))
    return name


def _place_model(folder: str, file: str | None) -> None:
    """Have ``model.zip`` be the model of the checkpoint."""
    target = os.path.join(folder, MODEL)
    if file is None:
        return
    source, staged = os.path.join(folder, file), os.path.join(folder, f"model-{secrets.token_hex(8)}.zip")
    if os.path.exists(target) and os.path.samefile(source, target):
        return
    try:
        os.link(source, staged)
    except OSError:  # this file system has no links
        shutil.copyfile(source, staged)
        _sync(staged)
    os.replace(staged, target)
    _sync(folder)


def _sync(path: str) -> None:
    """Wait until a file or a folder is on the disk."""
    if os.path.isdir(path):
        with contextlib.suppress(OSError):  # Windows and some network file systems do not sync folders
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    else:
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read what a checkpoint says; ``StorageError`` where that makes no sense."""
    body = SavedDirectory(os.path.join(folder, _FLEET)).body
    try:
        settings, run = dict(body["settings"]), bytes.fromhex(body["run"])
        if body["kind"] != _FLEET or not set(NUMBERS) <= set(settings) <= {*NUMBERS, *DEFAULTS} or len(run) != 16:
            raise ValueError("its manifest is not that of a fleet")
        if any(type(settings[name]) is not int for name in NUMBERS) or type(body["incarnation"]) is not int:
            raise ValueError("its numbers are none")
        if not isinstance(body["name"], str) or os.path.basename(str(body["model"])) != str(body["model"]):
            raise ValueError("it names no files")
        return Manifest(body["name"], run, body["incarnation"], settings, body["model"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{os.fspath(folder)} is not a checkpoint of a fleet: {error}") from error


def load_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read what a checkpoint says, and put ``model.zip`` right if a save was cut off before it did."""
    manifest = read_manifest(folder)
    _place_model(os.fspath(folder), manifest.model)
    return manifest
