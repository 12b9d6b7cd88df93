"""
Recordings of games: only the newest frames, packed, and what else a step gave.

Stacking, zero padding at reset, transposition and terminal observations are SB3's own code, run again over those frames.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import pickle
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

FORMAT = 2
SEED = 0
_CHUNK_BYTES = 8 << 20

Array = np.ndarray[Any, np.dtype[Any]]


class Transition(NamedTuple):
    """The arguments of ``ReplayBuffer.add``."""

    obs: Array
    next_obs: Array
    action: Array
    reward: Array
    done: Array
    infos: list[dict[str, Any]]


class Recorder:
    """Writes a recording."""

    def __init__(self, folder: Path, first: Array) -> None:
        self._folder = folder
        self._work = folder.with_name(folder.name + ".part")
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        self._first = first.copy()
        self._chunk_rows = max(1, _CHUNK_BYTES // first.nbytes)
        self._pending: list[Array] = []
        self._lengths: list[int] = []
        self._steps: dict[str, list[Any]] = {name: [] for name in ("action", "reward", "done", "timeout", "terminal")}
        self._file = (self._work / "frames.zst").open("wb")
        self._pack = zstandard.ZstdCompressor(level=3).compress

    def add(self, frames: Array, action: Array, reward: Array, done: Array, timeout: Array, terminal: list[Array]) -> None:
        """Record a step."""
        for name, value in (("action", action), ("reward", reward), ("done", done), ("timeout", timeout)):
            self._steps[name].append(np.array(value))
        self._steps["terminal"].extend(frame.copy() for frame in terminal)
        self._pending.append(frames.copy())
        if len(self._pending) == self._chunk_rows:
            self._flush()

    def _flush(self) -> None:
        # One environment after the other: a frame lies beside its predecessor.
        packed = self._pack(np.ascontiguousarray(np.stack(self._pending, axis=1)))
        self._file.write(packed)
        self._lengths.append(len(packed))
        self._pending.clear()

    def close(self) -> None:
        """Finish the recording."""
        if self._pending:
            self._flush()
        self._file.close()
        steps = {name: np.array(values) for name, values in self._steps.items()}
        np.savez_compressed(
            self._work / "steps.npz", first=self._first, lengths=np.array(self._lengths), chunk_rows=self._chunk_rows, **steps
        )
        (self._work / "about.json").write_text(json.dumps({"format": FORMAT, "rows": len(steps["done"]), "seed": SEED}))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._work.rename(self._folder)


class Recording:
    """Reads a recording, always into the same memory, so that reading never makes the process grow."""

    def __init__(self, folder: Path, scaled: bool = False) -> None:
        with np.load(folder / "steps.npz") as steps:
            self._steps = {name: steps[name] for name in steps.files}
        with (folder / "frames.zst").open("rb") as file:
            self._packed = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends = np.cumsum(self._steps["lengths"])
        self._unpacker = zstandard.ZstdDecompressor()
        first, self._chunk_rows = self._steps["first"], int(self._steps["chunk_rows"])
        self._buffer = np.empty(self._chunk_rows * first.nbytes, dtype=np.uint8)
        self.n_envs = len(first)
        self.rows = len(self._steps["done"])
        self.is_image = first.ndim == 4
        self._scaled = scaled
        high, low = (255, 0) if self.is_image else (np.inf, -np.inf)
        self.frame_space = spaces.Box(low, high, first.shape[1:], first.dtype.type)

    def _frames(self) -> Iterator[Array]:
        first = self._steps["first"]
        for chunk, end in enumerate(self._ends):
            rows = min(self._chunk_rows, self.rows - chunk * self._chunk_rows)
            into = memoryview(self._buffer)[: rows * first.nbytes]
            start = end - self._steps["lengths"][chunk]
            with memoryview(self._packed) as packed, self._unpacker.stream_reader(packed[start:end]) as reader:
                done = 0
                while done < len(into):
                    got = reader.readinto(into[done:])
                    if not got:
                        raise OSError("the recording is damaged: delete the cache folder of the benchmarks")
                    done += got
            frames = self._buffer[: len(into)].view(first.dtype).reshape(self.n_envs, rows, *first.shape[1:])
            for row in range(rows):
                yield frames[:, row]

    def space(self, stack: int) -> spaces.Box:
        """Say what observations look like."""
        space = self.frame_space
        if stack > 1:
            stacked: Any = StackedObservations(self.n_envs, stack, space).stacked_observation_space
            space = stacked
        if self.is_image:
            space = VecTransposeImage.transpose_space(space)
        return spaces.Box(0.0, 1.0, space.shape, np.float32) if self._scaled else space

    def _turn(self, frames: Array) -> Array:
        """Hand frames out as a buffer gets them."""
        turned = VecTransposeImage.transpose_image(frames) if self.is_image else frames
        return np.ascontiguousarray(turned, dtype=np.float32) / np.float32(255) if self._scaled else turned

    def transitions(self, stack: int) -> Iterator[Transition]:
        """Play the recording back, from its start."""
        stacker = StackedObservations(self.n_envs, stack, self.frame_space) if stack > 1 else None
        first = self._steps["first"].copy()
        obs = self._turn(stacker.reset(first) if stacker else first)
        done, timeout = self._steps["done"], self._steps["timeout"]
        ended = 0
        for row, frames in enumerate(self._frames()):
            infos: list[dict[str, Any]] = [{"TimeLimit.truncated": bool(cut)} for cut in timeout[row]]
            over = np.flatnonzero(done[row])
            for env in over:
                infos[env]["terminal_observation"] = self._steps["terminal"][ended]
                ended += 1
            new, infos = stacker.update(frames, done[row], infos) if stacker else (frames.copy(), infos)
            new = self._turn(new)
            next_obs = deepcopy(new)
            for env in over:
                infos[env]["terminal_observation"] = next_obs[env] = self._turn(infos[env]["terminal_observation"])
            yield Transition(obs, next_obs, self._steps["action"][row], self._steps["reward"][row], done[row], infos)
            obs = new


def from_workers(transitions: Iterator[Transition]) -> Iterator[Transition]:
    """
    Put observations together as ``SubprocVecEnv`` does, from what its workers sent. With a single worker, their
    type is an object that equals NumPy's but is not the same; NumPy stacks those of several into its own type.
    """
    for one in transitions:
        obs, next_obs = (np.stack(pickle.loads(pickle.dumps(list(part)))) for part in (one.obs, one.next_obs))
        yield one._replace(obs=obs, next_obs=next_obs)


def newest_frames(obs: Array) -> Array:
    """Take the newest frame out of each observation."""
    return obs[..., -1:]


class FrameDigest:
    """Hashes the frames of a game, so that playing its actions again can be seen to give the same game."""

    def __init__(self) -> None:
        self._state = hashlib.blake2b(digest_size=16)

    def update(self, frames: Array) -> None:
        """Take the frames of one step into account."""
        self._state.update(np.ascontiguousarray(frames).data)

    def hexdigest(self) -> str:
        """Tell the digest of all frames so far."""
        return self._state.hexdigest()


def record_env(env: VecEnv, folder: Path, actions: Iterator[Array], digest: FrameDigest | None = None) -> None:
    """Play an environment and record it."""
    first: Any = env.reset()
    recorder = Recorder(folder, first)
    for action in actions:
        frames, reward, done, infos = env.step(action)
        terminal = [infos[i]["terminal_observation"] for i in np.flatnonzero(done)]
        timeout = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        recorder.add(np.asarray(frames), action, reward, done, timeout, terminal)
        if digest is not None:
            digest.update(np.asarray(frames))
    env.close()
    recorder.close()
