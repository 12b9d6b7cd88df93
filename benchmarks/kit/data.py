"""
Real games, played once, kept on disk, and handed out again exactly as SB3's training loop hands them to ``add``.

On disk are only the newest frames, packed, and what else a step gave. Stacking, zero padding at reset, transposition and
terminal observations are SB3's own code, run again over those frames.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import pickle
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecTransposeImage
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from kit.results import CACHE

FORMAT = 2
SEED = 0
TRAINED = Path(__file__).parents[1] / "play"
"""Actions of trained agents, which ``train_play.py`` keeps here."""
_CHUNK_BYTES = 8 << 20

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Dataset:
    """
    What a row of the benchmark plays.

    :param name: Short name, for the command line
    :param title: Name in tables
    :param source: Recording that it comes from; ``_PLAYERS`` says who makes it
    :param n_envs: Number of environments
    :param stack: Frames in an observation
    :param transitions: Size of the ring in a full run
    :param actions: Number of actions
    :param resumed: Both buffers are saved and loaded before they are filled, and observations come from worker processes
    """

    name: str
    title: str
    source: str
    n_envs: int
    stack: int
    transitions: int
    actions: int
    resumed: bool = False

    @property
    def trained(self) -> bool:
        """Whether a trained agent plays; else actions are drawn at random."""
        return self.source.endswith("-trained")


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("mspacman", "MsPacman, stack 4", "MsPacmanNoFrameskip-v4", 4, 4, 40_000, 9),
        Dataset("pong", "Pong, stack 4", "PongNoFrameskip-v4", 4, 4, 40_000, 6),
        Dataset("breakout", "Breakout, stack 4", "BreakoutNoFrameskip-v4", 4, 4, 40_000, 4),
        Dataset("mspacman-trained", "MsPacman, trained play, stack 4", "mspacman-trained", 4, 4, 40_000, 9),
        Dataset("breakout-trained", "Breakout, trained play, stack 4", "breakout-trained", 4, 4, 40_000, 4),
        Dataset("pong-single", "Pong, no stack", "PongNoFrameskip-v4", 8, 1, 40_000, 6),
        Dataset("pong-resumed", "Pong, no stack, resumed, worker processes", "PongNoFrameskip-v4", 8, 1, 40_000, 6, True),
        Dataset("doom-labels", "ViZDoom labels 160x120", "doom-labels", 4, 1, 20_000, 7),
        Dataset("doom-rgb", "ViZDoom RGB 160x120", "doom-rgb", 4, 1, 20_000, 7),
        # Many, since SB3 needs only 160 bytes for each: fewer would drown in the noise of the allocator.
        Dataset("vectors", "float32 vectors (17,)", "walk", 4, 1, 400_000, 4),
    )
}


class Transition(NamedTuple):
    """The arguments of ``ReplayBuffer.add``."""

    obs: Array
    next_obs: Array
    action: Array
    reward: Array
    done: Array
    infos: list[dict[str, Any]]


class Recorder:
    """
    Writes a recording.

    :param folder: Where to; appears when it is complete
    :param first: Frames after the first reset
    """

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
        """
        Record a step.

        :param frames: Newest frame of each environment, after a reset the first one
        :param action: Actions taken
        :param reward: Rewards
        :param done: Whether episodes ended
        :param timeout: Whether they were cut short
        :param terminal: Last frames of the episodes that ended
        """
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
    """
    Reads a recording, always into the same memory, so that reading never makes the process grow.

    :param folder: Its folder
    """

    def __init__(self, folder: Path) -> None:
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
        """
        Say what observations look like.

        :param stack: Frames in one
        :return: The space that a buffer gets
        """
        space = self.frame_space
        if stack > 1:
            stacked: Any = StackedObservations(self.n_envs, stack, space).stacked_observation_space
            space = stacked
        return VecTransposeImage.transpose_space(space) if self.is_image else space

    def transitions(self, stack: int) -> Iterator[Transition]:
        """
        Play the recording back, from its start.

        :param stack: Frames in an observation
        :return: What ``collect_rollouts`` of SB3 gives to the buffer, step by step
        """
        stacker = StackedObservations(self.n_envs, stack, self.frame_space) if stack > 1 else None
        turn: Callable[[Array], Array] = VecTransposeImage.transpose_image if self.is_image else lambda frame: frame
        first = self._steps["first"].copy()
        obs = turn(stacker.reset(first) if stacker else first)
        done, timeout = self._steps["done"], self._steps["timeout"]
        ended = 0
        for row, frames in enumerate(self._frames()):
            infos: list[dict[str, Any]] = [{"TimeLimit.truncated": bool(cut)} for cut in timeout[row]]
            over = np.flatnonzero(done[row])
            for env in over:
                infos[env]["terminal_observation"] = self._steps["terminal"][ended]
                ended += 1
            new, infos = stacker.update(frames, done[row], infos) if stacker else (frames.copy(), infos)
            new = turn(new)
            next_obs = deepcopy(new)
            for env in over:
                infos[env]["terminal_observation"] = next_obs[env] = turn(infos[env]["terminal_observation"])
            yield Transition(obs, next_obs, self._steps["action"][row], self._steps["reward"][row], done[row], infos)
            obs = new


def from_workers(transitions: Iterator[Transition]) -> Iterator[Transition]:
    """
    Put observations together as ``SubprocVecEnv`` does, from what its workers sent. With a single worker, their
    type is an object that equals NumPy's but is not the same; NumPy stacks those of several into its own type.

    :param transitions: Transitions
    :return: The same
    """
    for one in transitions:
        obs, next_obs = (np.stack(pickle.loads(pickle.dumps(list(part)))) for part in (one.obs, one.next_obs))
        yield one._replace(obs=obs, next_obs=next_obs)


def record_env(env: VecEnv, folder: Path, actions: Iterator[Array], digest: FrameDigest | None = None) -> None:
    """
    Play an environment and record it.

    :param env: Vectorized environment without stacking, channels last; is closed
    :param folder: Where to
    :param actions: Actions, one array a step
    :param digest: Takes the frames into account
    """
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


def _play_atari(dataset: Dataset, rows: int, cache: Path) -> None:
    from sb3_extra_buffers.training_utils.atari import make_env

    rng = np.random.default_rng(SEED)
    # Workers take longer to start than a short game takes to play; the game is the same.
    short = rows * dataset.n_envs <= 10_000
    env = make_env(dataset.source, dataset.n_envs, DummyVecEnv if short else SubprocVecEnv, framestack=None, seed=SEED)
    record_env(env, _folder(dataset, cache), (rng.integers(0, dataset.actions, dataset.n_envs) for _ in range(rows)))


def newest_frames(obs: Array) -> Array:
    """
    Take the newest frame out of each observation.

    :param obs: Gray observations, stacked or not, channels last
    :return: The frames
    """
    return obs[..., -1:]


class FrameDigest:
    """Hashes the frames of a game, so that playing its actions again can be seen to give the same game."""

    def __init__(self) -> None:
        self._state = hashlib.blake2b(digest_size=16)

    def update(self, frames: Array) -> None:
        """
        Take the frames of one step into account.

        :param frames: Newest frames
        """
        self._state.update(np.ascontiguousarray(frames).data)

    def hexdigest(self) -> str:
        """
        Tell the digest of all frames so far.

        :return: Hexadecimal digits
        """
        return self._state.hexdigest()


def _play_trained(dataset: Dataset, rows: int, cache: Path) -> None:
    """The actions of an agent that was trained once, played again."""
    from sb3_extra_buffers.training_utils.atari import make_env

    with np.load(TRAINED / f"{dataset.name}.npz") as kept:
        actions, about = kept["actions"].astype(np.int64), json.loads(str(kept["about"]))
    if rows > len(actions):
        raise ValueError(f"{dataset.name}.npz has {len(actions):,} steps, {rows:,} are needed: train_play.py makes more")
    env = make_env(about["game"], dataset.n_envs, DummyVecEnv, framestack=None, seed=about["seed"])
    frames = FrameDigest()
    record_env(env, _folder(dataset, cache), iter(actions[:rows]), frames)
    if rows == len(actions) and frames.hexdigest() != about["frames"]:
        shutil.rmtree(_folder(dataset, cache))
        raise ValueError(
            f"{dataset.name} is not the game that was played with {about['versions']}: train_play.py plays a new one"
        )


def _play_doom(dataset: Dataset, rows: int, cache: Path) -> None:
    """The picture, or what each of its pixels belongs to; with the same seed and actions, it is the same game."""
    from sb3_extra_buffers.training_utils.vizdoom import make_env

    rng = np.random.default_rng(SEED)
    observe = dataset.source.removeprefix("doom-")
    env = make_env("deadly_corridor", dataset.n_envs, DummyVecEnv, seed=SEED, observe=observe)
    record_env(env, _folder(dataset, cache), (rng.integers(0, dataset.actions, dataset.n_envs) for _ in range(rows)))


def _play_walk(dataset: Dataset, rows: int, cache: Path) -> None:
    """A random walk, as the state of a robot might take."""
    rng = np.random.default_rng(SEED)
    shape = (dataset.n_envs, 17)
    state = rng.normal(size=shape).astype(np.float32)
    recorder = Recorder(_folder(dataset, cache), state)
    for row in range(rows):
        state = state + rng.normal(scale=0.1, size=shape).astype(np.float32)
        done = np.full(dataset.n_envs, row % 1000 == 999)
        terminal = [frame.copy() for frame in state[done]]
        if done.any():
            state = rng.normal(size=shape).astype(np.float32)
        action = rng.integers(0, dataset.actions, dataset.n_envs)
        recorder.add(state, action, rng.normal(size=dataset.n_envs).astype(np.float32), done, done, terminal)
    recorder.close()


_PLAYERS = {
    "mspacman-trained": _play_trained,
    "breakout-trained": _play_trained,
    "doom-rgb": _play_doom,
    "doom-labels": _play_doom,
    "walk": _play_walk,
}


def _folder(dataset: Dataset, cache: Path) -> Path:
    return cache / f"{dataset.source.split('NoFrameskip')[0].lower()}-{dataset.n_envs}"


def is_played(dataset: Dataset, transitions: int, cache: Path = CACHE) -> bool:
    """
    Tell whether a recording is there already.

    :param dataset: Dataset
    :param transitions: How many are needed
    :param cache: Folder of the recordings
    :return: Whether it is there and long enough
    """
    about = _folder(dataset, cache) / "about.json"
    if not about.exists():
        return False
    known = json.loads(about.read_text())
    return bool(known["format"] == FORMAT and known["seed"] == SEED and known["rows"] * dataset.n_envs >= transitions)


def play(dataset: Dataset, transitions: int, cache: Path = CACHE) -> None:
    """
    Play a game and keep it, unless that was done before.

    :param dataset: Dataset
    :param transitions: How many are needed; a longer recording begins just like a shorter one
    :param cache: Folder of the recordings
    """
    if not is_played(dataset, transitions, cache):
        _PLAYERS.get(dataset.source, _play_atari)(dataset, -(-transitions // dataset.n_envs), cache)


def load(dataset: Dataset, cache: Path = CACHE) -> Recording:
    """
    Open a recording that ``play`` made.

    :param dataset: Dataset
    :param cache: Folder of the recordings
    :return: The recording
    """
    return Recording(_folder(dataset, cache))
