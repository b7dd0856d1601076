"""Percentiles of a list of values, in the two definitions that figures here use.

What was measured is told as a value that occurred (:func:`nearest_rank`). What a model is compared by is
:func:`interpolated`, so that one more value moves a figure a little and not by a whole value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def nearest_rank(values: Iterable[float], share: float) -> float | None:
    """The least value that at least ``share`` (0..1) of all values do not exceed; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interpolated(values: Iterable[float], share: float) -> float:
    """The ``share`` (0..1) quantile, linear between neighbours; nan without values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
