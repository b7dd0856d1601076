"""May this request be tried again elsewhere? A budget: a broken fleet is not also stormed (docs/reference/promises.md,
17)."""

from __future__ import annotations

TENANTS_KEPT = 10_000  # of one gateway; the oldest go first, and begin anew
MAX_SAVED = 100.0
FLOOR_EVERY_S = 60.0  # a quiet gateway gets its floor back within this time


class RetryBudget:
    """Each request earns ``share`` of a retry; ``floor`` retries are there from the start. Backend attempts therefore
    stay under ``requests * (1 + share) + floor``, plus ``floor`` a minute, for each tenant."""

    __slots__ = ("_at_s", "_balance", "_floor", "_share")

    def __init__(self, share: float, floor: int, now_s: float) -> None:
        self._share = share
        self._floor = float(floor)
        self._balance = float(floor)
        self._at_s = now_s

    def earn(self) -> None:
        """A request was admitted."""
        if self._balance < MAX_SAVED:
            self._balance += self._share

    def spend(self, now_s: float) -> bool:
        """Takes one retry; False where none is left."""
        if self._balance < self._floor:
            grown = self._balance + (now_s - self._at_s) * self._floor / FLOOR_EVERY_S
            self._balance = min(self._floor, grown)
        self._at_s = now_s
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True


class RetryBudgets:
    """One for each tenant: whose requests fail wherever they run, or are refused by every engine, uses up its own, and
    a neighbour's is tried again all the same."""

    def __init__(self, share: float, floor: int) -> None:
        self._share, self._floor = share, floor
        self._of: dict[str, RetryBudget] = {}

    def of(self, tenant: str, now_s: float) -> RetryBudget:
        budget = self._of.get(tenant)
        if budget is None:
            while len(self._of) >= TENANTS_KEPT:
                del self._of[next(iter(self._of))]
            budget = self._of[tenant] = RetryBudget(self._share, self._floor, now_s)
        return budget
