"""What the memory examples share: play once, then hand the same play to one buffer after the other, and measure."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers._support import resident_bytes_after_release
from sb3_extra_buffers.compressed import CompressedReplayBuffer

# Every codec at the levels of the published table, and what this package adds to them.
METHODS = (
    *("delta", "delta-zstd", "none", "rle", "rle-jit"),
    *("zstd-100", "zstd-50", "zstd-20", "zstd-5", "zstd-3", "zstd-1", "zstd1", "zstd3", "zstd5", "zstd10", "zstd15", "zstd22"),
    *("lz4-frame/1", "lz4-frame/5", "lz4-frame/9", "lz4-frame/12", "lz4-block/1", "lz4-block/5", "lz4-block/9"),
    *("gzip0", "gzip1", "gzip3", "igzip0", "igzip1", "igzip3"),
)

_WARM_ROWS = 32


def table_parser(description: str | None, transitions: int) -> argparse.ArgumentParser:
    """
    Make the command line that all memory examples have.

    :param description: The docstring of the example
    :param transitions: How many are played
    :return: The parser, to which an example may add more
    """
    parser = common.make_parser(description)
    parser.add_argument("--transitions", type=common.positive, default=transitions, help="size of the buffers")
    parser.add_argument("--in-process", action="store_true", help="run the games in this process, not in one each")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    return parser


class Step(NamedTuple):
    """The arguments of ``ReplayBuffer.add``."""

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    infos: list[dict[str, Any]]


def step_of(tape: CompressedReplayBuffer, row: int) -> Step:
    """
    Hand out a step of the play again.

    :param tape: What ``play`` returned
    :param row: Which step
    :return: What was added
    """
    infos = [{"TimeLimit.truncated": bool(timeout)} for timeout in tape.timeouts[row]]
    obs, next_obs = np.asarray(tape.observations[row]), np.asarray(tape.next_observations[row])
    return Step(obs, next_obs, tape.actions[row], tape.rewards[row], tape.dones[row], infos)


def play(env: VecEnv, transitions: int) -> CompressedReplayBuffer:
    """
    Play at random and keep everything, in memory: compressed, it takes next to nothing.

    :param env: What to play; is closed
    :param transitions: How much, of all environments together
    :return: The play
    """
    # A DQN that never begins to learn plays at random, and stores what it sees as DQN does.
    kwargs: dict[str, Any] = {"replay_buffer_class": CompressedReplayBuffer, "learning_starts": transitions + 1}
    model = DQN("CnnPolicy", env, buffer_size=transitions, seed=0, **kwargs)
    print(f"Playing {transitions:,} transitions, which takes a while …", file=sys.stderr)
    model.learn(transitions)
    env.close()
    assert isinstance(model.replay_buffer, CompressedReplayBuffer)
    return model.replay_buffer


class Table:
    """
    Fills buffers with the same play, and prints a line for each, compared with the first.

    :param title: What the seconds are spent in
    :param path: File to write the figures to, as JSON
    """

    def __init__(self, title: str, path: Path | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path = path
        print(f"{'method':<28} {'memory':>12} {'memory %':>9} {title:>13}")

    def measure(
        self,
        name: str,
        tape: CompressedReplayBuffer,
        make: Callable[[int], BaseBuffer],
        add: Callable[[Any, Step], None],
        read: Callable[[Any], None] | None = None,
    ) -> None:
        """
        Make a buffer, fill it, read it, and print by how much filling it has made the process grow.

        :param name: What to call it
        :param tape: What to fill it with
        :param make: Makes a buffer with so many rows
        :param add: Adds a step to it
        :param read: Reads it; then this is what is timed, and not adding
        """
        rows = len(tape.observations)
        # What is loaded or compiled at first use is not measured.
        few = min(rows, _WARM_ROWS)
        self._use(make(few), tape, few, add, read)
        before = resident_bytes_after_release()
        seconds, after = self._use(make(rows), tape, rows, add, read)
        grown = after - before
        share = 100 * grown / self.rows[0]["bytes"] if self.rows else 100.0
        about = {"method": name, "transitions": rows * tape.n_envs, "measured": date.today().isoformat()}
        self.rows.append({**about, "bytes": grown, "percent": round(share, 2), "seconds": round(seconds, 3)})
        print(f"{name:<28} {grown / 1e6:>9,.1f} MB {share:>7.1f} % {seconds:>11.1f} s", flush=True)
        if self._path:
            self._path.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def _use(buffer: BaseBuffer, tape: CompressedReplayBuffer, rows: int, add: Any, read: Any) -> tuple[float, int]:
        seconds = 0.0
        for row in range(rows):
            step = step_of(tape, row)
            start = time.perf_counter()
            add(buffer, step)
            seconds += time.perf_counter() - start
        resident = resident_bytes_after_release()
        if read is not None:
            start = time.perf_counter()
            read(buffer)
            seconds = time.perf_counter() - start
        return seconds, resident
