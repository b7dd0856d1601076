"""What a pool tells of all its tenants: one factor per category, coarse, and hardly moved by any one of them.

A tenant of whom nothing is known yet begins with the table of categories times this factor. It is the only thing that
one tenant's answers change for another, so its sensitivity is bounded by construction, whatever a tenant sends:

* each tenant has one vote per category, however many answers taught it: its own bias ``B`` (DriftSched), rounded to
  half an octave and clipped to a quarter and four times;
* nothing is told of fewer than ``MIN_TENANTS`` tenants with ``MIN_ANSWERS`` answers each;
* the factor is the geometric mean of the votes, and counts in full from ``FULL_TENANTS`` tenants on: with ``n`` it
  counts ``(n - MIN_TENANTS + 1) / (FULL_TENANTS - MIN_TENANTS + 1)``, so that nobody's coming or going is a step.

One tenant moves the logarithm of the factor by at most ``max(1 / 16, 2 / 20) * log 4``: the factor by 15 %
(:data:`MAX_MOVED`).
"""

from __future__ import annotations

from math import exp, log

MIN_TENANTS = 5
FULL_TENANTS = 20
MIN_ANSWERS = 20  # of one tenant in one category, before it votes
WIDEST = 4.0  # a vote is within a quarter and this
STEP = log(2.0) / 2.0  # votes are rounded to half an octave
_LIMIT = round(log(WIDEST) / STEP)  # in steps
_RAMP = FULL_TENANTS - MIN_TENANTS + 1
MAX_MOVED = exp(log(WIDEST) * max(1.0 / _RAMP, 2.0 / FULL_TENANTS))  # by one tenant, whatever it does


class PoolPrior:
    """The votes of one pool's tenants."""

    def __init__(self) -> None:
        self._votes: dict[str, dict[str, int]] = {}  # category -> tenant -> steps
        self._sums: dict[str, int] = {}

    def vote(self, tenant: str, category: str, bias: float, observed: int) -> None:
        """``bias``: the tenant's own, taught by ``observed`` answers."""
        if observed < MIN_ANSWERS or bias <= 0.0:
            return
        steps = max(-_LIMIT, min(_LIMIT, round(log(bias) / STEP)))
        votes = self._votes.setdefault(category, {})
        self._sums[category] = self._sums.get(category, 0) + steps - votes.get(tenant, 0)
        votes[tenant] = steps

    def withdraw(self, tenant: str) -> None:
        """A tenant is forgotten."""
        for category, votes in self._votes.items():
            self._sums[category] -= votes.pop(tenant, 0)

    def reset(self, category: str | None = None) -> None:
        """Forgets all votes, of one category or of all."""
        for name in [category] if category is not None else list(self._votes):
            self._votes.pop(name, None)
            self._sums.pop(name, None)

    def factor(self, category: str) -> float:
        """What the table's length of a category is multiplied with. 1 where nothing may be told."""
        count = len(self._votes.get(category, ()))
        if count < MIN_TENANTS:
            return 1.0
        counts = min(1.0, (count - MIN_TENANTS + 1) / _RAMP)
        return exp(counts * STEP * self._sums[category] / count)

    def shared_factors(self) -> list[tuple[str, float, int]]:
        """Category, factor and tenants behind it, of those that are told."""
        return [
            (category, self.factor(category), len(votes))
            for category, votes in sorted(self._votes.items())
            if len(votes) >= MIN_TENANTS
        ]
