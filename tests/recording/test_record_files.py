"""Saving and loading recordings: equal, whole or not at all, and never code."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_kit import assert_same_array, assert_same_recording, filled

from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    DummyRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    RecordingError,
    is_recording,
    load_recording,
    recording_info,
)

FEATURES: dict[str, Any] = {"health": np.float32, "a/b": ((2, 2), np.int16)}


@pytest.mark.parametrize("cls", [RecordBuffer, CompressedRecordBuffer, FramelessRecordBuffer])
@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("steps", [0, 1, 23, 25])
def test_a_recording_comes_back_as_it_was(cls: type[RecordBuffer], size: int | None, steps: int, tmp_path: Path) -> None:
    buffer = filled(lambda: cls(size, (30, 40), features=FEATURES, metadata={"note": "ä"}), steps)
    buffer.save(tmp_path / "a.rec")
    loaded = load_recording(tmp_path / "a.rec")
    assert type(loaded) is cls and loaded.buffer_size == size
    assert_same_recording(buffer, loaded)
    # It goes on like the one that was saved.
    for recording in (buffer, loaded):
        filled(lambda recording=recording: recording, 4)
    assert_same_recording(buffer, loaded)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int16, np.float32, np.float64, np.complex64])
@given(steps=st.integers(1, 12), shape=st.sampled_from([(), (3,), (5, 7), (40, 40)]), ends=st.sets(st.integers(0, 11)))
def test_frames_of_any_type(dtype: Any, steps: int, shape: tuple[int, ...], ends: set[int], tmp_path_factory: Any) -> None:
    buffer = CompressedRecordBuffer(None, shape, dtype, action_dtype=np.float32)
    rng = np.random.default_rng(steps)
    for step in range(steps):
        raw = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
        frame = (raw[..., 0] > 99) if dtype is np.bool_ else np.ascontiguousarray(raw).view(dtype).reshape(shape)
        buffer.add(frame, step, step / 3, done=step in ends, final_frame=frame if step in ends and step % 2 else None)
    path = tmp_path_factory.mktemp("files") / "a.rec"
    buffer.save(path)
    assert_same_recording(buffer, load_recording(path))


def test_an_episode_that_was_given_up_stays_so(tmp_path: Path) -> None:
    buffer = filled(lambda: RecordBuffer(None, (4, 4)), 3)
    buffer.end_episode(np.full((4, 4), 9))
    filled(lambda: buffer, 2)
    buffer.end_episode()
    buffer.save(tmp_path / "a.rec")
    loaded = load_recording(tmp_path / "a.rec")
    assert_same_recording(buffer, loaded)
    assert not loaded.is_open


def test_other_classes_to_load_into(pong: RecordBuffer, tmp_path: Path) -> None:
    pong.save(tmp_path / "pong.rec")
    dense = load_recording(tmp_path / "pong.rec", RecordBuffer)
    assert_same_recording(pong, dense)
    short = load_recording(tmp_path / "pong.rec", buffer_size=40, compression_method="zstd-3")
    assert len(short) == 40 and short.episode(0).is_cut
    assert_same_array(short[:].frame, pong[-40:].frame)
    frameless = load_recording(tmp_path / "pong.rec", FramelessRecordBuffer)
    assert frameless[:].frame is None and frameless[:].reward.tolist() == pong[:].reward.tolist()
    frameless.save(tmp_path / "frameless.rec")
    with pytest.raises(ValueError, match="has no frames"):
        load_recording(tmp_path / "frameless.rec", RecordBuffer)
    DummyRecordBuffer().save(tmp_path / "dummy.rec")
    assert type(load_recording(tmp_path / "dummy.rec")) is DummyRecordBuffer


def test_files_of_real_games_are_small(pong: RecordBuffer, tmp_path: Path) -> None:
    pong.save(tmp_path / "pong.rec")
    assert os.path.getsize(tmp_path / "pong.rec") < 0.01 * 150 * 210 * 160 * 3


def test_info_reads_the_header_only(pong: RecordBuffer, tmp_path: Path) -> None:
    path = tmp_path / "pong.rec"
    pong.save(path)
    info = recording_info(path)
    assert (info.kind, info.steps, info.episodes, info.buffer_size) == ("compressed", 150, 3, None)
    assert (info.frame_shape, info.frame_dtype) == ((210, 160, 3), "uint8")
    assert (info.action_shape, info.action_dtype) == ((), "int64")
    assert info.features == {"lives": ((), "int64"), "frame_number": ((), "int64")}
    assert info.metadata == pong.metadata
    assert info.file_bytes == os.path.getsize(path) and info.raw_bytes > 150 * 210 * 160 * 3
    assert info.members["reward.npy"][1] >= 150 * 8
    assert is_recording(path)
    # With all frames destroyed it still tells the same.
    with zipfile.ZipFile(path) as archive:
        places = [item.header_offset for item in archive.infolist() if item.filename.startswith("frames/")]
    damaged = bytearray(path.read_bytes())
    for place in places:
        damaged[place + 60 : place + 90] = bytes(30)
    path.write_bytes(damaged)
    assert recording_info(path) == info
    with pytest.raises(RecordingError, match=str(path)):
        load_recording(path)


@given(data=st.data())
def test_a_damaged_file_is_told_or_harmless(data: st.DataObject, tmp_path_factory: Any) -> None:
    buffer = filled(lambda: RecordBuffer(None, (6, 6), features=FEATURES), 12)
    path = tmp_path_factory.mktemp("damage") / "a.rec"
    buffer.save(path)
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        # Anywhere, or in the list of members at the end, where the fewest bytes have a checksum.
        first = data.draw(st.sampled_from([0, len(whole) - 1000]))
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(first, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        loaded = load_recording(path)
    except RecordingError as error:
        assert str(path) in str(error)
        return
    # What is not covered by a checksum is of no consequence: dates, and the like.
    assert_same_recording(buffer, loaded)


def rewritten(path: Path, change: Any) -> Path:
    """The same zip file with members changed, and its checksums right."""
    with zipfile.ZipFile(path) as archive:
        members = {item.filename: archive.read(item) for item in archive.infolist()}
    change(members)
    out = path.with_name("changed.rec")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out


def npy(array: Any, allow_pickle: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=allow_pickle)
    return out.getvalue()


def set_header(**changes: Any) -> Any:
    def change(members: dict[str, bytes]) -> None:
        members["header.json"] = json.dumps({**json.loads(members["header.json"]), **changes}).encode()

    return change


class Bomb:
    """Tells when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("import os; os.environ['SB3XB_UNPICKLED'] = 'yes'",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("header.json"), "it has no header"),
        (lambda m: m.update({"header.json": b"{"}), "header is damaged"),
        (lambda m: m.update({"header.json": b"[]"}), "does not say so"),
        (lambda m: m.update({"header.json": b"\xff"}), "header is damaged"),
        (lambda m: m.pop("reward.npy"), "reward.npy is missing"),
        (lambda m: m.pop("frames/0.npy"), "frames/0.npy is missing"),
        (lambda m: m.update({"reward.npy": npy(np.zeros(3))}), "reward.npy does not hold float64"),
        (lambda m: m.update({"flags.npy": npy(np.zeros(12, np.int8))}), "flags.npy does not hold uint8"),
        (lambda m: m.update({"flags.npy": npy(np.full(12, 1, np.uint8))}), "goes on after it was done"),
        (lambda m: m.update({"ends.npy": npy(np.array([5, 4, 12]))}), "do not add up"),
        (lambda m: m.update({"ends.npy": npy(np.array([5, 10, 13]))}), "do not add up"),
        (lambda m: m.update({"finals.npy": npy(np.array([4, 8]))}), "final frames that belong to no episode"),
        (
            lambda m: m.update({"reward.npy": npy(np.array([Bomb()] * 12, object), True)}),
            "reward.npy does not",
        ),
        (set_header(format_version=99), "format 99"),
        (set_header(steps=-1), "'steps' is -1"),
        (set_header(steps=1 << 40), "do not add up"),
        (set_header(steps="12"), "'steps' is '12'"),
        (set_header(kind="other"), "'kind'"),
        (set_header(frame_shape=[1 << 40]), "'chunk_frames' is too large"),
        (set_header(frame_dtype="|O"), "'frame_dtype'"),
        (set_header(frame_dtype="<f3"), "'frame_dtype'"),
        (set_header(coding="xx"), "how frames are coded"),
        (set_header(coding=None), "how frames are coded"),
        (set_header(features={"health": "f4"}), "'features'"),
    ],
)
def test_files_that_lie_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    filled(lambda: RecordBuffer(None, (6, 6), features=FEATURES), 12).save(tmp_path / "a.rec")
    path = rewritten(tmp_path / "a.rec", change)
    with pytest.raises(RecordingError, match=message):
        load_recording(path)
    assert "SB3XB_UNPICKLED" not in os.environ


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (6, 99, "zip file version"),
        (8, 1, "encrypted"),
        (10, 14, "an unknown way"),
        (26, 255, "cannot be as large|does not have the size"),
    ],
)
def test_a_damaged_list_of_members_is_told(place: int, value: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    filled(lambda: RecordBuffer(None, (6, 6)), 12).save(path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"PK\x01\x02") + place] = value  # of the entry of reward.npy, the first
    path.write_bytes(whole)
    with pytest.raises(RecordingError, match=message):
        load_recording(path)


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    buffer = filled(lambda: RecordBuffer(None, (6, 6), metadata={"note": "good"}), 12)
    buffer.save(path)
    nested: Any = 1
    for _ in range(70):
        nested = [nested]
    for key, value, error, message in [
        ("x", float("nan"), TypeError, "JSON"),
        ("x", {1, 2}, TypeError, "JSON"),
        ("x", "\ud800", ValueError, "not Unicode"),
        ("x", nested, ValueError, "nested more than 64 deep"),
        ("fps", 10**400, ValueError, r"allowed: 0\.01 to 100,000"),
        ("x", "a" * (17 << 20), ValueError, "metadata is too large"),
    ]:
        if key == "fps" or len(str(value)) < 1000:
            with pytest.raises(error, match=message):
                RecordBuffer(None, (6, 6), metadata={key: value})
        buffer.metadata[key] = value  # too late to be refused by the constructor
        with pytest.raises(error, match=message):
            buffer.save(path)
        del buffer.metadata[key]
        assert os.listdir(tmp_path) == ["a.rec"]
        assert_same_recording(buffer, load_recording(path))
    with pytest.raises(ValueError, match="31 dimensions; allowed: at most 30"):
        RecordBuffer(None, (1,) * 31)
    with pytest.raises(ValueError, match="not Unicode"):
        RecordBuffer(None, (6, 6), features={"\ud800": np.int8})
    deep = filled(lambda: CompressedRecordBuffer(np.int64(3), (1,) * 29 + (600,), features={"x": ((1,) * 30, np.int8)}), 5)
    deep.save(path)
    assert_same_recording(deep, load_recording(path))
    many = filled(lambda: RecordBuffer(None, (1,), metadata={"x": "a" * (15 << 20)}), 3)
    many.save(path)
    assert_same_recording(many, load_recording(path))


def test_other_files_are_no_recordings(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for content in (b"", b"hello", pickle.dumps(Bomb())):
        other.write_bytes(content)
        assert not is_recording(other)
        with pytest.raises(RecordingError, match="not a recording"):
            recording_info(other)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("data", "model")
    assert not is_recording(other)
    assert "SB3XB_UNPICKLED" not in os.environ
    with pytest.raises(FileNotFoundError):
        load_recording(tmp_path / "none")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rec"
    buffer = filled(lambda: CompressedRecordBuffer(None, (40, 40)), 12)
    buffer.save(path)
    before = path.read_bytes()
    for error in (KeyboardInterrupt, OSError):

        def fail(*args: Any, error: Any = error) -> None:
            raise error("now")

        with monkeypatch.context() as patch:
            patch.setattr("sb3_extra_buffers.recording.files._final_frames", fail)
            with pytest.raises(error):
                buffer.save(path)
        assert os.listdir(tmp_path) == ["a.rec"]
        assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError, match="no folder"):
        buffer.save(tmp_path / "none" / "a.rec")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        buffer.save(tmp_path)


def test_ctrl_c_while_saving_leaves_no_file(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import signal, sys
        import numpy as np
        from sb3_extra_buffers.recording import RecordBuffer
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs deaf to it
        buffer = RecordBuffer(None, (200, 200, 3))
        rng = np.random.default_rng(0)
        for _ in range(400):
            buffer.add(rng.integers(0, 256, (200, 200, 3), np.uint8), 0, 0)
        print("saving", flush=True)
        buffer.save(sys.argv[1])
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a.rec")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"saving\n"
    while not os.listdir(tmp_path):  # it is being written beside its place
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert os.listdir(tmp_path) == []
