"""What is saved or copied is the buffer of one moment, whoever writes it and whatever other threads do meanwhile."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from buffer_contents import contents
from gymnasium import spaces
from numbered_worlds import ACTIONS, DICT_SPACE, ENVS, EPISODE, IMAGE, KINDS, Feed, images, observe_dict, replay
from test_buffer_threads import run_together

from sb3_extra_buffers import compressed
from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuRolloutBuffer


def by_python(buffer: Any, protocol: int | None = None) -> Any:
    """The pickler that joblib and dill are subclasses of: it asks for all of a dict before it writes the first value."""
    file = io.BytesIO()
    pickle._Pickler(file, protocol).dump(buffer)  # type: ignore[attr-defined]
    return pickle.loads(file.getvalue())


def by_joblib(buffer: Any) -> Any:
    import joblib

    file = io.BytesIO()
    joblib.dump(buffer, file)
    file.seek(0)
    return joblib.load(file)


def by_dill(buffer: Any) -> Any:
    import dill

    return dill.loads(dill.dumps(buffer))


SAVERS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda buffer: pickle.loads(pickle.dumps(buffer)),
    "pickle, first protocol": lambda buffer: pickle.loads(pickle.dumps(buffer, 0)),
    "pickle in Python": by_python,
    "pickle in Python, first protocol": lambda buffer: by_python(buffer, 0),
    "cloudpickle": lambda buffer: pickle.loads(cloudpickle.dumps(buffer)),
    "deepcopy": copy.deepcopy,
}
SAVERS |= {
    name: saver for name, saver in (("joblib", by_joblib), ("dill", by_dill)) if importlib.util.find_spec(name) is not None
}


def in_thread(work: Callable[[], Any]) -> bool:
    """Do something in another thread; tells whether it did not have to wait for this one."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


class Meddler:
    """An attribute that has another thread add to the buffer while it is saved."""

    meddle: Callable[[], Any] | None = None
    adds = 0

    def __reduce__(self) -> Any:
        if Meddler.meddle is not None:
            assert in_thread(Meddler.meddle), "the other thread has to wait until all is saved"
            Meddler.adds += 1
        return Meddler, ()


def meddled(buffer: Any) -> Any:
    """The same buffer, but with a meddler as its first attribute: all others are saved after it."""
    attributes = dict(vars(buffer))
    vars(buffer).clear()
    vars(buffer).update({"meddler": Meddler(), **attributes})
    return buffer


class RolloutFeed:
    """Adds steps to a rollout that has room for all of them."""

    def __init__(self, buffer: Any, observe: Callable[[int], Any]) -> None:
        self.buffer, self.observe, self.step = buffer, observe, 0

    def add(self) -> None:
        numbers = self.step * ENVS + np.arange(ENVS, dtype=np.float64)
        floats = th.as_tensor(numbers).float()
        more: dict[str, Any] = {}
        if hasattr(self.buffer, "action_masks"):
            more["action_masks"] = np.arange(ENVS * 4).reshape(ENVS, 4) % (self.step + 2) == 0
        if hasattr(self.buffer, "hidden_states_pi"):
            from sb3_contrib.common.recurrent.type_aliases import RNNStates

            states = [th.full((1, ENVS, 3), self.step + part / 4) for part in range(4)]
            more["lstm_states"] = RNNStates((states[0], states[1]), (states[2], states[3]))
        actions = numbers[:, None] % 4
        self.buffer.add(self.observe(self.step), actions, numbers, np.zeros(ENVS), floats[:, None], floats, **more)
        self.step += 1


def rollout(name: str, space: spaces.Space[Any] = IMAGE) -> Callable[[], Any]:
    def make() -> Any:
        cls = GpuRolloutBuffer if name.startswith("Gpu") else getattr(compressed, name)
        shape = ((200, 1, ENVS, 3),) if "Recurrent" in name else ()
        return cls(200, space, spaces.Discrete(4), *shape, "cpu", n_envs=ENVS)

    return make


ROLLOUTS = {
    "rollout": (rollout("CompressedRolloutBuffer"), images),
    "dict rollout": (rollout("CompressedDictRolloutBuffer", DICT_SPACE), observe_dict),
    "maskable rollout": (rollout("CompressedMaskableRolloutBuffer"), images),
    "recurrent rollout": (rollout("CompressedRecurrentRolloutBuffer"), images),
    "rollout on a device": (rollout("GpuRolloutBuffer"), images),
}
MORE: dict[str, Any] = {"dict on a device": (replay(GpuDictReplayBuffer, DICT_SPACE), observe_dict)}
MORE["her with infos"] = (lambda: KINDS["her"][0](copy_info_dict=True), KINDS["her"][1])
ALL = {name: kind[:2] for name, kind in KINDS.items()} | MORE | ROLLOUTS


def filled(kind: str) -> tuple[Any, Any]:
    make, observe = ALL[kind]
    buffer = make()
    feed: Any = (RolloutFeed if kind in ROLLOUTS else Feed)(buffer, observe)
    for _ in range(7 * EPISODE):  # more than there are rows, where it is a ring
        feed.add()
    return buffer, feed


@pytest.fixture
def meddling(request: pytest.FixtureRequest) -> Any:
    yield Meddler
    Meddler.meddle, Meddler.adds = None, 0


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("kind", ALL)
def test_what_is_saved_is_of_one_moment(kind: str, saver: str, meddling: Any) -> None:
    """Another thread adds after the state was asked for and before most of it is written, and it need not wait."""
    buffer, feed = filled(kind)
    meddled(buffer)
    before = contents(buffer)

    def meddle() -> None:
        for _ in range(5):
            feed.add()

    meddling.meddle = meddle
    loaded = SAVERS[saver](buffer)
    meddling.meddle = None
    assert meddling.adds == 1 and contents(buffer) != before
    assert contents(loaded) == before
    if kind in KINDS:
        if hasattr(loaded, "set_env"):
            loaded.set_env(buffer.env)
        KINDS[kind][2](loaded.sample(64))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["plain", "dict", "prioritized"])
@pytest.mark.parametrize("saver", ["pickle in Python", "deepcopy", "copy"])
def test_saving_while_another_thread_adds(kind: str, saver: str) -> None:
    buffer, feed = filled(kind)
    saves = [0]

    def save() -> None:
        loaded = (SAVERS | {"copy": copy.copy})[saver](buffer)
        KINDS[kind][2](loaded.sample(64))
        saves[0] += 1

    run_together(feed.add, save, seconds=0.5, enough=lambda: saves[0] > 10)
    assert saves[0] > 10


@pytest.mark.parametrize("kind", ALL)
def test_a_shallow_copy_shares_what_it_holds(kind: str) -> None:
    """As it does with SB3's buffers: its attributes are its own, its arrays are not."""
    buffer, _ = filled(kind)
    twin = copy.copy(buffer)
    assert type(twin) is type(buffer) and twin is not buffer
    assert contents(twin) == contents(buffer)
    assert twin.observations is buffer.observations and twin.rewards is buffer.rewards
    twin.pos = -1
    assert buffer.pos != -1


class Uncopyable:
    def __reduce__(self) -> Any:
        raise TypeError("this cannot be copied")


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("kind", ["plain", "her", "on a device", "rollout"])
def test_a_copy_that_fails_holds_nobody_up(kind: str, saver: str) -> None:
    """Also while its traceback is kept, as a debugger or a notebook does."""
    buffer, feed = filled(kind)
    buffer.mine = Uncopyable()
    kept: list[BaseException] = []
    try:
        SAVERS[saver](buffer)
    except TypeError as error:
        kept.append(error)
    assert "cannot be copied" in str(kept[0])
    assert in_thread(feed.add), "another thread waits for ever"
    if kind in KINDS:
        assert in_thread(lambda: buffer.sample(4)), "another thread waits for ever"


class Mine(CompressedReplayBuffer):
    """What users add to a buffer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.costs = np.zeros((self.buffer_size, self.n_envs))
        self.same = self.costs
        self.views = {"costs": self.costs, "rewards": [self.rewards, (self.rewards, 3)]}
        self.history: list[Any] = [self]
        self.left_out = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["left_out"]
        return state


@pytest.mark.parametrize("saver", SAVERS)
def test_attributes_of_subclasses_are_saved(saver: str) -> None:
    buffer = Mine(40, IMAGE, ACTIONS, "cpu", ENVS)
    buffer.costs[3] = 7
    loaded = SAVERS[saver](buffer)
    assert type(loaded) is Mine and not hasattr(loaded, "left_out")
    assert loaded.costs[3].tolist() == [7, 7] and loaded.costs is not buffer.costs
    assert loaded.same is loaded.views["costs"] is loaded.costs, "what was one array is one array"
    assert loaded.views["rewards"][0] is loaded.views["rewards"][1][0] is loaded.rewards
    assert loaded.history == [loaded]
    assert buffer.history == [buffer] and buffer.left_out


def test_a_fortran_array_stays_one() -> None:
    buffer = CompressedReplayBuffer(40, IMAGE, ACTIONS, "cpu", ENVS)
    buffer.costs = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    for saver in SAVERS.values():
        loaded = saver(buffer)
        assert loaded.costs.flags.f_contiguous and np.array_equal(loaded.costs, buffer.costs)


class Rewritten(CompressedReplayBuffer):
    """Changes its state in every way: something is left out, something is added, something becomes another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.costs, self.left_out = np.arange(4.0), threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in super().__getstate__().items() if name != "left_out"}
        return {**state, "costs": state["costs"].astype(np.float32), "added": ["here", {1}, np.arange(3)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.seen = state.pop("added")
        super().__setstate__(state)
        self.left_out = threading.Lock()


@pytest.mark.parametrize("saver", SAVERS)
def test_subclasses_may_change_what_is_saved(saver: str) -> None:
    buffer = Rewritten(40, IMAGE, ACTIONS, "cpu", ENVS)
    Feed(buffer, images).add()
    loaded = SAVERS[saver](buffer)
    assert loaded.costs.dtype == np.float32 and loaded.costs.tolist() == [0, 1, 2, 3]
    assert loaded.seen[:2] == ["here", {1}] and loaded.seen[2].tolist() == [0, 1, 2]
    assert not hasattr(loaded, "added") and loaded.left_out is not buffer.left_out
    del buffer.costs, loaded.costs
    assert contents(loaded) == contents(buffer)


ODD_VALUES: dict[str, Any] = {
    "no elements": np.zeros((0, 3)),
    "no axes": np.array(3.5),
    "number of NumPy": np.float32(0.1),
    "swapped bytes": np.arange(3, dtype=">i4"),
    "texts": np.array(["a", "bc"]),
    "dates": np.array(["2026-01-02"], dtype="M8[D]"),
    "type": np.dtype(">u2"),
    "fields": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "objects": np.array([[None, {"a": np.arange(2)}]], dtype=object),
    "every second": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)[:, :, ::2],
    "matrix": np.asmatrix([[1, 2], [3, 4]]),
    "surrogate": "\udc80",
    "not a number": float("nan"),
    "tensor": th.arange(3).reshape(3, 1).bfloat16(),
    "parameter": th.nn.Parameter(th.zeros(2)),
    "generator": np.random.default_rng(1),
    "nested": ([1, (2, {"a": [3]})], range(3), frozenset({1})),
}


@pytest.mark.parametrize("saver", SAVERS)
def test_whatever_a_buffer_has_is_saved(saver: str) -> None:
    buffer = CompressedReplayBuffer(40, IMAGE, ACTIONS, "cpu", ENVS)
    buffer.odd, buffer.fields = ODD_VALUES, list(ODD_VALUES.values())
    buffer.fields.append(buffer.fields)
    loaded = SAVERS[saver](buffer)
    assert loaded.odd.keys() == ODD_VALUES.keys() and loaded.fields[-1] is loaded.fields
    for (name, value), one, other in zip(ODD_VALUES.items(), loaded.odd.values(), loaded.fields, strict=False):
        assert type(one) is type(value), name
        assert other is one or isinstance(one, (int, float, str)), name
        if isinstance(value, np.ndarray):
            assert one.dtype == value.dtype and one.shape == value.shape and one.flags.writeable, name
        if name != "generator":
            assert repr(one) == repr(value), name


def test_nobody_waits_for_a_slow_file() -> None:
    """A pickler writes for minutes to a slow disk; other threads go on."""
    buffer, feed = filled("plain")

    class SlowFile(io.BytesIO):
        went_on: bool | None = None

        def write(self, data: Any) -> int:
            if self.went_on is None:
                self.went_on = in_thread(feed.add)
            return super().write(data)

    before, file = contents(buffer), SlowFile()
    with contextlib.closing(file):
        pickle.dump(buffer, file)
        assert file.went_on
        assert contents(pickle.loads(file.getvalue())) == before
