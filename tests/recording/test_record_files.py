"""Saving and loading recordings: equal, whole or not at all, and never code."""

from __future__ import annotations

import io
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
    assert places
    damaged = bytearray(path.read_bytes())
    for place in places:
        damaged[place + 90 : place + 120] = bytes(30)
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
        archive.writestr(zipfile.ZipInfo("format"), members.pop("format"))
        for name, content in members.items():
            archive.writestr(name, content)
    return out


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("import os; os.environ['SB3XB_UNPICKLED'] = 'yes'",))


def test_no_code_is_run(tmp_path: Path) -> None:
    filled(lambda: RecordBuffer(None, (6, 6), features=FEATURES), 12).save(tmp_path / "a.rec")
    out = io.BytesIO()
    np.save(out, np.array([Bomb()] * 12, object), allow_pickle=True)
    for name in ("reward", "frames", "ends", "features/0"):
        path = rewritten(tmp_path / "a.rec", lambda members, name=name: members.update({f"{name}.npy": out.getvalue()}))
        with pytest.raises(RecordingError, match="allow_pickle=False"):
            load_recording(path)
    assert "SB3XB_UNPICKLED" not in os.environ


def test_other_versions_are_refused(tmp_path: Path) -> None:
    filled(lambda: RecordBuffer(None, (6, 6)), 12).save(tmp_path / "a.rec")

    def change(members: dict[str, bytes]) -> None:
        members["header.json"] = members["header.json"].replace(b'"format_version": 2', b'"format_version": 1')

    path = rewritten(tmp_path / "a.rec", change)
    # Version 1 began with another member.
    with zipfile.ZipFile(path) as new, zipfile.ZipFile(tmp_path / "old.rec", "w") as old:
        for name in ("reward.npy", "header.json"):
            old.writestr(name, new.read(name))
    for other in (path, tmp_path / "old.rec"):
        assert is_recording(other)
        for read in (load_recording, recording_info):
            with pytest.raises(RecordingError, match=r"format 1 by version .*reads format 2 only"):
                read(other)


@pytest.mark.parametrize("cls", [RecordBuffer, CompressedRecordBuffer])
def test_a_damaged_chunk_is_noticed_even_with_the_checksum_of_the_zip_file(cls: type[RecordBuffer], tmp_path: Path) -> None:
    filled(lambda: cls(None, (30, 40)), 12).save(tmp_path / "a.rec")

    def change(members: dict[str, bytes]) -> None:
        (name,) = [name for name in members if name.startswith("frames/")]
        chunk = bytearray(members[name])
        chunk[len(chunk) // 2] ^= 1
        members[name] = bytes(chunk)

    with pytest.raises(RecordingError, match="damaged"):
        load_recording(rewritten(tmp_path / "a.rec", change))


def test_compressed_frames_are_taken_over_as_they_are(tmp_path: Path) -> None:
    """Saved again, they are the same bytes: nothing was coded."""
    buffer = filled(lambda: CompressedRecordBuffer(None, (30, 40), compression_method="zstd-3"), 40)
    buffer.save(tmp_path / "a.rec")
    loaded = load_recording(tmp_path / "a.rec")
    assert isinstance(loaded, CompressedRecordBuffer) and loaded.compression_method == buffer.compression_method
    assert loaded.memory_usage().stored_bytes == buffer.memory_usage().stored_bytes
    loaded.save(tmp_path / "b.rec")
    frames = []
    for name in ("a.rec", "b.rec"):
        with zipfile.ZipFile(tmp_path / name) as archive:
            frames.append({name: archive.read(name) for name in archive.namelist() if name.startswith("frames/")})
    assert len(frames[0]) >= 1 and frames[0] == frames[1]


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    buffer = filled(lambda: RecordBuffer(None, (6, 6), metadata={"note": "good"}), 12)
    buffer.save(path)
    for key, value, error, message in [
        ("x", float("nan"), TypeError, "JSON"),
        ("x", {1, 2}, TypeError, "JSON"),
        ("x", "\ud800", TypeError, "JSON"),
        ("fps", 10**400, ValueError, r"allowed: 0\.01 to 100,000"),
    ]:
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
    deep = filled(lambda: CompressedRecordBuffer(np.int64(3), (1,) * 29 + (600,), features={"x": ((1,) * 30, np.int8)}), 5)
    deep.save(path)
    assert_same_recording(deep, load_recording(path))


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

        def fail(*args: Any, error: Any = error, **kwargs: Any) -> None:
            raise error("now")

        with monkeypatch.context() as patch:
            patch.setattr(np.lib.format, "write_array", fail)
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
