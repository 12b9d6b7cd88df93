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


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has imported after a statement."""
    script = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_core_imports_nothing_of_it() -> None:
    loaded = modules_after("import sb3_extra_buffers.compressed")
    assert "sb3_extra_buffers.compressed.buffers" in loaded
    assert not [name for name in loaded if name.startswith("sb3_extra_buffers.recording")]
    core = modules_after("import torch, stable_baselines3.common.buffers")
    assert not [name for name in HEAVY if name in loaded - core]


def test_recording_imports_no_library_before_it_is_needed() -> None:
    loaded = modules_after("import sb3_extra_buffers.recording")
    core = modules_after("import torch, stable_baselines3, gymnasium")
    assert "sb3_extra_buffers.recording.viewer" in loaded
    assert not [name for name in HEAVY if name in loaded - core]


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
    with pytest.raises(ImportError, match=rf'needs {module.split(".")[0]}: pip install "sb3-extra-buffers\[{extra}\]"'):
        call(recording, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_rest_needs_none_of_them(recording: RecordBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in HEAVY:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    recording.save(tmp_path / "a.rec", progress=True)
    loaded = load_recording(tmp_path / "a.rec", progress=True)
    export_contact_sheet(loaded, tmp_path / "a.png")
    write_viewer(loaded, tmp_path / "a.html", progress=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.png", "a.rec"]
