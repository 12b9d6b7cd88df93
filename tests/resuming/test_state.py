"""What objects held comes back into the objects that are there."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_extra_buffers.training_utils.resuming.state import KEEP, UnsavableError, capture, put_back


def test_what_stays_is_recognised_in_another_process() -> None:
    assert pickle.loads(pickle.dumps([KEEP]))[0] is KEEP


class Thing:
    """A plain object."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    """Keeps things where vars() does not see them."""

    __slots__ = ("value",)


def test_objects_are_put_back_and_never_made() -> None:
    array = np.arange(3)
    thing = Thing([Thing(1), {"a": array}])
    saved = pickle.loads(pickle.dumps(capture(thing)))
    array += 7
    inner = thing.value[0]
    inner.value = 5
    assert put_back(thing, saved) is thing and thing.value[0] is inner and inner.value == 1
    assert thing.value[1]["a"] is array and array.tolist() == [0, 1, 2]
    for other in (None, Thing(None), Thing([None, {}]), [thing]):
        with pytest.raises(UnsavableError, match="was saved, but a"):
            put_back(other, saved)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng(1),
        lambda: np.random.Generator(np.random.MT19937(1)),
        lambda: np.random.RandomState(1),
        lambda: random.Random(1),
    ],
)
def test_generators_draw_on(make: Any) -> None:
    """In the object that is there, or in a new one where NumPy's are made only when they are needed."""
    ours, theirs = make(), make()
    ours.random()
    saved = pickle.loads(pickle.dumps(capture(ours)))
    wanted = ours.random()
    assert put_back(theirs, saved) is theirs and theirs.random() == wanted
    if not isinstance(ours, random.Random):
        for other in (None, np.random.default_rng(2), np.random.RandomState(2)):
            made = put_back(other, saved)
            assert type(made) is type(ours) and made is not saved and made.random() == wanted


def test_tensors_are_copied() -> None:
    tensor = th.arange(3)
    saved = capture(tensor)
    tensor += 1
    back = put_back(tensor, saved)
    assert back.tolist() == [0, 1, 2] and back is not saved


@pytest.mark.parametrize("value", [Slotted(), iter([]), open, np.array([None]), lambda: 1, json])
def test_what_is_hidden_is_refused_and_what_is_constant_stays(value: Any) -> None:
    if callable(value) or value is json:
        assert capture(Thing(value)).state == {}
        return
    with pytest.raises(UnsavableError, match=r"Thing.value is a|Thing.*value"):
        capture(Thing(value))


def test_limits() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnsavableError, match="nested too deeply"):
        capture(endless)
    with pytest.raises(UnsavableError, match="more than 64 MB"):
        capture(np.zeros(9 * 10**6))
