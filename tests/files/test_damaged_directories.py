"""Whatever has happened to the files of a directory: an error, or exactly what was saved, and no other file is read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk_simulator import SimulatedDisk
from file_kit import PATH, held, load, make, save
from gymnasium import spaces

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.compressed.saved_spaces import describe_space
from sb3_extra_buffers.storage.directory import MANIFEST, pack_manifest
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.json_values import make_dtype


class Small(CompressedReplayBuffer):
    """Compresses observations of a few bytes."""

    raw_below = 0


def small() -> Small:
    buffer = Small(3, spaces.Box(0, 255, (6,), np.uint8), spaces.Discrete(2), "cpu")
    for step in range(4):
        obs = np.arange(step, step + 6, dtype=np.uint8)[None]
        buffer.add(obs, obs + 1, np.zeros(1), np.array([step]), np.zeros(1), [{}])
    return buffer


@pytest.fixture(scope="module")
def saved() -> tuple[SimulatedDisk, Any]:
    disk, buffer = SimulatedDisk(), small()
    save(buffer, disk)
    return disk, held(buffer)


def files_of(disk: SimulatedDisk) -> list[str]:
    return [f"{PATH}/{name}" for name in disk.names_in(PATH)]


def refused_or_same(disk: SimulatedDisk, expected: Any) -> bool:
    try:
        found = held(load(disk, cls=Small))
    except StorageError as error:
        assert str(error)
        return True
    assert found == expected, "other content"
    return False


def test_every_bit(saved: tuple[SimulatedDisk, Any], record_property: Any) -> None:
    disk, expected = saved
    refused = total = 0
    for path in files_of(disk):
        content = disk.content_of(path)
        for place in range(len(content)):
            for bit in range(8):
                damaged = bytearray(content)
                damaged[place] ^= 1 << bit
                disk.set_content(path, bytes(damaged))
                refused += refused_or_same(disk, expected)
                total += 1
        disk.set_content(path, content)
    assert refused == total > 10_000
    record_property("times", total)


def test_every_prefix(saved: tuple[SimulatedDisk, Any], record_property: Any) -> None:
    disk, expected = saved
    record_property("times", sum(len(disk.content_of(path)) for path in files_of(disk)))
    for path in files_of(disk):
        content = disk.content_of(path)
        for size in range(len(content)):
            disk.set_content(path, content[:size])
            assert refused_or_same(disk, expected)
        disk.set_content(path, content + b"\0")
        refused_or_same(disk, expected)
        disk.set_content(path, content)


ODD: list[Any] = [-1, 2**24, 2**40, 1.5, "../x", None, [], {}, {"array": ["<f8", [1 << 30], ""]}]


def variants(said: Any) -> Iterator[Any]:
    """The same with one of its parts exchanged, removed, or there twice."""
    yield from ODD
    if isinstance(said, dict):
        for key, part in said.items():
            yield {name: value for name, value in said.items() if name != key}
            for other in variants(part):
                yield {**said, key: other}
        yield {**said, "more": 1}
    elif isinstance(said, list):
        for place, part in enumerate(said):
            yield [*said[:place], *said[place + 1 :]]
            yield [*said[: place + 1], *said[place:]]
            for other in variants(part):
                yield [*said[:place], other, *said[place + 1 :]]


def resident() -> int:
    """Kilobytes that the process has had at most."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


@pytest.mark.memory
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
@pytest.mark.parametrize("kind", ["plain", "prioritized", "her"])
def test_manifests_that_somebody_has_made_up(kind: str, record_property: Any) -> None:
    """Their checksums are right. Loading is an error or works; it reads no other files, nor takes the memory they ask for."""
    buffer, _ = make(kind, 20)
    disk = SimulatedDisk()
    save(buffer, disk)
    body = json.loads(disk.content_of(f"{PATH}/{MANIFEST}"))
    for key in ("magic", "format", "checksum"):
        body.pop(key)
    opened: list[str] = []
    real_open = disk.open
    disk.open = lambda path: (opened.append(path), real_open(path))[1]  # type: ignore[method-assign, assignment]
    allowed = set(files_of(disk))
    before, tried = resident(), 0
    for other in variants(body):
        if not isinstance(other, dict):
            continue
        disk.set_content(f"{PATH}/{MANIFEST}", pack_manifest(other))
        tried += 1
        with contextlib.suppress(StorageError, MemoryError):
            load(disk)
    assert tried > 1000
    record_property("times", tried)
    assert set(opened) <= allowed
    assert resident() - before < 64 << 10


def box(dtype: str, size: int) -> dict[str, Any]:
    return describe_space(spaces.Box(0, 1, (1,), np.dtype(dtype).type)) | {"shape": [size]}


def of_many_spaces(body: dict[str, Any]) -> None:
    body["arguments"]["observation_space"] = {"type": "Dict", "spaces": [[str(key), box("u1", 60 << 20)] for key in range(8)]}


def of_a_large_action(body: dict[str, Any]) -> None:
    body["arguments"]["action_space"] = box("f4", 15 << 20)


def of_rows(rows: int, full: bool = False) -> Any:
    def claim(body: dict[str, Any]) -> None:
        body["arguments"]["buffer_size"] = rows * body["arguments"]["n_envs"]
        for said in body["frames"]:
            said["shape"][0] = rows
        for said in body["rows"]:
            for member in said["members"]:
                member[2][0] = rows
            if full:
                said["used"] = said["piece_rows"] = rows
        if full:
            body["values"] |= {"pos": 0, "full": True}

    return claim


@pytest.mark.memory
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_sizes_that_are_only_claimed_take_no_memory(tmp_path: Path) -> None:
    attacks: list[tuple[str, dict[str, Any], Any, bool]] = [
        ("plain", {}, of_many_spaces, False),
        ("plain", {}, of_a_large_action, False),
        ("plain", {}, of_rows(1 << 46, True), False),
        ("prioritized", {}, of_rows(1 << 46), False),
        ("prioritized", {}, of_rows(1 << 27, True), True),
        ("her", {}, of_rows(1 << 40), False),
        ("her", {}, of_rows(1 << 25, True), True),
        ("her", {"copy_info_dict": True}, of_rows(1 << 26), False),
    ]
    for kind, options, claim, repair in attacks:
        path = tmp_path / "b"
        make(kind, 20, **options)[0].save(path)
        body = json.loads((path / MANIFEST).read_text())
        for key in ("magic", "format", "checksum"):
            body.pop(key)
        claim(body)
        (path / MANIFEST).write_bytes(pack_manifest(body))
        before = resident()
        with pytest.raises(StorageError):
            load(path=path, repair=repair)
        assert resident() - before < 300 << 10, (kind, claim)
        shutil.rmtree(path)


def test_bytes_that_are_counted_several_times(saved: tuple[SimulatedDisk, Any]) -> None:
    for change in ("same place", "same piece"):
        disk = saved[0].copy()
        body = json.loads(disk.content_of(f"{PATH}/{MANIFEST}"))
        if change == "same place":
            first = max(body["parts"], key=lambda name: body["parts"][name][2])
            body["parts"]["more"] = body["parts"][first]
        else:
            said = body["rows"][0]
            said |= {"piece_rows": 1, "pieces": said["pieces"][:1] * said["used"]}
        text = {key: value for key, value in body.items() if key not in ("magic", "format", "checksum")}
        disk.set_content(f"{PATH}/{MANIFEST}", pack_manifest(text))
        with pytest.raises(StorageError, match=r"does not say what is where|twice"):
            load(disk, cls=Small)


@pytest.mark.parametrize(
    "name", ["../0000000001.pack", "/etc/passwd", "a/0000000001.pack", "0000000001.pack\0", "manifest.json"]
)
def test_packs_elsewhere(name: str, saved: tuple[SimulatedDisk, Any]) -> None:
    disk = saved[0].copy()
    body = json.loads(disk.content_of(f"{PATH}/{MANIFEST}"))
    body["packs"] = [name]
    disk.set_content(
        f"{PATH}/{MANIFEST}", pack_manifest({k: v for k, v in body.items() if k not in ("magic", "format", "checksum")})
    )
    with pytest.raises(StorageError, match="does not say what is where"):
        load(disk, cls=Small)


def test_a_name_that_is_there_twice(saved: tuple[SimulatedDisk, Any]) -> None:
    disk = saved[0].copy()
    text = disk.content_of(f"{PATH}/{MANIFEST}")
    body = text[: text.rindex(b',"checksum"')].replace(b'"values":', b'"class":"x","values":')
    from sb3_extra_buffers.storage._core import checksum

    disk.set_content(f"{PATH}/{MANIFEST}", body + b',"checksum":"%08x"}\n' % checksum(body))
    with pytest.raises(StorageError, match="twice"):
        load(disk, cls=Small)


@pytest.mark.skipif(not hasattr(os, "symlink") or os.name != "posix", reason="needs links and pipes")
def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    buffer, _ = make("plain", 20)
    buffer.save(tmp_path / "b")
    (pack,) = (tmp_path / "b").glob("*.pack")
    pack.rename(tmp_path / "elsewhere")
    pack.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot be read"):
        load(path=tmp_path / "b")
    pack.unlink()
    os.mkfifo(pack)
    with pytest.raises(StorageError, match="not a file"):
        load(path=tmp_path / "b")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("options", "storage_dir", "elsewhere"),
        ("arguments", "storage_dir", "elsewhere"),
        ("arguments", "n_steps", "<f8"),
        ("arguments", "n_steps", 0),
        ("arguments", "n_steps", 2**31),
        ("arguments", "gamma", "x"),
        ("arguments", "n_envs", 2**24),
        ("arguments", "handle_timeout_termination", None),
    ],
)
def test_arguments_that_no_buffer_was_saved_with(
    part: str, name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    buffer, _ = make("n-step", 20)
    buffer.save("b")
    body = json.loads(Path("b", MANIFEST).read_text())
    body[part][name] = value
    Path("b", MANIFEST).write_bytes(pack_manifest({k: v for k, v in body.items() if k not in ("magic", "format", "checksum")}))
    with pytest.raises(StorageError, match=name):
        load(path="b")
    assert os.listdir() == ["b"], "a file does not say where to write"


@pytest.mark.parametrize("said", ["02", "f4,f4", "float32", "(2,)<f4", "<f4 ", "|O", "|V8", "<f\u0664", "", 3, None])
def test_types_that_are_none(said: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        make_dtype(said)
