"""Recording real runs: the wrappers and the callback against what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from recording_kit import Scene, assert_same_array, assert_same_recording, play, record_game, scene_stamp
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecTransposeImage

from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    DummyRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    RecordCallback,
    RecordWrapper,
    VecRecordWrapper,
    load_recording,
)


def stamps(buffer: RecordBuffer) -> list[list[tuple[int, int]]]:
    """The episode and step that each frame shows, episode by episode."""
    return [[scene_stamp(frame) for frame in episode.iter_frames()] for episode in buffer.episodes()]


def test_the_wrapper_pairs_each_frame_with_its_action() -> None:
    env = RecordWrapper(Scene(limit=6), info_features=("place", "lives"))
    env.reset()
    actions = []
    for step in range(12):
        actions.append(step % 5)
        _, _, terminated, truncated, _ = env.step(step % 5)
        if terminated or truncated:
            env.reset()
    buffer = env.buffer
    assert isinstance(buffer, CompressedRecordBuffer) and buffer.buffer_size is None
    # The first would take seven steps, but the limit is six; the second three.
    assert stamps(buffer) == [[(0, s) for s in range(6)], [(1, s) for s in range(3)], [(2, s) for s in range(3)]]
    assert np.concatenate([e.actions for e in buffer.episodes()]).tolist() == actions
    first, second, third = buffer.episodes()
    assert (first.done, first.truncated) == (True, True)
    assert (second.done, second.truncated) == (True, False)
    assert (third.done, third.truncated) == (False, False)
    assert scene_stamp(first.final_frame) == (0, 6) and scene_stamp(second.final_frame) == (1, 3)
    assert third.final_frame is None
    assert first.rewards.tolist() == [0.5, 1, 1.5, 2, 2.5, 3]
    # Features are those that were there with the frame, not after the action.
    assert first.features["place"].tolist() == [[0, s] for s in range(6)]
    assert first.features["lives"].tolist() == [3, 3, 3, 2, 2, 2]
    assert buffer.metadata["fps"] == 12
    assert buffer.metadata["action_meanings"][1] == "UP"
    assert buffer.metadata["action_space"]["n"] == 5


def test_an_early_reset_gives_an_episode_up() -> None:
    env = RecordWrapper(Scene())
    env.reset()
    env.step(1)
    env.step(1)
    env.reset()
    env.step(1)
    given_up, running = env.buffer.episodes()
    assert (len(given_up), given_up.done, given_up.truncated) == (2, False, False)
    assert scene_stamp(given_up.final_frame) == (0, 2)
    assert (len(running), running.done) == (1, False)
    env.reset()
    env.reset()
    assert env.buffer.n_episodes == 2


def test_frames_can_be_what_the_agent_sees(pong: RecordBuffer) -> None:
    seen = record_game("ALE/Pong-v5", 150, frames="observation", info_features=("lives", "frame_number"))
    assert seen.metadata.pop("frames") == "observation"
    assert pong.metadata["frames"] == "render"
    seen.metadata["frames"] = "render"
    assert_same_recording(pong, seen)  # of Pong without wrappers both are the same picture


def test_a_real_game_is_recorded_as_it_was_played(pong: RecordBuffer) -> None:
    env = gym.make("ALE/Pong-v5", render_mode="rgb_array", frameskip=4, max_episode_steps=60)
    env.reset(seed=0)
    env.action_space.seed(0)
    number = 0
    for record in pong:
        assert_same_array(record.frame, env.render())
        action = env.action_space.sample()
        _, reward, terminated, truncated, _ = env.step(action)
        assert (record.action, record.reward) == (action, reward)
        assert (record.done, record.truncated) == (terminated or truncated, truncated and not terminated)
        if record.done:
            assert_same_array(pong.episode(number).final_frame, env.render())
            number += 1
            env.reset()
    assert number == 2
    assert pong.metadata["env_id"] == "ALE/Pong-v5"
    assert pong.metadata["action_meanings"][:2] == ["NOOP", "FIRE"]


def test_vizdoom_is_recorded() -> None:
    pytest.importorskip("vizdoom")
    from vizdoom import gymnasium_wrapper  # noqa: F401

    env = RecordWrapper(gym.make("VizdoomBasic-v1", render_mode="rgb_array", max_episode_steps=12))
    play(env, 20)
    assert env.buffer.n_episodes == 2
    assert env.buffer.frame_shape is not None and env.buffer.frame_shape[2] == 3
    assert env.buffer[:].frame.std() > 5
    env.close()


def test_no_frames_at_all() -> None:
    env = RecordWrapper(gym.make("CartPole-v1"), frames="none")
    play(env, 50)
    assert isinstance(env.buffer, FramelessRecordBuffer)
    assert len(env.buffer) == 50
    vec = VecRecordWrapper(make_vec_env("CartPole-v1", n_envs=1), frames="none")
    vec.reset()
    for _ in range(50):
        vec.step([vec.action_space.sample()])
    assert len(vec.buffer) == 50


def test_a_buffer_of_ones_own() -> None:
    buffer = RecordBuffer(8, (40, 50, 3), action_dtype=np.int64, metadata={"env_id": "mine", "note": "kept"})
    play(RecordWrapper(Scene(), buffer), 15)
    assert len(buffer) == 8
    assert buffer.metadata["env_id"] == "mine" and buffer.metadata["note"] == "kept"
    assert buffer.metadata["fps"] == 12
    dummy = DummyRecordBuffer()
    play(RecordWrapper(Scene(), dummy), 15)
    assert len(dummy) == 0


def test_wrong_environments_are_told() -> None:
    with pytest.raises(ValueError, match='render_mode="rgb_array"'):
        RecordWrapper(Scene(render_mode=None)).reset()
    with pytest.raises(ValueError, match="'render', 'observation', 'none'"):
        RecordWrapper(Scene(), frames="picture")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"'armour'.*place, lives"):
        RecordWrapper(Scene(), info_features=("armour",)).reset()
    with pytest.raises(RuntimeError, match="no recording yet"):
        _ = RecordWrapper(Scene()).buffer
    with pytest.raises(ValueError, match="env_index is 3"):
        VecRecordWrapper(make_vec_env(Scene, n_envs=2), env_index=3)
    box = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})
    env = Scene()
    env.action_space = box  # type: ignore[assignment]
    with pytest.raises(TypeError, match="are not arrays"):
        RecordWrapper(env)


class DictScene(gym.ObservationWrapper[Any, Any, Any]):
    """Scene, its picture in a dict."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Dict({"camera": Scene.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"camera": observation}


def test_dict_observations_are_no_frames() -> None:
    with pytest.raises(TypeError, match="Dict observations"):
        RecordWrapper(DictScene(Scene()), frames="observation").reset()
    env = RecordWrapper(DictScene(Scene()), frames="render")
    play(env, 5)
    assert len(env.buffer) == 5


@pytest.mark.parametrize(
    ("vec_env_cls", "frames"), [(DummyVecEnv, "render"), (DummyVecEnv, "observation"), (SubprocVecEnv, "render")]
)
def test_parallel_environments(vec_env_cls: Any, frames: Any) -> None:
    venv = make_vec_env(Scene, n_envs=2, vec_env_cls=vec_env_cls, env_kwargs={"limit": 6, "render_mode": "rgb_array"})
    env = VecRecordWrapper(venv, frames=frames, info_features=("place",), env_index=1)
    env.reset()
    for step in range(12):
        env.step(np.array([0, step % 5]))
    env.close()
    buffer = env.buffer
    assert stamps(buffer) == [[(0, s) for s in range(6)], [(1, s) for s in range(3)], [(2, s) for s in range(3)]]
    assert buffer[:].action.tolist() == [step % 5 for step in range(12)]
    first, second, _ = buffer.episodes()
    assert (first.truncated, second.truncated, second.done) == (True, False, True)
    assert second.features["place"].tolist() == [[1, s] for s in range(3)]
    if frames == "observation":
        assert scene_stamp(first.final_frame) == (0, 6)
    else:
        assert first.final_frame is None
    assert buffer.metadata["action_meanings"][1] == "UP"
    assert buffer.metadata["fps"] == 12


def test_evaluation_is_recorded_with_one_line() -> None:
    model = PPO("CnnPolicy", make_vec_env(Scene, n_envs=1), n_steps=8, batch_size=8)
    env = VecRecordWrapper(make_vec_env(Scene, n_envs=1))
    rewards, lengths = evaluate_policy(model, env, n_eval_episodes=3, return_episode_rewards=True)
    finished = [episode for episode in env.buffer.episodes() if episode.done]
    assert [len(episode) for episode in finished] == lengths
    assert [episode.total_reward for episode in finished] == rewards


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("frames", ["render", "observation"])
def test_training_is_recorded_with_one_line(algorithm: str, frames: Any, tmp_path: Path) -> None:
    env = VecFrameStack(make_vec_env(Scene, n_envs=2), 2)
    model: Any
    if algorithm == "ppo":
        model = PPO("CnnPolicy", env, n_steps=16, batch_size=16, n_epochs=1)
    else:
        model = DQN("CnnPolicy", env, buffer_size=100, learning_starts=10, train_freq=4)
    callback = RecordCallback(frames=frames, env_index=1, info_features=("place",), save_path=tmp_path / "run.rec")
    model.learn(32, callback=callback)
    buffer = callback.buffer
    assert len(buffer) == 16
    places = buffer[:].features["place"].tolist()
    assert places == [[0, s] for s in range(7)] + [[1, s] for s in range(3)] + [[2, s] for s in range(5)] + [[3, 0]]
    if frames == "render":
        assert [[e, s] for episode in stamps(buffer) for e, s in episode] == places
    else:
        # What the agent sees: two frames, channels in front; the newest is the last.
        assert buffer.frame_shape == (6, 40, 50)
        assert isinstance(model.env, VecTransposeImage)
        assert buffer[:].frame[:, 3:5, 0, 0].tolist() == places
        assert buffer.episode(0).final_frame[3:5, 0, 0].tolist() == [0, 7]  # type: ignore[index]
    if algorithm == "dqn":
        # What SB3 stored is what we recorded.
        stored = model.replay_buffer
        assert stored.actions[:16, 1, 0].tolist() == buffer[:].action.tolist()
        assert stored.rewards[:16, 1].tolist() == buffer[:].reward.tolist()
    assert_same_recording(buffer, load_recording(tmp_path / "run.rec"))


def test_training_twice_goes_on_in_one_recording() -> None:
    model = PPO("CnnPolicy", make_vec_env(Scene, n_envs=1), n_steps=8, batch_size=8, n_epochs=1)
    callback = RecordCallback()
    with pytest.raises(RuntimeError, match="no recording yet"):
        _ = callback.buffer
    model.learn(8, callback=callback)
    model.learn(8, callback=callback)
    assert len(callback.buffer) == 16
    assert [[s for _, s in episode] for episode in stamps(callback.buffer)] == [
        list(range(7)),
        [0],
        list(range(5)),
        list(range(3)),
    ]


@pytest.mark.parametrize("frames", ["render", "none"])
def test_training_that_goes_on_continues_its_episode(frames: Any) -> None:
    model = PPO("CnnPolicy", make_vec_env(Scene, n_envs=1), n_steps=5, batch_size=5, n_epochs=1)
    callback = RecordCallback(frames=frames, info_features=("place",))

    def places() -> list[list[int]]:
        return [episode.features["place"][:, 1].tolist() for episode in callback.buffer.episodes()]

    model.learn(5, callback=callback)
    model.learn(5, callback=callback, reset_num_timesteps=False)
    assert places() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2]]
    model.set_env(make_vec_env(Scene, n_envs=1))
    model.learn(5, callback=callback, reset_num_timesteps=False)  # elsewhere, though the steps are counted on
    assert places() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2], [0, 1, 2, 3, 4]]


def test_two_wrappers_do_not_share_an_episode() -> None:
    buffer = RecordBuffer(None, (40, 50, 3))
    for _ in range(2):
        play(RecordWrapper(Scene(), buffer), 4)
    assert [len(episode) for episode in buffer.episodes()] == [4, 4]


def test_continuous_actions_are_those_that_the_environment_took() -> None:
    class Steered(Scene):
        action_space = gym.spaces.Box(-0.1, 0.1, (2,), np.float32)  # type: ignore[assignment]
        taken: list[Any] = []  # noqa: RUF012

        def step(self, action: Any) -> Any:
            self.taken.append(np.array(action))
            return super().step(0)

    model = PPO("CnnPolicy", make_vec_env(Steered, n_envs=1), n_steps=16, batch_size=16, n_epochs=1)
    callback = RecordCallback()
    model.learn(16, callback=callback)
    assert_same_array(callback.buffer[:].action, np.stack(Steered.taken))
    assert np.abs(callback.buffer[:].action).max() == np.float32(0.1)
