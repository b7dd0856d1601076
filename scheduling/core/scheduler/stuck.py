"""Requests that wait although slots are free, mostly for want of KV cache. Pure.

Smaller requests may pass them until one of them has waited so long that a replica is kept free for it, so they hold up
no arrival either (``admit``). This is not so for requests that wait for prefill credit, or for a replica that has their
prompt cached or is fast enough for them.
"""

from __future__ import annotations

from collections import Counter

from scheduling.core.rights import able_to_run, cap_of
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import PoolView


def stuck(scheduler: Scheduler, left: PoolView | None) -> int:
    """How many of those that shared state counts as able to run are not. ``left``: the pool after a decision that has
    granted all it could; None: there was none."""
    if left is None or scheduler.kv_hold is not None or left.free_slots() <= 0:
        return 0
    if scheduler.credit_holds or scheduler.waits_for_replica:
        return 0
    waiting = Counter(request.entitlement for request in scheduler)
    caps = {r.entitlement: cap_of(r.service_class, r.concurrency) for r in scheduler}
    return sum(able_to_run(n, left.running_by_entitlement.get(e, 0), caps[e]) for e, n in waiting.items())
