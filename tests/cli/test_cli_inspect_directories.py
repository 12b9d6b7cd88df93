"""inspect: directories that buffers were saved to, rings on disk and checkpoints; sound ones, damaged ones, hostile ones."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN

from sb3_extra_buffers import (
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    GpuReplayBuffer,
    ResumableCheckpoint,
    load_buffer,
)
from sb3_extra_buffers.cli import main
from sb3_extra_buffers.storage.directory import MANIFEST, pack_manifest, unpack_manifest

IMAGE = spaces.Box(0, 255, (30, 30), np.uint8)
ACTIONS = spaces.Discrete(3)
BOTH = spaces.Dict({"picture": IMAGE, "vector": spaces.Box(-1, 1, (3,), np.float32)})


class OfSomebodyElse(CompressedReplayBuffer):
    """A class that no list of ours has."""


def fill(buffer: Any, rows: int = 40) -> Any:
    rng = np.random.default_rng(0)
    for _ in range(rows):
        obs: Any = rng.integers(0, 256, (2, 30, 30), np.uint8)
        if isinstance(buffer.observation_space, spaces.Dict):
            obs = {"picture": obs, "vector": np.zeros((2, 3), np.float32)}
        buffer.add(obs, obs, np.zeros(2), np.zeros(2), np.zeros(2), [{}] * 2)
    return buffer


def replay(cls: Any = CompressedReplayBuffer, space: Any = IMAGE, **options: Any) -> Any:
    return fill(cls(100, space, ACTIONS, "cpu", n_envs=2, **options))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "b"
    replay().save(path)
    return path


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "buffer.sb3x"))


def facts(path: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["inspect", str(path), "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def change(path: Path, **changes: Any) -> None:
    """Write another manifest, whose checksum is right."""
    body = unpack_manifest((path / MANIFEST).read_bytes(), "")
    for name in ("magic", "format", "checksum"):
        body.pop(name)
    (path / MANIFEST).write_bytes(pack_manifest({**body, **changes}))


def said_of(path: Path) -> dict[str, Any]:
    return unpack_manifest((path / MANIFEST).read_bytes(), "")


def test_a_saved_buffer(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(saved)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "buffer.sb3x: a saved buffer",
        "CompressedReplayBuffer",
        "80 of 100 (2 environments)",
        "Box (30, 30) uint8",
        "Discrete 3",
        "delta",
        "in 3 chunks",
        "sb3-extra-buffers 1.",
        "checksums are right",
    ):
        assert text in shown, text
    found = facts(saved, capsys)
    assert (found["rows"], found["most_rows"], found["n_envs"], found["damage"]) == (40, 50, 2, [])
    assert found["file_bytes"] == sum(file.stat().st_size for file in saved.iterdir())


def test_other_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay(CompressedDictReplayBuffer, BOTH).save(tmp_path / "dict")
    found = facts(tmp_path / "dict", capsys)
    assert found["observation_space"] == "Dict picture: Box (30, 30) uint8, vector: Box (3,) float32"
    replay(GpuReplayBuffer).save(tmp_path / "device")
    assert facts(tmp_path / "device", capsys)["class"] == "GpuReplayBuffer"
    replay(OfSomebodyElse).save(tmp_path / "other")
    assert facts(tmp_path / "other", capsys)["subclass"].endswith("OfSomebodyElse")
    actions = spaces.MultiDiscrete([2, 3])
    CompressedRolloutBuffer(16, spaces.MultiBinary(5), actions, "cpu", n_envs=2).save(tmp_path / "rollout")
    found = facts(tmp_path / "rollout", capsys)
    assert (found["transitions"], found["capacity"], found["compression"]) == (0, 32, [])
    assert (found["observation_space"], found["action_space"]) == ("MultiBinary 5", "MultiDiscrete [2, 3]")
    assert main(["inspect", str(tmp_path / "rollout")]) == 0


def test_a_ring_on_disk_that_is_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer = replay(storage_dir=str(tmp_path / "ring"))
    buffer.flush()
    found = facts(tmp_path / "ring", capsys)
    assert found["kind"] == "a ring on disk" and found["rows"] == 40
    buffer.close()


def flip(path: Path, which: str, place: int = 0) -> None:
    body = said_of(path)
    name = body["frames"][0]["spans"][place][0] if which == "chunk" else body["rows"][0]["pieces"][place]
    pack, offset, size, _ = body["parts"][name]
    file = path / body["packs"][pack]
    data = bytearray(file.read_bytes())
    data[offset + size // 2] ^= 1
    file.write_bytes(data)


def test_damage_is_named(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(saved, "chunk", 1)
    flip(saved, "rows")
    assert main(["inspect", str(saved)]) == 2
    shown = capsys.readouterr().out
    assert "2 problems" in shown and "(observations, rows 16 to 31)" in shown and "actions, rewards and the like" in shown
    assert "repair=True" in shown and shown.count("0000000001.pack is damaged: the checksum of") == 2
    assert len(facts(saved, capsys, 2)["damage"]) == 2


@pytest.mark.parametrize("harm", ["missing", "cut short", "a pipe", "a link", "a folder"])
def test_packs_that_cannot_be_read(harm: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = saved / said_of(saved)["packs"][0]
    data = pack.read_bytes()
    pack.unlink()
    if harm == "cut short":
        pack.write_bytes(data[:100])
    elif harm == "a pipe":
        os.mkfifo(pack)
    elif harm == "a link":
        (saved.parent / "elsewhere").write_bytes(data)
        pack.symlink_to(saved.parent / "elsewhere")
    elif harm == "a folder":
        pack.mkdir()
    found = facts(saved, capsys, 2)
    assert len(found["damage"]) == found["parts"]


def test_every_flipped_bit_is_found(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for file in sorted(saved.iterdir()):
        data = file.read_bytes()
        for place in rng.integers(0, len(data), 12).tolist():
            changed = bytearray(data)
            changed[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            assert main(["inspect", str(saved)]) == 2, (file.name, place)
        for size in (0, 1, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:size])
            assert main(["inspect", str(saved)]) == 2, (file.name, size)
        file.write_bytes(data)
    capsys.readouterr()
    assert facts(saved, capsys)["damage"] == []


DEEP: Any = {"type": "Box", "dtype": "<f4", "shape": [1]}
for _ in range(200):
    DEEP = {"type": "Dict", "spaces": [["a", DEEP]]}
HOSTILE: dict[str, dict[str, Any]] = {
    "no class": {"class": None},
    "a class that is a list": {"class": ["CompressedReplayBuffer"]},
    "a class of somebody else": {"class": "os.system"},
    "no arguments": {"arguments": None},
    "numbers without end": {"values": {"pos": 10**4000, "full": False}},
    "rows that are text": {"values": {"pos": "\x1b[31m", "full": False}},
    "frames that are a number": {"frames": 7},
    "frames of nothing": {"frames": [{}]},
    "rows of nothing": {"rows": [[]]},
    "chunks of numbers": {"frames": [{"chunks": [1], "open": None, "coder": {"method": "delta"}}]},
    "huge chunks": {"frames": [{"chunks": [["x", 10**4000, 1, 0]], "open": None, "coder": {"method": "delta"}}]},
    "a chunk that is not there": {"frames": [{"chunks": [["x", 0, 16, 0]], "open": None, "coder": {"method": "delta"}}]},
    "a path": {"packs": ["../../etc/passwd"]},
    "parts of nothing": {"parts": {"x": [9, 0, 0, 0]}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests(name: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(saved, **HOSTILE[name])
    assert main(["inspect", str(saved)]) == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


def test_spaces_within_spaces(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(saved, arguments={**said_of(saved)["arguments"], "observation_space": DEEP})
    main(["inspect", str(saved)])
    assert len(capsys.readouterr().out) < 10_000


def test_nothing_reaches_the_terminal(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = said_of(saved)["arguments"]
    evil = "\x1b]0;owned\x07\r\u202e\x00"
    space = {"type": "Dict", "spaces": [[evil, arguments["observation_space"]]]}
    change(saved, version=evil, subclass=evil, arguments={**arguments, "observation_space": space})
    place = saved.rename(saved.parent / f"bad{chr(27)}[2J name")
    for options in ([], ["--json"]):
        main(["inspect", str(place), *options])
        shown = capsys.readouterr()
        assert "owned" in shown.out and all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


def test_parts_that_are_one_another(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = said_of(saved)
    large = max(body["parts"].values(), key=lambda part: part[2])
    change(saved, parts=body["parts"] | {f"again{number}": large for number in range(50_000)})
    assert main(["inspect", str(saved)]) == 2
    assert "it does not say what is where" in capsys.readouterr().err


def test_memory_does_not_follow_the_manifest(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arguments = said_of(saved)["arguments"]
    wide = {**arguments["observation_space"], "shape": [1 << 40, 1 << 20]}
    change(saved, arguments={**arguments, "observation_space": wide, "buffer_size": 1 << 47, "n_envs": 1})
    main(["inspect", str(saved)])
    (saved / MANIFEST).write_bytes(b'{"magic":"sb3-extra-buffers",' + b"[" * (20 << 20))
    assert main(["inspect", str(saved)]) == 2
    assert "do not load it" in capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_newer_version(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (saved / MANIFEST).read_bytes()
    body = json.loads(text)
    body.pop("checksum")
    from sb3_extra_buffers.storage._core import checksum

    data = json.dumps({**body, "format": 99, "version": "9.9"}, separators=(",", ":")).encode()[:-1]
    (saved / MANIFEST).write_bytes(data + b',"checksum":"%08x"}\n' % checksum(data))
    assert main(["inspect", str(saved)]) == 2
    assert "install a newer one" in capsys.readouterr().err


def test_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "holds no saved buffer" in capsys.readouterr().err


def test_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"replay_buffer_class": CompressedReplayBuffer, "buffer_size": 100, "device": "cpu"}
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=1_000, policy_kwargs={"net_arch": [4]}, **options)
    model.learn(40, callback=ResumableCheckpoint(tmp_path / "run", every=20, keep=2))
    found = facts(tmp_path / "run", capsys)
    names = [checkpoint["name"] for checkpoint in found["checkpoints"]]
    assert found["kind"] == "2 checkpoints of a run" and len(names) == 2 and found["damage"] == []
    assert all(checkpoint["buffer"]["class"] == "CompressedReplayBuffer" for checkpoint in found["checkpoints"])
    newest = tmp_path / "run" / names[0]
    assert main(["inspect", str(newest)]) == 0 == main(["inspect", str(newest / "buffer.sb3x")])
    assert load_buffer(newest / "buffer.sb3x").size() == found["checkpoints"][0]["buffer"]["rows"]
    data = bytearray((newest / "model.zip").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "model.zip").write_bytes(data)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().out
    assert f"{names[0]}: model.zip: its size or its checksum is wrong" in shown and "resume()" in shown
    (newest / "checkpoint.json").write_bytes(b"\x1b[2J")
    assert main(["inspect", str(newest)]) == 2
    assert "\x1b" not in capsys.readouterr().out
