"""Damaged recordings are noticed, and odd metadata does no harm."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_kit import assert_same_recording, filled

from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    RecordingError,
    is_recording,
    load_recording,
    write_viewer,
)

MAKERS: dict[str, Callable[[], RecordBuffer]] = {
    "dense": lambda: RecordBuffer(None, (24, 24), features={"health": np.float32}, metadata={"env_id": "a", "fps": 12}),
    "ring": lambda: RecordBuffer(20, (6, 6), np.bool_, (2,), np.float32),
    "compressed": lambda: CompressedRecordBuffer(30, (24, 24), metadata={"action_meanings": ["a", "b"]}),
    "frameless": lambda: FramelessRecordBuffer(None, features={"place": ((2,), np.int16)}),
}
FEWER = pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])


@pytest.fixture(scope="module", params=["dense", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MAKERS)[1:])])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good recording."""
    path: Path = tmp_path_factory.mktemp(request.param) / "good.rec"
    filled(MAKERS[request.param], 3, episode=2).save(path)
    return path


@FEWER
def test_every_byte_changed(saved: Path, every: int) -> None:
    good, whole = load_recording(saved), saved.read_bytes()
    changed = saved.with_name("changed.rec")
    for place in range(0, len(whole), every):
        for value in {whole[place] ^ 255, whole[place] ^ 1, 0} - {whole[place]}:
            changed.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                loaded = load_recording(changed)
            except RecordingError as error:
                assert str(changed) in str(error)
                continue
            # What no checksum covers is of no consequence: dates, and the like.
            assert_same_recording(good, loaded)


@FEWER
def test_every_beginning(saved: Path, every: int) -> None:
    whole = saved.read_bytes()
    cut = saved.with_name("cut.rec")
    for size in range(0, len(whole), every):
        cut.write_bytes(whole[:size])
        with pytest.raises(RecordingError, match=r"cut\.rec is (damaged or cut short|not a recording)"):
            load_recording(cut)
        # Its first member tells what it is.
        assert is_recording(cut) == (size >= 63), size


def test_something_before_a_recording_makes_it_something_else(tmp_path: Path) -> None:
    filled(MAKERS["dense"], 12).save(tmp_path / "a.rec")
    pickled = tmp_path / "b.rec"
    pickled.write_bytes(pickle.dumps("code") + (tmp_path / "a.rec").read_bytes())
    assert zipfile.is_zipfile(pickled) and not is_recording(pickled)
    with pytest.raises(RecordingError, match="is not a recording"):
        load_recording(pickled)


@pytest.mark.parametrize("actions", [(), (2,)], ids=["discrete", "continuous"])
def test_any_metadata_can_be_shown(actions: tuple[int, ...], tmp_path: Path) -> None:
    recording = filled(lambda: RecordBuffer(None, (4,), action_shape=actions), 3)
    odd: list[Any] = [
        *(None, True, 0, -1, 0.5, 10**400, "", "x", "\u001b[2J", "</script>", [], [1.5], [None], {}, {"a": 1}, {"type": []}),
        json.loads("[" * 200 + "]" * 200),
        {"type": "Box", "low": 10**400, "high": {}, "shape": [2], "dtype": "V999999999"},
        {"type": "Discrete", "n": 10**400, "start": -(10**400), "dtype": "int64"},
        {"type": "Discrete", "n": True, "start": 1.5, "dtype": None},
    ]
    for key in ("env_id", "fps", "frames", "action_meanings", "action_space"):
        for value in odd:
            recording.metadata[key] = value
            write_viewer(recording, tmp_path / "a.html")
        del recording.metadata[key]
