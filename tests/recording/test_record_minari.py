"""To Minari and back, with Minari itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from recording_kit import Scene, assert_same_array, assert_same_recording, filled
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    RecordingError,
    export_minari,
    import_minari,
)

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own for each test, so that nothing of the user's is touched."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def test_a_real_game_comes_back_equal(pong: RecordBuffer) -> None:
    export_minari(pong, "atari/pong/random-v0", algorithm_name="random")
    dataset = minari.load_dataset("atari/pong/random-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 150)
    assert dataset.storage.metadata["algorithm_name"] == "random"
    assert dataset.action_space == gym.spaces.Discrete(6)
    for episode, data in zip(pong.episodes(), dataset.iterate_episodes(), strict=True):
        assert_same_array(data.observations[:-1], episode.frames)
        last = episode.frames[-1] if episode.final_frame is None else episode.final_frame  # type: ignore[index]
        assert_same_array(data.observations[-1], last)
        assert_same_array(data.actions, episode.actions)
        assert_same_array(data.rewards, episode.rewards)
        assert data.truncations[-1] and not data.terminations.any() and not data.truncations[:-1].any()
        assert_same_array(data.infos["frame_number"][:-1], episode.features["frame_number"])
    assert_same_recording(pong, import_minari("atari/pong/random-v0"))
    assert_same_recording(pong, import_minari(dataset, buffer_class=RecordBuffer))


@pytest.mark.parametrize("size", [None, 12])
@pytest.mark.parametrize("steps", [1, 5, 27])
def test_every_kind_of_episode_comes_back(size: int | None, steps: int) -> None:
    recording = filled(
        lambda: RecordBuffer(
            size, (3, 5), np.float32, (2,), np.float32, {"health": np.int16, "map": ((2, 2), np.uint8)}, metadata={"a": [1]}
        ),
        steps,
    )
    recording.end_episode(np.ones((3, 5), np.float32))
    filled(lambda: recording, 2)
    recording.end_episode()
    filled(lambda: recording, 1)
    export_minari(recording, "some-v0")
    back = import_minari("some-v0")
    assert isinstance(back, CompressedRecordBuffer)
    assert_same_recording(recording, back)
    assert back.is_open


def test_datasets_of_others_are_imported() -> None:
    """One in the form in which Minari's own collector hands it over: lists, and infos of all kinds."""
    env = gym.make("CartPole-v1", max_episode_steps=15)
    env.action_space.seed(1)
    buffers = []
    for seed in range(6):
        seen = [env.reset(seed=seed)[0]]
        told: dict[str, list[Any]] = {"actions": [], "rewards": [], "terminations": [], "truncations": []}
        over = False
        while not over:
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            seen.append(obs)
            for values, value in zip(told.values(), (action, reward, terminated, truncated), strict=True):
                values.append(value)
        infos = {"speed": [float(obs[1]) for obs in seen], "word": ["a"] * len(seen), "nested": {"x": [1] * len(seen)}}
        buffers.append(minari.data_collector.EpisodeBuffer(observations=seen, infos=infos, seed=seed, **told))
    dataset = minari.create_dataset_from_buffers("cartpole/random-v0", buffers, env=env)
    rewards = sum(sum(buffer.rewards) for buffer in buffers)
    recording = import_minari("cartpole/random-v0")
    assert recording.n_episodes == dataset.total_episodes
    assert recording[:].reward.sum() == rewards == len(recording)
    assert recording.metadata["env_id"] == "CartPole-v1"
    assert recording.metadata["action_space"]["n"] == 2
    for episode, data in zip(recording.episodes(), dataset.iterate_episodes(), strict=True):
        assert_same_array(episode.frames, data.observations[:-1])
        assert_same_array(episode.final_frame, data.observations[-1])
        assert episode.terminated == data.terminations[-1]
        assert episode.truncated == (data.truncations[-1] and not data.terminations[-1])
        assert_same_array(episode.features["speed"], data.infos["speed"][:-1])
    assert {episode.truncated for episode in recording.episodes()} == {True, False}
    assert recording.feature_specs.keys() == {"speed"}
    assert not import_minari(dataset, info_features=()).feature_specs
    with pytest.raises(ValueError, match="'word'; it has: 'speed'"):
        import_minari(dataset, info_features=("word",))
    # And out again, to another one that says the same.
    export_minari(recording, "cartpole/again-v0")
    again = minari.load_dataset("cartpole/again-v0")
    assert again.observation_space == dataset.observation_space
    for one, other in zip(dataset.iterate_episodes(), again.iterate_episodes(), strict=True):
        assert_same_array(one.observations, other.observations)
        assert_same_array(one.terminations, other.terminations)
        assert_same_array(one.truncations, other.truncations)


def fill_replay(buffers: list[ReplayBuffer], steps: int) -> list[list[dict[str, Any]]]:
    """Add the same steps of two environments to buffers; what each environment went through, episode by episode."""
    rng = np.random.default_rng(0)
    n_envs = buffers[0].n_envs
    is_dict = isinstance(buffers[0].observation_space, gym.spaces.Dict)
    sizes = (4, 7)

    def look() -> Any:
        picture = rng.integers(0, 256, (n_envs, 1, 36, 36), np.uint8)
        return {"camera": picture, "joints": rng.normal(size=(n_envs, 3)).astype(np.float32)} if is_dict else picture

    def one(obs: Any, env: int) -> Any:
        return {key: values[env].copy() for key, values in obs.items()} if is_dict else obs[env].copy()

    told: list[list[dict[str, Any]]] = [[{"obs": [], "actions": [], "end": None}] for _ in range(n_envs)]
    obs = look()
    for step in range(steps):
        seen = look()
        done = np.array([step % size == size - 1 for size in sizes])
        late = done & (step % 2 == 0)
        actions, rewards = rng.integers(0, 4, (n_envs, 1)), rng.normal(size=n_envs)
        for buffer in buffers:
            buffer.add(obs, seen, actions, rewards, done, [{"TimeLimit.truncated": bool(x)} for x in late])
        following = look()
        for env in range(n_envs):
            told[env][-1]["obs"].append(one(obs, env))
            told[env][-1]["actions"].append(int(actions[env, 0]))
            told[env][-1]["last"] = one(seen, env)
            if done[env]:
                told[env][-1]["end"] = "truncated" if late[env] else "terminated"
                told[env].append({"obs": [], "actions": [], "end": None})
        if is_dict:
            obs = {k: np.where(done.reshape(-1, *[1] * (seen[k].ndim - 1)), following[k], seen[k]) for k in seen}
        else:
            obs = np.where(done[:, None, None, None], following, seen)
    return told


def kept(told: list[list[dict[str, Any]]], rows: int, steps: int) -> list[dict[str, Any]]:
    """What a ring still has of it: the oldest episode lacks its beginning."""
    found = []
    for episodes in told:
        gone = max(steps - rows, 0)
        for episode in episodes:
            lost = min(gone, len(episode["obs"]))
            gone -= lost
            if len(episode["obs"]) > lost:
                found.append({**episode, "obs": episode["obs"][lost:], "actions": episode["actions"][lost:]})
    return found


@pytest.mark.parametrize("steps", [5, 20, 47])
@pytest.mark.parametrize("is_dict", [False, True], ids=["box", "dict"])
@pytest.mark.parametrize("ours", [False, True], ids=["sb3", "compressed"])
def test_replay_buffers(steps: int, is_dict: bool, ours: bool) -> None:
    picture = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)
    space: Any = (
        gym.spaces.Dict({"camera": picture, "joints": gym.spaces.Box(-9, 9, (3,), np.float32)}) if is_dict else picture
    )
    classes: dict[Any, Any] = {
        (False, False): ReplayBuffer, (True, False): DictReplayBuffer,
        (False, True): CompressedReplayBuffer, (True, True): CompressedDictReplayBuffer,
    }  # fmt: skip
    rows = 20
    buffer = classes[is_dict, ours](2 * rows, space, gym.spaces.Discrete(4), n_envs=2)
    told = fill_replay([buffer], steps)
    dataset = export_minari(buffer, "replay-v0")
    expected = kept(told, rows, steps)
    assert dataset.total_episodes == len(expected)
    assert dataset.total_steps == 2 * min(rows, steps)
    for data, episode in zip(dataset.iterate_episodes(), expected, strict=True):
        seen = [*episode["obs"], episode["last"]]
        if is_dict:
            for key in ("camera", "joints"):
                assert_same_array(data.observations[key], np.stack([obs[key] for obs in seen]))
        else:
            assert_same_array(data.observations, np.stack(seen))
        assert data.actions.tolist() == episode["actions"]
        assert bool(data.terminations[-1]) == (episode["end"] == "terminated")
        assert bool(data.truncations[-1]) == (episode["end"] != "terminated")
    assert dataset.observation_space == space
    if is_dict:
        with pytest.raises(ValueError, match="'camera', 'joints'"):
            import_minari(dataset)
        recording = import_minari(dataset, frame_key="camera")
        assert recording.feature_specs.keys() == {"joints"}
    else:
        recording = import_minari(dataset)
    assert [len(e) for e in recording.episodes()] == [len(e["obs"]) for e in expected]
    assert [(e.done, e.truncated) for e in recording.episodes()] == [
        (e["end"] is not None, e["end"] == "truncated") for e in expected
    ]


def test_a_trained_model_exports_its_replay_buffer() -> None:
    env = VecFrameStack(make_vec_env(Scene, n_envs=2), 2)
    model = DQN("CnnPolicy", env, buffer_size=40, learning_starts=100, replay_buffer_class=CompressedReplayBuffer)
    model.learn(64)
    dataset = export_minari(model.replay_buffer, "scene/dqn-v0", algorithm_name="DQN")
    assert dataset.total_steps == 40
    for data in dataset.iterate_episodes():
        # The newest frame of each observation tells episode and step: they follow each other to the very end.
        places = data.observations[:, 3:5, 0, 0].astype(int)
        assert (np.diff(places[:, 1]) == 1).all() and len(set(places[:, 0])) == 1
        if data.terminations[-1]:
            assert places[-1, 1] == (7, 3, 5)[places[-1, 0] % 3]


def test_transitions_that_do_not_follow_each_other_are_kept_apart() -> None:
    buffer = CompressedReplayBuffer(10, gym.spaces.Box(0, 255, (1, 36, 36), np.uint8), gym.spaces.Discrete(4))
    for value in (1, 2, 8, 9):
        obs, seen = (np.full((1, 1, 36, 36), v, np.uint8) for v in (value, value + 1))
        buffer.add(obs, seen, np.array([[0]]), np.array([0.0]), np.array([False]), [{}])
    dataset = export_minari(buffer, "apart-v0")
    assert [data.observations[:, 0, 0, 0].tolist() for data in dataset.iterate_episodes()] == [[1, 2, 3], [8, 9, 10]]


def test_wrong_requests_are_told(pong: RecordBuffer, datasets: Path) -> None:
    space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)
    lossy = ReplayBuffer(4, space, gym.spaces.Discrete(2), optimize_memory_usage=True, handle_timeout_termination=False)
    frameless = FramelessRecordBuffer(None)
    frameless.add(None, 0, 0)
    slashed = RecordBuffer(None, (3,), features={"a/b": np.int8})
    slashed.add(np.zeros(3, np.uint8), 0, 0, {"a/b": 1})
    for thing, error, message in [
        (lossy, ValueError, "optimize_memory_usage"),
        (ReplayBuffer(4, space, gym.spaces.Discrete(2)), ValueError, "empty"),
        (frameless, ValueError, "needs observations"),
        (RecordBuffer(None, (3,)), ValueError, "empty"),
        (slashed, ValueError, "slash"),
        ([1, 2], TypeError, "not list"),
    ]:
        with pytest.raises(error, match=message):
            export_minari(thing, "wrong-v0")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="minari download none-v0"):
        import_minari("none-v0")
    assert os.listdir(datasets) == []
    export_minari(pong, "twice-v0")
    with pytest.raises(ValueError, match=r"already exists in .*overwrite=True"):
        export_minari(pong, "twice-v0")
    assert_same_recording(pong, import_minari("twice-v0"))


@pytest.mark.parametrize(
    "dataset_id",
    [
        "",
        "pong",
        "two words/pong-v0",
        "atari/two words-v0",
        "atari/pong",
        "x/y",
        "../out-v0",
        "/out-v0",
        "atari/../../out-v0",
        "a\0-v0",
    ],
)
def test_a_wrong_id_leaves_nothing(dataset_id: str, pong: RecordBuffer, datasets: Path) -> None:
    (datasets / "inner").mkdir()
    os.environ["MINARI_DATASETS_PATH"] = str(datasets / "inner")
    with pytest.raises(ValueError, match=r"is no id of a Minari dataset; allowed: .*atari/pong-v0"):
        export_minari(pong, dataset_id)
    assert os.listdir(datasets) == ["inner"] and os.listdir(datasets / "inner") == []


def test_a_failed_export_leaves_nothing_new(pong: RecordBuffer, datasets: Path) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        export_minari(pong, "one/two/three-v0", no_such_option=1)
    with pytest.raises(ValueError, match="parrot"):
        export_minari(pong, "one/two/three-v0", data_format="parrot")
    assert os.listdir(datasets) == []
    export_minari(pong, "one/kept-v0")
    with pytest.raises(ValueError, match="parrot"):
        export_minari(pong, "one/two/three-v0", data_format="parrot")
    assert sorted(os.listdir(datasets / "one")) == ["kept-v0", "namespace_metadata.json"]


def test_a_dataset_is_replaced_if_asked_for_and_whole(pong: RecordBuffer, datasets: Path) -> None:
    other = filled(lambda: RecordBuffer(None, (3, 5)), 7)
    export_minari(pong, "pong/again-v0")
    before = sorted(os.listdir(datasets / "pong"))
    with pytest.raises(ValueError, match="parrot"):
        export_minari(other, "pong/again-v0", overwrite=True, data_format="parrot")
    assert_same_recording(pong, import_minari("pong/again-v0"))
    for recording in (other, pong, other):
        export_minari(recording, "pong/again-v0", overwrite=True)
        assert_same_recording(recording, import_minari("pong/again-v0"))
        assert sorted(os.listdir(datasets / "pong")) == before
    export_minari(pong, "new/one-v0", overwrite=True)
    # A folder of datasets is none.
    export_minari(pong, "folder-v0/inside-v0")
    with pytest.raises(ValueError, match="is no Minari dataset"):
        export_minari(pong, "folder-v0", overwrite=True)
    assert_same_recording(pong, import_minari("folder-v0/inside-v0"))


@pytest.mark.parametrize(
    "notes",
    [
        *(None, [], "x", {"unfinished": 1}, {"unfinished": [[]]}, {"without_final_frame": {"a": 1}}, {"is_open": "yes"}),
        *({"is_cut": None}, {"first_episode": "x"}, {"first_episode": -1}, {"first_episode": 1 << 99}, {"metadata": [1]}),
    ],
    ids=str,
)
def test_forged_notes_are_told(notes: Any, pong: RecordBuffer) -> None:
    dataset = export_minari(pong, "some-v0")
    dataset.storage.update_metadata({"sb3_extra_buffers": notes})
    with pytest.raises(RecordingError, match="about its recording is damaged"):
        import_minari("some-v0")


HOSTILE_SPACES: list[Any] = [
    {"type": "Box", "low": 0, "high": 1, "shape": [1 << 20, 1 << 20], "dtype": "float64"},
    {"type": "Box", "low": 10**400, "high": 1, "shape": [2], "dtype": "V999999999"},
    {"type": "Discrete", "n": 10**400, "start": 0, "dtype": "int64"},
    {"type": "Discrete", "n": 3, "start": 1.5, "dtype": "O"},
    {"type": "MultiDiscrete", "nvec": [1, 2], "start": "x", "dtype": "int8"},
    {"type": "MultiBinary", "n": 1 << 60},
    {"type": []},
    "Box",
    [],
]


@pytest.mark.parametrize("space", HOSTILE_SPACES, ids=str)
def test_spaces_that_are_none_are_found_out(space: Any) -> None:
    recording = filled(lambda: RecordBuffer(None, (3, 5), metadata={"action_space": space, "frame_space": space}), 4)
    dataset = export_minari(recording, "some-v0")
    assert dataset.action_space == gym.spaces.Discrete(4)
    assert dataset.observation_space == gym.spaces.Box(0, 255, (3, 5), np.uint8)
    assert_same_recording(recording, import_minari("some-v0"))


def test_an_interrupted_export_leaves_no_dataset(pong: RecordBuffer, datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sb3_extra_buffers.recording.minari._as_minari", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_minari(pong, "half-v0")
    assert not (datasets / "half-v0").exists()
