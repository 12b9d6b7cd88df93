"""
Our buffers beside those of other releases of SB3 than the one that is installed here.

Each release gets an environment of its own. It holds SB3, SB3-Contrib and Gymnasium; all else is found in the environment that
runs this test, which comes behind its own on the path. There, the tests run that compare our buffers with SB3's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import sb3_extra_buffers

ROOT = Path(__file__).parents[2]

# SB3 and SB3-Contrib, and the newest Gymnasium that they allow: the newest release of each series before the one in
# constraints.txt, with which all other tests run, and the oldest that pyproject.toml allows, whose rollouts are all float32.
RELEASES = {"2.7.0": "1.2.3", "2.7.1": "1.2.3", "2.8.0": "1.2.3"}
COMPARED_WITH_SB3 = ("tests/buffers", "tests/family", "tests/prioritized", "tests/gpu", "tests/resuming")


def run(*command: object) -> str:
    """Run a program in the project's folder; its output is the message if it fails."""
    # What this run of pytest was told is not for the one that it starts.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=ROOT, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_environment(folder: Path, release: str) -> Path:
    """
    Make an environment with another SB3.

    :param folder: Where to
    :param release: Of SB3 and SB3-Contrib
    :return: Its interpreter
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    ours = Path(sb3_extra_buffers.__file__).parents[1]
    behind = (Path(__file__).parent, ours, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    (own / "behind.pth").write_text("\n".join(dict.fromkeys(map(str, behind))) + "\n", encoding="utf-8")
    # With --target, pip looks at no other folder: it neither takes an SB3 that it finds there for this one, nor removes it.
    pip = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-compile", "--target", own)
    run(*pip, f"stable-baselines3=={release}", f"sb3-contrib=={release}", f"gymnasium=={RELEASES[release]}")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_the_same_as_sb3(release: str, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", release)
    options = ("-m", "not slow", "-p", "report_versions", "-p", "no:cacheprovider", "--basetemp", tmp_path / "tests")
    output = run(python, "-m", "pytest", *options, *COMPARED_WITH_SB3)
    (line,) = re.findall(r"^used: (.*)$", output, re.MULTILINE)
    used = json.loads(line)
    versions = {"stable_baselines3": release, "sb3_contrib": release, "gymnasium": RELEASES[release]}
    for package, version in versions.items():
        found, file = used["packages"][package]
        assert found == version, package
        assert Path(file).is_relative_to(tmp_path), package
    assert Path(used["packages"]["sb3_extra_buffers"][1]).samefile(sb3_extra_buffers.__file__)
    assert used["passed"] > 1000, "hardly a test was run"
    print(line)


def series(release: str) -> tuple[int, int]:
    """The first two numbers of a release."""
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def test_no_release_that_is_allowed_is_left_out() -> None:
    """``make test-all`` tests the oldest one, and each series up to the one that ``make test`` runs with."""
    (oldest,) = re.findall(r'"stable-baselines3>=([\d.]+),<3"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (pinned,) = re.findall(r"^stable-baselines3==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"{oldest}.0" in RELEASES
    major, newest = series(pinned)
    assert {series(release) for release in RELEASES} == {(major, minor) for minor in range(series(oldest)[1], newest)}
