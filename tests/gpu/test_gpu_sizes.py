"""Estimates of sizes, before anything was seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as th

from sb3_extra_buffers.gpu_buffers import size_estimation
from sb3_extra_buffers.gpu_buffers.size_estimation import estimate_save_ratio, parse_compression_method
from sb3_extra_buffers.gpu_buffers.utils import estimate_max_slot_bytes, estimate_total_heap_bytes

ROOT = Path(__file__).parents[2]
STACK = (4, 84, 84)
RAW = 4 * 84 * 84

# Published for MsPacman, of a raw stack.
MEASURED = {
    "none": 1.001,
    "rle": 0.753,
    **{f"zstd{level}": ratio for level, ratio in {-100: 0.36, -50: 0.284, -20: 0.168, -5: 0.077, -3: 0.069}.items()},
    **{f"zstd{level}": ratio for level, ratio in {-1: 0.061, 1: 0.057, 3: 0.055, 5: 0.052, 10: 0.049, 15: 0.045}.items()},
    "zstd22": 0.044,
    **{"gzip0": 1.002, "gzip1": 0.096, "gzip3": 0.076, "igzip0": 0.120, "igzip1": 0.106, "igzip3": 0.076},
    **{"lz4-frame/1": 0.109, "lz4-frame/5": 0.070, "lz4-frame/9": 0.068, "lz4-frame/12": 0.067},
    **{"lz4-block/1": 0.077, "lz4-block/5": 0.070, "lz4-block/9": 0.067},
}


@pytest.mark.parametrize("method", MEASURED)
def test_estimates_are_close_to_what_was_measured(method: str) -> None:
    assert estimate_save_ratio(method) == pytest.approx(MEASURED[method], rel=0.055)


def test_levels_in_between_stay_within_what_was_measured() -> None:
    for name, levels, low, high in (
        ("zstd", [*range(-100, 0), *range(1, 23)], 0.044, 0.36),
        ("gzip", range(1, 10), 0.076, 0.096),
        ("igzip", range(4), 0.076, 0.12),
        ("lz4-frame", [*range(-50, 17), -65537], 0.067, 0.109),
        ("lz4-block", [*range(-50, 13), -65537], 0.067, 0.077),
    ):
        ratios = [estimate_save_ratio(name, level) for level in levels]
        assert low <= min(ratios) and max(ratios) <= high
    assert estimate_save_ratio("zstd", 7) == estimate_save_ratio("zstd7")


@pytest.mark.parametrize(
    "method",
    [
        *("gzip10", "gzip-1", "igzip4", "zstd0", "zstd23", "zstd-101"),
        *("lz4-frame/17", "lz4-block/13", "lz4-block/16", "rle1", "delta3", "none1"),
    ],
)
def test_levels_out_of_range(method: str) -> None:
    for function in (parse_compression_method, estimate_save_ratio):
        with pytest.raises(ValueError, match=r"out of range|no levels"):
            function(method)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("zstd", ("zstd", -3)),
        ("zstd-5", ("zstd", -5)),
        ("zstd22", ("zstd", 22)),
        ("gzip", ("gzip", 6)),
        ("gzip0", ("gzip", 0)),
        ("igzip3", ("igzip", 3)),
        ("lz4-frame/16", ("lz4-frame", 16)),
        ("lz4-frame/-7", ("lz4-frame", -7)),
        ("lz4-block/12", ("lz4-block", 12)),
        ("lz4-block", ("lz4-block", 0)),
        ("rle", ("rle", None)),
        ("delta", ("delta", None)),
    ],
)
def test_parsing(method: str, expected: tuple[str, int | None]) -> None:
    assert parse_compression_method(method) == expected


def test_slots_and_heaps() -> None:
    assert estimate_max_slot_bytes(STACK, th.uint8, "zstd", 1) == int(np.ceil(RAW * estimate_save_ratio("zstd1") * 1.5))
    assert estimate_max_slot_bytes(STACK, th.uint8, "rle") == RAW * 3, "a byte and a run length for each element, at worst"
    assert estimate_max_slot_bytes(STACK, np.float32, "rle", overalloc_factor=9) > RAW * 4 * 6
    assert estimate_max_slot_bytes(7, np.uint8, "none", overalloc_factor=1) == 8
    one = estimate_max_slot_bytes(STACK, compression_method="gzip1")
    assert estimate_total_heap_bytes(1000, STACK, compression_method="gzip1") == 1000 * one
    with pytest.raises(ValueError, match="overalloc_factor"):
        estimate_max_slot_bytes(STACK, overalloc_factor=0)
    with pytest.raises(ValueError, match="n_cells"):
        estimate_total_heap_bytes(0, STACK)


def test_the_script_prints_what_is_pasted() -> None:
    pytest.importorskip("scipy")
    script = [sys.executable, str(ROOT / "scripts" / "fit_heap_heuristic.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout in Path(size_estimation.__file__).read_text()
