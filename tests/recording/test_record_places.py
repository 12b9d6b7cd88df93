"""Where recordings, pages and pictures are written: whole or not at all, as ``open`` would, and nothing is left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from recording_kit import assert_same_recording, filled

from sb3_extra_buffers._support import atomic_write
from sb3_extra_buffers.recording import (
    RecordBuffer,
    export_contact_sheet,
    export_video,
    load_recording,
    write_viewer,
)

posix = pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")


@pytest.fixture
def recording() -> RecordBuffer:
    """A small one."""
    return filled(lambda: RecordBuffer(None, (6, 6)), 12)


WRITERS: dict[str, Callable[[RecordBuffer, Path], None]] = {
    "a.rec": lambda recording, path: recording.save(path),
    "a.html": write_viewer,
    "a.png": export_contact_sheet,
    "a.gif": export_video,
    "a.mp4": export_video,
}
writers = pytest.mark.parametrize("name", WRITERS)


@pytest.mark.parametrize("size", [1, 200, 243, 244, 248, 252, 255])
@pytest.mark.parametrize("letter", ["a", "ä", "界"])
@pytest.mark.parametrize("suffix", [".rec", ".", ""], ids=repr)
def test_names_as_long_as_names_can_be(size: int, letter: str, suffix: str, recording: RecordBuffer, tmp_path: Path) -> None:
    width = len(letter.encode())
    name = letter * max((size - len(suffix)) // width, 1) + suffix
    recording.save(tmp_path / name)
    recording.save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    assert_same_recording(recording, load_recording(tmp_path / name))


def test_a_long_suffix(recording: RecordBuffer, tmp_path: Path) -> None:
    name = "a." + "b" * 250
    recording.save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(OSError, match="too long"):
        recording.save(tmp_path / ("a" * 256))


@posix
@writers
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_the_mode_of_a_file_stays(name: str, mode: int, recording: RecordBuffer, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    path.chmod(mode)
    WRITERS[name](recording, path)
    assert path.stat().st_size > 3
    assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
@writers
def test_a_new_file_has_the_mode_that_open_gives(name: str, recording: RecordBuffer, tmp_path: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            WRITERS[name](recording, tmp_path / name)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask
        (tmp_path / name).unlink()


@posix
def test_nobody_reads_the_new_file_before_it_is_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with atomic_write(path) as beside:
        beside.write_bytes(b"new")
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    assert path.read_bytes() == b"new"


@posix
@root
def test_root_leaves_a_file_to_its_owner(recording: RecordBuffer, tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.chown(path, 1234, 5678)
    recording.save(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5678, 0o640)


@posix
@writers
def test_a_link_stays_a_link(name: str, recording: RecordBuffer, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    target, link = tmp_path / "far" / "without_suffix", tmp_path / "near" / name
    (tmp_path / "near" / "middle").symlink_to("../far/without_suffix")
    link.symlink_to("middle")
    for _ in range(2):  # it points nowhere at first
        WRITERS[name](recording, link)
        assert os.readlink(link) == "middle"
        assert target.is_file() and not target.is_symlink()
        assert os.listdir(tmp_path / "far") == ["without_suffix"]
        assert sorted(os.listdir(tmp_path / "near")) == sorted([name, "middle"])
    if name == "a.rec":
        assert_same_recording(recording, load_recording(target))


@posix
def test_what_is_no_file_is_not_replaced(recording: RecordBuffer, tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to("loop")
    with pytest.raises(FileExistsError, match="a device or a pipe"):
        recording.save(pipe)
    with pytest.raises(OSError, match="symbolic link"):
        recording.save(loop)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="no folder"):
        recording.save(tmp_path / "file" / "a.rec")
    assert sorted(os.listdir(tmp_path)) == ["file", "loop", "pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode) and loop.is_symlink()


@posix
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """With a limit to the size of files: the system says no at the same places as on a full disk."""
    script = textwrap.dedent(
        """
        import os, resource, signal, sys
        import numpy as np
        from pathlib import Path
        from sb3_extra_buffers.recording import RecordBuffer, export_contact_sheet, export_video, write_viewer
        os.chdir(sys.argv[1])
        recording = RecordBuffer(None, (40, 40, 3))
        rng = np.random.default_rng(0)
        for step in range(6):
            recording.add(rng.integers(0, 256, (40, 40, 3), np.uint8), 0, 0, done=step == 5)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writers = {"a.rec": RecordBuffer.save, "a.html": write_viewer, "a.png": export_contact_sheet}
        for room in (0, 200, 1500, 5000):
            for name in ("a.rec", "a.html", "a.png", "a.gif", "a.mp4"):
                Path(name).write_bytes(b"old")
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, -1))
                try:
                    writers.get(name, export_video)(recording, Path(name))
                    print(name, room, "not told")
                except OSError:
                    pass
                resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
                if os.listdir() != [name] or Path(name).read_bytes() != b"old":
                    print(name, room, os.listdir(), "old file is gone")
                for left in os.listdir():
                    os.remove(left)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
