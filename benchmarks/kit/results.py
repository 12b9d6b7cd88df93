"""Result files: rows that are merged in as they finish, beside what they were measured with."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

RESULTS = Path(__file__).parents[1] / "results"
CACHE = Path(__file__).parents[1] / ".cache"
LIBRARIES = (
    *("numpy", "torch", "stable-baselines3", "numba", "zstandard", "lz4", "isal"),
    *("gymnasium", "ale-py", "vizdoom", "box2d", "mujoco", "dm-control", "crafter", "minigrid"),
)
_PATH_OPTIONS = ("--results", "--cache")

console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)


def machine() -> dict[str, Any]:
    """Describe the machine, without its name."""
    cpu = platform.processor() or platform.machine()
    memory = None
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (OSError, ValueError):
        pass
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": memory, "system": platform.system()}


def versions() -> dict[str, str]:
    """List the versions that matter."""
    import sb3_extra_buffers

    found = {"python": platform.python_version(), "sb3-extra-buffers": sb3_extra_buffers.__version__}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def command() -> str:
    """Say how to run this again."""
    words: list[str] = []
    skip = False
    for word in sys.argv[1:]:
        if not skip and not word.startswith(_PATH_OPTIONS):
            words.append(word)
        skip = word in _PATH_OPTIONS
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


class ResultFile:
    """The results of one program."""

    def __init__(self, name: str, folder: Path = RESULTS) -> None:
        self.path = folder / f"{name}.json"
        self.rows: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            self.rows = json.loads(self.path.read_text(encoding="utf-8"))["rows"]

    def put(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a row with today's date, in place of an older one, and write the file."""
        self.rows[key] = {**row, "measured": date.today().isoformat(), "command": command()}
        content = {"machine": machine(), "versions": versions(), "rows": self.rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(self.path)

    def has(self, key: str, **settings: Any) -> bool:
        """Tell whether a row is there already, measured in the same way."""
        row = self.rows.get(key)
        return row is not None and "error" not in row and all(row.get(name) == value for name, value in settings.items())


def read_results(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Read a result file."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    results: dict[str, Any] = {"rows": {row["method"]: row for row in content}} if isinstance(content, list) else content
    # A million that is still being played has no row yet.
    if "reached" not in results.get("rows", {}).get("million", {"reached": True}):
        results["rows"].pop("million")
    return results


def options(description: str, cache: bool = True) -> argparse.ArgumentParser:
    """Make the command line that all programs share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result files")
    if cache:
        parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the recorded games")
    parser.add_argument("--resume", action="store_true", help="keep rows that are there already")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser
