"""How small methods make observations, before any was seen: published ratios of MsPacman, fitted by level."""

from __future__ import annotations

from typing import NamedTuple

from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP as _CODECS
from sb3_extra_buffers.codecs import MethodSpec, parse_method


class _Fit(NamedTuple):
    """A polynomial of the level, the highest power first, and the smallest and largest ratio that was measured."""

    coefficients: tuple[float, ...]
    lowest: float
    highest: float

    def at(self, level: int) -> float:
        value = 0.0
        for coefficient in self.coefficients:
            value = value * level + coefficient
        return min(max(value, self.lowest), self.highest)


# Printed by scripts/fit_heap_heuristic.py.
_FITTED = {
    "zstd, negative": _Fit((1.5009e-07, -1.0511e-05, -5.6140e-03, 5.3121e-02), 0.061, 0.36),  # within 5.1%
    "zstd": _Fit((-6.1216e-04, 5.5967e-02), 0.044, 0.057),  # within 4.0%
    "gzip": _Fit((-1.0000e-02, 1.0600e-01), 0.076, 0.096),  # within 0.0%
    "igzip": _Fit((-1.4760e-02, 1.2035e-01), 0.076, 0.12),  # within 0.4%
    "lz4-frame": _Fit((-1.0295e-04, 2.7005e-03, -2.2761e-02, 1.2916e-01), 0.067, 0.109),  # within 0.0%
    "lz4-block": _Fit((-1.2260e-03, 7.7436e-02), 0.067, 0.077),  # within 1.9%
}

# Methods without levels, and levels that do not compress. `delta` is our own measurement, in a full buffer: an observation
# shares all of its frames but one with others, and half of all are the `next_obs` of another.
_CONSTANT = {"none": 1.001, "rle": 0.753, "rle-jit": 0.753, "delta": 0.013}
_STORED = 1.002


def parse_compression_method(method: str, compresslevel: int | None = None) -> MethodSpec:
    """Split a method string into name and level, and check the level."""
    name, level = parse_method(method, extra_names=("delta",))
    codec = _CODECS.get(name)
    levels: tuple[range, ...] | None = getattr(codec, "levels", None)
    if level is None:
        level = compresslevel
    elif compresslevel not in (None, level):
        raise ValueError(f"{method!r} contradicts compresslevel={compresslevel}; give only one of them")
    if levels is None:
        if level is not None:
            raise ValueError(f"{name} has no levels, got level {level} in {method!r}")
        return MethodSpec(name, None)
    if level is None:
        return MethodSpec(name, int(getattr(codec, "compresslevel", 0)))
    if not any(level in allowed for allowed in levels):
        ranges = " or ".join(f"{allowed[0]} to {allowed[-1]}" for allowed in levels)
        raise ValueError(f"{name}: compresslevel {level} is out of range, allowed is {ranges}")
    return MethodSpec(name, level)


def estimate_save_ratio(method: str, compresslevel: int | None = None) -> float:
    """Estimate how small a method makes an observation."""
    name, level = parse_compression_method(method, compresslevel)
    if name in _CONSTANT or level is None:
        return _CONSTANT.get(name, 1.0)
    if name == "gzip" and level == 0:
        return _STORED
    family = "zstd, negative" if name == "zstd" and level < 0 else name
    return _FITTED[family].at(level) if family in _FITTED else 1.0
