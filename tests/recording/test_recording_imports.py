"""Who records nothing pays nothing, and who lacks a library is told which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_extra_buffers.recording import (
    RecordBuffer,
    export_contact_sheet,
    export_minari,
    export_video,
    import_minari,
    load_recording,
    write_viewer,
)

HEAVY = ("imageio", "imageio_ffmpeg", "PIL", "minari", "h5py", "tqdm", "playwright")


IN_THREE_STEPS = """
import sys
import torch, stable_baselines3, gymnasium
hosts = set(sys.modules)
import sb3_extra_buffers.compressed
core = set(sys.modules)
import sb3_extra_buffers.recording
print(*sorted(hosts), sep=" ")
print(*sorted(core - hosts), sep=" ")
print(*sorted(set(sys.modules) - core), sep=" ")
"""


def test_nothing_is_imported_before_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THREE_STEPS], capture_output=True, text=True, check=True)
    _, by_core, by_recording = (set(line.split(" ")) for line in done.stdout.splitlines())
    assert "sb3_extra_buffers.compressed.replay" in by_core
    assert not [name for name in by_core if name.startswith("sb3_extra_buffers.recording")]
    assert not by_core & set(HEAVY)
    assert "sb3_extra_buffers.recording.viewer" in by_recording
    assert not by_recording & set(HEAVY)


@pytest.fixture
def recording() -> RecordBuffer:
    """A very short one."""
    buffer = RecordBuffer(None, (8, 8))
    for step in range(3):
        buffer.add(np.full((8, 8), step, np.uint8), step, 0)
    return buffer


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("imageio_ffmpeg", "recording", lambda r, folder: export_video(r, folder / "a.mp4")),
        ("PIL.Image", "recording", lambda r, folder: export_video(r, folder / "a.gif")),
        ("PIL.Image", "recording", lambda r, folder: export_contact_sheet(r, folder / "a.png")),
        ("minari", "minari", lambda r, folder: export_minari(r, "a-v0")),
        ("minari", "minari", lambda r, folder: import_minari("a-v0")),
        ("h5py", "minari", lambda r, folder: export_minari(r, "a-v0")),
    ],
)
def test_a_missing_library_is_named(
    module: str, extra: str, call: Any, recording: RecordBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'needs {module.split(".")[0]}: pip install "\.\[{extra}\]"'):
        call(recording, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_rest_needs_none_of_them(recording: RecordBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in HEAVY:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    recording.save(tmp_path / "a.rec", progress=True)
    loaded = load_recording(tmp_path / "a.rec", progress=True)
    write_viewer(loaded, tmp_path / "a.html", progress=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.rec"]
