"""What makes it fast on a real device can be counted without one: few operations, and nobody waits for a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch as th
from gpu_kit import DEVICES, ON_DEVICE, Pair
from observation_streams import Stack, Stream
from torch.utils._python_dispatch import TorchDispatchMode

from sb3_extra_buffers.gpu_buffers.utils import to_device
from sb3_extra_buffers.testing.worlds import World, normalizer

# Operations whose result the host has to wait for: the value itself, or how large the result is.
WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "unique",
    "_unique",
    "_unique2",
    "unique_consecutive",
    "equal",
    "is_nonzero",
    "item",
    "tolist",
}


class Operations(TorchDispatchMode):
    """Notes the torch operations that are run, and those that a device would have to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()
        self.waits: list[str] = []
        self.unattended: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.ran[name] += 1
        indices = args[1] if name in ("index", "index_put", "index_put_") and len(args) > 1 else ()
        by_mask = any(isinstance(index, th.Tensor) and index.dtype == th.bool for index in indices)
        unsized = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
        if name in WAITING or by_mask or unsized:
            self.waits.append(name)
        if (kwargs or {}).get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]):
            self.unattended.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def copies_to_the_host() -> Iterator[list[str]]:
    """Notes what would copy a tensor of a device to the host."""
    copies: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cpu", "numpy", "item", "tolist", "__array__"):
            original = getattr(th.Tensor, name)

            def noted(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
                copies.append(name)
                return original(*args, **kwargs)

            patch.setattr(th.Tensor, name, noted)
        yield copies


def filled(method: str, device: str = "cpu", content: str = "game") -> Pair:
    stream = Stream(0, 3, (1, 12, 12), np.uint8, content, Stack(4, 0), 0.1)
    pair = Pair(stream, 30, compression_method=method, buffer_device=device)
    pair.add(70)
    return pair


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ON_DEVICE)
def test_operations_of_a_sample_do_not_grow_with_the_batch(method: str, device: str) -> None:
    buffer = filled(method, device).ours
    counts = []
    for batch_size in (50, 150, 600):
        np.random.seed(0)
        with Operations() as operations:
            buffer.sample(batch_size)
        counts.append(operations.ran)
    assert counts[0] == counts[1] == counts[2]
    assert 0 < counts[0].total() < 60


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("content", ["game", "noise", "mixed"])
@pytest.mark.parametrize("method", ON_DEVICE)
def test_nothing_in_a_sample_waits_for_the_device(method: str, content: str, device: str) -> None:
    """Neither a value nor a size is asked of the device: starts and lengths are known on the host."""
    buffer = filled(method, device, content).ours
    with Operations() as operations, copies_to_the_host() as copies:
        buffer.sample(64)
    assert operations.waits == [] and copies == []


def test_the_places_that_wait() -> None:
    """Codecs of the host fetch the blobs of a batch at once; ``VecNormalize`` gets both observations on the host."""
    pair = filled("gzip1")
    with copies_to_the_host() as copies:
        pair.ours.sample(64)
    assert copies.count("cpu") == 1
    pair = filled("delta")
    env = normalizer(World(pair.ours.observation_space, pair.ours.action_space, 3, 0))
    with copies_to_the_host() as copies:
        pair.ours.sample(64, env=env)
    assert copies.count("cpu") == 2


def test_an_add_reads_back_only_when_the_layout_changes() -> None:
    """Once at the beginning, and what is read then is what little there is."""
    pair = Pair(Stream(0, 3, (1, 12, 12), np.uint8, "game", Stack(4, 0), 0.1), 300)
    depths, copies_by_add = [], []
    for _ in range(200):
        with copies_to_the_host() as copies:
            pair.ours.add(*pair.draw())
        depths.append(pair.ours._stores[None].layout.depth)
        copies_by_add.append(copies.count("cpu"))
    changed = depths.index(4)
    assert 0 < changed < 20 and depths[changed:] == [4] * (200 - changed)
    assert copies_by_add[changed] > 0 and sum(copies_by_add) == copies_by_add[changed]


# Operations that look at nothing: what they return is the same memory.
VIEWS = {"slice", "select", "view", "detach", "alias"}


class Touched(TorchDispatchMode):
    """Notes what is done with the memory of some tensors, apart from writing to it."""

    def __init__(self, tensors: list[th.Tensor]) -> None:
        super().__init__()
        self.memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.reads: list[str] = []
        self.writes = 0

    def watches(self, value: Any) -> bool:
        return isinstance(value, th.Tensor) and value.untyped_storage().data_ptr() in self.memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        values = [value for value in (*args, *(kwargs or {}).values()) if self.watches(value)]
        if name == "copy_" and len(values) == 1 and values[0] is args[0]:
            self.writes += 1
        elif values and name not in VIEWS:
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", [*ON_DEVICE, "gzip1"])
def test_nothing_in_an_add_waits_for_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding runs on the host. What reaches the device is copied there, in the order of things, and never read back."""
    pair = filled(method)
    pair.ours.compact()
    store = pair.ours._stores[None]
    if method == "none":
        tensors = [store.data]
    else:
        raw = store.heap.raw
        raw._memory = raw._memory._replace(array=None)  # the short way of the CPU
        raw.resize(4 * raw.capacity, store.heap.data_end)
        raw._memory = raw._memory._replace(array=None)
        tensors = [raw.data]
    touched = Touched(tensors)
    for name in ("cpu", "numpy", "item", "tolist", "__array__"):
        original = getattr(th.Tensor, name)

        def noted(tensor: th.Tensor, *args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
            if touched.watches(tensor):
                touched.reads.append(name)
            return original(tensor, *args, **kwargs)

        monkeypatch.setattr(th.Tensor, name, noted)
    pair.ours.pos = 3  # far from the end, where the heap is packed
    with touched:
        for _ in range(5):
            pair.ours.add(*pair.draw())
    assert touched.reads == [] and touched.writes >= 5
    with touched:
        pair.ours.sample(4)
    assert touched.reads, "reading is noticed"


def test_copies_to_the_device_need_their_source_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A copy that nobody waits for comes from pinned memory, which torch keeps for as long; and on cuda only.

    mps may read the source of such a copy when somebody else has its memory already.
    """
    calls: list[Any] = []

    def pinned(tensor: th.Tensor) -> th.Tensor:
        calls.append("pinned")
        return tensor.clone()

    def moved(tensor: th.Tensor, *args: Any, **kwargs: Any) -> th.Tensor:
        calls.append((args, kwargs))
        return tensor

    monkeypatch.setattr(th.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(th.Tensor, "to", moved)
    for name in ("cuda", "mps", "cpu"):
        to_device(th.arange(3), th.device(name))
    assert calls == [
        "pinned",
        ((th.device("cuda"),), {"non_blocking": True}),
        ((th.device("mps"),), {}),
        ((th.device("cpu"),), {}),
    ]


@pytest.mark.parametrize("method", [*ON_DEVICE, "gzip1"])
def test_every_copy_to_the_device_is_made_so(method: str) -> None:
    """On the device ``cpu`` none is left to itself."""
    with Operations() as operations:
        pair = filled(method)
        pair.ours.sample(20)
        pair.ours.compact()
    assert operations.unattended == []


def test_rle_encodes_on_the_host_with_one_wait() -> None:
    """The one place where a size follows from values: how many runs there are. It is the host's own."""
    pair = filled("rle")
    pair.ours.pos = 3
    with Operations() as operations:
        pair.ours.add(*pair.draw())
    assert Counter(operations.waits)["nonzero"] <= 2


def test_waits_are_noticed() -> None:
    values = th.arange(4)
    with Operations() as operations:
        int(values.sum())
        values[values > 2]
        th.repeat_interleave(values, values)
    assert len(operations.waits) == 3


def test_compaction_asks_nothing_of_the_device() -> None:
    pair = filled("delta", content="mixed")
    pair.add(11)
    store = pair.ours._stores[None]
    store._frames.table.sweep()
    assert store.heap.data_end > store.heap.live_bytes
    with Operations() as operations:
        pair.ours.compact()
    assert operations.waits == [] and operations.ran["index_select"] >= 1
    pair.check()


@pytest.mark.parametrize("method", ["gzip1"])
def test_codecs_of_the_host_fetch_a_batch_in_one_copy(method: str) -> None:
    buffer = filled(method).ours
    counts = []
    for batch_size in (8, 300):
        with Operations() as operations:
            buffer.sample(batch_size)
        counts.append(operations.ran.total())
    assert counts[0] == counts[1]
