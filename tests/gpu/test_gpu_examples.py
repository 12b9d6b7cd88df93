"""The examples run as they are written, shorter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

pytest.importorskip("ale_py")
pytest.importorskip("cv2")


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    hidden = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"example_{name}.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**hidden, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "saved"),
    [
        ("replay", ["--steps", "120", "--envs", "2", "--buffer-size", "100"], "dqn/gpu_replay"),
        ("rollout", ["--steps", "256", "--envs", "2"], "ppo/gpu_rollout"),
    ],
)
def test_train_and_watch(kind: str, arguments: list[str], saved: str, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    done = run(f"train_gpu_{kind}", tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "x smaller" in done.stdout
    model = tmp_path / "logs" / "PongNoFrameskip-v4" / f"{saved}.zip"
    assert model.exists()
    watched = run(f"watch_gpu_{kind}", tmp_path, "--steps", "20")
    if sys.platform in ("win32", "darwin"):
        return
    assert watched.returncode == 0, watched.stdout + watched.stderr
    video = model.with_suffix(".mp4").read_bytes()
    assert len(video) > 1000 and b"ftyp" in video[:32]


def test_there_is_nothing_to_watch(tmp_path: Path) -> None:
    early = run("watch_gpu_rollout", tmp_path)
    assert early.returncode == 2 and "train it first" in early.stderr
