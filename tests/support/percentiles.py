"""Percentiles of what a test measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by ``share`` of them. Raises ValueError where there are none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def summary(values: Sequence[float], unit: float = 1000.0, name: str = "ms") -> str:
    """p50, p99 and the largest, of times in seconds."""
    if not values:
        return "none"
    p50, p99 = (percentile(values, share) * unit for share in (0.5, 0.99))
    return f"p50 {p50:.0f} {name}, p99 {p99:.0f} {name}, most {max(values) * unit:.0f} {name} of {len(values)}"
