"""
What is in a directory: a saved buffer, a ring on disk, or checkpoints. Every checksum is verified.

A manifest may say anything, so nothing is constructed from what it says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sb3_extra_buffers._support import counted, format_bytes
from sb3_extra_buffers.cli.errors import UsageError
from sb3_extra_buffers.cli.inspect.text import Description, number, space_text
from sb3_extra_buffers.storage._core import Chunk, checksum
from sb3_extra_buffers.storage.directory import REPAIR, DamagedFileError, SavedDirectory
from sb3_extra_buffers.storage.disk import DISK
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.json_values import from_json, make_dtype, make_shape
from sb3_extra_buffers.storage.manifests import MANIFEST

_MOST_MANIFEST = 16 << 20  # where packs do not explain more; in memory, JSON takes up to twenty times as much
_MANIFEST_SHARE = 64
_MOST_DAMAGES = 1000
_MOST_CHOICES = 20  # of a MultiDiscrete space that are written out
_LARGEST_COUNT = 1 << 48
_TRIES = 5
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def describe_directory(path: Path) -> Description:
    """Describe a directory."""
    from sb3_extra_buffers.training_utils.resuming.folder import MANIFEST as CHECKPOINT
    from sb3_extra_buffers.training_utils.resuming.folder import Checkpoint, checkpoints_in

    names = DISK.names_in(os.fspath(path))
    if MANIFEST in names:
        return _buffer(path)
    if CHECKPOINT in names:
        return _checkpoints(path, [Checkpoint(os.fspath(path), 0)])
    if found := checkpoints_in(os.fspath(path)):
        return _checkpoints(path, found)
    raise UsageError(
        f"{path} is a folder that holds no saved buffer, and no complete checkpoint; give the name of one, or of a file"
    )


# -- buffers ----------------------------------------------------------------------------------------------------------------


def _buffer(path: Path) -> Description:
    for _ in range(_TRIES):
        saved = _open(os.fspath(path))
        facts, damages = _facts_of(saved)
        if damages and saved.has_changed():
            continue  # another state was saved meanwhile, and what this one needs was removed
        kind = "a ring on disk" if facts["is_ring"] else "a saved buffer"
        checked = (
            f"{counted(len(damages), 'problem')}, see below" if damages else f"all {facts['parts']:,} checksums are right"
        )
        lines = [*_lines_of(facts), ("checked", checked)]
        return Description(kind, lines, facts, damage=damages, advice=REPAIR if damages else "")
    raise UsageError(f"{path} is saved more often than it can be read; wait until nothing saves to it")


def _open(path: str) -> SavedDirectory:
    """Open a directory whose manifest does not take more memory than there is."""
    with os.scandir(path) as entries:
        found = [entry.stat(follow_symlinks=False) for entry in entries if entry.name.endswith(".pack")]
    on_disk = sum(min(of.st_size, getattr(of, "st_blocks", of.st_size) * 512) for of in found)  # a file may be all holes
    size = os.lstat(os.path.join(path, MANIFEST)).st_size
    if size > _MOST_MANIFEST + on_disk // _MANIFEST_SHARE:
        raise UsageError(f"{path}/{MANIFEST} has {format_bytes(size)}, more than the buffer needs; do not load it")
    try:
        return SavedDirectory(path)
    except StorageError as error:
        raise UsageError(str(error)) from error


def _facts_of(saved: SavedDirectory) -> tuple[dict[str, Any], list[str]]:
    """What a directory says of its buffer, once every byte of it was looked at, and what is damaged."""
    from sb3_extra_buffers.compressed.files import CLASSES

    name = saved.body.get("class")
    if name not in CLASSES:
        raise UsageError(f"{saved.path} holds a {name!r}, which this version does not know; install a newer one")
    try:
        facts = _buffer_facts(saved.body, {part: of.size for part, of in saved.parts.items()})
        uses = dict(_uses(saved.body))
    except StorageError as error:
        raise UsageError(f"{saved.path}: {error}") from error
    except _MALFORMED as error:
        raise UsageError(f"{saved.path} is damaged, or does not hold a {name}: {error!r}; load another copy of it") from error
    files = _sizes_in(saved.path)
    facts |= {"file_bytes": sum(files.values()), "parts": len(saved.parts), "is_ring": "added.count" in files}
    return facts, _check_parts(saved, uses)


def _part_of_space(space: Any) -> tuple[str, Any]:
    kind = space["type"]
    if kind == "Dict":
        return kind, space["spaces"]
    if kind == "Box":
        return kind, f"{make_shape(space['shape'])} {make_dtype(space['dtype']).name}"
    if kind in ("Discrete", "MultiBinary"):
        n = from_json(space["n"])
        return kind, str(n) if isinstance(n, list) else number(int(n))
    if kind == "MultiDiscrete":
        return kind, str(from_json(space["nvec"]).reshape(-1)[:_MOST_CHOICES].tolist())
    raise ValueError(f"{kind!r} is not a space that can be loaded")


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST_COUNT:
        raise ValueError(f"{value!r} is not a number of rows or environments")
    return value


def _buffer_facts(body: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    arguments, values = body["arguments"], body["values"]
    size, n_envs = _count(arguments["buffer_size"]), _count(arguments["n_envs"])
    rows = size if "Rollout" in body["class"] else max(size // max(n_envs, 1), 1)
    used = rows if values["full"] else _count(values["pos"])
    chunks = {str(span[0]) for column in body["frames"] for span in column["spans"]}
    pieces = [name for table in body["rows"] for name in table["pieces"]]
    return {
        "class": body["class"],
        "subclass": body["subclass"],
        "version": str(body["version"]),
        "rows": used,
        "most_rows": rows,
        "n_envs": n_envs,
        "transitions": used * n_envs,
        "capacity": rows * n_envs,
        "observation_space": space_text(arguments["observation_space"], _part_of_space),
        "action_space": space_text(arguments["action_space"], _part_of_space),
        "compression": sorted({str(column["coder"]["method"]) for column in body["frames"]}),
        "chunks": len(chunks),
        "chunk_bytes": sum(sizes.get(name, 0) for name in chunks),
        "plain_bytes": sum(sizes.get(str(name), 0) for name in pieces),
    }


def _lines_of(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    used = f"{facts['transitions']:,} of {facts['capacity']:,} ({counted(facts['n_envs'], 'environment')})"
    observations = f"{format_bytes(facts['chunk_bytes'])} in {counted(facts['chunks'], 'chunk')}"
    return [
        ("class", f"{facts['class']}, saved by {facts['subclass']}" if facts["subclass"] else facts["class"]),
        ("files", format_bytes(facts["file_bytes"])),
        ("transitions", used),
        ("observation space", facts["observation_space"]),
        ("action space", facts["action_space"]),
        ("compression", ", ".join(facts["compression"]) or "none: observations are small"),
        ("observations", observations),
        ("actions and the like", format_bytes(facts["plain_bytes"])),
        ("written by", f"sb3-extra-buffers {facts['version']}"),
    ]


def _uses(body: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, int, int, int]]]:
    """What each part is: a word for it, its first row, the one after its last, and rows that its chunk needs, or 0."""
    for column in body["frames"]:
        for name, chunk_row, first, rows in column["spans"]:
            yield str(name), ("observations", _count(first), _count(first) + _count(rows), _count(chunk_row) + _count(rows))
    for table in body["rows"]:
        each, used = _count(table["piece_rows"]), _count(table["used"])
        for place, name in enumerate(table["pieces"]):
            what = "actions, rewards and the like" if table["name"] == "rows" else str(table["name"])
            yield str(name), (what, place * each, min((place + 1) * each, used), 0)


def _check_parts(saved: SavedDirectory, uses: Mapping[str, tuple[str, int, int, int]]) -> list[str]:
    """Read every part once."""
    damages = [f"{name} is missing" for name in uses if name not in saved.parts]
    for name in saved.parts:
        what, first, stop, chunk_rows = uses.get(name, ("what nothing refers to", 0, 0, 0))
        try:
            data = saved.read(name)
            if chunk_rows and Chunk(data).rows < chunk_rows:
                raise DamagedFileError(f"{name} has fewer rows than it should have")
        except StorageError as error:
            rows = f" ({what}, rows {first:,} to {stop - 1:,})" if stop > first else f" ({what})"
            damages.append(str(error).removesuffix(f"; {REPAIR}").removeprefix(f"{saved.path}{os.sep}") + rows)
        if len(damages) >= _MOST_DAMAGES:
            return [*damages, "there may be more"]
    return damages


def _sizes_in(path: str) -> dict[str, int]:
    """The files in a directory, with their sizes."""
    with os.scandir(path) as entries:
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries if not entry.is_dir()}


# -- checkpoints ------------------------------------------------------------------------------------------------------------


def _checkpoints(path: Path, found: list[Any]) -> Description:
    lines: list[tuple[str, str]] = []
    listed: list[dict[str, Any]] = []
    damages: list[str] = []
    for checkpoint in found:
        name = os.path.basename(os.path.abspath(checkpoint.path))
        facts, wrong = _checkpoint(checkpoint)
        state = f"damaged: {wrong[0]}" if wrong else "all checksums are right"
        steps = facts.get("num_timesteps")
        text = f"{counted(steps, 'step')}, " if isinstance(steps, int) and steps.bit_length() <= 64 else ""
        lines.append((name, f"{text}{format_bytes(facts['file_bytes'])}, {state}"))
        listed.append({"name": name, **facts, "damage": wrong})
        damages += [f"{name}: {what}" for what in wrong]
    total = sum(facts["file_bytes"] for facts in listed)
    advice = "resume() takes the newest one that is not damaged; remove those that are, or restore them from another copy"
    return Description(
        "a checkpoint" if len(found) == 1 else f"{counted(len(found), 'checkpoint')} of a run",
        lines,
        {"checkpoints": listed, "file_bytes": total},
        damage=damages[:_MOST_DAMAGES],
        advice=advice if damages else "",
    )


def _checkpoint(checkpoint: Any) -> tuple[dict[str, Any], list[str]]:
    """What a checkpoint says of itself, and what of it is damaged."""
    from sb3_extra_buffers.training_utils.resuming.folder import BUFFER, read_manifest

    facts: dict[str, Any] = {"file_bytes": sum(_sizes_in(checkpoint.path).values())}
    try:
        manifest = read_manifest(checkpoint)
        facts["num_timesteps"], facts["algorithm"] = manifest.get("num_timesteps"), str(manifest.get("algorithm"))
        damages = [
            f"{name}: its size or its checksum is wrong"
            for name, expected in manifest["files"].items()
            if os.path.basename(name) != name or _sum_of(os.path.join(checkpoint.path, name)) != expected
        ]
        if manifest["buffer"]:
            saved = _open(os.path.join(checkpoint.path, BUFFER))
            facts["buffer"], wrong = _facts_of(saved)
            facts["file_bytes"] += facts["buffer"]["file_bytes"]
            damages += [f"{BUFFER}: {what}" for what in wrong]
    except (StorageError, UsageError, OSError) as error:
        return facts, [str(error)]
    except _MALFORMED as error:
        return facts, [f"it does not say what it holds: {error!r}"]
    return facts, damages


def _sum_of(path: str) -> list[int]:
    """Size and checksum of a file, which is not read to memory as a whole."""
    handle, size = DISK.open(path)
    try:
        return [size, checksum(memoryview(DISK.map(handle, size)))] if size else [0, checksum(b"")]
    finally:
        DISK.close(handle)
