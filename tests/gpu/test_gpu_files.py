"""A buffer on a device comes back from files as SB3's holds it, on the device or on the host; and from there to the device."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import METHODS, Pair, SmallDictReplay, SmallReplay, rollout_pair
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from observation_streams import DictStream, Stack, Stream, assert_same_bits, sampled, space_of
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedPrioritizedReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    GpuDictReplayBuffer,
    GpuDictRolloutBuffer,
    GpuReplayBuffer,
    GpuRolloutBuffer,
    StorageError,
    load_buffer,
    open_dataset,
)
from sb3_extra_buffers.storage.directory import MANIFEST, unpack_manifest

ROWS = 24
REPLAY = {"box": (GpuReplayBuffer, CompressedReplayBuffer), "dict": (GpuDictReplayBuffer, CompressedDictReplayBuffer)}
ROLLOUT = {"box": (GpuRolloutBuffer, CompressedRolloutBuffer), "dict": (GpuDictRolloutBuffer, CompressedDictRolloutBuffer)}


def image_stream(seed: int = 0, n_envs: int = 2, side: int = 20) -> Stream:
    return Stream(seed, n_envs, (side, side), np.uint8, stack=Stack(3, None))


def stream_of(kind: str, seed: int = 0) -> Any:
    if kind == "box":
        return image_stream(seed)
    return DictStream({"image": image_stream(seed), "vector": Stream(seed + 1, 2, (3,), np.float32, "extreme")})


def pair_of(kind: str, place: int, rows: int = ROWS, **options: Any) -> Pair:
    """A buffer of ours, 0 for one on a device and 1 for a compressed one, and SB3's."""
    pair = Pair(stream_of(kind), rows)
    args = rows * 2, space_of(pair.stream), spaces.Discrete(4), "cpu"
    pair.ours = REPLAY[kind][place](*args, n_envs=2, **options)
    return pair


def same_rows(ours: Any, theirs: Any) -> None:
    """Compare all rows that are in use, and samples."""
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    used = theirs.buffer_size if theirs.full else theirs.pos
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        parts = other if isinstance(other, dict) else {None: other}
        for key, part in parts.items():
            assert_same_bits(np.asarray(mine if key is None else mine[key])[:used], np.asarray(part)[:used], f"{name} {key}")
    if used:
        for part, expected in zip(sampled(ours, 1, 9)[0], sampled(theirs, 1, 9)[0], strict=True):
            if expected is not None:
                assert_same_bits(part, expected)


STATES = {"nothing": 0, "some rows": 10, "full": ROWS, "over the end": 2 * ROWS + 7}


@pytest.mark.parametrize("steps", STATES.values(), ids=STATES)
@pytest.mark.parametrize("kind", REPLAY)
@pytest.mark.parametrize("place", [0, 1], ids=["saved by a device", "saved by the host"])
def test_either_loads_what_the_other_has_saved(place: int, kind: str, steps: int, tmp_path: Path) -> None:
    pair = pair_of(kind, place)
    pair.add(steps)
    pair.ours.save(tmp_path / "b")
    assert type(load_buffer(tmp_path / "b")) is REPLAY[kind][place]
    for cls in REPLAY[kind]:
        again: Any = cls.load(tmp_path / "b", device="cpu")
        assert type(again) is cls
        same_rows(again, pair.theirs)
        other = pair_of(kind, place)  # the same steps once more, and others after them
        other.add(steps)
        other.ours = again
        other.add(ROWS + 5)
        same_rows(again, other.theirs)
        again.save(tmp_path / "again")
        same_rows(load_buffer(tmp_path / "again"), other.theirs)


@given(moves=st.lists(st.one_of(st.integers(0, 30), st.sampled_from(["reset", "save", "load"])), min_size=1, max_size=6))
@settings(max_examples=10, deadline=None)
def test_whatever_happens_in_between(moves: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("files") / "b"
    pair = Pair(DictStream({"a": Stream(0, 1, (5, 5), np.uint8), "b": Stream(1, 1, (2,), np.float64)}), 11)
    for move in [*moves, "save", "load"]:
        if isinstance(move, int):
            pair.add(move)
        elif move == "reset":
            pair.ours.reset()
            pair.theirs.reset()
        elif move == "save":
            pair.ours.save(path)
            same_rows(SmallDictReplay.load(path), pair.theirs)
        elif path.exists():
            pair.ours.save(path)
            pair.ours = SmallDictReplay.load(path)
        same_rows(pair.ours, pair.theirs)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_a_device(method: str, tmp_path: Path) -> None:
    pair = pair_of("box", 0, compression_method=method)
    pair.add(ROWS + 9)
    pair.ours.save(tmp_path / "b")
    again = load_buffer(tmp_path / "b")
    assert again.compression_method == method and again._options == pair.ours._options
    same_rows(again, pair.theirs)
    same_rows(CompressedReplayBuffer.load(tmp_path / "b"), pair.theirs)


@pytest.mark.parametrize("options", [{}, {"compression_method": "gzip"}, {"compression_method": "none"}], ids=str)
def test_every_coding_of_the_host(options: Any, tmp_path: Path) -> None:
    pair = pair_of("dict", 1, **options)
    pair.add(ROWS + 9)
    pair.ours.save(tmp_path / "b")
    again = GpuDictReplayBuffer.load(tmp_path / "b")
    same_rows(again, pair.theirs)
    again.save(tmp_path / "again")  # coded by default again, so that any compressed buffer loads it
    same_rows(CompressedDictReplayBuffer.load(tmp_path / "again"), pair.theirs)


def test_a_data_set(tmp_path: Path) -> None:
    pair = pair_of("dict", 0)
    pair.add(2 * ROWS + 7)
    pair.ours.save(tmp_path / "b")
    dataset = open_dataset(tmp_path / "b")
    dataset.verify()
    rows, envs = np.divmod(np.arange(len(dataset)), 2)
    rows = (rows + pair.theirs.pos) % ROWS
    samples = dataset[:]
    for name in ("observations", "next_observations"):
        for key, part in getattr(pair.theirs, name).items():
            assert_same_bits(np.asarray(getattr(samples, name)[key]), part[rows, envs])
    assert_same_bits(np.asarray(samples.actions), pair.theirs.actions[rows, envs])


def manifest(path: Path) -> dict[str, Any]:
    return unpack_manifest((path / MANIFEST).read_bytes(), str(path))


def test_saving_again_writes_what_is_new(tmp_path: Path) -> None:
    pair = pair_of("box", 0, rows=400)
    pair.add(380)
    full = pair.ours.save(tmp_path / "b")
    assert pair.ours.save(tmp_path / "b") < full / 20, "nothing is new but the manifest"
    before = {chunk[0] for chunk in manifest(tmp_path / "b")["frames"][0]["spans"]}
    loaded = GpuReplayBuffer.load(tmp_path / "b")
    assert loaded.save(tmp_path / "b") < full / 4, "only the chunk that was open is coded anew"
    pair.add(40)
    pair.ours.save(tmp_path / "b")
    after = {chunk[0] for chunk in manifest(tmp_path / "b")["frames"][0]["spans"]}
    assert len(before & after) >= len(before) - 1, "full chunks stay"
    same_rows(load_buffer(tmp_path / "b"), pair.theirs)


@pytest.mark.parametrize("kind", ROLLOUT)
@pytest.mark.parametrize("state", ["half full", "full", "being read", "second"])
@pytest.mark.parametrize("place", [0, 1], ids=["saved by a device", "saved by the host"])
def test_rollouts(place: int, state: str, kind: str, tmp_path: Path) -> None:
    stream = stream_of(kind)
    _, theirs = rollout_pair(stream, ROWS)
    ours: Any = ROLLOUT[kind][place](ROWS, space_of(stream), spaces.Discrete(4), "cpu", n_envs=2)
    rng = np.random.default_rng(0)

    def add(count: int, *buffers: Any) -> None:
        for _ in range(count):
            obs, _, dones, _ = stream.step()
            values = th.as_tensor(rng.standard_normal(2)).float()
            given = obs, rng.integers(0, 4, (2, 1)), rng.standard_normal(2), dones, values[:, None], values
            for buffer in buffers:
                buffer.add(*given)

    add(ROWS // 2 if state == "half full" else ROWS, ours, theirs)
    if state == "second":
        ours.save(tmp_path / "b")
        for buffer in (ours, theirs):
            buffer.reset()
        add(ROWS, ours, theirs)
    last = th.zeros(2), np.zeros(2)
    if state != "half full":
        for buffer in (ours, theirs):
            buffer.compute_returns_and_advantage(*last)
    if state == "being read":
        next(iter(ours.get(8)))
    ours.save(tmp_path / "b")
    assert type(load_buffer(tmp_path / "b")) is ROLLOUT[kind][place]
    loaded: list[Any] = [cls.load(tmp_path / "b") for cls in ROLLOUT[kind]]
    if state == "half full":
        add(ROWS - ROWS // 2, theirs, *loaded)
        for buffer in (theirs, *loaded):
            buffer.compute_returns_and_advantage(*last)
    np.random.seed(3)
    expected = list(theirs.get(10))
    for buffer in loaded:
        np.random.seed(3)
        for batch, other in zip(buffer.get(10), expected, strict=True):
            for part, wanted in zip(batch, other, strict=True):
                assert_same_bits(part, wanted)


def test_types_and_sizes_come_back(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (30, 30), np.float32)
    stream = Stream(0, 1, (30, 30), np.uint8)
    options: dict[str, Any] = {"dtypes": {"elem_type": th.uint8, "runs_type": th.int16}, "heap_bytes": 200_000}
    ours: Any = GpuReplayBuffer(ROWS, space, spaces.Discrete(4), "cpu", compression_method="rle", **options)
    theirs = ReplayBuffer(ROWS, space, spaces.Discrete(4), "cpu")
    for _ in range(ROWS + 3):
        obs, following, dones, infos = stream.step()
        for buffer in (ours, theirs):
            buffer.add(obs.astype(np.float32), following.astype(np.float32), np.zeros(1), np.ones(1), dones, infos)
    ours.save(tmp_path / "b")
    again = load_buffer(tmp_path / "b")
    assert again._options == ours._options and again._options["heap_bytes"] == 200_000
    same_rows(again, theirs)
    twin = CompressedReplayBuffer.load(tmp_path / "b")
    assert twin._options["dtypes"] == {"elem_type": np.uint8}
    same_rows(twin, theirs)
    with pytest.warns(DeprecationWarning, match="max_slot_bytes"):
        old = GpuReplayBuffer(ROWS, space, spaces.Discrete(4), "cpu", max_slot_bytes=2_000)
    old.save(tmp_path / "old")
    assert load_buffer(tmp_path / "old")._options["heap_bytes"] == 2_000 * ROWS * 2


def test_where_it_is_loaded_to(tmp_path: Path) -> None:
    pair_of("box", 0).ours.save(tmp_path / "b")
    again = GpuReplayBuffer.load(tmp_path / "b", device="cpu", buffer_device="cpu")
    assert again.buffer_device == th.device("cpu")
    assert load_buffer(tmp_path / "b", buffer_device="cpu").buffer_device == th.device("cpu")
    with pytest.raises(TypeError, match="does not take buffer_device"):
        CompressedReplayBuffer.load(tmp_path / "b", buffer_device="cpu")


def test_what_is_refused(tmp_path: Path) -> None:
    pair = pair_of("box", 1, normalize_images=True)
    pair.add(3)
    pair.ours.save(tmp_path / "b")
    with pytest.raises(StorageError, match=r"normalize_images=True.*GpuReplayBuffer.*CompressedReplayBuffer.load\(path\)"):
        GpuReplayBuffer.load(tmp_path / "b")
    with pytest.raises(StorageError, match="holds a CompressedReplayBuffer, not a GpuRolloutBuffer"):
        GpuRolloutBuffer.load(tmp_path / "b")
    pair_of("box", 0).ours.save(tmp_path / "d")
    for cls in (CompressedPrioritizedReplayBuffer, CompressedDictReplayBuffer):
        with pytest.raises(StorageError, match=f"holds a GpuReplayBuffer, not a {cls.__name__}.*load_buffer"):
            cls.load(tmp_path / "d")
    small = Pair(image_stream(), ROWS)
    small.ours.save(tmp_path / "mine")
    for load in (load_buffer, CompressedReplayBuffer.load, GpuReplayBuffer.load):
        with pytest.raises(StorageError, match=r"SmallReplay.load\(path\)"):
            load(tmp_path / "mine")  # type: ignore[operator]
    same_rows(SmallReplay.load(tmp_path / "mine"), small.theirs)


def test_repair(tmp_path: Path) -> None:
    pair = pair_of("box", 0)
    pair.add(ROWS + 9)
    pair.ours.save(tmp_path / "b")
    said = manifest(tmp_path / "b")
    place, offset, size, _ = said["parts"][said["frames"][0]["spans"][0][0]]
    pack = tmp_path / "b" / said["packs"][place]
    data = bytearray(pack.read_bytes())
    data[offset + size // 2] ^= 1
    pack.write_bytes(data)
    for cls in REPLAY["box"]:
        with pytest.raises(StorageError, match=r"checksum of frames0.*repair=True"):
            cls.load(tmp_path / "b")
    with pytest.warns(UserWarning, match="are gone"):
        rest = GpuReplayBuffer.load(tmp_path / "b", repair=True)
    with pytest.warns(UserWarning, match="are gone"):
        twin = CompressedReplayBuffer.load(tmp_path / "b", repair=True)
    assert 0 < rest.size() < ROWS
    same_rows(rest, twin)
    rest.save(tmp_path / "rest")
    same_rows(load_buffer(tmp_path / "rest"), rest)


def test_an_interrupted_save_leaves_both_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of("dict", 0)
    pair.add(10)
    pair.ours.save(tmp_path / "b")
    pair.add(10)
    host = pair.ours._host_copy
    real: Callable[..., Any] = type(host)._append

    def interrupted(self: Any, rows: Any) -> None:
        real(self, rows[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(host), "_append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.ours.save(tmp_path / "b")
    assert load_buffer(tmp_path / "b").pos == 10
    same_rows(pair.ours, pair.theirs)
    pair.ours.save(tmp_path / "b")
    same_rows(load_buffer(tmp_path / "b"), pair.theirs)


def test_pickles_do_not_hold_the_copy(tmp_path: Path) -> None:
    pair = pair_of("box", 0)
    pair.add(ROWS)
    before = len(pickle.dumps(pair.ours))
    pair.ours.save(tmp_path / "b")
    assert len(pickle.dumps(pair.ours)) == before
    same_rows(pickle.loads(pickle.dumps(pair.ours)), pair.theirs)
