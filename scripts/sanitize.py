"""
Run tests against the core compiled with a sanitizer, beside the one in use.

    python scripts/sanitize.py address     storage, buffers, interrupts, the family: AddressSanitizer and UBSan
    python scripts/sanitize.py thread      what has threads: ThreadSanitizer

More arguments go to pytest, paths of tests in place of the usual ones. The interpreter is not
compiled with the sanitizer, so its library is loaded first by hand.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Python's own flags make signed overflow defined and switch assertions off: both would hide something.
ALWAYS = ["-g", "-O1", "-fno-omit-frame-pointer", "-UNDEBUG", "-fno-wrapv", "-fstrict-overflow", "-DFT_PLAIN_MEMORY"]
FLAGS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
LIBRARIES = {"address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}
TESTS = {
    "address": ["tests/storage", "tests/buffers", "tests/interrupts", "tests/family"],
    "thread": sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*threads*.py")),
}
SETTINGS = {
    # Python frees next to nothing at its end, so leaks are looked for in the C tests alone.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    # The interpreter, NumPy and torch need no suppressions: their locks are seen, and what they do else is not looked into.
    # Children of a fork start threads, which it would otherwise refuse.
    "TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0:die_after_fork=0",
}


def compiler() -> list[str]:
    """The compiler that setup.py will call."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def library(name: str) -> str:
    """Where a library of the compiler is."""
    found = subprocess.run(
        [*compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        raise SystemExit(f"error: {shlex.join(compiler())} has no {name}; gcc on Linux has one")
    return str(Path(found).resolve())


def build(kind: str) -> Path:
    """Compile the package into a folder of its own; where that is."""
    base = ROOT / "build" / f"sanitize-{kind}"
    shutil.rmtree(base, ignore_errors=True)
    flags = shlex.join([*ALWAYS, *FLAGS[kind]])
    print(f"Compiling the core with {' '.join(FLAGS[kind])} (the log is {base.relative_to(ROOT)}.log)", flush=True)
    with open(base.with_suffix(".log"), "w", encoding="utf-8") as log:
        done = subprocess.run(
            [sys.executable, "setup.py", "build", "--build-base", base, "--build-lib", base / "lib"],
            cwd=ROOT,
            env={**os.environ, "SB3XB_CFLAGS": flags, "SB3XB_LDFLAGS": shlex.join(FLAGS[kind])},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        print(base.with_suffix(".log").read_text(encoding="utf-8")[-4000:])
        raise SystemExit("error: compiling failed, see above")
    return base / "lib"


def main() -> None:
    kind, *pytest_args = sys.argv[1:] or ["address"]
    tests = [] if any((ROOT / arg.partition("::")[0]).exists() for arg in pytest_args) else TESTS[kind]
    if not tests and not pytest_args:
        print("There are no tests named test_*threads*.py")
        return
    (ROOT / "build").mkdir(exist_ok=True)
    lib = build(kind)
    preload = [library(name) for name in LIBRARIES[kind]]
    # Torch throws exceptions; without this the sanitizer looks for what throws them before it is there.
    preload.append(library("libstdc++.so.6"))
    environment = {**os.environ, **SETTINGS, "LD_PRELOAD": " ".join(preload), "PYTHONPATH": str(lib), "OMP_NUM_THREADS": "1"}
    # The memory of small Python objects comes from malloc, too, so that reading on after one is seen.
    environment["PYTHONMALLOC"] = "malloc"
    which = [sys.executable, "-c", "import sb3_extra_buffers.storage._core as core; print(core.__file__)"]
    used = subprocess.run(which, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if not used.stdout.strip().startswith(str(lib)):
        raise SystemExit(f"error: the core with the sanitizer is not the one in use\n{used.stdout}{used.stderr}")
    command = [sys.executable, "-m", "pytest", "-m", "not slow and not memory", "-p", "no:cacheprovider", *tests, *pytest_args]
    print(shlex.join(command), flush=True)
    raise SystemExit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
