"""Prefill preemption: asks gateways to take long prompts back from their engines. The rule is in
:mod:`scheduling.core.scheduler.prefill_preemption`."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.prefill_preemption import Claim, GrantedBeside, LongPrompt, again_in_s, preemptions
from scheduling.core.types import Grant, PoolView
from scheduling.state.store import PoolStore

log = logging.getLogger("quartermaster.dispatch")

LOOK_AGAIN_S = 0.05  # between two reads of the prompts that run
ASK_AGAIN_S = 1.0  # a gateway that may not have heard is asked again after this
ASKED_AT_MOST = 2  # times: a gateway that only admits cannot take a prompt back, nor can an older version


class Preempter:
    """Preempts prefills in one pool under one epoch."""

    def __init__(self, store: PoolStore, pool_id: str) -> None:
        self._store = store
        self._pool_id = pool_id
        self._beside = GrantedBeside()
        self.again_s = 0.0  # seconds until there may be more to preempt; 0: not known
        self._look_from_s = 0.0
        self._asked: dict[tuple[str, int], tuple[float, int]] = {}  # request and attempt -> when, and how often

    @property
    def watches(self) -> bool:
        """Whether a granted request may be waiting inside its engine for a long prompt."""
        return bool(self._beside)

    async def look(self, scheduler: Scheduler, view: PoolView, grants: Sequence[Grant], now_s: float) -> None:
        """Preempts what the rule allows after a decision. ``view``: the pool as the decision left it; ``grants``: those
        that were written."""
        self.again_s = 0.0
        self._beside.granted(grants, view)
        claims = self._beside.waiting(view, now_s)
        if not any(backend.computes_long for backend in view.backends.values()):
            return
        claims += [Claim(request) for request in scheduler.lacks_credit]
        clock_s = asyncio.get_running_loop().time()
        if not claims:
            return
        self.again_s = LOOK_AGAIN_S
        if clock_s < self._look_from_s:
            return
        self._look_from_s = clock_s + LOOK_AGAIN_S
        prompts = await self._store.long_prompts()
        self.again_s = again_in_s(prompts, now_s)
        runs = {_whom(prompt) for prompt in prompts}
        self._asked = {whom: asked for whom, asked in self._asked.items() if whom in runs}
        open_ = [prompt for prompt in prompts if not self._in_vain(prompt, clock_s)]
        for found in preemptions(claims, open_, view, now_s, scheduler.goes_before):
            whom = _whom(found.prompt)
            at_s, times = self._asked.get(whom, (-math.inf, 0))
            if clock_s - at_s < ASK_AGAIN_S:
                continue
            self._asked[whom] = clock_s, times + 1
            log.debug("pool %s: request %s interrupts %s", self._pool_id, found.claimed_by, whom[0])
            await self._store.preempt(found.prompt, found.computed)

    def _in_vain(self, prompt: LongPrompt, clock_s: float) -> bool:
        """Whether its gateway was asked in vain to take it back, so that another prompt is chosen."""
        at_s, times = self._asked.get(_whom(prompt), (0.0, 0))
        return times >= ASKED_AT_MOST and clock_s - at_s >= ASK_AGAIN_S


def _whom(prompt: LongPrompt) -> tuple[str, int]:
    return prompt.request.id, prompt.request.attempt
