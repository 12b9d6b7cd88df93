"""Play the games that the other programs measure with, once, and keep them: ``python benchmarks/play.py --dataset pong``."""

from __future__ import annotations

import json
import time
from pathlib import Path

from kit.data import DATASETS, is_played, play
from kit.process import report, run_worker
from kit.results import console, options


def ensure(name: str, transitions: int, cache: Path) -> None:
    """Play a dataset in a process of its own, unless it is there already."""
    if is_played(DATASETS[name], transitions, cache):
        return
    console.print(f"playing {transitions:,} transitions of {DATASETS[name].title} …", end=" ")
    start = time.perf_counter()
    result = run_worker("play", {"dataset": name, "transitions": transitions, "cache": str(cache)})
    console.print(result.get("error") or f"{time.perf_counter() - start:.0f} s")
    if "error" in result:
        raise RuntimeError(f"cannot play {name}: {result['error']}")


def main() -> None:
    """Play what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--dataset", nargs="+", choices=list(DATASETS), default=list(DATASETS), help="what to play")
    parser.add_argument("--transitions", type=int, help="how many; a quarter more than the ring of a full run by default")
    args = parser.parse_args()
    if args.worker:
        job = json.loads(args.worker)
        play(DATASETS[job["dataset"]], job["transitions"], Path(job["cache"]))
        report({})
        return
    for name in args.dataset:
        ensure(name, args.transitions or DATASETS[name].transitions * 5 // 4, args.cache)


if __name__ == "__main__":
    main()
