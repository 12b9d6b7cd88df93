"""
Run the tests of ``docs/reliability.md`` in their long forms and the fuzzers, and write down how often each of them did what.

A test tells how often (``record_property("times", …)``); a program writes a result of its own. ``--fuzzed`` does not run the
fuzzers, and takes what ``fuzz.json`` and ``fuzz_files.json`` say of their last runs. The soak, which takes an hour, is a
program of its own: ``python benchmarks/soak.py``.

    python benchmarks/faults.py
    python benchmarks/faults.py --only saves-killed rings-killed
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from kit.results import RESULTS, ResultFile, console, options

ROOT = Path(__file__).parents[1]
PYTEST = "python -m pytest"
FILES, FUZZ_INPUTS, FILE_INPUTS = "tests/files", 10_000_000, 200_000


class Check(NamedTuple):
    """
    Something that is done again and again.

    :param what: What that is
    :param command: What does it
    """

    what: str
    command: str


TESTS = {
    "saves-killed": Check("`kill -9` while a buffer is saved", f"{FILES}/test_kills.py -m slow -k while_saving"),
    "rings-killed": Check("`kill -9` while a ring on disk is written", f"{FILES}/test_kills.py -m slow -k ring"),
    "checkpoints-killed": Check("`kill -9` while checkpoints are written", f"{FILES}/test_kills.py -m slow -k checkpoints"),
    "runs-killed": Check("`kill -9` of a DQN, SAC or PPO, which is resumed", "tests/resuming/test_killed.py"),
    "power": Check(
        "disks that a power cut may leave, at every call of a save, a ring or a checkpoint",
        f"{FILES}/test_crashes.py {FILES}/test_checkpoint_crashes.py -k may_be_the_last",
    ),
    "calls": Check(
        "a file call that fails (`EIO`, `ENOSPC`)", f"{FILES}/test_crashes.py {FILES}/test_checkpoint_crashes.py -k may_fail"
    ),
    "short": Check("calls that are interrupted, or write and read too little", f"{FILES}/test_crashes.py -k interrupted"),
    "bits": Check("a single bit of a directory flipped, each in turn", f"{FILES}/test_damaged_directories.py -k every_bit"),
    "prefixes": Check("a file cut short, at each length in turn", f"{FILES}/test_damaged_directories.py -k every_prefix"),
    "made-up": Check("manifests that somebody has made up", f"{FILES}/test_damaged_directories.py -k made_up"),
}
FUZZERS = {
    "fuzz": (Check("patches and chunks fuzzed, with ASan and UBSan", f"make fuzz FUZZ_INPUTS={FUZZ_INPUTS}"), "fuzz"),
    "fuzz-files": (
        Check("directories fuzzed", f"python scripts/fuzz_files.py --inputs {FILE_INPUTS} --write"),
        "fuzz_files",
    ),
}


def run_tests(check: Check, report: Path) -> dict[str, Any]:
    """Run tests, and add up what they tell."""
    words = shlex.split(f"-m pytest -q -o junit_family=xunit1 --junitxml {report} {check.command}")
    subprocess.run([sys.executable, *words], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    return {"runs": f"{PYTEST} {check.command}", **add_up(ElementTree.parse(report).iter("testcase"))}


def add_up(cases: Iterable[ElementTree.Element]) -> dict[str, Any]:
    """Add up what tests tell."""
    cases = list(cases)
    told = [one.get("value", "0") for case in cases for one in case.iter("property") if one.get("name") == "times"]
    return {
        "times": sum(map(int, told)),
        "wrong": sum(case.find(name) is not None for case in cases for name in ("failure", "error")),
        "seconds": round(sum(float(case.get("time", "0")) for case in cases)),
    }


def run_fuzzer(check: Check, name: str, folder: Path, again: bool) -> dict[str, Any]:
    """Run a fuzzer."""
    path = folder / f"{name}.json"
    if again:
        words = shlex.split(check.command + (f" FUZZ_RESULT={path}" if name == "fuzz" else ""))
        subprocess.run([sys.executable if words[0] == "python" else words[0], *words[1:]], cwd=ROOT, check=True)
    result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = result.get("rows", [result])
    return {
        "runs": result["command"],
        "times": sum(row["inputs"] for row in rows),
        "wrong": sum(row["findings"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
    }


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--only", nargs="+", choices=[*TESTS, *FUZZERS], default=[*TESTS, *FUZZERS], help="which")
    parser.add_argument("--fuzzed", action="store_true", help="do not run the fuzzers, take what they found last time")
    args = parser.parse_args()
    results = ResultFile("faults", args.results)
    with tempfile.TemporaryDirectory() as folder:
        for key in args.only:
            if key in TESTS:
                check = TESTS[key]
                row = run_tests(check, Path(folder) / "report.xml")
            else:
                check, name = FUZZERS[key]
                row = run_fuzzer(check, name, RESULTS, not args.fuzzed)
            results.put(key, {"what": check.what, **row})
            console.print(f"{check.what}: {row['times']:,} times, {row['wrong']} wrong, {row['seconds']} s")


if __name__ == "__main__":
    main()
