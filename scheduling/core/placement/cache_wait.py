"""Does a request wait for the replica that has its prompt cached, although another one has room now?

A replica that works on a prompt has no prefill credit for the next one, and a full replica has no slot. A request that
then runs wherever there is room has its prompt computed again there. For agents and conversations, whose prompts are
almost completely cached, engines would compute a multiple of what each turn adds. So a request waits for its own
replica: the one that the placement rule would name if all had room (:func:`rule.place`).

It lets other replicas idle for at most ``cache_patience`` times as long as they would take to compute what is cached (a
parameter of the routing ``prefix_affinity``), and for at most ``LONGEST_S``. If one idles, the request goes there
before waiting costs it its TTFT deadline, and it never waits until its time in the queue is over. While all replicas
are at work its patience does not run out: elsewhere it would take the place of requests whose prompts are cached there,
and computing prompts twice turns a full pool into an overloaded one. Waiting for a place near the data is *delay
scheduling* (Zaharia et al., EuroSys 2010).

Same in Lua: ``cached_elsewhere`` in ``scheduling/state/scripts/shared/placement.lua``, for what is granted on arrival.
Only the leader decides how long it waits; without a leader no request waits for a cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.core.placement.cached_prompts import PER_MILLE
from scheduling.core.placement.rule import Warmth, place
from scheduling.core.types import PREFILL_PER_S, BackendView

LEAST_AGAIN: Final = 256  # tokens to compute again that are worth waiting for
PATIENCE: Final = 4.0  # `cache_patience` unless set
LONGEST_S: Final = 10.0
MOMENT_S: Final = 0.001  # of patience: nothing that is worth another decision
BEFORE_EXPIRY_S: Final = 0.5  # a late answer is better than none: decisions take so long when there is much to decide
GRANT_S: Final = 0.05  # from the end of a wait to the step of another engine


def before_expiry_s(expires_s: float | None) -> float:
    """Until when a request may wait for a replica while others have room [s], as its time in the queue ends then."""
    return math.inf if expires_s is None else expires_s - BEFORE_EXPIRY_S


@dataclass(frozen=True, slots=True)
class CacheWait:
    """``replica`` has the prompt cached; elsewhere so many of its tokens would be computed ``again``, of ``tokens`` in
    all that another one would have to compute, ``per_s`` of them in a second."""

    replica: BackendView
    again: int
    tokens: int
    per_s: float

    def longest_s(self, patience: float) -> float:
        """For how long it waits at most."""
        return min(LONGEST_S, patience * self.again / self.per_s)

    @property
    def elsewhere_s(self) -> float:
        """How long another replica computes its prompt."""
        return self.tokens / self.per_s

    def until_s(self, now_s: float, idle_s: float, due_s: float | None, patience: float) -> float:
        """When it stops waiting if a replica idles from now on. ``idle_s``: for how long one has idled since it could
        first have gone elsewhere; ``due_s``: its TTFT deadline, which counts as long as it can be kept there."""
        left_s = self.longest_s(patience) - idle_s
        end_s = now_s + (left_s if left_s > MOMENT_S else 0.0)
        last_s = math.inf if due_s is None else due_s - self.elsewhere_s
        return min(end_s, last_s - GRANT_S) if now_s <= last_s else end_s


def cache_wait(
    serving: Sequence[BackendView],
    fit: Sequence[BackendView],
    tokens: int,
    warmth: Warmth | None,
    least_again: int = LEAST_AGAIN,
) -> CacheWait | None:
    """None: it does not wait. ``serving``: replicas that could run a prompt of so many ``tokens``; ``fit``: those of
    them that have room. For less than ``least_again`` tokens to compute again nobody waits."""
    if warmth is None or not warmth.expected or not fit or len(fit) == len(serving):
        return None
    own = place(serving, warmth)
    if own is None or any(b.id == own.id for b in fit):
        return None
    chosen = place(fit, warmth)
    assert chosen is not None
    there = _found(chosen, tokens, warmth)
    again = _found(own, tokens, warmth) - there
    if again < least_again:
        return None
    per_s = chosen.prefill_per_s or max(b.prefill_per_s for b in serving) or PREFILL_PER_S
    return CacheWait(own, again, tokens - there, per_s)


def _found(backend: BackendView, tokens: int, warmth: Warmth) -> int:
    """How many of the prompt's tokens its engine is believed to find."""
    return min(tokens, warmth.cached(backend.id) * backend.cache_trust // PER_MILLE)
