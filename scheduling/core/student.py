"""How sure a mean of few values is, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

# 97.5 % quantiles for 1, 2 ... 30 degrees of freedom
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean of two values or more, and half the width of its 95 % interval."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    freedom = count - 1
    return mean, spread * (_T975[freedom - 1] if freedom <= len(_T975) else 1.96 + 2.4 / freedom)
