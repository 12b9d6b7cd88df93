"""The example of a cluster is a program that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "example_dqn_cluster.py"


@pytest.mark.slow
def test_the_example_runs(alone: None, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--steps", "800"], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert done.returncode == 0 and "mean score of 100 games" in done.stdout, done.stderr
