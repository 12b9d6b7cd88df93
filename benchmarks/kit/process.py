"""Processes of their own for each side, their memory, and times."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

BENCHMARKS = Path(__file__).parents[1]
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Tells glibc not to hand freed memory back to the system, only to fetch it again for the next minibatch."""
_TURN = "turn"


def settle() -> None:
    """Give back to the system what the process no longer uses."""
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def anonymous_bytes() -> int:
    """Measure what the process itself has put into memory, without the files that it maps."""
    return _status("RssAnon") or resident_bytes()


def resident_bytes() -> int:
    """Measure the resident memory of the process, as ``top`` shows it."""
    known = _status("VmRSS")
    if known is not None:
        return known
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Measure the largest resident memory that the process ever had."""
    return _status("VmHWM") or resident_bytes()


def forget_peak() -> None:
    """Have ``peak_bytes`` begin anew, where the system can do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def page_faults() -> int:
    """Count the pages that the system has given to the process so far."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def summary(nanoseconds: Iterable[float]) -> dict[str, float]:
    """Describe many times of the same thing."""
    values = np.fromiter(nanoseconds, dtype=np.float64) / 1e3
    low, quarter, middle = (float(value) for value in np.quantile(values, (0.1, 0.25, 0.5)))
    quantiles = {"p10": round(low, 2), "p25": round(quarter, 2), "p50": round(middle, 2)}
    return {**quantiles, "mean": round(float(values.mean()), 2), "n": len(values)}


def no_pause() -> None:
    """Go on at once: nobody else is measured meanwhile."""


def time_calls(
    call: Callable[[], Any], seconds: float = 1.0, at_most: int = 4000, pause: Callable[[], None] = no_pause
) -> dict[str, float]:
    """Time a call again and again."""
    for _ in range(3):
        call()
    times: list[int] = []
    spent = 0.0
    faults = 0
    while len(times) < at_most and (len(times) < 10 or spent < seconds):
        pause()
        call()
        before = page_faults()
        begin = time.perf_counter()
        slice_end = begin + seconds / 8
        some = 0
        while some == 0 or (some < max(at_most // 8, 1) and time.perf_counter() < slice_end):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
            some += 1
        spent += time.perf_counter() - begin
        faults += page_faults() - before
    return {**summary(times), "faults": round(faults / len(times), 1)}


def digest(tensors: Iterable[Any]) -> str:
    """Hash tensors: type, shape and every bit."""
    state = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        state.update(f"{array.dtype}{array.shape}".encode())
        state.update(array.data)
    return state.hexdigest()


def run_in_turns(
    program: str,
    jobs: Mapping[str, Mapping[str, Any]],
    env: Mapping[str, str] | None = None,
    pythons: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """
    Run several sides at once, each in a fresh process, but only one of them at a time works: each until it calls
    ``take_turn``, then the next one. So a machine that is slow for a minute is slow for all of them.
    """
    others = OtherLoad()
    sides: dict[str, subprocess.Popen[str]] = {}
    for side, job in jobs.items():
        python = (pythons or {}).get(side, sys.executable)
        command = [python, str(BENCHMARKS / f"{program}.py"), "--worker", json.dumps(job)]
        sides[side] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env={**os.environ, **(env or {})}
        )
    last = dict.fromkeys(jobs, "")
    working = list(sides)
    for side in working:  # up to the first turn, one after the other
        last[side] = _until_turn(sides[side])
    while working:
        for side in tuple(working):
            if last[side] != _TURN:
                working.remove(side)
                continue
            print("go", file=sides[side].stdin)
            last[side] = _until_turn(sides[side])
    reports: dict[str, dict[str, Any]] = {}
    for side, process in sides.items():
        process.communicate()
        failed = {"error": f"exit status {process.returncode}, see above"}
        reports[side] = failed if process.returncode else json.loads(last[side])
    share = others.share()
    return {side: {**result, "elsewhere": share} for side, result in reports.items()}


def _until_turn(process: subprocess.Popen[str]) -> str:
    """Read what a worker writes until it has had its turn, or has ended; returns the last line."""
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        last = line.strip() or last
        if last == _TURN:
            break
    return last


def take_turn() -> None:
    """Let the other workers of ``run_in_turns`` work, and wait until it is our turn again."""
    print("\n" + _TURN, flush=True)
    sys.stdin.readline()


def run_worker(
    program: str, job: Mapping[str, Any], timeout: float = 3600, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run one side in a fresh process."""
    others = OtherLoad()
    command = [sys.executable, str(BENCHMARKS / f"{program}.py"), "--worker", json.dumps(job)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **(env or {})}
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {timeout:.0f} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"error": lines[-1][:300]}
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**report, "elsewhere": others.share()}


def report(result: Mapping[str, Any]) -> None:
    """Hand a worker's result to ``run_worker``."""
    print("\n" + json.dumps(result), flush=True)


class OtherLoad:
    """Notices when other programs use the machine during a measurement."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        try:
            import psutil
        except ImportError:
            return time.time(), 0.0, 0.0
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        own = os.times()
        return time.time(), sum(times[:8]) - idle, sum(own[:4])

    def share(self) -> float:
        """Return the share of the machine that other programs took since this was made."""
        wall, busy, own = self._now()
        span = max(wall - self._wall, 1e-9) * (os.cpu_count() or 1)
        return round(min(1.0, max(0.0, (busy - self._busy - (own - self._own)) / span)), 3)
