"""Names, options and errors of buffers on a device, and how little they take."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import Pair, SmallReplay
from gymnasium import spaces
from observation_streams import Stack, Stream
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers import gpu_buffers
from sb3_extra_buffers.compressed import MemoryUsage, compressed_kwargs
from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuReplayBuffer, GpuRolloutBuffer, find_gpu_buffer_dtypes
from sb3_extra_buffers.gpu_buffers import raw_buffer as raw_buffer_module
from sb3_extra_buffers.gpu_buffers.observation_store import (
    DenseObservationStore,
    RawObservationStore,
    create_observation_store,
)
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch

IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
ROOT = Path(__file__).parents[2]

DOCUMENTED = {
    "": ["GpuReplayBuffer", "GpuRolloutBuffer", "GpuDictReplayBuffer", "GpuDictRolloutBuffer", "has_zstd"],
    ".base": ["find_gpu_buffer_dtypes"],
    ".gpu_replay": ["GpuReplayBuffer"],
    ".gpu_rollout": ["GpuRolloutBuffer"],
    ".utils": ["numpy_dtype_to_torch", "estimate_max_slot_bytes", "estimate_total_heap_bytes"],
    ".compression_methods": ["COMPRESSION_METHOD_MAP", "has_igzip", "has_lz4", "has_numba", "has_zstd"],
    ".raw_buffer": ["RawBuffer", "SharedRawHeap"],
    ".observation_store": ["DenseObservationStore", "RawObservationStore", "create_observation_store"],
    ".metadata": ["SlotMetadata"],
    ".size_estimation": ["estimate_save_ratio", "parse_compression_method"],
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_documented_names(module: str) -> None:
    found = importlib.import_module(gpu_buffers.__name__ + module)
    for name in DOCUMENTED[module]:
        assert name == "COMPRESSION_METHOD_MAP" or getattr(found, name).__doc__
        assert hasattr(found, name)
    assert set(gpu_buffers.__all__) <= set(dir(gpu_buffers))


def test_arguments_are_sb3s_and_then_ours() -> None:
    names = list(inspect.signature(GpuReplayBuffer).parameters)
    theirs = list(inspect.signature(ReplayBuffer).parameters)
    ours = ["dtypes", "compression_method", "buffer_device", "heap_bytes", "compression_kwargs", "max_slot_bytes"]
    assert names == theirs + ours
    assert ":param heap_bytes:" in (GpuReplayBuffer.__doc__ or "")
    assert GpuReplayBuffer(8, IMAGE, spaces.Discrete(2)).compression_method == "delta"


def test_dtypes() -> None:
    assert find_gpu_buffer_dtypes((4, 84, 84)) == {"elem_type": th.uint8, "runs_type": th.int16}
    assert find_gpu_buffer_dtypes(100, np.float32, "delta") == {"elem_type": th.float32, "runs_type": th.uint8}
    assert find_gpu_buffer_dtypes((3, 210, 160))["runs_type"] == th.int32
    with pytest.raises(ValueError, match="nonsense"):
        find_gpu_buffer_dtypes((4, 4), compression_method="nonsense")
    assert numpy_dtype_to_torch(np.int16) == th.int16 and numpy_dtype_to_torch(th.float16) == th.float16
    assert numpy_dtype_to_torch(np.dtype(">f4")) == th.float32
    with pytest.raises(TypeError, match="torch has no type"):
        numpy_dtype_to_torch(np.longdouble)
    with pytest.raises(TypeError, match="NumPy has no type"):
        find_gpu_buffer_dtypes((4,), th.bfloat16)


def test_elements_may_be_stored_smaller() -> None:
    """Declared as float32, whole numbers in truth; what does not fit is refused and leaves nothing behind."""
    space = spaces.Box(-1e9, 1e9, (4, 20, 20), np.float32)
    for method in ("delta", "rle", "none"):
        buffer = SmallReplay(
            20, space, spaces.Discrete(2), "cpu", dtypes=find_gpu_buffer_dtypes((4, 20, 20)), compression_method=method
        )
        obs = np.random.default_rng(0).integers(0, 256, (1, 4, 20, 20)).astype(np.float32)
        buffer.add(obs, obs + 0, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        sample = buffer.sample(3).observations
        assert sample.dtype == th.float32 and np.array_equal(sample.numpy(), np.repeat(obs, 3, axis=0))
        with pytest.raises(ValueError, match=r"\.5 \(float32\) would change"):
            buffer.add(obs, obs + 0.5, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        assert buffer.size() == 1


def test_one_environment_may_leave_its_axis_out() -> None:
    pair = Pair(Stream(0, 1, (1, 12, 12), np.uint8, "game", Stack(4, 0)), 9)
    for _ in range(20):
        obs, next_obs, *rest = pair.draw()
        pair.theirs.add(obs[0], next_obs[0], *rest)
        pair.ours.add(obs[0], next_obs[0], *rest)
    pair.check()


def test_wrong_observations_are_refused() -> None:
    buffer = GpuReplayBuffer(8, IMAGE, spaces.Discrete(2), "cpu", n_envs=2)
    good, rest = np.zeros((2, 4, 36, 36), np.uint8), (np.zeros(2), np.zeros(2), np.zeros(2), [{}, {}])
    for bad, message in ((good[:1], "give"), (None, "shape"), (good.astype(float) + 0.5, "floats"), ({"a": good}, "shape")):
        with pytest.raises((ValueError, TypeError), match=message):
            buffer.add(good, bad, *rest)
        with pytest.raises((ValueError, TypeError), match=message):
            buffer.add(bad, good, *rest)
    assert buffer.size() == 0
    by_key = GpuDictReplayBuffer(8, spaces.Dict({"a": IMAGE}), spaces.Discrete(2), "cpu", n_envs=2)
    with pytest.raises(ValueError, match=r"keys \['a'\], not \['b'\]"):
        by_key.add({"b": good}, {"a": good}, *rest)
    with pytest.raises(TypeError, match=r"add\(\)"):
        buffer.observations[0] = good


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heap_bytes": 0}, "heap_bytes must be positive, .* got 0"),
        ({"compression_method": "zstd0"}, "out of range"),
        ({"compression_method": "rle3"}, "no levels"),
        ({"compression_kwargs": {"level": 3}}, "no option 'level'"),
        ({"dtypes": {"other": {"elem_type": "u1"}}}, "observation space has"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GpuReplayBuffer(8, IMAGE, spaces.Discrete(2), **options)


def test_max_slot_bytes_excludes_heap_bytes() -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="cannot both"):
        GpuReplayBuffer(8, IMAGE, spaces.Discrete(2), heap_bytes=9, max_slot_bytes=9)
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="must be positive, got 0"):
        GpuReplayBuffer(8, IMAGE, spaces.Discrete(2), max_slot_bytes=0)


def test_frames_are_shared() -> None:
    """A transition of a stack of four costs one frame: the others are in the last one, in ``next_obs`` or empty."""
    pair = Pair(Stream(0, 2, (1, 16, 16), np.uint8, "noise", Stack(4, 0), 0.0), 50)
    pair.add(50)
    usage = pair.ours.memory_usage()
    assert isinstance(usage, MemoryUsage)
    assert usage.raw_bytes == 50 * 2 * 2 * 1024
    assert 100 <= usage.frames_stored <= 106 and usage.frames_shared > 680
    assert pair.ours._stores[None].layout.depth == 4


def test_stacks_are_found_late_as_well() -> None:
    """A game that stands still at first; what was stored by then is stored again."""
    pair = Pair(Stream(1, 2, (1, 16, 16), np.uint8, "game", Stack(4, 0), 0.0), 30)
    still = pair.draw()
    for _ in range(4):
        for buffer in (pair.ours, pair.theirs):
            buffer.add(still[0], still[0], *still[2:])
    assert pair.ours._stores[None].layout.depth == 1
    pair.add(20)
    assert pair.ours._stores[None].layout.depth == 4
    pair.check()


def test_a_key_frame_is_not_used_after_it_is_gone() -> None:
    """Darkness for longer than the buffer remembers: nothing refers to the key frame, and then there is light again."""
    stream = Stream(2, 1, (1, 16, 16), np.uint8, "game", Stack(2, 0), 0.0)
    pair = Pair(stream, 5)
    dark = np.zeros((1, 2, 16, 16), np.uint8)
    for _ in range(4):
        pair.add(9)
        for _ in range(40):
            for buffer in (pair.ours, pair.theirs):
                buffer.add(dark, dark, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        for _ in range(4):
            pair.check()
            pair.add()


def test_stores_by_method() -> None:
    for method, kind in (("none", DenseObservationStore), ("delta", RawObservationStore), ("gzip", RawObservationStore)):
        store = create_observation_store(5, 2, (4, 9, 9), np.uint8, method)
        assert type(store) is kind
        obs = np.full((2, 4, 9, 9), 7, np.uint8)
        store.write(3, obs, obs + 1)
        one, two = store.read(np.array([3, 0]), np.array([1, 0]), (0, 1))
        assert one.unique().tolist() == [0, 7] and two.unique().tolist() == [0, 8]


def test_arrays_take_the_indices_that_sb3_uses() -> None:
    pair = Pair(Stream(3, 2, (1, 12, 12), np.uint8, "mixed", Stack(3, 0)), 8)
    pair.add(8)
    ours, theirs = pair.ours.observations, pair.theirs.observations
    rows, envs = np.array([0, 3, 3, 7]), np.array([1, 0, 1, 1])
    for index in (
        2,
        -1,
        slice(1, 4),
        rows,
        (rows, envs),
        (rows, envs, slice(None)),
        (slice(None), 1),
        (2, 1, 0),
        (rows, 0, 1, 2),
    ):
        assert np.array_equal(ours[index].numpy(), theirs[index]), index
    assert (ours.shape, ours.dtype, ours.ndim, ours.nbytes, len(ours)) == (
        theirs.shape,
        theirs.dtype,
        theirs.ndim,
        theirs.nbytes,
        len(theirs),
    )
    assert np.allclose(ours, theirs) and "DeviceArray" in repr(ours)
    with pytest.raises(IndexError):
        ours[np.array([9]), np.array([0])]
    assert len(ours[np.array([], dtype=np.int64)]) == 0


def test_the_methods_say_which_codecs_are_there() -> None:
    from sb3_extra_buffers import codecs
    from sb3_extra_buffers.gpu_buffers.compression_methods import has_igzip, has_lz4, has_numba, has_zstd

    for found in (has_igzip, has_lz4, has_numba, has_zstd):
        assert found() is getattr(codecs, found.__name__)() and found.__doc__
    assert has_zstd() == ("zstd" in codecs.available_methods())


@pytest.mark.parametrize(
    ("algorithm", "space", "expected"),
    [
        (DQN, IMAGE, "GpuReplayBuffer"),
        (SAC, spaces.Dict({"a": IMAGE}), "GpuDictReplayBuffer"),
        (PPO, IMAGE, "GpuRolloutBuffer"),
        (A2C, spaces.Dict({"a": IMAGE}), "GpuDictRolloutBuffer"),
    ],
)
def test_compressed_kwargs_picks_them(algorithm: Any, space: Any, expected: str) -> None:
    arguments = compressed_kwargs(algorithm, space, buffer_device="cuda", compression_method="rle")
    kind = "replay" if algorithm in (DQN, SAC) else "rollout"
    assert arguments[f"{kind}_buffer_class"] is getattr(gpu_buffers, expected)
    assert arguments[f"{kind}_buffer_kwargs"] == {"buffer_device": "cuda", "compression_method": "rle"}


def test_compressed_kwargs_needs_no_import_of_ours() -> None:
    """In a fresh process; and without the option this package is not even imported."""
    program = (
        "import sys, numpy as np\nfrom gymnasium import spaces\nfrom stable_baselines3 import DQN\n"
        "from sb3_extra_buffers.compressed import compressed_kwargs\nspace = spaces.Box(0, 255, (4, 36, 36), np.uint8)\n"
        "compressed_kwargs(DQN, space)\nassert not [name for name in sys.modules if 'gpu_buffers' in name]\n"
        "print(compressed_kwargs(DQN, space, buffer_device='cuda')['replay_buffer_class'].__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "GpuReplayBuffer", done.stderr


def test_compressed_kwargs_says_what_there_is_not() -> None:
    from sb3_extra_buffers.training_utils.prioritized_dqn import PrioritizedDQN

    with pytest.raises(TypeError, match="none on a device"):
        compressed_kwargs(PrioritizedDQN, IMAGE, buffer_device="cuda")
    for option in ({"n_steps": 3}, {"her": True}, {"storage_dir": "ring"}, {"alpha": 0.6}):
        with pytest.raises(TypeError, match=f"has no option '{next(iter(option))}'"):
            compressed_kwargs(DQN, IMAGE, buffer_device="cuda", **option)
    contrib = pytest.importorskip("sb3_contrib")
    with pytest.raises(TypeError, match="none on a device"):
        compressed_kwargs(contrib.MaskablePPO, IMAGE, buffer_device="cuda")


def test_no_warnings_without_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair = Pair(Stream(3, 2, (1, 12, 12), np.uint8, "game", Stack(3, 0)), 8)
        pair.add(20)
        pair.check()
        GpuRolloutBuffer(8, IMAGE, spaces.Discrete(2), "cpu")


def test_there_is_one_heap_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heap that fills the device must not be there twice while the layout is found out."""
    sizes: list[int] = []
    allocate = raw_buffer_module.RawBuffer._allocate

    def noted(self: Any, capacity: int) -> Any:
        sizes.append(capacity)
        return allocate(self, capacity)

    monkeypatch.setattr(raw_buffer_module.RawBuffer, "_allocate", noted)
    pair = Pair(Stream(3, 2, (1, 12, 12), np.uint8, "game", Stack(4, 0), 0.0), 20, heap_bytes=10**6)
    pair.add(30)
    assert sum(size >= 10**6 for size in sizes) == 1 and sum(sizes) < 1.2 * 10**6
    assert pair.ours._stores[None].layout.depth == 4 and not pair.ours._stores[None].heap.grows
    pair.check()


def test_a_heap_of_fixed_size_is_made_where_there_is_no_stack() -> None:
    pair = Pair(Stream(3, 2, (12, 12), np.uint8, "game", None, 0.1), 60, heap_bytes=10**6)
    pair.add(10)
    assert pair.ours._stores[None].heap.grows, "still looking"
    pair.add(60)
    heap = pair.ours._stores[None].heap
    assert not heap.grows and heap.capacity >= 10**6
    pair.check()
