"""Have prompts changed? The two-sample Kolmogorov-Smirnov test on log lengths.

The largest gap between the two empirical distributions, and the chance of so large a gap between samples of one
distribution (Smirnov's limit, with Stephens' correction for finite samples). Logs change no rank: the test is the same
on lengths. Source: N. Smirnov (1948); Press et al., Numerical Recipes, 14.3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def ks(first: Sequence[int], second: Sequence[int]) -> tuple[float, float]:
    """The gap, and its p-value. Raises ValueError for an empty sample."""
    if not first or not second:
        raise ValueError("two samples are needed")
    a, b = sorted(first), sorted(second)
    i = j = 0
    gap = 0.0
    while i < len(a) and j < len(b):
        value = min(a[i], b[j])
        while i < len(a) and a[i] == value:
            i += 1
        while j < len(b) and b[j] == value:
            j += 1
        gap = max(gap, abs(i / len(a) - j / len(b)))
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return gap, _tail((root + 0.12 + 0.11 / root) * gap)


def _tail(x: float) -> float:
    """Kolmogorov's distribution above ``x``."""
    if x < 0.2:
        return 1.0
    total = 2.0 * math.fsum((-1) ** (k - 1) * math.exp(-2.0 * k * k * x * x) for k in range(1, 101))
    return min(1.0, max(0.0, total))
