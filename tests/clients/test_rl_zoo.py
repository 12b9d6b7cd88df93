"""RL Zoo trains with our buffers: as docs/rl-zoo.md says it, and to the same networks as with SB3's own buffers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch as th
from doc_blocks import commands, write_files
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC

from sb3_extra_buffers import compressed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("rl_zoo3") is None,
        reason="RL Zoo is not installed: pip install -c constraints.txt -e '.[all,dev,clients]', or make test-all",
    ),
]

PAGE = "rl-zoo.md"
GAME = "BreakoutNoFrameskip-v4"
CLASSES: dict[str, Any] = {"dqn": DQN, "ppo": PPO, "ppo_lstm": RecurrentPPO, "sac": SAC}
SHORT = {
    "dqn": ["buffer_size:200", "learning_starts:80", "target_update_interval:50"],
    "ppo": ["n_envs:2", "n_steps:32", "batch_size:32"],
}

GOAL_YAML = """
Bits-v0:
  policy: MultiInputPolicy
  n_timesteps: 300
  buffer_size: 200
  learning_starts: 80
  replay_buffer_class: {}
  replay_buffer_kwargs: dict(n_sampled_goal=3, goal_selection_strategy='future')
  policy_kwargs: dict(net_arch=[16])
"""


def run(words: list[str], folder: Path) -> str:
    """Run Python in a folder as a user would."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def train(folder: Path, algo: str, *words: str, env: str = GAME, hyperparams: Any = (), steps: int = 320) -> Any:
    """Train, and load the model that RL Zoo saved, with its replay buffer."""
    command = ["-m", "rl_zoo3.train", "--algo", algo, "--env", env, "--seed", "0", "-n", str(steps), "--device", "cpu"]
    command += ["--save-replay-buffer", *words]
    run([*command, *(["--hyperparams", *hyperparams] if hyperparams else [])], folder)
    return load(folder, algo, len(list((folder / "logs" / algo).iterdir())), env)


def load(folder: Path, algo: str, number: int, env: str = GAME) -> Any:
    saved = folder / "logs" / algo / f"{env}_{number}"
    extra: dict[str, Any] = {}
    if algo == "sac":  # SB3's HerReplayBuffer cannot be made without one
        import zoo_goals

        extra["env"] = zoo_goals.make()
    model = CLASSES[algo].load(saved / f"{env}.zip", device="cpu", **extra)
    if (saved / "replay_buffer.pkl").exists():
        model.load_replay_buffer(saved / "replay_buffer.pkl")
    return model


def assert_same_networks(one: Any, other: Any) -> None:
    mine, theirs = one.policy.state_dict(), other.policy.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert th.equal(mine[name], theirs[name]), name


def test_the_page_as_it_is_written(tmp_path: Path) -> None:
    """Every command of the page; PPO learns in them, and learns the same each time."""
    write_files(PAGE, tmp_path)
    for words in commands(PAGE, "python"):
        run(words[1:], tmp_path)
    shown = run(["which.py"], tmp_path)
    assert "CompressedRolloutBuffer" in shown and " frames stored" in shown
    plain = train(tmp_path, "ppo", steps=2000)
    assert plain._n_updates > 0 and load(tmp_path, "ppo", 4)._n_updates == plain._n_updates
    for number in (1, 2, 3):
        model = load(tmp_path, "ppo", number)
        assert type(model.rollout_buffer) is compressed.CompressedRolloutBuffer
        assert model.rollout_buffer_kwargs == ({} if number == 1 else {"compression_method": "delta-zstd"})
        assert_same_networks(model, plain)
    for number in (1, 2, 3, 4):
        assert type(load(tmp_path, "dqn", number).replay_buffer) is compressed.CompressedReplayBuffer
    assert load(tmp_path, "dqn", 4).replay_buffer.size() == 2500, "it goes on with what run 2 has saved"


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_the_same_networks_as_with_sb3s_buffer(algo: str, tmp_path: Path) -> None:
    """The command line, the YAML file and the Python file of the page, with a buffer so small that it wraps."""
    write_files(PAGE, tmp_path)
    theirs = train(tmp_path, algo, hyperparams=SHORT[algo])
    by_command = next(
        words for words in commands(PAGE, "python") if f"--algo {algo}" in " ".join(words) and "--hyperparams" in words
    )
    forms = [
        ((), [by_command[by_command.index("--hyperparams") + 1]]),
        (("--conf-file", f"{algo}.yml"), []),
        (("--conf-file", f"{algo}.py"), []),
    ]
    for words, hyperparams in forms:
        ours = train(tmp_path, algo, *words, hyperparams=[*hyperparams, *SHORT[algo]])
        assert ours._n_updates == theirs._n_updates > 15
        assert_same_networks(ours, theirs)
        if algo == "dqn":
            assert type(ours.replay_buffer) is compressed.CompressedReplayBuffer and ours.replay_buffer.full
            assert ours.replay_buffer.memory_usage().frames_stored > 0
        else:
            assert type(ours.rollout_buffer) is compressed.CompressedRolloutBuffer
        # The newest run, with the hyperparameters as RL Zoo saved them.
        run(f"-m rl_zoo3.enjoy --algo {algo} --env {GAME} -f logs --no-render -n 10 --device cpu".split(), tmp_path)


def test_recurrent_ppo(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    lstm = ["policy:'CnnLstmPolicy'", "policy_kwargs:dict(lstm_hidden_size=16)", *SHORT["ppo"]]
    ours = train(tmp_path, "ppo_lstm", "--conf-file", "ppo.yml", hyperparams=lstm, steps=128)
    theirs = train(tmp_path, "ppo_lstm", "--conf-file", "ppo.yml", hyperparams=[*lstm, "callback:None"], steps=128)
    assert ours.rollout_buffer_class is compressed.CompressedRecurrentRolloutBuffer and theirs.rollout_buffer_class is None
    assert_same_networks(ours, theirs)


def test_hindsight_experience_replay(tmp_path: Path) -> None:
    """RL Zoo recognizes it by its name, and hands over the environment it cannot do without."""
    models = []
    for name in ('get_class_by_name("sb3_extra_buffers.compressed.CompressedHerReplayBuffer")', "HerReplayBuffer"):
        (tmp_path / "sac.yml").write_text(GOAL_YAML.format(name))
        models.append(train(tmp_path, "sac", "--conf-file", "sac.yml", "--gym-packages", "zoo_goals", env="Bits-v0"))
        enjoy = "-m rl_zoo3.enjoy --algo sac --env Bits-v0 -f logs --no-render -n 10 --gym-packages zoo_goals --device cpu"
        run(enjoy.split(), tmp_path)
    assert type(models[0].replay_buffer) is compressed.CompressedHerReplayBuffer
    assert models[0]._n_updates == models[1]._n_updates > 100
    assert_same_networks(*models)
