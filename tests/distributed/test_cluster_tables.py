"""What the tables say of a cluster, from rows as ``benchmarks/cluster.py`` writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytest.importorskip("rich")
sys.path.insert(0, str(BENCHMARKS))
try:
    import cluster_thousand
    from kit import cluster_tables
finally:
    sys.path.remove(str(BENCHMARKS))

RATES: dict[str, Any] = {
    "rates": {"batches_per_second": {"local": 4000.0, "same node": 2000.0, "coded": 1000.0, "dense": 400.0}},
    "fleet": {"coding_share": 0.05, "waiting_share": 0.002},
}
MESSAGE = {"counted": 1000, "carried": 1020, "ratio": 1.02}
NETWORK: dict[str, Any] = {
    "call_without_payload": {"write": 700, "read": 800},
    **dict.fromkeys(("blocks", "samples_1", "samples_8", "samples_32"), MESSAGE),
}


def test_rates() -> None:
    said = cluster_tables.rates({"rows": RATES})
    assert "| a shard on the same machine | 2,000 | 0.50x |" in said and "5.0 %" in said and "0.2 %" in said
    assert "loopback" not in said and "Gbit" not in said and "by the number of shards" not in said


def test_rates_over_a_cable_and_what_was_counted() -> None:
    rows = {**RATES, "network": {**NETWORK, "megabits": 1000, "coded": 400.0, "dense": 60.0}}
    said = cluster_tables.rates({"rows": {**rows, "shards": {"shard_us": {"1": 3.0, "4": 3.3}}}})
    assert "| another node over 1 Gbit/s, observations coded | 400 | 0.10x |" in said
    assert "| 8 coded batches | 1,000 B | 1,020 B | 1.020x |" in said and "takes 800 bytes" in said
    assert "3.0 µs with 1, 3.3 µs with 4" in said
    # Without root's rights there is no cable.
    said = cluster_tables.rates({"rows": {**RATES, "network": NETWORK}})
    assert "Gbit" not in said and "| a coded batch | 1,000 B" in said


def test_the_arithmetic_of_a_large_fleet() -> None:
    said = cluster_tables.arithmetic({"rows": {"mspacman": {"64x4": {"held": 240.0, "wire": 120.0, "shard_us": 8.0}}}})
    for part in ("240 bytes are 240 GB", "5 machines of 64 GB", "64 shards of 3.8 GB", "100,000", "12 MB", "0.8 cores"):
        assert part in said


def test_a_thousand_collectors_stay_within_the_lead() -> None:
    """The classes of collectors and shards, in a time of their own; failures included."""
    rows = {}
    for name, failures in (("undisturbed", False), ("failures", True)):
        about = {"collectors": 1000, "shards": 64, "transitions": 20_000, "allowed_lead": cluster_thousand.MAX_LEAD}
        rows[name] = {**about, **cluster_thousand.World(20_000, failures, 2.0, seed=1).run()}
        assert rows[name]["max_lead"] <= cluster_thousand.MAX_LEAD + cluster_thousand.SHARDS * cluster_thousand.STEPS
        assert rows[name]["max_lead"] > 0.9 * cluster_thousand.MAX_LEAD
        assert (rows[name]["shards_failed"] == 1) == (rows[name]["lost"] > 0) == failures
    said = cluster_tables.thousand({"rows": rows})
    assert "| shards that failed | 0 | 1 |" in said and "1,000 collectors, 64 shards, 20,000 transitions" in said
