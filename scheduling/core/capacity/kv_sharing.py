"""KV sharing: how much of its requests' prompts does a replica's engine hold, since it holds common beginnings once?

Question: prompts that begin alike (the instructions of agents, a document that many ask about) are in an engine's
cache once, however many requests use them; so is the prompt of a request's several answers. Reservations count them
each time. If an engine were believed as full as they say, it would run a fraction of the requests that it could hold.

Formula: about once a second, ``ratio = held / prompts``. ``held``: KV tokens in use, as the engine says. ``prompts``:
what is reserved there x the share of reservations that the prompts of ended requests were
(:class:`scheduling.core.capacity.kv_overcommit.KvUse`) x the share of its sequences that have left its own queue, since
those that wait hold nothing. Answers count as held and not as expected, so that long ones that have just begun do not
look shared. The factor follows the ratio within :data:`UP_S` where it rises and :data:`DOWN_S` where it falls, and is
at most 1: prefill fills a cache in minutes, so one that stops being shared is noticed in time. Where less than
:data:`LEAST` of the cache is expected, a ratio says nothing, and the factor goes back to 1 within :data:`IDLE_S`.

**Pace.** More sequences make longer steps. While more is reserved than :data:`BUSY` of the cache, steps longer than the
strictest time between tokens that is promised to what runs take :data:`LESS` of the sharing away at each look;
below :data:`EASY` of that time a little comes back. Without such a promise nothing is taken away; of an engine that
does not count its steps all is.
Inputs: each engine's KV usage, queue and steps once a second; what is reserved there; promises.
Source: ours. Measured: docs/results/placement.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

UP_S, DOWN_S, IDLE_S = 2.0, 10.0, 60.0  # time constants
LEAST = 0.1  # of the cache
MOST_GAP_S = 5.0  # between two looks; what is beyond does not count
BUSY, EASY = 0.8, 0.85
LESS, BACK = 0.2, 0.05


@dataclass(frozen=True, slots=True)
class EngineUse:
    """What one look finds. ``usage``: share of the cache of ``kv_tokens`` in use; None: the engine does not say.
    ``reserved``: of the cache [tokens]; ``waiting``: share of its sequences that wait in its own queue; ``steps``:
    since it started; None: it does not count them."""

    usage: float | None
    kv_tokens: int
    reserved: int
    waiting: float = 0.0
    steps: float | None = None


@dataclass(slots=True)
class KvSharing:
    """What one replica's requests have in common."""

    factor: float = 1.0  # of their prompts' tokens that the engine holds, 0 to 1; 1 while nothing is known
    pace: float = 1.0  # of what goes beyond the expected that its steps allow, 0 to 1
    _seen_s: float = -math.inf
    _steps: float | None = None
    _steps_s: float = -math.inf  # when they were first seen

    @property
    def counted(self) -> float:
        """The factor to reckon with: no less than the pace allows."""
        return 1.0 - (1.0 - self.factor) * self.pace

    def seen(self, now_s: float, use: EngineUse, prompts: float, tbt_s: float | None) -> None:
        """``prompts``: the share of a reservation that its prompt is; ``tbt_s``: the strictest time between tokens that
        is promised to what runs; None: none is. ``now_s``: a monotonic clock [s]."""
        past_s, self._seen_s = min(MOST_GAP_S, now_s - self._seen_s), now_s
        self._pace(now_s, use, tbt_s)
        inside = use.reserved * prompts * (1.0 - min(1.0, max(0.0, use.waiting)))
        if use.usage is None:
            self.factor = 1.0
        elif inside <= LEAST * use.kv_tokens:
            self._follow(1.0, past_s / IDLE_S)
        else:
            ratio = min(1.0, use.usage * use.kv_tokens / inside)
            self._follow(ratio, past_s / (UP_S if ratio > self.factor else DOWN_S))

    def _follow(self, to: float, share: float) -> None:
        self.factor += (to - self.factor) * min(1.0, share)

    def _pace(self, now_s: float, use: EngineUse, tbt_s: float | None) -> None:
        before, before_s = self._steps, self._steps_s
        if use.steps != before:
            self._steps, self._steps_s = use.steps, now_s
        if tbt_s is None:
            self.pace = 1.0
        elif use.steps is None:
            self.pace = 0.0
        elif before is not None and use.steps > before and use.reserved > BUSY * use.kv_tokens:
            step_s = (now_s - before_s) / (use.steps - before)
            if step_s > tbt_s:
                self.pace *= 1.0 - LESS
            elif step_s < EASY * tbt_s:
                self.pace = min(1.0, self.pace + BACK)
