"""Tables of what a cluster costs."""

from __future__ import annotations

from collections.abc import Mapping

from kit.data import DATASETS
from kit.show import Results, percent, table


def is_of_blocks(row: Results) -> bool:
    """
    Tell whether a row is of blocks, by their steps and environments.

    :param row: A row of ``cluster.json``
    :return: Whether it is
    """
    return "64x1" in row


def blocks(results: Results) -> str:
    """
    Tell what a transition takes on its way.

    :param results: ``cluster.json``
    :return: Markdown
    """
    lines = []
    for game, row in results["rows"].items():
        for shape, found in row.items():
            if isinstance(found, Mapping):
                sizes = [f"{found[name]:.0f} B" for name in ("wire", "held", "sampled_1", "sampled_32")]
                times = [f"{found[name]:.1f} µs" for name in ("coding_us", "shard_us")]
                lines.append([DATASETS[game].title, shape.replace("x", " x "), *sizes, *times])
    titles = [
        "a transition",
        "steps x envs of a block",
        "wire",
        "held",
        "sampled, 1 batch a call",
        "32 batches",
        "coding",
        "shard",
    ]
    return table(titles, lines)


def rates(results: Results) -> str:
    """
    Tell how many batches a learner gets.

    :param results: ``cluster.json``
    :return: Markdown
    """
    found, fleet = results["rows"]["rates"]["batches_per_second"], results["rows"]["fleet"]
    names = {
        "local": "a shard in the same process",
        "same node": "a shard on the same machine",
        "coded": "a shard on another node, observations coded",
        "dense": "the same, observations as arrays",
    }
    lines = [[title, f"{found[name]:,.0f}", f"{found[name] / found['local']:.2f}x"] for name, title in names.items()]
    said = (
        f"In a fleet that plays MsPacman, coding takes {percent(fleet['coding_share'], 1)} of a collector's processor time, "
        f"and the learner waits for samples {percent(fleet['waiting_share'], 1)} of its time, with 8 updates a step."
    )
    return table(["batches of 32 a second", "", "of local"], lines) + f"\n\n{said}"
