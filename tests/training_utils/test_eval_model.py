"""eval_model and warm_up: the rewards of evaluate_policy, and buffers filled as SB3's own training loops fill them."""

from __future__ import annotations

import functools
import io
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from small_envs import Pictures, PicturesAndPlaces, several
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, VecTransposeImage

from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils import Evaluation, eval_model, make_env, warm_up, warmup

STEPS = 40


def greedy_dqn(env: VecEnv, **options: Any) -> DQN:
    """Plays what it thinks best, stores it, and never learns."""
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gym.spaces.Dict) else "CnnPolicy"
    policy = "MlpPolicy" if len(env.observation_space.shape or ()) == 1 else policy
    greedy = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0, "gradient_steps": 0, "learning_starts": 0}
    th.manual_seed(0)  # another network may balance the pole for ever
    return DQN(policy, env, buffer_size=STEPS * env.num_envs, device="cpu", **greedy, **options)


def contents(buffer: Any) -> dict[str, Any]:
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    names += ("values", "log_probs", "advantages", "returns", "episode_starts")
    return {name: getattr(buffer, name) for name in names if hasattr(buffer, name)}


def assert_same(ours: Any, theirs: Any, rows: int, exactly: bool = True) -> None:
    compare: Any = np.testing.assert_array_equal if exactly else functools.partial(np.testing.assert_allclose, atol=1e-5)
    expected = contents(theirs)
    assert contents(ours).keys() == expected.keys()
    for name, array in expected.items():
        mine = contents(ours)[name]
        for key in array if isinstance(array, dict) else [None]:
            got, want = (mine, array) if key is None else (mine[key], array[key])
            compare(np.asarray(got[:rows]), np.asarray(want[:rows]), err_msg=f"{name} {key}")


@pytest.mark.parametrize("n_eps", [1, 3, 7])
def test_rewards_are_those_of_evaluate_policy(n_eps: int) -> None:
    model = greedy_dqn(several())
    expected, _ = evaluate_policy(model, several(), n_eps, return_episode_rewards=True)
    rewards, latencies = eval_model(n_eps, several(), model)
    assert rewards == expected and len(rewards) == n_eps
    assert latencies == []


def test_a_lost_life_is_no_episode() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    games = [make_env("BreakoutNoFrameskip-v4", 2, DummyVecEnv, framestack=4, seed=1) for _ in range(2)]
    model = PPO("CnnPolicy", games[0], device="cpu")  # a seed would go to the games, too
    th.manual_seed(0)
    expected, _ = evaluate_policy(model, games[0], 2, deterministic=False, return_episode_rewards=True)
    buffer = CompressedReplayBuffer(20_000, games[1].observation_space, games[1].action_space, "cpu", n_envs=2)
    th.manual_seed(0)
    evaluation = eval_model(2, games[1], model, buffer=buffer, deterministic=False)
    assert evaluation.rewards == expected
    assert buffer.dones.sum() > 3, "a lost life ends an episode for training"


class Short(Pictures):
    """Episodes as long as the seed says."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, length=1 + 9 * seed, chance=0.0)


def test_short_episodes_do_not_count_more_often() -> None:
    model = greedy_dqn(several())
    assert sorted(eval_model(6, several(Short), model).rewards) == [1, 1, 10, 10, 19, 19]


def test_without_a_monitor_it_counts_by_itself() -> None:
    model = greedy_dqn(several())
    with pytest.warns(UserWarning, match="have no Monitor"):
        rewards = eval_model(5, several(monitor=False), model).rewards
    assert rewards == eval_model(5, several(), model).rewards


@pytest.mark.parametrize("kind", [Pictures, PicturesAndPlaces])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_replay_buffer_is_filled_as_by_dqn(kind: type[Pictures], stack: int, compressed: bool) -> None:
    model = greedy_dqn(several(kind, stack=stack)).learn(STEPS * 3)
    theirs: Any = model.replay_buffer
    assert theirs.timeouts[:STEPS].any() and (theirs.dones > theirs.timeouts)[:STEPS].any()

    from sb3_extra_buffers.compressed import compressed_buffer_for

    kinds = compressed_buffer_for(DQN, theirs.observation_space)[0] if compressed else type(theirs)
    ours: Any = kinds(STEPS * 3, theirs.observation_space, theirs.action_space, "cpu", n_envs=3)  # type: ignore[call-arg]
    # The environment has its channels last, the buffer wants them first, as SB3 makes them.
    _, latencies = eval_model(36, several(kind, stack=stack), model, buffer=[ours])
    assert len(latencies) == 1 and len(latencies[0]) > STEPS  # type: ignore[arg-type]
    # It was overwritten; a second one of the right size is not.
    ours = kinds(3 * len(latencies[0]), theirs.observation_space, theirs.action_space, "cpu", n_envs=3)  # type: ignore
    _, seconds = eval_model(36, several(kind, stack=stack), model, buffer=ours)
    assert ours.pos == 0 and ours.full and len(seconds) == ours.buffer_size and min(seconds) > 0  # type: ignore[type-var]
    assert_same(ours, theirs, STEPS)


def test_what_vec_normalize_made_is_unmade() -> None:
    def environments() -> VecNormalize:
        return VecNormalize(make_vec_env("CartPole-v1", 2, seed=0))

    env = environments()
    model = greedy_dqn(env).learn(STEPS * 2)
    theirs: Any = model.replay_buffer
    assert theirs.dones.any()
    ours = ReplayBuffer(10_000, theirs.observation_space, theirs.action_space, "cpu", n_envs=2)
    eval_model(12, environments(), model, buffer=ours)
    np.testing.assert_array_equal(ours.observations[0], theirs.observations[0])
    assert_same(ours, theirs, STEPS, exactly=False)


def test_continuous_actions_are_stored_scaled() -> None:
    env = make_vec_env("Pendulum-v1", 2, seed=0)
    model = SAC("MlpPolicy", env, buffer_size=200, learning_starts=0, gradient_steps=0, seed=0, device="cpu")
    env.seed(0)
    th.manual_seed(3)
    model.learn(STEPS * 2)
    theirs: Any = model.replay_buffer
    ours = ReplayBuffer(1_000, theirs.observation_space, theirs.action_space, "cpu", n_envs=2)
    again = make_vec_env("Pendulum-v1", 2, seed=0)
    th.manual_seed(3)
    eval_model(2, again, model, buffer=ours, deterministic=False)
    assert np.abs(ours.actions[:STEPS]).max() <= 1
    # SB3 scales an action and unscales it again before the step: a rounding apart.
    np.testing.assert_allclose(ours.actions[:STEPS], theirs.actions[:STEPS], atol=1e-3)
    np.testing.assert_allclose(ours.observations[:STEPS], theirs.observations[:STEPS], atol=1e-3)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("channels_first", [False, True])
def test_a_rollout_buffer_is_filled_as_by_ppo(compressed: bool, channels_first: bool) -> None:
    model = PPO("CnnPolicy", several(), n_steps=STEPS, batch_size=STEPS, n_epochs=1, seed=0, device="cpu")
    learner = PPO("CnnPolicy", several(), n_steps=STEPS, batch_size=STEPS, n_epochs=1, seed=0, device="cpu")
    learner.train = lambda: None  # type: ignore[method-assign]
    th.manual_seed(5)
    learner.learn(STEPS * 3)
    theirs = learner.rollout_buffer
    assert (theirs.rewards > 1).any(), "a time-out counts what comes after it"

    env = VecTransposeImage(several()) if channels_first else several()
    space = env.observation_space
    kind = CompressedRolloutBuffer if compressed else RolloutBuffer
    ours = kind(STEPS, space, env.action_space, "cpu", gae_lambda=0.95, gamma=0.99, n_envs=3)
    th.manual_seed(5)
    _, latencies = eval_model(60, env, model, buffer=ours, deterministic=False)
    assert len(latencies) == STEPS and ours.full
    if not channels_first:
        theirs.observations = np.moveaxis(theirs.observations, 2, -1)
    assert_same(ours, theirs, STEPS, exactly=False)
    assert sum(len(batch.actions) for batch in ours.get(7)) == STEPS * 3

    with pytest.raises(ValueError, match=r"full already: call its reset\(\) first"):
        eval_model(1, several(), model, buffer=ours)


def test_a_rollout_buffer_takes_what_dqn_plays() -> None:
    env = VecTransposeImage(several())
    rollout = CompressedRolloutBuffer(4, env.observation_space, env.action_space, "cpu", n_envs=3)
    replay = CompressedReplayBuffer(300, env.observation_space, env.action_space, "cpu", n_envs=3)
    evaluation = eval_model(9, several(), greedy_dqn(several()), buffer=[rollout, replay])
    assert [len(part) for part in evaluation.latencies] == [4, replay.pos]  # type: ignore[arg-type]
    assert rollout.full and not rollout.values.any() and (rollout.returns != 0).any()
    np.testing.assert_array_equal(np.asarray(rollout.observations), np.asarray(replay.observations[:4]))


def test_environments_are_closed_if_wanted() -> None:
    model = greedy_dqn(several())
    for close_env in (True, False):
        env = several(n_envs=2)
        eval_model(1, env, model, close_env=close_env)
        assert env.get_attr("closed") == [close_env] * 2
    env = several(n_envs=2)
    with pytest.raises(ValueError, match="n_eps must be at least 1, got 0"):
        eval_model(0, env, model)
    assert env.get_attr("closed") == [True] * 2


def test_a_single_environment_will_do() -> None:
    from stable_baselines3.common.monitor import Monitor

    env = Monitor(Pictures())
    assert len(eval_model(2, env, greedy_dqn(several())).rewards) == 2


def test_wrong_buffers_are_refused() -> None:
    model = greedy_dqn(several())
    env = several()
    first, last = VecTransposeImage(env).observation_space, env.observation_space

    def replay(space: Any, n_envs: int = 3) -> ReplayBuffer:
        return ReplayBuffer(90, space, env.action_space, "cpu", n_envs=n_envs)

    cases: list[tuple[Any, type[Exception], str]] = [
        (replay(first, n_envs=2), ValueError, "made for n_envs=2, but there are 3 environments"),
        (
            replay(gym.spaces.Box(0, 255, (5, 5, 1), np.uint8)),
            ValueError,
            r"\(5, 5, 1\).*make it with their observation_space",
        ),
        ([replay(first), replay(last)], ValueError, "channels of images first, others last"),
        (["buffer"], TypeError, "not str"),
    ]
    for buffer, error, message in cases:
        with pytest.raises(error, match=message):
            eval_model(1, env, model, close_env=False, buffer=buffer)


def test_recurrent_buffers_are_refused() -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_extra_buffers.compressed import CompressedRecurrentRolloutBuffer

    env = several()
    buffer = CompressedRecurrentRolloutBuffer(
        8, VecTransposeImage(env).observation_space, env.action_space, (8, 1, 3, 4), "cpu", n_envs=3
    )
    with pytest.raises(TypeError, match="recurrent"):
        eval_model(1, env, greedy_dqn(several()), buffer=buffer)


@pytest.mark.parametrize(
    ("rewards", "summary"),
    [
        (
            [20.0, *[21.0] * 9999],
            "Evaluated 10000 episodes, mean reward: 21.0 +/- 0.01\n"
            "Q1: 21 | Q2: 21 | Q3: 21 | Relative IQR: 0.00 | Min: 20 | Max: 21",
        ),
        (
            # Many episodes that are nearly all alike: the spread is small, but not 0.00 beside a minimum of 20.
            [20.0, *[21.0] * 99_999],
            "Evaluated 100000 episodes, mean reward: 21.0 +/- 0.003\n"
            "Q1: 21 | Q2: 21 | Q3: 21 | Relative IQR: 0.00 | Min: 20 | Max: 21",
        ),
        (
            [0.001, 0.001, 0.0015, 0.002, 0.002],
            "Evaluated 5 episodes, mean reward: 0.002 +/- 0.0004\n"
            "Q1: 0.001 | Q2: 0.0015 | Q3: 0.002 | Relative IQR: 0.67 | Min: 0.001 | Max: 0.002",
        ),
        (
            [1000.0, 1000.0625],
            "Evaluated 2 episodes, mean reward: 1000.03 +/- 0.03\n"
            "Q1: 1000.016 | Q2: 1000.031 | Q3: 1000.047 | Relative IQR: 3e-05 | Min: 1000 | Max: 1000.062",
        ),
        (
            [2300.0, 2300.0, 2490.0, 3000.0, 3000.0],
            "Evaluated 5 episodes, mean reward: 2618.0 +/- 319.52\n"
            "Q1: 2300 | Q2: 2490 | Q3: 3000 | Relative IQR: 0.28 | Min: 2300 | Max: 3000",
        ),
        ([-1.25, 0.0, 0.0], "Evaluated 3 episodes, mean reward: -0.4 +/- 0.59\nQ1: -0.62 | Q2: 0 | Q3: 0 | Relative IQR: inf"),
        ([-21.0, -21.0, -14.0], "Evaluated 3 episodes, mean reward: -18.7 +/- 3.30\nQ1: -21 | Q2: -21 | Q3: -17.5 | Rel"),
        (
            [0.0],
            "Evaluated 1 episodes, mean reward: 0.0 +/- 0.00\nQ1: 0 | Q2: 0 | Q3: 0 | Relative IQR: 0.00 | Min: 0 | Max: 0",
        ),
    ],
)
def test_summary(rewards: list[float], summary: str) -> None:
    assert Evaluation(rewards, []).summary.startswith(summary)


def test_the_summary_in_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training-utilities.md").read_text(encoding="utf-8")
    assert f"```text\n{Evaluation([20.0, *[21.0] * 99], []).summary}\n```" in page


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
@pytest.mark.parametrize("wanted", [True, False])
def test_progress_bar(kind: type[io.StringIO], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    model = greedy_dqn(several())
    file = kind()
    monkeypatch.setattr(sys, "stderr", file)
    eval_model(5, several(), model, progress_bar=wanted)
    shown = file.getvalue()
    if wanted and file.isatty():
        assert "5/5" in shown and "mean reward" in shown
    else:
        assert shown == ""


def test_without_tqdm_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", file := Terminal())
    assert len(eval_model(2, several(), greedy_dqn(several())).rewards) == 2
    assert file.getvalue() == ""


def test_warm_up_fills_the_buffer_of_a_model() -> None:
    expert = greedy_dqn(several())
    model = greedy_dqn(several(), replay_buffer_class=CompressedReplayBuffer)
    assert warmup is warm_up
    env = several()
    rewards, latencies = warm_up(model.replay_buffer, 3, env, expert, warmup_episodes=4)
    assert len(rewards) == 4 and len(latencies) == model.replay_buffer.pos > 0  # type: ignore[union-attr]
    assert env.get_attr("closed") == [False] * 3
    model.gradient_steps = 1
    model.learn(30)  # which goes on from there
    assert model.replay_buffer.pos == len(latencies) + 12  # type: ignore[union-attr]


def test_warm_up_plays_what_fills_the_buffer() -> None:
    env = several(Short)
    buffer = ReplayBuffer(95, VecTransposeImage(env).observation_space, env.action_space, "cpu", n_envs=3)
    rewards, _ = warm_up(buffer, 3, env, greedy_dqn(several()), mean_ep_len=10)
    assert len(rewards) == 10  # 31 rows of 3 in episodes of 10
    assert buffer.full
    # Both given: the number of episodes counts.
    assert len(warm_up(buffer, 3, env, greedy_dqn(several()), 2, 1).rewards) == 2


def test_warm_up_says_what_is_wrong() -> None:
    env = several()
    space = VecTransposeImage(env).observation_space
    buffer = ReplayBuffer(90, space, env.action_space, "cpu", n_envs=3)
    other = ReplayBuffer(90, space, env.action_space, "cpu", n_envs=2)
    rollout = RolloutBuffer(90, space, env.action_space, "cpu", n_envs=3)
    model = greedy_dqn(several())
    cases: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((buffer, 4, env, model, 1), {}, ValueError, "n_envs is 4, but warmup_env has 3 .* n_envs=3"),
        ((other, 3, env, model, 1), {}, ValueError, "the buffer was made for n_envs=2"),
        ((buffer, 3, env, model), {}, ValueError, "give warmup_episodes, or mean_ep_len"),
        ((buffer, 3, env, model, 0), {}, ValueError, "warmup_episodes must be at least 1, got 0"),
        ((buffer, 3, env, model), {"mean_ep_len": 0}, ValueError, "mean_ep_len must be above 0, got 0"),
        ((rollout, 3, env, model, 1), {}, TypeError, "not a RolloutBuffer"),
        ((buffer, 3, Pictures(), model, 1), {}, TypeError, "must be a VecEnv, not Pictures"),
    ]
    for args, kwargs, error, message in cases:
        with pytest.raises(error, match=message):
            warm_up(*args, **kwargs)
    assert buffer.pos == 0
