"""
Put the figures of ``benchmarks/results`` into the README and the docs.

A table goes between ``<!-- table: name -->`` and ``<!-- end -->``; ``--list`` shows the names. A figure in a sentence goes
between ``<!-- fact: NAME -->`` and ``<!-- / -->``; ``kit/facts.py`` has the names. What was not measured
yet is listed and left alone. ``--check`` changes nothing, and exits with 1 if something is out of date or was not measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from kit.facts import update_facts
from kit.tables import TABLES, make_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def update(text: str, folder: Path, missing: list[str]) -> str:
    """Renew all tables and facts in a text. What was not measured is added to ``missing``."""

    def renew(found: re.Match[str]) -> str:
        made = make_table(found[2], folder)
        if made is None:
            missing.append(f"table {found[2]}: {TABLES[found[2]].file}.json has no row for it")
            return found[0]
        return found[1] + made + found[3]

    return update_facts(MARKED.sub(renew, text), folder, missing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files; README.md and docs/*.md by default")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is out of date or missing")
    parser.add_argument("--list", action="store_true", help="list the tables")
    args = parser.parse_args(arguments)
    if args.list:
        for name, source in TABLES.items():
            print(f"{name:<10} {source.file}.json: {(source.make.__doc__ or '').strip().splitlines()[0]}")
        return 0
    stale: list[str] = []
    missing: list[str] = []
    for path in args.files or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before = path.read_text(encoding="utf-8")
        not_there: list[str] = []
        try:
            after = update(before, args.results, not_there)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None
        missing += [f"{path.name}: {line}" for line in not_there]
        if after == before:
            continue
        stale.append(path.name)
        if not args.check:
            path.write_text(after, encoding="utf-8")
    if stale:
        print(("out of date: " if args.check else "renewed: ") + ", ".join(stale))
    if missing:
        print("not measured:\n  " + "\n  ".join(missing))
    return 1 if args.check and (stale or missing) else 0


if __name__ == "__main__":
    sys.exit(main())
