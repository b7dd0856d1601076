"""A leader's decisions: read the pool's state, decide, write the grants, and evict preemptible requests where they must
make room.

A decision takes effect only when the ``grant`` script answers ``ok``; what it refuses goes on waiting here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduling.core.placement.cached_prompts import counted_whole
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.stuck import stuck
from scheduling.core.types import Grant, PoolView
from scheduling.dispatch.decision_clock import CREDIT_TICK_S, DecisionClock
from scheduling.dispatch.decision_items import evict_items, grant_item
from scheduling.dispatch.preemption import Preempter
from scheduling.dispatch.replicas.monitor import BackendMonitor
from scheduling.dispatch.waiting import Waiting
from scheduling.state.store import PoolStore
from scheduling.state.types import BATCH, GrantStatus

log = logging.getLogger("quartermaster.dispatch")

CHECK_EVERY = 64  # the invariants of every 64th step are checked live
CHECK_UP_TO = 500  # waiting requests: a check costs O(waiting)
EVICT_AGAIN_S = 0.25  # pause after an eviction that could make no room


@dataclass(frozen=True, slots=True)
class Written:
    """What shared state made of a decision's grants."""

    granted: list[Grant]
    refused: bool  # some found no room, and go on waiting
    away: bool  # the gateway of some does not listen: its requests are parked


class Decider:
    """Decides for one pool under one epoch. ``policy`` is the one in force: ``priority@3``; ``view_of`` adds to a view
    of the pool what only the leader knows."""

    def __init__(
        self,
        store: PoolStore,
        pool_id: str,
        epoch: int,
        policy: str,
        waiting: Waiting,
        monitor: BackendMonitor,
        clock: DecisionClock,
        view_of: Callable[[PoolView], PoolView],
    ) -> None:
        self._store = store
        self._pool_id = pool_id
        self._epoch = epoch
        self.policy = policy
        self._waiting = waiting
        self._scheduler = waiting.scheduler
        self._monitor = monitor
        self._clock = clock
        self._view_of = view_of
        self._preempter = Preempter(store, pool_id)
        self._left: PoolView | None = None  # the pool as the last decision left it
        self._steps = 0
        self._evict_from = 0.0
        # stuck requests and kept slots as last announced; what the former leader announced is not known
        self.announced: tuple[int, int | None] = (-1, None)

    async def grant(self) -> None:
        """Decides until nothing more can be granted now."""
        scheduler, waiting = self._scheduler, self._waiting
        self._left = None
        self._clock.credit_falls_s = 0.0
        if not len(scheduler):
            self._monitor.idle()  # or the last decision would stand until the next one, which may be long in coming
            if self._preempter.watches:
                look = await self._store.look([])
                now_s = waiting.set_clock(look.now_ms)
                await self._preempter.look(scheduler, self._view_of(look.pool_view(now_s)), (), now_s)
        while len(scheduler):
            look = await self._store.look(list(waiting.entitlements))
            if look.rebuilding_ms:
                return  # gateways have yet to announce leases again: their room would be given twice
            await waiting.learn_places()
            now_s = waiting.set_clock(look.now_ms)
            view = self._view_of(look.pool_view(now_s))
            grants = self._step(view, now_s)
            self._left = view
            prompts = (g.request.prefill_tokens for g in grants)
            self._monitor.decided(view, len(scheduler) > 0, prompts, self._clock.turnaround_s)
            if not grants:
                falls = [s for name in scheduler.credit_holds if (s := view.backends[name].falls_s)]
                falls += [max(CREDIT_TICK_S, until_s - now_s) for until_s in scheduler.waits_for_replica.values()]
                self._clock.credit_falls_s = min(falls, default=0.0)
                if look.preemptible:
                    await self._evict(view)
                await self._preempter.look(scheduler, view, (), now_s)
                return
            written = await self._write(grants, now_s)
            await self._preempter.look(scheduler, view, written.granted, now_s)
            if written.away:
                continue  # what its gateway did not take is decided again at once, without it
            if written.refused:
                return
            if len(grants) < BATCH and not look.preemptible:
                return  # otherwise the next round tells whether preemptible requests must make room

    def again_s(self, usual_s: float) -> float | None:
        """Seconds until the next decision is due if nothing happens before; None: never. ``usual_s``: the tick while
        requests wait."""
        preempter = self._preempter
        wait_s = min(usual_s, preempter.again_s or usual_s)
        return wait_s if len(self._scheduler) or preempter.watches else None

    async def announce(self, kept: int | None) -> None:
        """Tells the admission script how many waiting requests cannot use the free slots, and how many slots are
        ``kept`` for baselines."""
        current = (stuck(self._scheduler, self._left), kept)
        if current != self.announced:
            await self._store.set_stuck(self._epoch, *current)
            self.announced = current

    def _step(self, view: PoolView, now_s: float) -> list[Grant]:
        scheduler = self._scheduler
        self._steps += 1
        if self._steps % CHECK_EVERY or len(scheduler) > CHECK_UP_TO:
            return scheduler.step(view, now_s)
        before = remember(view, scheduler)
        grants = scheduler.step(view, now_s)
        broken = check_step(
            before,
            grants,
            scheduler,
            now_s,
            max_grants=BATCH,
            kv_hold=scheduler.kv_hold is not None,
            credit_holds=scheduler.credit_holds,
            waits_for_replica=scheduler.waits_for_replica,
            owners_first=scheduler.owners_first,
            rights=True,
            headroom=scheduler.headroom,
            unreserved=scheduler.unreserved,
        )
        for violation in broken:
            log.error("pool %s: policy %s broke %s", self._pool_id, self.policy, violation)
        return grants

    async def _write(self, grants: Sequence[Grant], now_s: float) -> Written:
        """Writes a decision. What shared state refuses goes on waiting here."""
        items = [grant_item(grant, self.policy) for grant in grants]
        statuses = await self._store.grant(self._epoch, items, turnaround_s=self._clock.turnaround_s)
        self._clock.granted(asyncio.get_running_loop().time())
        refused = away = False
        granted = []
        for grant, status in zip(grants, statuses, strict=True):
            # GONE: it left, or waits again under a later attempt, which has a notification of its own
            if status is GrantStatus.OK:
                granted.append(grant)
            elif status in (GrantStatus.FULL, GrantStatus.ENT) and grant.request.id not in self._scheduler:
                self._waiting.offer(counted_whole(grant.request), now_s)
                refused = True
            elif status is GrantStatus.AWAY:
                away = True
                self._scheduler.settle(grant.request.id, 0, 0)
                self._waiting.park(counted_whole(grant.request))
            elif status is GrantStatus.GONE:
                self._scheduler.settle(grant.request.id, 0, 0)
        return Written(granted, refused, away)

    async def _evict(self, view: PoolView) -> None:
        """Gives the slots of preemptible requests to those that may evict and found no slot."""
        clock_s = asyncio.get_running_loop().time()
        waiting = self._scheduler.waits_for_any
        items = evict_items(waiting, view, self.policy) if clock_s >= self._evict_from else []
        if not items:
            return
        statuses = await self._store.evict(self._epoch, items)
        for item, status in zip(items, statuses, strict=True):
            if status is GrantStatus.OK:
                self._scheduler.withdraw(item.request_id)
        if GrantStatus.OK not in statuses:
            self._evict_from = clock_s + EVICT_AGAIN_S
