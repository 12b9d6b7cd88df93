"""What is measured, and of which methods."""

from __future__ import annotations

METRICS = {
    "memory": "memory",
    "add_first": "add, first fill",
    "add_full": "add, ring full",
    "sample_32": "sample(32)",
    "sample_256": "sample(256)",
    "get_256": "get(256)",
}

# Above this share of the machine taken by others, times say little: SB3 waits for its threads then, and seems slow.
DISTURBED = 0.1

DEFAULT = "delta"
DENSE = "delta-zstd"
