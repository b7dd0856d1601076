"""Moves of gateways about requests. ``again`` repeats the call, as a caller does whose reply was lost."""

from __future__ import annotations

import dataclasses

from scheduling.core.outcomes import Reason
from tests.support.state_model.members import (
    POOL,
    REFUSALS,
    SENT_S,
    SPARING,
)
from tests.support.state_model.sides import Sides
from tests.support.state_world import ledger


class RequestMoves(Sides):
    def admit(self, n: int, again: bool) -> None:
        args = (self.spec_of(n), self.pool_of(n), self.request_of(n), self.estimate_of(n), 100 + 37 * (n % 24))
        self._both("admit", again, *args, self.facts_of(n), sent_s=SENT_S[n % 2], supersedes=n % 5 > 0)
        self._compare_told()

    def requeue(self, n: int, off: int, again: bool) -> None:
        r = self.request_of(n)
        r = dataclasses.replace(r, attempt=max(1, r.attempt + off))
        held = self.reference.held.get(r.id)
        self._both("requeue", again, r, 100 + 37 * (n % 24), self.facts_of(n), held.backend if held else "b1",
                   SPARING.headroom_slots * (n % 2), interrupted=n % 6 == 0)  # fmt: skip
        self._compare_told()

    def finish(self, n: int, off: int, reason: Reason, used: int, ran: bool, again: bool) -> None:
        r, reason = self.request_of(n), Reason(reason)
        attempt = max(1, r.attempt + off) if off <= 0 else 0  # a later one than is known: test_state_store.py
        self._both("finish", again, r.id, attempt, reason, used, ran, ledger(r.id, reason))
        self._compare_told()

    def renew(self, gateway: str, numbers: list[int], off: int, again: bool) -> None:
        items = [(r.id, max(1, r.attempt + off), (self.now // 1000 + n) % 90) for n, r in map(self._numbered, numbers)]
        self._both("renew", again, gateway, items, repeats=self.led)  # what it hands out it does not hand out twice
        self._compare_told()

    def announce(self, n: int, at: str, again: bool) -> None:
        r = self.request_of(n)
        if r.id in self.reference.queue:
            at = ""  # a lease of what waits: test_state_store.py
        args = (self.spec_of(n), POOL, r, self.estimate_of(n), 100 + 37 * (n % 24), self.facts_of(n))
        self._both("announce", again, *args, at, n % 3, prefill=(0, 60, 108)[n % 3])

    def record(self, numbers: list[int], again: bool) -> None:
        self._both("record", again, [ledger(f"r{n}", REFUSALS[n % 3], entitlement=self.spec_of(n).id) for n in numbers])
