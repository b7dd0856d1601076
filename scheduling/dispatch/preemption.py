"""Takes long prompts back from their engines for requests that would wait for them (rule:
``scheduling/core/prefill_preemption.py``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from scheduling.core.prefill_preemption import Claim, preemptions
from scheduling.core.scheduler import Scheduler
from scheduling.core.types import Grant, PoolView
from scheduling.state.store import PoolStore

log = logging.getLogger("quartermaster.dispatch")

LOOK_AGAIN_S = 0.05  # after a look at what runs
ASK_AGAIN_S = 1.0  # a gateway that has not heard


class Preempter:
    """Of one pool under one epoch."""

    def __init__(self, store: PoolStore, pool_id: str) -> None:
        self._store = store
        self._pool_id = pool_id
        self._look_from_s = 0.0
        self._asked: dict[tuple[str, int], float] = {}  # request and attempt -> when

    async def look(self, scheduler: Scheduler, view: PoolView, grants: Sequence[Grant], now_s: float) -> None:
        """After a decision. ``view``: the pool as it left it; ``grants``: those that were written."""
        long = {name for name, backend in view.backends.items() if backend.computes_long}
        if not long:
            return
        claims = [Claim(request) for request in scheduler.lacks_credit]
        claims += [Claim(grant.request, grant.backend) for grant in grants if grant.backend in long]
        clock_s = asyncio.get_running_loop().time()
        if not claims or clock_s < self._look_from_s:
            return
        self._look_from_s = clock_s + LOOK_AGAIN_S
        self._asked = {whom: at for whom, at in self._asked.items() if clock_s - at < ASK_AGAIN_S}
        prompts = await self._store.long_prompts()
        for found in preemptions(claims, prompts, view, now_s, scheduler.goes_before):
            request = found.prompt.request
            if (request.id, request.attempt) in self._asked:
                continue
            self._asked[request.id, request.attempt] = clock_s
            log.debug("pool %s: request %s interrupts %s", self._pool_id, found.claimed_by, request.id)
            await self._store.preempt(found.prompt, found.computed)
