"""How wrong were the predictions? Error of the mean, of the distribution, of the order, and of the promised 90 %."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVELS = (0.1, 0.5, 0.9)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Tokens, but for shares. None where a figure has no meaning (no order among equal predictions)."""

    rows: int
    mae: float
    rmse: float
    mdape: float  # median of |error| / actual
    pinball: float  # mean over the levels 0.1, 0.5 and 0.9
    spearman: float | None  # rank correlation of expected and actual
    coverage90: float  # share of answers not longer than the 90 % limit


def errors(actual: Sequence[float], means: Sequence[float], quantiles: Sequence[Sequence[float]]) -> Errors:
    """``quantiles``: one row per answer, in the order of :data:`LEVELS`. Raises ValueError for no answers."""
    if not len(actual):
        raise ValueError("there is nothing to score")
    y, m, q = np.array(actual, float), np.array(means, float), np.array(quantiles, float)
    off = y - m
    levels = np.array(LEVELS)
    short = y[:, None] - q
    return Errors(
        rows=len(y),
        mae=float(np.abs(off).mean()),
        rmse=float(np.sqrt((off**2).mean())),
        mdape=float(np.median(np.abs(off) / np.maximum(1.0, y))),
        pinball=float(np.maximum(levels * short, (levels - 1.0) * short).mean()),
        spearman=spearman(m, y),
        coverage90=float((y <= q[:, 2] + 1e-9).mean()),
    )


def spearman(a: Array, b: Array) -> float | None:
    """Correlation of ranks, equal values sharing theirs."""
    x, y = _ranks(a), _ranks(b)
    spread = float(x.std() * y.std())
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 0 else None


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts - 1) / 2.0)[inverse]
    return ranks
