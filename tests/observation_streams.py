"""
Observations as environments make them, in all the memory layouts that NumPy has, and bit-exact comparison.

A helper module for the tests of storage and buffers: everything here is driven by one seed, so that hypothesis draws a
few numbers instead of megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_extra_buffers.codecs import has_igzip, has_lz4, has_numba, has_zstd

_ALL_METHODS = (
    None,
    "delta",
    "delta-zstd",
    "zstd-3",
    "lz4-frame/1",
    "lz4-block/0",
    "rle",
    "rle-jit",
    "gzip1",
    "igzip1",
    "none",
)


def _is_installed(method: str | None) -> bool:
    name = str(method)
    needs = {"rle-jit": has_numba, "igzip1": has_igzip, "lz4-frame/1": has_lz4, "lz4-block/0": has_lz4}
    if "zstd" in name:
        return has_zstd()
    return needs.get(name, lambda: True)()


METHODS = tuple(method for method in _ALL_METHODS if _is_installed(method))
"""Every method of compression that works here; None is the default."""

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is missing")


# -- contents ---------------------------------------------------------------------------------------------------------

CONTENTS = ("game", "noise", "static", "zeros", "mixed", "extreme", "recurring")


def _game_frames(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A still background on which a few elements change: what most games look like."""
    background = _noise(rng, shape, dtype)
    while True:
        frame = background.copy()
        flat = frame.reshape(-1)
        for _ in range(rng.integers(0, 4)):
            start = rng.integers(0, flat.size)
            flat[start : start + rng.integers(1, 12)] = _noise(rng, (1,), dtype)
        yield frame


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype.newbyteorder("="), endpoint=True).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _extreme(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Any bits at all: NaNs with payloads, infinities, negative zeros, subnormal numbers."""
    if dtype.kind == "b":
        return _noise(rng, shape, dtype)
    size = int(np.prod(shape))
    data = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype=dtype).copy()
    if dtype.kind == "f" and size:
        with np.errstate(invalid="ignore"):
            special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).tiny / 2], dtype=dtype)
        chosen = rng.random(size) < 0.5
        data[chosen] = rng.choice(special, int(chosen.sum()))
    return data.reshape(shape)


def _recurring_frames(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A few frames in any order: what an agent sees that turns around in a grid world."""
    game = _game_frames(rng, shape, dtype)
    frames = [_noise(rng, shape, dtype) if k % 2 else next(game) for k in range(6)]
    while True:
        yield frames[rng.integers(len(frames))].copy()


def frames_of(content: str, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """
    Generate frames without end.

    :param content: One of CONTENTS
    :param rng: Source of randomness
    :param shape: Shape of a frame
    :param dtype: Type of its elements
    :return: Generator of frames
    """
    dtype = np.dtype(dtype)
    if content == "game":
        yield from _game_frames(rng, shape, dtype)
    if content == "recurring":
        yield from _recurring_frames(rng, shape, dtype)
    still, game = _noise(rng, shape, dtype), _game_frames(rng, shape, dtype)
    kinds = {
        "noise": lambda: _noise(rng, shape, dtype),
        "extreme": lambda: _extreme(rng, shape, dtype),
        "static": still.copy,
        "zeros": lambda: np.zeros(shape, dtype),
    }
    if content == "mixed":
        makers = [*kinds.values(), lambda: next(game)]
        maker = makers[0]
        while True:
            if rng.random() < 0.3:
                maker = makers[rng.integers(len(makers))]
            yield maker()
    while True:
        yield kinds[content]()


# -- environments -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """
    A frame stack.

    :param depth: Frames
    :param axis: Along which axis of the frame they are concatenated; None for a new first axis
    :param padding: ``zeros`` as ``VecFrameStack`` does at a reset, ``repeat`` as Gymnasium's wrapper does
    """

    depth: int
    axis: int | None
    padding: str = "zeros"

    def join(self, frames: list[np.ndarray]) -> np.ndarray:
        return np.stack(frames) if self.axis is None else np.concatenate(frames, axis=self.axis)


class Stream:
    """
    Observations of parallel environments that end and begin again.

    :param seed: Seed
    :param n_envs: Number of environments
    :param frame_shape: Shape of a frame
    :param dtype: Type of its elements
    :param content: One of CONTENTS
    :param stack: How frames are stacked; None for not at all
    :param done_rate: How likely an episode ends
    """

    def __init__(
        self,
        seed: int,
        n_envs: int,
        frame_shape: tuple[int, ...],
        dtype: Any,
        content: str = "game",
        stack: Stack | None = None,
        done_rate: float = 0.15,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.n_envs = n_envs
        self.dtype = np.dtype(dtype)
        self.stack = stack
        self.done_rate = done_rate
        self.frames = [frames_of(content, np.random.default_rng([seed, env]), frame_shape, dtype) for env in range(n_envs)]
        self.history: list[list[np.ndarray]] = [[] for _ in range(n_envs)]
        for env in range(n_envs):
            self._reset(env)
        self.obs = self._observe()

    @property
    def obs_shape(self) -> tuple[int, ...]:
        return self.obs.shape[1:]

    def _reset(self, env: int) -> None:
        frame = next(self.frames[env])
        depth = 1 if self.stack is None else self.stack.depth
        padding = frame if self.stack is not None and self.stack.padding == "repeat" else np.zeros_like(frame)
        self.history[env] = [padding] * (depth - 1) + [frame]

    def _observe(self) -> np.ndarray:
        join = (lambda frames: frames[-1]) if self.stack is None else self.stack.join
        return np.stack([join(frames) for frames in self.history])

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """
        Go on by one step.

        :return: Observations before it, true observations after it (the terminal one where an episode ends), dones, infos
        """
        obs = self.obs
        for env in range(self.n_envs):
            self.history[env] = [*self.history[env][1:], next(self.frames[env])]
        next_obs = self._observe()
        dones = self.rng.random(self.n_envs) < self.done_rate
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        for env in np.flatnonzero(dones):
            if self.rng.random() < 0.5:
                infos[env]["TimeLimit.truncated"] = bool(self.rng.random() < 0.7)
            self._reset(env)
        self.obs = self._observe()
        return obs, next_obs, dones, infos


class DictStream:
    """
    Several streams under keys.

    :param streams: The streams; the dones and infos are those of the first
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams = dict(streams)
        self.n_envs = next(iter(self.streams.values())).n_envs

    def step(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, list[dict[str, Any]]]:
        steps = {key: stream.step() for key, stream in self.streams.items()}
        _, _, dones, infos = next(iter(steps.values()))
        return {key: s[0] for key, s in steps.items()}, {key: s[1] for key, s in steps.items()}, dones, infos


class SpaceStream:
    """
    Samples of a space that is no Box.

    :param seed: Seed
    :param n_envs: Number of environments
    :param space: The space
    """

    def __init__(self, seed: int, n_envs: int, space: spaces.Space[Any]) -> None:
        self.rng = np.random.default_rng(seed)
        self.n_envs = n_envs
        self.space = space
        space.seed(seed)
        self.obs = self._observe()

    def _observe(self) -> np.ndarray:
        return np.stack([self.space.sample() for _ in range(self.n_envs)])

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, next_obs = self.obs, self._observe()
        dones = self.rng.random(self.n_envs) < 0.2
        self.obs = np.where(dones.reshape(-1, *[1] * (obs.ndim - 1)), self._observe(), next_obs).astype(obs.dtype)
        return obs, next_obs, dones, [{"TimeLimit.truncated": bool(done)} for done in dones]


def space_of(stream: Stream | DictStream | SpaceStream) -> spaces.Space[Any]:
    """
    Declare the observation space of a stream.

    :param stream: The stream
    :return: The space
    """
    if isinstance(stream, SpaceStream):
        return stream.space
    if isinstance(stream, DictStream):
        return spaces.Dict({key: space_of(part) for key, part in stream.streams.items()})
    if stream.dtype == np.uint8:
        return spaces.Box(0, 255, stream.obs_shape, np.uint8)
    if stream.dtype.kind in "iu":
        limits = np.iinfo(stream.dtype)
        return spaces.Box(limits.min, limits.max, stream.obs_shape, stream.dtype.type)
    return spaces.Box(-np.inf, np.inf, stream.obs_shape, stream.dtype.type)


# -- how arrays lie in memory -----------------------------------------------------------------------------------------


def _channels_last(array: np.ndarray) -> np.ndarray:
    """What ``VecTransposeImage`` hands out: the second axis is the last in memory."""
    if array.ndim < 3:
        return array.copy()
    back = (0, array.ndim - 1, *range(1, array.ndim - 1))
    return np.ascontiguousarray(array.transpose(0, *range(2, array.ndim), 1)).transpose(back)


def _strided(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2 + 1), dtype=array.dtype)
    wide[..., 1::2] = array
    return wide[..., 1::2]


def _reversed(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array[::-1, ..., ::-1])[::-1, ..., ::-1]


def _unaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, dtype=np.uint8)
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _from_a_batch(array: np.ndarray) -> np.ndarray:
    """Some rows of a larger array, as a worker's shared memory gives."""
    return np.concatenate([array, array])[len(array) :]


PRESENTATIONS = {
    "plain": np.copy,
    "channels last": _channels_last,
    "strided": _strided,
    "reversed": _reversed,
    "fortran": np.asfortranarray,
    "unaligned": _unaligned,
    "read-only": _read_only,
    "from a batch": _from_a_batch,
}
"""Copies of an array that lie differently in memory."""


def present(obs: Any, how: str) -> Any:
    """
    Copy observations to another memory layout.

    :param obs: Array or dict of arrays
    :param how: One of PRESENTATIONS
    :return: The same values
    """
    if isinstance(obs, dict):
        return {key: present(value, how) for key, value in obs.items()}
    return PRESENTATIONS[how](obs) if obs.ndim > 1 else obs.copy()


def scribble(obs: Any) -> None:
    """
    Overwrite arrays or tensors in place, as their owner is free to do.

    :param obs: Array, tensor, or dict of them
    """
    if isinstance(obs, dict):
        for value in obs.values():
            scribble(value)
    elif isinstance(obs, th.Tensor) and obs.dtype == th.uint16:
        obs.fill_(1)  # torch cannot calculate with it
    elif isinstance(obs, th.Tensor):
        obs.copy_(obs.logical_not() if obs.dtype == th.bool else obs * 3 + 1)
    elif obs.flags.writeable:
        obs[...] = 1


# -- comparison -------------------------------------------------------------------------------------------------------


def bits_of(array: np.ndarray[Any, Any]) -> bytes:
    """
    Take the bytes of an array, without those of an x86 ``longdouble`` that are not part of the number and hold anything.

    :param array: The array
    :return: Its bytes
    """
    if array.dtype == np.longdouble and np.finfo(np.longdouble).nmant == 63:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.itemsize)[:, :10].tobytes()
    return array.tobytes()


def assert_same_bits(ours: Any, theirs: Any, what: str = "") -> None:
    """
    Compare arrays or tensors in type, shape, device and every bit.

    :param ours: What we gave
    :param theirs: What SB3 (or NumPy) gives
    :param what: Its name, for the message
    """
    assert type(ours) is type(theirs), what
    if theirs is None:
        return
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs), what
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same_bits(one, other, f"{what}[{place}]")
        return
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), what
        for key in theirs:
            assert_same_bits(ours[key], theirs[key], f"{what}[{key!r}]")
        return
    if isinstance(theirs, th.Tensor):
        assert ours.device == theirs.device, what
        assert ours.dtype == theirs.dtype, what
        ours, theirs = ours.cpu().numpy(), theirs.cpu().numpy()
    assert ours.dtype == theirs.dtype, what
    assert ours.shape == theirs.shape, what
    if bits_of(ours) != bits_of(theirs):
        np.testing.assert_array_equal(ours, theirs, err_msg=what)  # shows where
        raise AssertionError(f"{what}: equal values, different bits")


def assert_same_samples(ours: Any, theirs: Any) -> None:
    """
    Compare two samples of buffers.

    :param ours: Ours
    :param theirs: SB3's
    """
    assert type(ours) is type(theirs)
    for name in theirs._fields:
        assert_same_bits(getattr(ours, name), getattr(theirs, name), name)


def assert_same_random_state(ours: Any, theirs: Any) -> None:
    """
    Compare states of NumPy's global generator.

    :param ours: State after our call
    :param theirs: State after SB3's
    """
    assert ours[0] == theirs[0] and ours[2:] == theirs[2:]
    np.testing.assert_array_equal(ours[1], theirs[1])


def sampled(buffer: Any, seed: int, batch_size: int, **kwargs: Any) -> tuple[Any, Any]:
    """
    Sample from a buffer.

    :param buffer: The buffer
    :param seed: Seed of NumPy's global generator
    :param batch_size: Number of transitions
    :param kwargs: Passed to ``sample``
    :return: The samples, and the generator's state afterwards
    """
    np.random.seed(seed)
    samples = buffer.sample(batch_size, **kwargs)
    return samples, np.random.get_state()


def contents_of(observations: Any) -> Any:
    """
    Decode all that a buffer holds.

    :param observations: Array, or dict of arrays
    :return: ndarray, or dict of them
    """
    if isinstance(observations, dict):
        return {key: np.asarray(value) for key, value in observations.items()}
    return np.asarray(observations)
