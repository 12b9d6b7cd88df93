"""A table of all that was done to files and to those who write them."""

from __future__ import annotations

from kit.show import Results


def faults(results: Results) -> str:
    """
    Show what was done how often, and what was wrong after it.

    :param results: ``faults.json``
    :return: Markdown
    """
    lines = ["| what was done | times | wrong | command |", "| --- | ---: | ---: | --- |"]
    lines += [f"| {row['what']} | {row['times']:,} | {row['wrong']:,} | `{row['runs']}` |" for row in results["rows"].values()]
    return "\n".join(lines)
