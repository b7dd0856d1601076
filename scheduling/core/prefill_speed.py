"""How many prompt tokens does a replica compute a second, when it has enough of them, and how long is a full step?

Formula: prompt tokens computed / time, over the looks between which prompts were at hand throughout: requests waited
for its prefill credit, or stood in its own queue. A moving average with a time constant of :data:`MEMORY_S` of such
time; 0 (not known) until there were :data:`SURE_S`.
A full step takes as long as its tokens are a multiple of those in the steps of that time, where these were at least
:data:`MOSTLY` full. Emptier ones would show too much, since a step takes a part of its time whatever is in it: of them
it is only known that a full one takes no less.
Inputs: the engine's counters once a second; whether requests waited for its credit.
Source: QoServe's artifact keeps such an average inside the engine; here from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from scheduling.core.prefill_credit import Counters

MEMORY_S = 30.0
SURE_S = 3.0
MOSTLY = 0.75


@dataclass(slots=True)
class PrefillSpeed:
    """The speed of one replica. Fed about once a second with the engine's counters."""

    tokens_per_s: float = 0.0  # 0: not known yet
    _average: float = 0.0
    _steps_per_s: float = 0.0  # likewise; 0: it does not count them
    _filled_per_s: float = 0.0  # tokens in them, prompts and answers
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
        steps = 0.0 if now.steps is None or before.steps is None else now.steps - before.steps
        filled = tokens + now.output_tokens - before.output_tokens
        self._steps_per_s = kept * self._steps_per_s + (1.0 - kept) * steps / seconds
        self._filled_per_s = kept * self._filled_per_s + (1.0 - kept) * filled / seconds
        self._seen_s += seconds
        if self._seen_s >= SURE_S:
            self.tokens_per_s = self._average

    def full_step_s(self, budget: int) -> float:
        """How long a step of ``budget`` tokens takes, at least [s]; 0: not known."""
        if not self.tokens_per_s or self._steps_per_s <= 0 or self._filled_per_s <= 0:
            return 0.0
        filled = self._filled_per_s / self._steps_per_s / budget
        return (1.0 / filled if MOSTLY <= filled < 1.0 else 1.0) / self._steps_per_s
