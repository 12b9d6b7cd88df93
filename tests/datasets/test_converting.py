"""Transitions go from one form to another and back without a loss; hostile files are refused, and nothing in them is run."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_kit import ACTIONS, SPACES, assert_same, in_order, pair
from file_kit import make
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_extra_buffers import (
    convert,
    export_npz,
    export_pickle,
    open_dataset,
    replay_from_minari,
    replay_from_npz,
    replay_from_pickle,
    replay_from_recording,
)
from sb3_extra_buffers.cli.app import main
from sb3_extra_buffers.compressed import CompressedReplayBuffer, StorageError
from sb3_extra_buffers.recording import CompressedRecordBuffer, FramelessRecordBuffer, export_minari

KINDS = ["images", "vectors", "numbers", "dict"]


def same_transitions(one: Any, other: Any) -> None:
    """Two buffers hold the same, oldest first."""
    rows, others = in_order(one), in_order(other)
    assert one.observation_space == other.observation_space and one.action_space == other.action_space
    assert one.n_envs == other.n_envs and len(rows) == len(others)
    for name in ("actions", "rewards", "dones", "timeouts"):
        assert np.array_equal(getattr(one, name)[rows], getattr(other, name)[others]), name
    for name in ("observations", "next_observations"):
        mine, theirs = getattr(one, name), getattr(other, name)
        for key in mine if isinstance(mine, dict) else [None]:
            a, b = (mine, theirs) if key is None else (mine[key], theirs[key])
            assert np.array_equal(np.asarray(a[rows]), np.asarray(b[others])), (name, key)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 30, 100])
def test_npz_and_back(kind: str, steps: int, tmp_path: Path) -> None:
    ours, theirs, _ = pair(kind, 40, 2, steps, actions="wide" if kind == "dict" else "discrete")
    ours.save(tmp_path / "buffer")
    for source in (ours, theirs, open_dataset(tmp_path / "buffer"), tmp_path / "buffer"):
        assert export_npz(source, tmp_path / "buffer.npz") == theirs.size() * 2
        same_transitions(replay_from_npz(tmp_path / "buffer.npz"), theirs)
    with np.load(tmp_path / "buffer.npz", allow_pickle=False) as file:
        assert file["rewards"].shape == (theirs.size(), 2)
        assert np.array_equal(file["rewards"], theirs.rewards[in_order(theirs)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["buffer", "buffer.npz"]


def test_npz_of_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "observations": rng.normal(size=(100, 3)).astype(np.float32),
        "next_observations": rng.normal(size=(100, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (100, 2)).astype(np.float32),
        "rewards": rng.normal(size=100).astype(np.float32),
        "terminals": rng.random(100) < 0.1,
        "timeouts": rng.random(100) < 0.1,
    }
    np.savez(tmp_path / "d4rl.npz", **arrays)
    buffer = replay_from_npz(tmp_path / "d4rl.npz")
    assert buffer.n_envs == 1 and buffer.size() == 100 and buffer.action_space == spaces.Box(-1, 1, (2,), np.float32)
    assert np.array_equal(buffer.observations[:, 0], arrays["observations"])
    assert np.array_equal(buffer.actions[:, 0], arrays["actions"])
    assert np.array_equal(buffer.dones[:, 0] * (1 - buffer.timeouts[:, 0]), arrays["terminals"])
    assert np.array_equal(buffer.dones[:, 0] > 0, arrays["terminals"] | arrays["timeouts"])
    wide = spaces.Box(-2, 2, (2,), np.float32)
    scaled = replay_from_npz(tmp_path / "d4rl.npz", action_space=wide)
    assert np.allclose(scaled.actions[:, 0], arrays["actions"] / 2, atol=1e-6)
    pictures = {**arrays, "observations": np.zeros((100, 2, 16, 16), np.uint8), "actions": np.arange(100) % 5}
    pictures["next_observations"] = pictures["observations"]
    pictures["dones"] = pictures.pop("terminals")
    del pictures["timeouts"]
    np.savez_compressed(tmp_path / "pictures.npz", **pictures)
    buffer = replay_from_npz(tmp_path / "pictures.npz")
    assert buffer.action_space == spaces.Discrete(5) and buffer.observation_space == spaces.Box(0, 255, (2, 16, 16), np.uint8)
    assert np.array_equal(buffer.dones[:, 0], arrays["terminals"]) and not buffer.timeouts.any()

    def refused(message: str, **other: Any) -> None:
        given = {name: value for name, value in {**arrays, **other}.items() if value is not None}
        np.savez(tmp_path / "wrong.npz", **given)
        with pytest.raises(StorageError, match=message):
            replay_from_npz(tmp_path / "wrong.npz")

    refused("no array 'next_observations'", next_observations=None)
    refused("no array 'rewards'", rewards=None)
    refused("'observations' has the shape", observations=arrays["observations"][:50])
    refused("give action_space=", actions=arrays["actions"] * 3)
    refused("rewards have the shape", rewards=np.zeros((100, 1, 1)))
    refused("Fortran", observations=np.asfortranarray(arrays["observations"]))
    with pytest.raises(StorageError, match="is of type float32, but"):
        replay_from_npz(tmp_path / "d4rl.npz", observation_space=spaces.Box(-1, 1, (3,), np.float64))


class Hostile:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_hostile_npz(tmp_path: Path) -> None:
    ours, _, _ = pair("images", 20, 1, 20)
    path = tmp_path / "buffer.npz"
    export_npz(ours, path)
    content = path.read_bytes()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    trap = np.empty(20, object)
    trap[:] = [Hostile(tmp_path / "trace")] * 20
    np.savez(path, **{**arrays, "rewards": trap})  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="pickled and could run code"):
        replay_from_npz(path)
    assert not (tmp_path / "trace").exists()
    # Every prefix, and bits everywhere: an error, or the same.
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(StorageError):
            replay_from_npz(path)
    for place in range(0, len(content), 53):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = replay_from_npz(path)
        except StorageError:
            continue
        same_transitions(found, ours)

    def rewritten(name: str, data: bytes) -> None:
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                new.writestr(info.filename, data if info.filename == name else old.read(info))

    rewritten("spaces.npy", b"")
    with pytest.raises(StorageError):
        replay_from_npz(path)
    for said in ("{}", "[]", "1", '{"observation_space": {"type": "Text"}, "action_space": {}}', "[" * 5000):
        data = io.BytesIO()
        np.save(data, np.array(said))
        rewritten("spaces.npy", data.getvalue())
        with pytest.raises(StorageError):
            replay_from_npz(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(StorageError, match="not an npz file"):
        replay_from_npz(path)
    with pytest.raises(FileNotFoundError):
        replay_from_npz(tmp_path / "nothing.npz")


@pytest.mark.parametrize("kind", ["images", "dict"])
def test_pickles_of_sb3(kind: str, tmp_path: Path) -> None:
    ours, theirs, _ = pair(kind, 40, 2, 60)
    save_to_pkl(tmp_path / "sb3.pkl", theirs)
    with pytest.raises(ValueError, match=r"was not opened: a pickle can run any code.*allow_pickle=True"):
        replay_from_pickle(tmp_path / "sb3.pkl")
    same_transitions(replay_from_pickle(tmp_path / "sb3.pkl", allow_pickle=True), theirs)
    ours.save(tmp_path / "buffer")
    assert export_pickle(tmp_path / "buffer", tmp_path / "back.pkl") == 80
    back = load_from_pkl(tmp_path / "back.pkl")
    assert type(back) is (DictReplayBuffer if kind == "dict" else ReplayBuffer)
    same_transitions(back, theirs)


def test_pickles_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "hostile.pkl").write_bytes(pickle.dumps(Hostile(tmp_path / "trace")))
    with pytest.raises(ValueError, match="was not opened"):
        replay_from_pickle(tmp_path / "hostile.pkl")
    assert not (tmp_path / "trace").exists()
    with pytest.raises(StorageError, match="holds a NoneType, not a replay buffer"):
        replay_from_pickle(tmp_path / "hostile.pkl", allow_pickle=True)
    with pytest.raises(FileNotFoundError):
        replay_from_pickle(tmp_path / "nothing.pkl", allow_pickle=True)


@pytest.mark.parametrize("steps", [15, 60])
def test_optimized_buffers_of_sb3(steps: int) -> None:
    """What SB3 samples from such a buffer, with the next observation that it has."""
    from sb3_extra_buffers.datasets.filling import copy_of

    theirs = ReplayBuffer(
        40, SPACES["vectors"], ACTIONS["discrete"], "cpu", 2, optimize_memory_usage=True, handle_timeout_termination=False
    )
    _, _, play = pair("vectors", 1, 2, 0)
    for _ in range(steps):
        play.step(theirs)
    found = copy_of(theirs)
    assert found.size() == min(steps, 19)
    samples = [theirs._get_samples(np.full(64, row)) for row in range(theirs.buffer_size if theirs.full else theirs.pos)]
    mine = {
        float(reward): next_obs.tolist()
        for reward, next_obs in zip(found.rewards.flat, found.next_observations.reshape(-1, 3), strict=False)
    }
    seen = {
        float(reward): next_obs.tolist()
        for row, sample in enumerate(samples)
        if not (theirs.full and row == theirs.pos)
        for reward, next_obs in zip(sample.rewards, sample.next_observations, strict=True)
    }
    assert mine == seen


def test_minari_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    for kind, actions in (("dict", "discrete"), ("vectors", "box"), ("vectors", "wide")):
        ours, theirs, _ = pair(kind, 40, 1, 60, actions=actions)
        export_minari(ours, "tests/play-v0", overwrite=True)
        found = replay_from_minari("tests/play-v0")
        if actions == "wide":
            assert np.allclose(found.actions, theirs.actions[in_order(theirs)], atol=1e-6)
            found.actions[:] = theirs.actions[in_order(theirs)]
        # Resets in between are no ends in SB3's buffer, and Minari has no others.
        rows = in_order(theirs)
        cut = (found.dones > 0) & (theirs.dones[rows] == 0)
        assert (found.timeouts[cut] == 1).all()
        theirs.dones[rows] += cut
        theirs.timeouts[rows] += cut
        same_transitions(found, theirs)
    with pytest.raises(FileNotFoundError, match="no Minari dataset"):
        replay_from_minari("tests/other-v0")


def test_recordings(tmp_path: Path) -> None:
    recording = CompressedRecordBuffer(
        None, frame_shape=(16, 16, 3), action_shape=(2,), action_dtype=np.float32, metadata=dict_of_spaces()
    )
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    actions = rng.uniform((-2, 0), (2, 10), (40, 2)).astype(np.float32)
    ends = {9: ("done", frames[10] // 2), 19: ("done", None), 29: ("timeout", frames[30] // 2), 34: ("timeout", None)}
    for step in range(39):
        end, final = ends.get(step, ("", None))
        recording.add(frames[step], float(step), actions[step], done=bool(end), truncated=end == "timeout", final_frame=final)
    recording.save(tmp_path / "play.rec")
    buffer = replay_from_recording(tmp_path / "play.rec")
    kept = [step for step in range(39) if step not in (34, 38)]  # nobody knows what followed these
    assert buffer.size() == len(kept) and buffer.observation_space == spaces.Box(0, 255, (3, 16, 16), np.uint8)
    turned = frames.transpose(0, 3, 1, 2)
    assert np.array_equal(buffer.observations[: len(kept), 0], turned[kept])
    following = {9: turned[10] // 2, 19: turned[19], 29: turned[30] // 2}
    expected = np.stack([following.get(step, turned[step + 1]) for step in kept])
    assert np.array_equal(buffer.next_observations[: len(kept), 0], expected)
    assert buffer.rewards[: len(kept), 0].tolist() == kept
    assert [kept[row] for row in np.flatnonzero(buffer.dones[:, 0])] == [9, 19, 29]
    assert [kept[row] for row in np.flatnonzero(buffer.timeouts[:, 0])] == [29]
    low, high = ACTIONS["wide"].low, ACTIONS["wide"].high  # type: ignore[attr-defined]
    assert np.allclose(low + (buffer.actions[: len(kept), 0] + 1) / 2 * (high - low), actions[kept], atol=1e-5)
    plain = replay_from_recording(recording, channels_first=False)
    assert plain.observation_space.shape == (16, 16, 3)
    with pytest.raises(ValueError, match="is empty"):
        replay_from_recording(CompressedRecordBuffer(None, frame_shape=(16, 16)))
    with pytest.raises(ValueError, match="no frames"):
        replay_from_recording(FramelessRecordBuffer(None))


def dict_of_spaces() -> dict[str, Any]:
    from sb3_extra_buffers._spaces import describe_space

    return {
        "frame_space": describe_space(spaces.Box(0, 255, (16, 16, 3), np.uint8)),
        "action_space": describe_space(ACTIONS["wide"]),
    }


@pytest.mark.parametrize("kind", ["her", "prioritized n-step"])
def test_directories_of_other_classes_become_plain_ones(kind: str, tmp_path: Path) -> None:
    buffer, _ = make(kind, 100)
    buffer.save(tmp_path / "buffer")
    assert convert(tmp_path / "buffer", tmp_path / "plain.sb3x") == 80
    assert_same(open_dataset(tmp_path / "plain.sb3x")[:], open_dataset(tmp_path / "buffer")[:])


def test_names_tell_what_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, _ = pair("images", 40, 1, 60)
    ours.save(tmp_path / "a.sb3x")
    monkeypatch.chdir(tmp_path)
    route = ["a.sb3x", "b.npz", "c", "d.pkl"]
    try:
        import minari  # noqa: F401
    except ImportError:
        pass
    else:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        assert convert("a.sb3x", "minari:tests/there-v0") == 40
        assert convert("minari:tests/there-v0", "from_minari.sb3x") == 40
        with pytest.raises(ValueError, match="already exists"):
            convert("a.sb3x", "minari:tests/there-v0")
    for source, target in itertools.pairwise(route):
        assert convert(source, target) == 40
        with pytest.raises(FileExistsError, match=r"already exists.*overwrite=True"):
            convert(source, target)
    assert_same(open_dataset("c")[:], open_dataset("a.sb3x")[:])
    assert convert("a.sb3x", "b.npz", overwrite=True) == convert("a.sb3x", "c", overwrite=True) == 40
    with pytest.raises(ValueError, match="was not opened"):
        convert("d.pkl", "f.sb3x")
    with pytest.raises(ValueError, match=r"ends with \.mp4; allowed"):
        convert("a.sb3x", "f.mp4")
    with pytest.raises(ValueError, match="is what is to be converted"):
        convert("a.sb3x", "../" + tmp_path.name + "/a.sb3x", overwrite=True)
    with pytest.raises(FileNotFoundError, match="no file or directory"):
        convert("nothing", "f.sb3x")
    with pytest.raises(FileNotFoundError, match="create it first"):
        convert("a.sb3x", "nowhere/f.npz")
    Path("text.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match="is none of these"):
        convert("text.txt", "f.sb3x")
    assert not os.path.exists("f.sb3x")
    same_transitions(CompressedReplayBuffer.load("c"), theirs)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _, _ = pair("vectors", 40, 1, 60)
    ours.save(tmp_path / "a.sb3x")
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "a.sb3x", "b.npz"]) == 0
    assert "b.npz: 40 transitions, " in capsys.readouterr().out
    assert main(["convert", "a.sb3x", "b.npz"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["convert", "a.sb3x", "c.pkl", "--force"]) == 0
    assert main(["convert", "c.pkl", "d.sb3x"]) == 2
    said = capsys.readouterr().err
    assert "can run any code" in said and "--allow-pickle" in said and not os.path.exists("d.sb3x")
    assert main(["convert", "c.pkl", "d.sb3x", "--allow-pickle"]) == 0
    assert "opening a pickle" in capsys.readouterr().err
    assert main(["convert", "a.sb3x", "e.npz", "--allow-pickle"]) == 0
    assert "pickle" not in capsys.readouterr().err
    assert_same(open_dataset("d.sb3x")[:], open_dataset("a.sb3x")[:])
