"""How many prompt tokens does a replica compute a second, when it has enough of them?

Formula: prompt tokens computed / time, over the looks between which prompts were at hand throughout: requests waited
for its prefill credit, or stood in its own queue. A moving average with a time constant of :data:`MEMORY_S` of such
time; 0 (not known) until there were :data:`SURE_S`.
Inputs: the engine's counters once a second; whether requests waited for its credit.
Source: QoServe's artifact keeps such an average inside the engine; here from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from scheduling.core.prefill_credit import Counters

MEMORY_S = 30.0
SURE_S = 3.0


@dataclass(slots=True)
class PrefillSpeed:
    """The speed of one replica. Fed about once a second with the engine's counters."""

    tokens_per_s: float = 0.0  # 0: not known yet
    _average: float = 0.0
    _seen_s: float = 0.0
    _before: Counters | None = None
    _busy: bool = False  # at the look before

    def seen(self, now: Counters, limited: bool) -> None:
        """Takes the counters. ``limited``: requests wait now, and for nothing but credit there."""
        before, self._before = self._before, now
        busy_before, self._busy = self._busy, limited or now.waiting > 0
        if before is None or not (busy_before and self._busy):
            return
        seconds, tokens = now.at_s - before.at_s, now.prefill_tokens - before.prefill_tokens
        if seconds <= 0 or tokens <= 0:
            return  # it restarted, or all it had was found in its cache
        kept = exp(-seconds / MEMORY_S) if self._seen_s else 0.0
        self._average = kept * self._average + (1.0 - kept) * tokens / seconds
        self._seen_s += seconds
        if self._seen_s >= SURE_S:
            self.tokens_per_s = self._average
