"""
Fit the compression ratio of each codec by its level, and print the constants of ``gpu_buffers/size_estimation.py``.

The ratios are those that another package of this kind has published for 4x84x84 stacks of MsPacman, each compressed by itself.
A family gets the polynomial of the lowest degree that is within 5 % of all of its ratios and hardly ever rises as more is
compressed; where none is, the one that comes closest.

    python scripts/fit_heap_heuristic.py
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear

PUBLISHED: dict[str, dict[int, float]] = {
    "zstd, negative": {-100: 0.360, -50: 0.284, -20: 0.168, -5: 0.077, -3: 0.069, -1: 0.061},
    "zstd": {1: 0.057, 3: 0.055, 5: 0.052, 10: 0.049, 15: 0.045, 22: 0.044},
    "gzip": {1: 0.096, 3: 0.076},
    "igzip": {0: 0.120, 1: 0.106, 3: 0.076},
    "lz4-frame": {1: 0.109, 5: 0.070, 9: 0.068, 12: 0.067},
    "lz4-block": {1: 0.077, 5: 0.070, 9: 0.067},
}
"""Level to ratio. Level 0 of gzip only stores, so no polynomial goes through it; it is a constant of its own."""

CLOSE_ENOUGH = 0.05

Floats = npt.NDArray[np.float64]


def fit(levels: Floats, ratios: Floats, degree: int) -> Floats:
    """The coefficients, the highest power first, of the polynomial with the smallest relative errors."""
    scale = np.abs(levels).max()
    powers = np.vander(levels / scale, degree + 1)
    found = lsq_linear(powers / ratios[:, None], np.ones_like(ratios)).x
    coefficients: Floats = found / scale ** np.arange(degree, -1, -1)
    return coefficients


def error(coefficients: Floats, levels: Floats, ratios: Floats) -> float:
    """The largest relative error, clamped as in the package; infinite where the ratio rises with the level."""
    every = np.arange(levels.min(), levels.max() + 1)
    curve = np.clip(np.polyval(coefficients, every), ratios.min(), ratios.max())
    if (curve > np.minimum.accumulate(curve) * (1 + CLOSE_ENOUGH)).any():
        return math.inf
    estimated = np.clip(np.polyval(coefficients, levels), ratios.min(), ratios.max())
    return float(np.abs(estimated / ratios - 1).max())


def best(measured: dict[int, float]) -> tuple[Floats, float]:
    """The polynomial of a family and its largest relative error."""
    levels, ratios = np.array(list(measured), dtype=float), np.array(list(measured.values()))
    fits = [fit(levels, ratios, degree) for degree in range(1, len(levels))]
    rated = [(coefficients, error(coefficients, levels, ratios)) for coefficients in fits]
    return next((one for one in rated if one[1] <= CLOSE_ENOUGH), min(rated, key=lambda one: one[1]))


def main() -> None:
    """Print the constants."""
    print("_FITTED = {")
    for family, measured in PUBLISHED.items():
        coefficients, off = best(measured)
        numbers = ", ".join(f"{value:.4e}" for value in coefficients)
        limits = f"{min(measured.values())}, {max(measured.values())}"
        print(f'    "{family}": _Fit(({numbers}), {limits}),  # within {off:.1%}')
    print("}")


if __name__ == "__main__":
    main()
