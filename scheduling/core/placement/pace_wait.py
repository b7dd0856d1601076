"""Does a request wait for a replica that is fast enough for it, although a slower one has room?

A request with a promised time between tokens is late on a replica whose tokens take longer, however soon it gets there.
So it waits for a replica that keeps this time (whose mean is at most :data:`KEEPS` of it; :meth:`BackendView.keeps`),
if one serves. It waits as long as its first token can still be in time there, or for :data:`LONGEST_S` if no TTFT was
promised, and never until its time in the queue is over. The slower room is left to requests that are in time there.
Among similar replicas no request waits: one that is no slower than the others counts as fast enough
(:mod:`scheduling.core.engine.token_time`).

Same in Lua: ``choose`` in ``scheduling/state/scripts/shared/placement.lua``, for what is granted on arrival. Only
the leader decides how long it waits; without a leader no request waits for a faster replica.
Source: ours. Measured: ``docs/results/placement.md``.
"""

from __future__ import annotations

from typing import Final

from scheduling.core.placement.cache_wait import GRANT_S, LONGEST_S, before_expiry_s
from scheduling.core.types import QueuedRequest, Slo

KEEPS: Final = 0.85  # of a promised time between tokens: answers differ from a replica's mean


def pace_us(slo: Slo, longest: int) -> int:
    """How long the mean time between tokens may be of a replica that keeps the one it promises, in whole microseconds
    as scripts compare them; 0: it promises none. ``longest``: tokens of its longest answer; one has none between."""
    return 0 if slo.tbt_s is None or longest < 2 else max(1, round(1e6 * KEEPS * slo.tbt_s))


def pace_wait_until_s(request: QueuedRequest, prefill_per_s: float) -> float:
    """When it stops waiting for a faster replica [s], which computes ``prefill_per_s`` prompt tokens a second."""
    if request.ttft_deadline_s is None:
        until_s = request.arrival_s + LONGEST_S
    else:
        until_s = request.ttft_deadline_s - request.input_tokens / prefill_per_s - GRANT_S
    return min(until_s, before_expiry_s(request.expires_s))
