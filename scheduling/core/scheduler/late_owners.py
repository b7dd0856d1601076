"""How far do owners of reserved capacity go first with requests that cannot be in time any more?

What is reserved are slots. Where there are slots for all with a baseline, prefill is what is short, and of that a late
prompt of an owner takes what others need to be in time. So there an owner goes first with late requests while it had no
more than its part of the prompts that were granted lately: its concurrency, of that of all entitlements with a baseline
that wait. Beyond it they go after those that can be in time.

Grants on arrival need not be counted: where others with a baseline wait, everything goes through the queue.

Cost: O(1) a grant and a question. Source: ours; the parts are token pools' ``r_e``, giving way is QoServe's (3.4).
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

MEMORY_S = 30.0  # time constant
KEPT = 4096  # owners; more than one pool has at work at once


class LateOwners:
    """Prompt tokens that a pool's owners, and all entitlements with a baseline, were granted lately."""

    __slots__ = ("_all", "_had")

    def __init__(self) -> None:
        self._all = _Lately()
        self._had: dict[str, _Lately] = {}

    def granted(self, entitlement: str, tokens: int, owner: bool, now_s: float) -> None:
        """A request of an entitlement with a baseline."""
        self._all.add(tokens, now_s)
        if owner:
            had = self._had.pop(entitlement, None) or _Lately()
            had.add(tokens, now_s)
            self._had[entitlement] = had
            if len(self._had) > KEPT:
                del self._had[next(iter(self._had))]  # granted longest ago

    def within(self, promised: int, now_s: float) -> Callable[[str, int], bool]:
        """Whether an owner, given with its concurrency, had no more than its part. ``promised``: the concurrency of all
        with a baseline that wait. What is granted from now on counts for its owner and not for the whole, so that the
        answer turns from true to false only."""
        granted = self._all.at(now_s)

        def within(entitlement: str, concurrency: int) -> bool:
            had = self._had.get(entitlement)
            # no division: who waits alone has had at most all, to the last bit
            return had is None or had.at(now_s) * promised <= concurrency * granted

        return within


class _Lately:
    """A sum that fades."""

    __slots__ = ("_at_s", "_sum")

    def __init__(self) -> None:
        self._sum = self._at_s = 0.0

    def at(self, now_s: float) -> float:
        return self._sum * exp(min(0.0, self._at_s - now_s) / MEMORY_S)

    def add(self, amount: int, now_s: float) -> None:
        self._sum, self._at_s = self.at(now_s) + amount, max(self._at_s, now_s)
