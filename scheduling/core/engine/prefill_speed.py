"""How many prompt tokens does a replica compute a second, when it has enough of them, and how long is a full step?

Formula: prompt tokens computed / time, while prompts were at hand throughout: requests waited for its prefill credit,
or stood in its own queue. A moving average with a time constant of :data:`MEMORY_S` of such time; 0 (not known) until
there were :data:`SURE_S`. Engines count a prompt all at once, when it is done, so time is taken from one look that
found prompts counted to the next: a prompt of eight seconds is not the work of the second in which it ends.
A full step takes as long as its tokens are a multiple of those in the steps of that time, where these were at least
:data:`MOSTLY` full. Emptier ones would show too much, since a step takes a part of its time whatever is in it: of them
it is only known that a full one takes no less.
Inputs: the engine's counters once a second; whether requests waited for its credit.
Source: QoServe's artifact keeps such an average inside the engine; here from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from scheduling.core.capacity.prefill_credit import Counters

MEMORY_S = 30.0
SURE_S = 3.0
MOSTLY = 0.75
MOST_LOST = 0.1  # of what was counted: else the time tells nothing


@dataclass(slots=True)
class PrefillSpeed:
    """The speed of one replica. Fed about once a second with the engine's counters."""

    tokens_per_s: float = 0.0  # 0: not known yet
    _seconds: float = 0.0  # all of them fade
    _tokens: float = 0.0
    _steps: float = 0.0  # 0: it does not count them
    _filled: float = 0.0  # tokens in them, prompts and answers
    _seen_s: float = 0.0
    _before: Counters | None = None
    _since: Counters | None = None  # the last look that found prompts counted, prompts at hand ever since
    _lost: float = 0.0  # tokens since then that may have been computed and are not counted
    _taken_back: bool = False  # since then, too
    _busy: bool = False  # at the look before

    def seen(self, now: Counters, limited: bool, budget: int) -> None:
        """Takes the counters. ``limited``: requests wait now, and for nothing but credit there; ``budget``: tokens of a
        step."""
        before, self._before = self._before, now
        busy_before, self._busy = self._busy, limited or now.waiting > 0
        if before is None or not (busy_before and self._busy) or now.restarted(before):
            self._since, self._lost, self._taken_back = None, 0.0, False  # not at hand throughout
            return
        since = self._since
        least = since.prefill_tokens if since is not None and not self._taken_back else -inf
        if now.prefill_tokens <= max(before.prefill_tokens, least):
            return  # it is in the middle of a prompt
        lost, taken_back = self._lost, self._taken_back
        self._since, self._lost, self._taken_back = now, 0.0, False
        if since is None or now.at_s <= since.at_s:
            return
        seconds, tokens = now.at_s - since.at_s, now.prefill_tokens - since.prefill_tokens
        outputs = now.output_tokens - since.output_tokens
        steps = 0.0 if now.steps is None or since.steps is None else now.steps - since.steps
        if lost > MOST_LOST * tokens or (taken_back and not steps):
            return
        if taken_back:  # a long prompt filled the steps
            tokens = max(tokens, budget * steps - outputs)
        kept = exp(-seconds / MEMORY_S)
        self._seconds = kept * self._seconds + seconds
        self._tokens = kept * self._tokens + tokens
        self._steps = kept * self._steps + steps
        self._filled = kept * self._filled + tokens + outputs
        self._seen_s += seconds
        if self._seen_s >= SURE_S:
            self.tokens_per_s = self._tokens / self._seconds

    def lost(self, tokens: int) -> None:
        """A prompt of ``tokens`` left its engine before its end, as its client left: what was computed of it is not
        counted."""
        self._lost += tokens

    def taken_back(self) -> None:
        """Likewise a long one that its engine computed, so that another one need not wait for the rest of it."""
        self._taken_back = True

    def full_step_s(self, budget: int) -> float:
        """How long a step of ``budget`` tokens takes, at least [s]; 0: not known."""
        if not self.tokens_per_s or self._steps <= 0 or self._filled <= 0:
            return 0.0
        filled = self._filled / self._steps / budget
        return (1.0 / filled if MOSTLY <= filled < 1.0 else 1.0) * self._seconds / self._steps

    def step(self) -> tuple[int, float]:
        """Tokens of a step in that time, and how long it takes [s]; zeros: not known."""
        if not self.tokens_per_s or self._steps <= 0:
            return 0, 0.0
        return round(self._filled / self._steps), self._seconds / self._steps
