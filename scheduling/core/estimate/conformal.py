"""So that "90 %" means 90 %: conformal correction of an upper quantile by what actually happened.

Of the last answers, how many times the predicted quantile were they? The right order statistic of those ratios is the
factor that would have covered the wanted share of them, and, if the next request is like them, covers that share of
what comes (split conformal prediction, Vovk et al. 2005; the ``(n + 1) q`` rule). One factor per predictor, since each
is wrong in its own way. No distribution is assumed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

WINDOW = 512  # answers a factor is taken from: a shift of prompts or model is followed within a few hundred
MIN_OBSERVED = 20
LEVEL = 0.9


class Calibrator:
    """The correction of one quantile, per source."""

    def __init__(self, level: float = LEVEL, window: int = WINDOW) -> None:
        self.level = level
        self._window = window
        self._recent: dict[str, deque[float]] = {}
        self._sorted: dict[str, list[float]] = {}

    def factor(self, source: str) -> float:
        """What the source's quantile has to be multiplied with. 1 until enough was seen."""
        ratios = self._sorted.get(source, ())
        n = len(ratios)
        if n < MIN_OBSERVED:
            return 1.0
        return ratios[min(n, ceil((n + 1) * self.level)) - 1]

    def upper(self, source: str, quantile: float, bound: int | None = None) -> float:
        """The length [tokens] that the wanted share of answers will not exceed; never above the bound. ``quantile``:
        what the source itself says of that share."""
        value = max(1.0, quantile * self.factor(source))
        return value if bound is None else min(value, float(bound))

    def observe(self, source: str, predicted: float, actual: float) -> None:
        """``predicted`` was the source's own quantile [tokens] of a request whose answer had ``actual``. An answer that
        its bound cut short counts as it is: the limit is cut there as well."""
        recent = self._recent.get(source)
        if recent is None:
            recent = self._recent[source] = deque()
            self._sorted[source] = []
        ratios = self._sorted[source]
        ratio = actual / max(1.0, predicted)
        if len(recent) == self._window:
            del ratios[bisect_left(ratios, recent.popleft())]
        recent.append(ratio)
        insort(ratios, ratio)

    def factors(self) -> dict[str, tuple[float, int]]:
        """Factor and observations of every source, to be shown."""
        return {source: (self.factor(source), len(ratios)) for source, ratios in sorted(self._sorted.items())}
