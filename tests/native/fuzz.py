"""
Run the fuzz targets for a number of inputs, and say what came of it. ``make fuzz`` calls this.

With libFuzzer, which follows what its changes lead to, each run starts from sound inputs of a target; else the driver in
``fuzz_common.c`` changes them by chance alone. A finding ends the run, and its input is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Share of the inputs, and the longest that makes sense.
TARGETS = {"patch": (0.3, 4096), "chunk": (0.7, 16384)}
SEEDS = 140  # ten of each kind of column
NATIVE = Path(__file__).parents[2] / "src" / "sb3_extra_buffers" / "_native"
# What no machine has is refused, as it would be there; a leak is a finding, too.
OPTIONS = "allocator_may_return_null=1:max_allocation_size_mb=64:detect_leaks=1"
# No input justifies a larger one.
MOST_ALLOCATION_MB = 16


def digest() -> str:
    """The first digits of a checksum of the core's sources: what was fuzzed."""
    sources = sorted(path for path in NATIVE.iterdir() if path.suffix in (".c", ".h", ".inc"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def run(program: Path, target: str, inputs: int, folder: Path) -> dict[str, Any]:
    """Run one target; what it did, or the end of the program."""
    _, longest = TARGETS[target]
    driver = program.with_name(f"fuzz_{target}")
    if program.name.startswith("libfuzzer"):
        corpus = folder / target
        corpus.mkdir()
        subprocess.run([driver, "--seeds", corpus, str(SEEDS)], check=True)
        command = [program, f"-runs={inputs}", f"-max_len={longest}", "-print_final_stats=1", "-verbosity=0"]
        # Which inputs to go on from is drawn evenly: keeping count of what is rare takes as long as the inputs.
        command += ["-entropic=0", f"-malloc_limit_mb={MOST_ALLOCATION_MB}"]
        command += [f"-artifact_prefix={program.parent}/finding-{target}-", corpus]
    else:
        command = [driver, str(inputs), "1"]
    print(f"{target}: {inputs:,} inputs, {program.name}", flush=True)
    begin = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "ASAN_OPTIONS": OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        print(done.stdout[-8000:])
        raise SystemExit(f"{target}: a finding, see above")
    count = re.search(r"number_of_executed_units:\s*(\d+)|(\d+) inputs", done.stdout)
    if count is None:
        raise SystemExit(f"{target}: it does not say how many inputs it ran\n{done.stdout[-2000:]}")
    executed = int(count[1] or count[2])
    print(f"{target}: {executed:,} inputs without a finding, {seconds:.0f} s", flush=True)
    return {"target": target, "inputs": executed, "findings": 0, "seconds": round(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="where the programs are")
    parser.add_argument("--libfuzzer", action="store_true", help="whether there are programs with libFuzzer")
    parser.add_argument("--inputs", type=int, default=300_000, help="how many in all")
    parser.add_argument("--result", type=Path, help="a JSON file for the outcome")
    args = parser.parse_args()
    programs = args.programs.resolve()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for target, (share, _) in TARGETS.items():
            program = programs / f"{'libfuzzer' if args.libfuzzer else 'fuzz'}_{target}"
            rows.append(run(program, target, max(1, round(args.inputs * share)), Path(folder)))
    total = sum(row["inputs"] for row in rows)
    print(f"{total:,} inputs without a finding")
    if args.result:
        result = {
            "command": f"make fuzz FUZZ_INPUTS={args.inputs}",
            "engine": "libFuzzer, AddressSanitizer, UndefinedBehaviorSanitizer"
            if args.libfuzzer
            else "own driver, AddressSanitizer, UndefinedBehaviorSanitizer",
            "core": digest(),
            "machine": f"{platform.machine()}, {platform.system()}",
            "inputs": total,
            "rows": rows,
        }
        args.result.parent.mkdir(parents=True, exist_ok=True)
        args.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
