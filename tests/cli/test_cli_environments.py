"""Names of environments: any spelling, and what is said when there is none."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sb3_extra_buffers
from sb3_extra_buffers.cli.environments import Environments, default_stack, find_environment, make_environments
from sb3_extra_buffers.cli.errors import UsageError


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("cartpole", "CartPole-v1"),
        ("Pong", "PongNoFrameskip-v4"),
        ("ms pacman", "MsPacmanNoFrameskip-v4"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("ale_py:ALE/Pong-v5", "ALE/Pong-v5"),
        ("cli_envs:Spots-v0", "cli_envs:Spots-v0"),
    ],
)
def test_names(name: str, env_id: str) -> None:
    if "artPole" not in env_id:
        pytest.importorskip("ale_py")
    assert find_environment(name) == env_id


def test_vizdoom() -> None:
    pytest.importorskip("vizdoom")
    assert find_environment("vizdoom basic") == "VizdoomBasic-v1"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPol", ["unknown environment 'CartPol'", "did you mean", "CartPole-v1"]),
        ("MsPackman", ["did you mean", "MsPacmanNoFrameskip-v4"]),
        ("qqqqqqqqqqqq", ["unknown environment", "MODULE:ID"]),
        ("no_such_module:Env-v0", ["cannot import 'no_such_module'", "ModuleNotFoundError"]),
        ("cli_envs:Nothing-v0", ["does not register 'Nothing-v0'"]),
    ],
)
def test_unknown_names(name: str, words: list[str]) -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(UsageError) as error:
        find_environment(name)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("Qqq-NoFrameskip-v4", "ale_py", "extra"), ("VizdoomQq-v9", "vizdoom", "vizdoom")]
)
def test_a_missing_extra_is_named(name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install \"\.\[{extra}\]\""):
        find_environment(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cli_envs:Broken-v0", "cannot make cli_envs:Broken-v0: RuntimeError: the simulator is not licensed"),
        ("cli_envs:Spots-tuple-v0", "no SB3 buffer can hold"),
        ("cli_envs:Spots-mission-v0", r"'mission' \(Text\).*no SB3 buffer can hold.*FilterObservation\(env, \['image'\]\)"),
        ("cli_envs:Spots-nested-v0", r"'arm' \(Dict\).*no SB3 buffer can hold.*FilterObservation\(env, \['image'\]\)"),
        ("cli_envs:Spots-two_hands-v0", r"acts in Tuple\(.*no SB3 buffer can hold"),
    ],
)
def test_what_cannot_be_played(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_environments(Environments(name))


ENVS_HERE = """
import gymnasium as gym

gym.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""


@pytest.mark.parametrize(
    "command", [["bench", "--size", "64", "--no-plot", "--methods", "gzip"], ["record", "--frames", "none"]]
)
def test_a_module_in_the_current_folder_is_found(command: list[str], tmp_path: Path) -> None:
    # As the console script is started: not the current folder but that of the script is on the path.
    script = tmp_path / "bin" / "sb3-extra-buffers"
    script.parent.mkdir()
    script.write_text("import sys\nfrom sb3_extra_buffers.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "envs_of_mine.py").write_text(ENVS_HERE)
    done = subprocess.run(
        [sys.executable, str(script), command[0], "envs_of_mine:Mine-v0", *command[1:]],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(sb3_extra_buffers.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr


def test_stacks() -> None:
    env = make_environments(Environments("cli_envs:Spots-v0", 2, stack=3))
    assert env.observation_space.shape == (40, 40, 9)
    env = make_environments(Environments("cli_envs:Blind-v0", 2))
    assert env.render_mode is None
    with pytest.raises(UsageError, match="cannot stack 2 observations of FrozenLake-v1"):
        make_environments(Environments("FrozenLake-v1", stack=2))


def games_of(env_id: str, **options: Any) -> Any:
    """Atari games as the command line makes them, and how many frames of the emulator a step takes."""
    env: Any = make_environments(Environments(find_environment(env_id), 1, default_stack(find_environment(env_id)), **options))
    env.seed(3)
    env.reset()
    before = env.envs[0].unwrapped.ale.getEpisodeFrameNumber()
    for _ in range(8):
        env.step([0])
    return env, (env.envs[0].unwrapped.ale.getEpisodeFrameNumber() - before) / 8


@pytest.mark.parametrize("env_id", ["Pong", "ALE/Pong-v5", "ale_py:ALE/Pong-v5", "Pong-v4", "PongNoFrameskip-v4"])
def test_a_step_of_an_atari_game_takes_four_frames(env_id: str) -> None:
    """SB3's preprocessing skips frames, and so do the games that are called v5: together they would skip sixteen."""
    pytest.importorskip("ale_py")
    env, frames = games_of(env_id)
    assert frames == 4 and env.observation_space.shape == (84, 84, 4)
    env, frames = games_of(env_id, rgb=True)
    assert frames == 4 and env.observation_space.shape[:2] == (210, 160)


def test_rgb_of_what_has_no_preprocessing() -> None:
    with pytest.raises(UsageError, match=r"--rgb is for Atari games, not for CartPole-v1"):
        make_environments(Environments("CartPole-v1", rgb=True))


def test_atari_is_stacked() -> None:
    pytest.importorskip("ale_py")
    find_environment("Pong")
    assert default_stack("PongNoFrameskip-v4") == 4 and default_stack("CartPole-v1") is None
    env = make_environments(Environments("PongNoFrameskip-v4", 1, 4), whole_games=True)
    assert env.observation_space.shape == (84, 84, 4)
