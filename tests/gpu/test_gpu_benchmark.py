"""The benchmark of buffers on a device: what it compares, and that it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

pytest.importorskip("rich")
pytest.importorskip("zstandard")
sys.path.insert(0, str(BENCHMARKS))
try:
    import gpu_buffers
    import report
finally:
    sys.path.remove(str(BENCHMARKS))


def side(time: float, memory: int = 100, digest: str = "x") -> dict[str, Any]:
    times = {name: {"p25": time, "p50": 9 * time} for name in ("add_first", "add_full", "sample_32", "sample_256")}
    return {"memory": memory, "digest": digest, **times}


def test_sides_are_compared_by_quartiles() -> None:
    sides = {"sb3": side(10.0, 1000), "gpu:delta": side(20.0, 20), "rle-jit": side(5.0), "gpu:rle": side(10.0)}
    row = gpu_buffers.compare(sides)
    assert row["identical"] and row["ratios"]["memory"] == 0.02 and row["ratios"]["rle_sample_256"] == 2.0
    assert row["reached"] == {
        "memory": True,
        "add_first": True,
        "add_full": True,
        "sample_256": False,
        "rle_sample_256": True,
    }
    assert not gpu_buffers.compare(sides | {"gpu:rle": side(10.0, digest="y")})["identical"]


def test_the_largest_buffer_is_compared_with_the_smallest() -> None:
    row = gpu_buffers.compare_sizes({"10": side(10.0), "20": side(50.0), "30": side(12.0)})
    assert row["ratios"] == {"add_full": 1.2, "sample_256": 1.2} and all(row["reached"].values())


@pytest.mark.slow
def test_small_run(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    command = [sys.executable, str(BENCHMARKS / "gpu_buffers.py"), "--dataset", "pong", "--turns", "2"]
    command += ["--transitions", "400", "--flat", "200", "400"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path), "--cache", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu_buffers.json").read_text())["rows"]
    assert set(rows) == {"pong", "pong/flat"} and rows["pong"]["identical"]
    page = tmp_path / "page.md"
    page.write_text("<!-- table: gpu -->\n<!-- end -->\n")
    assert report.main([str(page), "--results", str(tmp_path)]) == 0
    assert "| `delta`, memory, beside SB3's (Pong, stack 4, 4 envs) |" in page.read_text()
