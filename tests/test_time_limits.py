"""A test that hangs is ended; a slow one on a busy machine is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

def limit(request):
    marker = request.node.get_closest_marker("timeout")
    return marker.args[0] if marker else None

def test_quick(request):
    assert limit(request) is None  # that of pyproject.toml

@pytest.mark.slow
def test_slow(request):
    assert limit(request) >= 3000

@pytest.mark.slow
@pytest.mark.timeout(7)
def test_slow_with_a_limit(request):
    assert limit(request) == 7
"""


def test_slow_tests_have_a_limit_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_limits.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-o", "markers=slow", "--rootdir", tmp_path, tmp_path]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
