"""Does a request wait for a replica that is fast enough for it, although a slower one has room?

Who was promised a time between tokens is late on a replica whose tokens take longer, however soon it gets there. So it
runs on one that keeps that time (whose mean is at most :data:`KEEPS` of it; :meth:`BackendView.keeps`), as long as one
serves and its first token can still be in time there, or for :data:`LONGEST_S` where no TTFT was promised. What it
leaves is for those whom a slow replica serves in time. Where replicas are alike nobody waits
(:mod:`scheduling.core.engine.token_time`).

Same in Lua: ``choose`` in ``scheduling/state/scripts/shared/placement.lua``, for what is granted on arrival. How long
it waits is the leader's business alone; while nobody leads nobody waits for a faster replica.
Source: ours. Measured: ``docs/results/placement.md``.
"""

from __future__ import annotations

from typing import Final

from scheduling.core.placement.cache_wait import GRANT_S, LONGEST_S
from scheduling.core.types import QueuedRequest, Slo

KEEPS: Final = 0.85  # of a promised time between tokens: answers differ from a replica's mean


def pace_us(slo: Slo) -> int:
    """How long the mean time between tokens may be of a replica that keeps the one it promises, in whole microseconds
    as scripts compare them; 0: it promises none."""
    return 0 if slo.tbt_s is None else max(1, round(1e6 * KEEPS * slo.tbt_s))


def pace_wait_until_s(request: QueuedRequest, prefill_per_s: float) -> float:
    """When it stops waiting for a faster replica [s], which computes ``prefill_per_s`` prompt tokens a second."""
    if request.ttft_deadline_s is None:
        return request.arrival_s + LONGEST_S
    return request.ttft_deadline_s - request.input_tokens / prefill_per_s - GRANT_S
