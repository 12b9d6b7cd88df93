"""Ctrl-C reaches workers as well as the process that started them. They leave it to that one, which can still close them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

GAME = "PongNoFrameskip-v4"
# A worker that is not forked imports torch, which takes seconds: one of these is enough for the fast run.
SPAWN = pytest.param("spawn", marks=pytest.mark.slow)

PLAY = """
import sys
from functools import partial

import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv
from sb3_extra_buffers.training_utils.{module} import make_env

env = make_env({name!r}, n_envs={n_envs}, vec_env_cls=partial(SubprocVecEnv, start_method={start_method!r}))
obs = env.reset()
print("playing", flush=True)
try:
    while True:
        env.step(np.zeros(env.num_envs, int))
except KeyboardInterrupt:
    if {closes}:
        env.close()
    print("stopped", flush=True)
"""


def press_ctrl_c(script: str, folder: Path) -> tuple[subprocess.Popen[str], str, str]:
    """Run a script as the leader of a process group, and send to all of the group what a terminal sends."""
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        assert process.stdout.readline() == "playing\n", process.stderr.read()
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        # It ends when everything that has them has closed them: the games of Doom, too.
        said, complained = process.communicate(timeout=600)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process, said, complained


@pytest.mark.parametrize("start_method", ["forkserver", SPAWN, "fork"])
def test_atari_can_be_closed(start_method: str, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    script = PLAY.format(module="atari", name=GAME, n_envs=2, start_method=start_method, closes=True)
    process, said, complained = press_ctrl_c(script, tmp_path)
    assert (process.returncode, said) == (0, "stopped\n")
    assert "Traceback" not in complained and "Error" not in complained, complained


@pytest.mark.parametrize("closes", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    ("n_envs", "start_method"),
    [(2, "forkserver"), pytest.param(2, "spawn", marks=pytest.mark.slow), (1, "in this process")],
)
def test_doom_can_be_closed_and_leaves_no_game_behind(n_envs: int, start_method: str, closes: bool, tmp_path: Path) -> None:
    pytest.importorskip("vizdoom")
    script = PLAY.format(module="vizdoom", name="basic", n_envs=n_envs, start_method=start_method, closes=closes)
    process, said, complained = press_ctrl_c(script, tmp_path)
    assert (process.returncode, said) == (0, "stopped\n")
    assert "Traceback" not in complained and "Error" not in complained, complained


class IgnoredYet:
    """Becomes True in a process that ignores Ctrl-C when this is unpickled, else False."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('signal').getsignal(2) == 1",)


@pytest.mark.parametrize("start_method", ["forkserver", SPAWN])
def test_workers_ignore_it_before_they_import_anything_large(start_method: str) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from sb3_extra_buffers.training_utils.atari import make_env

    workers = partial(SubprocVecEnv, start_method=start_method)
    env = make_env(GAME, 2, workers, full_action_space=IgnoredYet())
    assert env.action_space.n == 18  # type: ignore[attr-defined]
    env.close()


def test_in_this_process_it_still_interrupts() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from sb3_extra_buffers.training_utils.atari import make_env

    before = signal.getsignal(signal.SIGINT)
    env = make_env(GAME, 2, DummyVecEnv)
    env.reset()
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN
    env.close()


def test_doom_in_this_process_still_interrupts() -> None:
    pytest.importorskip("vizdoom")
    from sb3_extra_buffers.training_utils.vizdoom import make_env

    before = signal.getsignal(signal.SIGINT)
    env = make_env("basic")
    env.reset()
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN
    env.close()


@pytest.mark.timeout(120)  # what is tested for is a hang
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_workers_are_closed_wherever_a_step_was_interrupted(answers: int) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from sb3_extra_buffers.training_utils.atari import make_env

    env = make_env(GAME, 2, partial(SubprocVecEnv, start_method="fork"))
    env.reset()
    workers: Any = env.unwrapped
    workers.step_async(np.zeros(2, int))
    for remote in workers.remotes[:answers]:
        remote.recv()
    env.close()
    assert [process.exitcode for process in workers.processes] == [0, 0]
    env.close()  # which does nothing more


@pytest.mark.timeout(120)
def test_workers_are_closed_if_one_is_gone() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from sb3_extra_buffers.training_utils.atari import make_env

    env = make_env(GAME, 2, partial(SubprocVecEnv, start_method="fork"))
    env.reset()
    workers: Any = env.unwrapped
    workers.processes[0].kill()
    workers.processes[0].join()
    env.close()
    assert workers.processes[1].exitcode == 0
