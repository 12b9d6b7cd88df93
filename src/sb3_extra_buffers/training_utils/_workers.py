"""Environments in processes of their own, started from any script, that leave Ctrl-C to the process that started them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from sb3_extra_buffers.training_utils import _without_ctrl_c
from sb3_extra_buffers.training_utils.resuming.environments import ResumableEnv

EnvFactory = Callable[[], gym.Env[Any, Any]]


def start_envs(make_venv: Callable[[list[EnvFactory]], VecEnv], env_fns: list[EnvFactory]) -> VecEnv:
    """
    Make environments, in workers or here. Workers ignore Ctrl-C, which a terminal sends to them, too: this process decides
    what becomes of it, and can still save and close. They do not run the user's script again. Checkpoints can take the state
    of environments in workers. ``make_venv`` is a class of ``VecEnv``, or a callable that makes one.
    """
    with _main_replaced():
        venv = make_venv([partial(_make_here, os.getpid(), env_fn) for env_fn in env_fns])
    if type(venv) is SubprocVecEnv:
        # It may have been made by a callable that names SB3's class, with a start method for instance.
        venv.__class__ = _Workers
    return venv


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """
    Ignore Ctrl-C meanwhile. A program that is started meanwhile ignores it for as long as it runs.

    Only the main thread can do so; in another one, nothing is changed.
    """
    before = signal.getsignal(signal.SIGINT)
    # It is None if it was not set from Python, and then cannot be set again from here.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _make_here(parent: int, env_fn: EnvFactory) -> gym.Env[Any, Any]:
    if os.getpid() != parent:
        # A worker that was forked has not imported what stands in for the main script.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # So are workers ended if nobody closes them. What an environment has started ignores Ctrl-C, too, and must not stay.
        signal.signal(signal.SIGTERM, _exit)
        return ResumableEnv(env_fn())
    return env_fn()


def _exit(*_: object) -> None:
    sys.exit()


@contextmanager
def _main_replaced() -> Iterator[None]:
    """
    Start processes that do not run the user's script again, and ignore Ctrl-C as soon as they run Python.

    A process that is spawned, or comes from a fork server, first imports the main script, which in a script without
    ``if __name__ == "__main__":`` starts processes in turn. These workers need nothing from it: what it defines, and is
    passed to them, is pickled by value. Instead they import a module that turns Ctrl-C off, before torch and the like,
    which take seconds.
    """
    main = sys.modules["__main__"]
    stand_in = ModuleType("__main__")
    stand_in.__file__ = _without_ctrl_c.__file__
    sys.modules["__main__"] = stand_in
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Workers(SubprocVecEnv):
    """SB3's own class, which can be closed whatever the workers are doing."""

    def close(self) -> None:
        """
        Close all workers.

        SB3's own method waits for an answer from each of them if a step is under way. Ctrl-C may have come between answers,
        and then it would wait for ever for one that it has had.
        """
        if self.closed:
            return
        for remote in self.remotes:
            with suppress(OSError):  # the worker is gone
                remote.send(("close", None))
        for remote in self.remotes:
            with suppress(EOFError, OSError):
                while True:  # until the worker hangs up
                    remote.recv_bytes()
        for process in self.processes:
            process.join()
        for remote in self.remotes:
            remote.close()
        self.closed = True
