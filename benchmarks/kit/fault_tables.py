"""Tables of what was done to files and to those who write them, and of what checkpoints cost."""

from __future__ import annotations

from kit.show import Results, megabytes, table


def faults(results: Results) -> str:
    """Show what was done how often, and what was wrong after it."""
    lines = ["| what was done | times | wrong | command |", "| --- | ---: | ---: | --- |"]
    lines += [f"| {row['what']} | {row['times']:,} | {row['wrong']:,} | `{row['runs']}` |" for row in results["rows"].values()]
    return "\n".join(lines)


def checkpoints(results: Results) -> str:
    """Show how long training stands still for a checkpoint, and what is written."""
    row = results["rows"]["checkpoints"]
    lines = [
        ["training stands still, median", f"{row['stopped_seconds'] * 1e3:.0f} ms"],
        ["at most", f"{row['longest_stop_seconds'] * 1e3:.0f} ms"],
        ["first checkpoint, model and whole buffer", f"{megabytes(row['first_bytes'])} in {row['first_seconds']:.2f} s"],
        [
            f"those after it, {row['steps_between']:,} steps later each",
            f"{megabytes(row['next_bytes'])} in {row['next_seconds']:.2f} s",
        ],
    ]
    return table([f"DQN on MsPacman, {row['transitions']:,} transitions", ""], lines)
