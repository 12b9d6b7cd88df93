"""Tables of what a cluster costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kit.data import DATASETS
from kit.show import Results, percent, table

COLLECTORS, SHARDS = 1_000, 64


def is_of_blocks(row: Results) -> bool:
    """Tell whether a row is of blocks, by their steps and environments."""
    return "64x1" in row


def blocks(results: Results) -> str:
    """Tell what a transition takes on its way."""
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
    """Batches that a learner gets in a second."""
    rows = results["rows"]
    found, fleet, network = rows["rates"]["batches_per_second"], rows["fleet"], rows.get("network", {})
    names = {
        "local": "a shard in the same process",
        "same node": "a shard on the same machine",
        "coded": "a shard on another node, observations coded",
        "dense": "the same, observations as arrays",
    }
    lines = [[title, f"{found[name]:,.0f}", f"{found[name] / found['local']:.2f}x"] for name, title in names.items()]
    if "megabits" in network:
        cable = f"{network['megabits'] / 1000:g} Gbit/s"
        for name, what in (("coded", f"another node over {cable}, observations coded"), ("dense", "the same, as arrays")):
            lines.append([what, f"{network[name]:,.0f}", f"{network[name] / found['local']:.2f}x"])
    said = [
        f"In a fleet that plays MsPacman, coding takes {percent(fleet['coding_share'], 1)} of a collector's processor time, "
        f"and the learner waits for samples {percent(fleet['waiting_share'], 1)} of its time, with 8 updates a step."
    ]
    if "shards" in rows:
        each = ", ".join(f"{value:.1f} µs with {count}" for count, value in rows["shards"]["shard_us"].items())
        said.append(f"Ray included, a shard spends this on a transition (blocks of 128 x 4), by the number of shards: {each}.")
    parts = [table(["batches of 32 a second", "", "of local"], lines), "\n".join(said)]
    if network:
        parts.append(_on_the_wire(network))
    return "\n\n".join(parts)


def _on_the_wire(row: Results) -> str:
    """What we have counted, and the loopback interface."""
    names = {
        "blocks": "a block of 64 x 4",
        "samples_1": "a coded batch",
        "samples_8": "8 coded batches",
        "samples_32": "32 coded batches",
    }
    lines = [
        [title, f"{row[name]['counted']:,} B", f"{row[name]['carried']:,} B", f"{row[name]['ratio']:.3f}x"]
        for name, title in names.items()
    ]
    each = max(row["call_without_payload"].values())
    said = f"A call that carries nothing takes {each:,} bytes, which are Ray's own; they have been subtracted."
    return table(["a message", "counted by us", "by the loopback interface", "ratio"], lines) + f"\n\n{said}"


def arithmetic(results: Results) -> str:
    """Work out what a large fleet takes."""
    row = results["rows"]["mspacman"]["64x4"]
    whole = row["held"]  # GB for a thousand million
    machines, rate = math.ceil(whole / 48), COLLECTORS * 100
    return "\n".join(
        (
            f"For example, MsPacman in blocks of 64 x 4: a thousand million transitions of {row['held']:.0f} bytes are "
            f"{whole:.0f} GB,",
            f"which is {machines} machines of 64 GB with a quarter of each left free, or {SHARDS} shards of "
            f"{whole / SHARDS:.1f} GB. {COLLECTORS:,} collectors",
            f"that play 100 steps per second each send {rate:,} transitions per second: {row['wire'] * rate / 1e6:.0f} MB "
            "per second on the wire,",
            f"and {row['shard_us'] * rate / 1e6:.1f} cores in all shards together.",
        )
    )


def thousand(results: Results) -> str:
    """Results of a thousand simulated collectors."""
    calm, hit = results["rows"]["undisturbed"], results["rows"]["failures"]
    lines = [
        ["collectors that failed", f"{calm['collectors_failed']}", f"{hit['collectors_failed']}"],
        ["shards that failed", f"{calm['shards_failed']}", f"{hit['shards_failed']}"],
        ["hours until the learner had them all", f"{calm['hours']:.2f}", f"{hit['hours']:.2f}"],
        [f"furthest ahead ({calm['allowed_lead']:,} and a block a shard are allowed)"]
        + [f"{row['max_lead']:,}" for row in (calm, hit)],
        ["largest distance of a shard from the mean", percent(calm["uneven"], 1), percent(hit["uneven"], 1)],
        ["seconds that the learner waited", f"{calm['waited_seconds']:.0f}", f"{hit['waited_seconds']:.0f}"],
        ["transitions lost", f"{calm['lost']:,}", f"{hit['lost']:,}"],
        ["transitions played", f"{calm['collected']:,}", f"{hit['collected']:,}"],
    ]
    title = f"{calm['collectors']:,} collectors, {calm['shards']} shards, {calm['transitions']:,} transitions"
    return table([title, "undisturbed", "with failures"], lines)
