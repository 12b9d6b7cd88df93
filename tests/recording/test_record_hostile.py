"""Recordings from strangers: whatever a file says, it is read or refused with a ``RecordingError``, and takes only its due."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
import zlib
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
    export_contact_sheet,
    is_recording,
    load_recording,
    recording_info,
    write_viewer,
)

MAKERS: dict[str, Callable[[], RecordBuffer]] = {
    "dense": lambda: RecordBuffer(None, (6, 6), features={"health": np.float32}, metadata={"env_id": "a", "fps": 12}),
    "ring": lambda: RecordBuffer(20, (6, 6), np.bool_, (2,), np.float32),
    "compressed": lambda: CompressedRecordBuffer(30, (24, 24), metadata={"action_meanings": ["a", "b"]}),
    "frameless": lambda: FramelessRecordBuffer(None, features={"place": ((2,), np.int16)}),
}


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {item.filename: archive.read(item) for item in archive.infolist()}


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def look_at(path: Path) -> RecordBuffer:
    """All that is done with a recording that somebody sent."""
    recording_info(path)
    recording = load_recording(path)
    assert repr(recording)
    write_viewer(recording, path.with_suffix(".html"), episodes=[0] if len(recording) else None)
    if recording.frame_shape is not None and len(recording):
        export_contact_sheet(recording, path.with_suffix(".png"), columns=2, rows=1)
    return recording


DEEP = "[" * 200 + "]" * 200
HOSTILE = [
    *("null", "true", "false", "0", "1", "-1", "2", "12", "1e5", "0.5", "NaN", "Infinity", "-Infinity", "1e999", "-1e999"),
    *(str(1 << 47), str(1 << 63), str(1 << 64), "9" * 400, "-" + "9" * 400, "9" * 5000),
    *('""', '"x"', '"\\u0000"', '"\\ud800"', '"\\u001b[2J"', '"dense"', '"frameless"', '"|O"', '"<f8"', '"|V9"', '"<U9"'),
    *("[]", "[0]", "[-1]", "[null]", "[1.5]", "[true]", "[6]", "[6, 6]", f"[{1 << 40}]", f"[{1 << 47}, {1 << 47}]"),
    *(f"[{', '.join(['1'] * 64)}]", f"[{', '.join(['99999'] * 30)}]", "[[6, 6], 5]"),
    *("{}", '{"a": NaN}', '{"a": 1, "a": 2}', '{"fps": -1}', '{"\\ud800": 1}', DEEP, "[" * 100_000, '{"a":' * 5000),
]  # fmt: skip
SPACES = [
    {"type": "Box", "low": 0, "high": 1, "shape": [1 << 20, 1 << 20], "dtype": "float64"},
    {"type": "Box", "low": 10**400, "high": {}, "shape": [2], "dtype": "V999999999"},
    {"type": "Discrete", "n": 10**400, "start": -(10**400), "dtype": "int64"},
    {"type": "Discrete", "n": True, "start": 1.5, "dtype": None},
    {"type": [], "nvec": [[[]]]},
]


FEWER = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])


@pytest.fixture(scope="module", params=["dense", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MAKERS)[1:])])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good recording."""
    path: Path = tmp_path_factory.mktemp(request.param) / "good.rec"
    filled(MAKERS[request.param], 3, episode=2).save(path)
    return path


def test_every_field_of_the_header_with_every_value(saved: Path) -> None:
    members = members_of(saved)
    good = json.loads(members["header.json"])
    forged = saved.with_name("forged.rec")
    accepted = 0
    for field in good:
        for value in HOSTILE:
            text = json.dumps({**good, field: "VALUE"}).replace('"VALUE"', value)
            write_zip(forged, {**members, "header.json": text.encode()})
            try:
                look_at(forged)
                accepted += 1
            except RecordingError as error:
                assert len(str(error)) < 1000 and "\x1b" not in str(error), field
            except Exception as error:
                pytest.fail(f"{field} = {value[:60]}: {error!r}")
        # Nothing is left out, either.
        less = {name: content for name, content in good.items() if name != field}
        write_zip(forged, {**members, "header.json": json.dumps(less).encode()})
        with pytest.raises(RecordingError):
            load_recording(forged)
    assert accepted < 0.2 * len(good) * len(HOSTILE)  # the values are hostile indeed


@pytest.mark.parametrize("actions", [(), (2,)], ids=["discrete", "continuous"])
def test_every_known_word_of_the_metadata_with_every_value(actions: tuple[int, ...], tmp_path: Path) -> None:
    filled(lambda: RecordBuffer(None, (4,), action_shape=actions), 3).save(tmp_path / "a.rec")
    members = members_of(tmp_path / "a.rec")
    good = json.loads(members["header.json"])
    forged = tmp_path / "forged.rec"
    for key in ("action_space",) if actions else ("env_id", "fps", "frames", "action_meanings", "action_space"):
        for value in [*HOSTILE, *map(json.dumps, SPACES)]:
            text = json.dumps({**good, "metadata": {key: "VALUE"}}).replace('"VALUE"', value)
            write_zip(forged, {**members, "header.json": text.encode()})
            try:
                write_viewer(load_recording(forged), tmp_path / "a.html")
            except RecordingError:
                pass
            except Exception as error:
                pytest.fail(f"{key} = {value[:60]}: {error!r}")


@pytest.mark.parametrize("text", ["NaN", "9" * 400, "-3", "0", "1e999"])
def test_a_speed_that_no_video_can_have_is_refused(text: str, tmp_path: Path) -> None:
    filled(MAKERS["dense"], 12).save(tmp_path / "a.rec")
    members = members_of(tmp_path / "a.rec")
    members["header.json"] = members["header.json"].replace(b'"fps": 12', f'"fps": {text}'.encode())
    write_zip(tmp_path / "a.rec", members)
    with pytest.raises(RecordingError, match="header is damaged"):
        load_recording(tmp_path / "a.rec")
    if text not in ("NaN", "1e999"):
        with pytest.raises(ValueError, match=r"0\.01 to 100,000"):
            RecordBuffer(None, (6, 6), metadata={"fps": int(text)})


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
        with pytest.raises(RecordingError, match=r"cut\.rec: (cut short|not a recording)") as caught:
            load_recording(cut)
        # Its first member tells what it is.
        assert is_recording(cut) == (size >= 40), size
        if size < 40:
            continue
        missing = int(str(caught.value).partition("at least ")[2].partition(" bytes")[0].replace(",", ""))
        assert 0 < missing <= len(whole) - size
        if size > len(whole) - 100:  # in the list of members, of which the size is known
            assert missing == len(whole) - size


def test_something_before_a_recording_makes_it_something_else(tmp_path: Path) -> None:
    filled(MAKERS["dense"], 12).save(tmp_path / "a.rec")
    pickled = tmp_path / "b.rec"
    pickled.write_bytes(pickle.dumps("code") + (tmp_path / "a.rec").read_bytes())
    assert zipfile.is_zipfile(pickled) and not is_recording(pickled)
    with pytest.raises(RecordingError, match="does not begin like one"):
        load_recording(pickled)


def test_damaged_recordings_are_still_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    filled(MAKERS["dense"], 12).save(path)
    members = members_of(path)
    for old, new in ((b'"format_version": 1', b'"format_version": 2'), (b'"steps": 12', b'"steps": NaN')):
        write_zip(path, {**members, "header.json": members["header.json"].replace(old, new)})
        assert is_recording(path)
        with pytest.raises(RecordingError):
            recording_info(path)
    write_zip(path, {**members, "header.json": b'{"format": "another"}'})
    assert not is_recording(path)


@pytest.mark.parametrize(
    "head",
    [
        b"{'descr': [" + b"(" * 900,
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"-" * 900 + b"1,), }",
        b"{'descr': '<f8', 'fortran_order': True, 'shape': (12,), }",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (11,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (12,), }",
        b"{[]: 1}",
        b"\xff" * 20,
        b"",
    ],
    ids=lambda head: str(head[:30]),
)
def test_descriptions_of_arrays_that_are_no_such(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    filled(MAKERS["dense"], 12).save(path)
    members = members_of(path)
    for magic in (b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"", b"PK\x03\x04----"):
        members["reward.npy"] = magic + struct.pack("<H", len(head)) + head + bytes(96)
        write_zip(path, members)
        with pytest.raises(RecordingError, match=r"reward\.npy does not hold"):
            load_recording(path)


def test_booleans_are_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    filled(lambda: RecordBuffer(None, (6, 6), np.bool_), 3).save(path)
    members = members_of(path)
    members["frames/0.npy"] = members["frames/0.npy"][:-1] + b"\7"
    write_zip(path, members)
    with pytest.raises(RecordingError, match="neither true nor false"):
        load_recording(path)


# -- memory -------------------------------------------------------------------------------------------------------------------


def with_shared_bytes(path: Path, members: dict[str, bytes], names: list[str], content: bytes) -> None:
    """
    Write a zip file in which several members are one and the same piece of the file: each one's own header is followed by
    an "extra field" that reaches up to there.
    """
    squeeze = zlib.compressobj(9, wbits=-15)
    shared = squeeze.compress(content) + squeeze.flush()
    plain = path.with_name("plain.zip")
    write_zip(plain, members)
    whole = plain.read_bytes()
    directory = whole.index(b"PK\1\2")
    count = whole.count(b"PK\1\2")
    heads = [30 + len(name) for name in names]
    local, listed, place = b"", b"", directory
    for number, name in enumerate(names):
        extra = sum(heads[number + 1 :])
        rest = (20, 0, 8, 0, 0, zlib.crc32(content), len(shared), len(content), len(name))
        local += struct.pack("<4s5H3L2H", b"PK\3\4", *rest, extra) + name.encode()
        listed += struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, *rest, 0, 0, 0, 0, 0, place) + name.encode()
        place += heads[number]
    listed = whole[directory : whole.index(b"PK\5\6")] + listed
    start = directory + len(local) + len(shared)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count + len(names), count + len(names), len(listed), start, 0)
    path.write_bytes(whole[:directory] + local + shared + listed + end)


def test_members_that_share_their_bytes(tmp_path: Path) -> None:
    """Else a file of 160 KB can hold 100 GB; here it is 50 MB of 60 KB."""
    chunks, rows, shape = 30, 2, (1 << 20,)
    header = io.BytesIO()
    np.lib.format.write_array(header, np.zeros((rows, *shape), np.uint8))
    steps = chunks * rows
    filled(lambda: RecordBuffer(None, (4,)), steps, episode=steps).save(tmp_path / "a.rec")
    members = {name: data for name, data in members_of(tmp_path / "a.rec").items() if "frames" not in name}
    forged = {
        **json.loads(members.pop("header.json")),
        **{"frame_shape": shape, "chunk_frames": rows, "coding": "p" * chunks, "final_coding": "", "finals": 0},
    }
    with io.BytesIO() as none:
        np.lib.format.write_array(none, np.zeros(0, np.int64))
        members["finals.npy"] = none.getvalue()
    members["header.json"] = json.dumps(forged).encode()
    names = [f"frames/{chunk}.npy" for chunk in range(chunks)]
    with_shared_bytes(tmp_path / "bomb.rec", members, names, header.getvalue())
    assert (tmp_path / "bomb.rec").stat().st_size < 60_000
    with zipfile.ZipFile(tmp_path / "bomb.rec") as archive:
        assert sum(item.file_size for item in archive.infolist()) > 50 << 20
    with pytest.raises(RecordingError, match="begins where the member before it has not ended"):
        load_recording(tmp_path / "bomb.rec")


def test_a_name_twice(tmp_path: Path) -> None:
    filled(MAKERS["dense"], 12).save(tmp_path / "a.rec")
    with (
        zipfile.ZipFile(tmp_path / "a.rec", "a", zipfile.ZIP_DEFLATED) as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("reward.npy", b"another")
    with pytest.raises(RecordingError, match=r"holds 'reward.npy' twice"):
        load_recording(tmp_path / "a.rec")


def test_nothing_is_allocated_because_a_file_says_so(tmp_path: Path) -> None:
    """With little memory to spare, each of these is refused for what it is, and a good one is read."""
    good = tmp_path / "good.rec"
    filled(MAKERS["dense"], 12).save(good)
    members = members_of(good)
    small = io.BytesIO()
    np.lib.format.write_array(small, np.zeros(12))
    flood = small.getvalue() + bytes(100 << 20)  # which says that it has none of these zeros

    filled(MAKERS["dense"], 0).save(tmp_path / "nothing.rec")
    nothing = members_of(tmp_path / "nothing.rec")

    def forge(name: str, changes: dict[str, Any], members: dict[str, bytes] = members) -> None:
        text = json.dumps({**json.loads(members["header.json"]), **changes}).encode()
        write_zip(tmp_path / f"{name}.rec", {**members, "header.json": text})

    forge("steps", {"steps": 1 << 40})
    forge("counts", {"episodes": 1 << 40, "finals": 1 << 40})
    forge("frames", {"frame_shape": [1 << 20, 1 << 20]})
    forge("one frame", {"frame_shape": [1 << 20, 1 << 20], "chunk_frames": 1})
    forge("ring", {"buffer_size": 1 << 46}, nothing)
    forge("large ring", {"buffer_size": 1 << 33})
    forge("empty ring", {"buffer_size": 2, "frame_shape": [1 << 30], "chunk_frames": 1}, nothing)
    forge("empty", {"frame_shape": [1 << 20, 1 << 20], "chunk_frames": 1}, nothing)
    forge("chunks", {"chunk_frames": 1 << 40})
    path = tmp_path / "flood.rec"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, flood if name == "reward.npy" else content)
    whole = path.read_bytes()
    for said in (len, zlib.crc32):
        whole = whole.replace(struct.pack("<L", said(flood)), struct.pack("<L", said(small.getvalue())))
    path.write_bytes(whole)
    script = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        from sb3_extra_buffers.recording import RecordingError, load_recording, write_viewer
        load_recording(sys.argv[1] + "/good.rec")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
        for path in sorted(Path(sys.argv[1]).glob("*.rec")):
            try:
                recording = load_recording(path)
                if len(recording) == 0:
                    write_viewer(recording, path.with_suffix(".html"))
                print(path.stem, "loaded", sep=": ")
            except RecordingError as error:
                print(path.stem, "no memory" if "does not fit in memory" in str(error) else "refused", sep=": ")
        """
    )
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("memory is limited in the way of Linux")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    # Memory is asked for only where a ring was made for more steps than it has. The flood begins with what it must hold.
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        **dict.fromkeys(("steps", "counts", "frames", "one frame", "ring", "chunks"), "refused"),
        **dict.fromkeys(("large ring", "empty ring"), "no memory"),
        **dict.fromkeys(("empty", "nothing", "good", "flood"), "loaded"),
    }
