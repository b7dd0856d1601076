"""One term of leadership: read notifications, decide, write the decisions, do the housekeeping.

What waits is in :mod:`scheduling.dispatch.waiting`, decisions are made in :mod:`scheduling.dispatch.deciding`. Here are
the loops of a term, and what they share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace

from scheduling.core.admission.entitlement import TICK_S as STANDING_S
from scheduling.core.capacity.headroom import Headroom, use_of_baselines
from scheduling.core.capacity.kv_overcommit import KvUse
from scheduling.core.capacity.kv_room import inherited
from scheduling.core.capacity.pool import baselines_of
from scheduling.core.engine.lag import EngineLag
from scheduling.core.engine.token_pace import TokenPace
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.core.policies.contracts import QueuePart
from scheduling.core.policies.registry import PolicyError
from scheduling.core.scheduler.preview import parts_of
from scheduling.core.types import Catalog, PoolSpec, PoolView, QueuedRequest, Standing
from scheduling.dispatch.bucket_audit import BucketAudit
from scheduling.dispatch.bucket_restore import Buckets
from scheduling.dispatch.configured import (
    decided_by,
    entitlements_of,
    give_rights,
    policies_of,
    scheduler_of,
    strictest_tbt_s,
)
from scheduling.dispatch.deciding import Decider
from scheduling.dispatch.decision_clock import DecisionClock
from scheduling.dispatch.ledger_drain import LedgerDrain
from scheduling.dispatch.queue_preview import QueuePreview
from scheduling.dispatch.replicas.monitor import BackendMonitor
from scheduling.dispatch.replicas.watched import EngineFactory
from scheduling.dispatch.resources import Resources
from scheduling.dispatch.samples import Sampler
from scheduling.dispatch.shares import KeptShares
from scheduling.dispatch.standing import Standings
from scheduling.dispatch.totals import Totals
from scheduling.dispatch.waiting import Waiting
from scheduling.state.skew import ClockSkew
from scheduling.state.store import PoolStore
from scheduling.state.types import (
    BATCH,
    SERVICE_MS,
    Event,
    EventKind,
    PoolSnapshot,
    StateUnavailable,
)

log = logging.getLogger("quartermaster.dispatch")

HOUSEKEEPING_S = 1.0
WANTED_S = 10.0  # for so long after a request came replicas are wanted, even if it has left
BLOCK_MS = 1000  # how long one read of the notifications waits
PAUSE_S = 0.25  # after Redis did not answer
SWEEPS = 50  # batches of abandoned requests that one round of housekeeping ends


class Term:
    """What one leader of one pool knows and does under one epoch. ``policy`` is the one in force: ``priority@3``."""

    def __init__(
        self,
        store: PoolStore,
        epoch: int,
        pool: PoolSpec,
        catalog: Catalog,
        resources: Resources,
        engine: EngineFactory,
        group: asyncio.TaskGroup,
    ) -> None:
        """Its tasks run in ``group``, so that :class:`Fenced` ends the term."""
        telemetry, thread = resources.telemetry, resources.telemetry_thread
        self._store = store
        self._epoch = epoch
        self._pool = pool
        self._catalog = catalog
        self._policy_of = pool  # the pool's row whose policy was last asked for
        policy, self.scheduler = scheduler_of(pool)
        give_rights(self.scheduler, pool, catalog)

        # replicas, what waits, decisions
        preempts = resources.prefill_preemption
        self.monitor = BackendMonitor(store, epoch, engine, group, self._notify, prefill_preemption=preempts)
        self.waiting = Waiting(store, pool.id, self.scheduler, entitlements_of(catalog, pool.id), self._notify)
        self._wake = asyncio.Event()
        self._clock = DecisionClock()
        self.decider = Decider(store, pool.id, epoch, policy, self.waiting, self.monitor, self._clock, self._effective)

        # what ended requests tell
        self.bucket_audit = BucketAudit(store)
        self._ledger = LedgerDrain(store, telemetry, thread, self._count_ended, self.bucket_audit.settled)
        self._ended_early: list[LedgerRecord] = []  # before the queue was read
        self._lag = EngineLag()
        self._pace = TokenPace()
        self._kv_use = KvUse()
        self._kv_overcommit = resources.kv_overcommit
        self._shares = KeptShares(store, epoch)

        # housekeeping
        self._totals = Totals(store, epoch)
        self._buckets = Buckets(store, epoch, telemetry, thread)
        self._swept_s: float | None = None
        self._skew = ClockSkew(store.time_s)
        self._standings: Standings | None = None
        self._standings_due = True  # at once: weights are needed before the first five seconds are over
        self._headroom = Headroom()
        self._baselines: int | None = None  # slots of all of them; None: not added up since the catalog changed
        self._offered: int | None = None  # slots that replicas offer; None: not known yet
        self._asked_s = float("-inf")  # when a request last came that was not granted at once
        self._adapted = False  # something waits for an adapter

        # what people see
        self._preview = QueuePreview(store, epoch)
        self._sampler = Sampler(resources.holder, epoch)
        self._telemetry = telemetry
        self._thread = thread
        self._sampling: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Takes over: replicas that the former leader found ready stay so."""
        snapshot = await self._store.view()
        self.waiting.set_clock(snapshot.now_ms)
        if snapshot.lost_ms and snapshot.rebuilding_ms:
            log.warning(
                "pool %s: Redis lost its data (it was flushed, or started without it); nothing is admitted for %.1f s, "
                "until gateways have said what runs and waits",
                self._pool.id,
                snapshot.rebuilding_ms / 1000,
            )
        ready = {name: b for name, b in snapshot.backends.items() if b.ready}
        caches = {spec.id: spec.kv_tokens for spec in self._pool.backends if spec.kv_tokens > 0}
        overcommit, parts = inherited({name: ready[name].kv_tokens / caches[name] for name in ready.keys() & caches})
        self._kv_use.inherit(overcommit)
        self.monitor.update(self._pool, set(ready), {name: b.prefill_credit for name, b in ready.items()}, parts)
        self._standings = Standings(self._pool, self._catalog, snapshot)
        self._headroom.resume(snapshot.now_ms / 1000.0, snapshot.kept)
        self._offered = sum(b.slots for b in ready.values()) or None
        self._keep_headroom()
        await self._shares.resume(self.scheduler)

    @property
    def policy(self) -> str:
        """The one in force: ``priority@3``."""
        return self.decider.policy

    @property
    def standings(self) -> dict[str, Standing]:
        """Where each bound entitlement stands, since the last tick."""
        return {} if self._standings is None else self._standings.now

    def update(self, pool: PoolSpec, catalog: Catalog) -> None:
        """A new catalog: replicas, concurrency limits and policy follow it; everything that waits goes on waiting."""
        self._pool, self._catalog = pool, catalog
        self._baselines = None
        self.monitor.update(pool)
        if self._standings is not None:
            self._standings.configure(pool, catalog)
            self._standings_due = True
        give_rights(self.scheduler, pool, catalog)
        self._keep_headroom()
        self.waiting.configure(entitlements_of(catalog, pool.id))
        if decided_by(pool) == decided_by(self._policy_of):
            return
        self._policy_of = pool
        try:
            ordering, routing = policies_of(pool)
        except PolicyError as error:
            log.error("pool %s: policy not changed, %s stays in force: %s", pool.id, self.policy, error)
            return
        self.decider.policy = f"{pool.policy}@{pool.policy_version}"
        self.scheduler.swap(ordering, routing, self.waiting.now_s())
        log.info(
            "pool %s: policy is now %s (%s, %s), %d requests moved",
            pool.id, self.policy, ordering.name, routing.name, len(self.scheduler),
        )  # fmt: skip
        self._notify()

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """All that a term does, by name; each runs until cancelled."""
        return {
            "listen": self._listen(),
            "decide": self._decide(),
            "housekeeping": self._housekeeping(),
            "ledger": self._ledger.run(),
        }

    # --- its loops

    async def _listen(self) -> None:
        """Reads notifications on their own connection and applies them."""
        await self.waiting.loaded.wait()
        while True:
            try:
                events = await self._store.events(self.waiting.last_event, BLOCK_MS)
            except StateUnavailable:
                self.waiting.read_again()
                await asyncio.sleep(PAUSE_S)
                continue
            if events:
                self.waiting.last_event = events[-1].id
                for event in events:
                    self._apply(event)
                self._notify()

    async def _decide(self) -> None:
        """Grants what may run: on every notification, and on ticks while anyone waits."""
        while True:
            try:
                if self.waiting.stale:
                    await self.waiting.read()
                    self._count_early()
                await self.decider.grant()
                await self.decider.announce(self._kept)
            except StateUnavailable:
                self.waiting.stale = True  # which of the last grants took effect is not known
                await asyncio.sleep(PAUSE_S)
                continue
            soon = bool(self.scheduler.credit_holds or self.scheduler.waits_for_replica)
            wait_s = self._clock.wait(asyncio.get_running_loop().time(), for_credit=soon)
            try:
                async with asyncio.timeout(self.decider.again_s(wait_s)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _housekeeping(self) -> None:
        """Once a second: replicas, sweep, gateways that were away, standings, a sample for telemetry."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HOUSEKEEPING_S
            try:
                snapshot = await self._store.view()
                if await self._totals.compare(snapshot):
                    self._notify()
                    snapshot = await self._store.view()
                queued = self._queued(snapshot)  # now, so that it is of the same moment as the snapshot
                self._overcommit(snapshot)
                await self.monitor.reconcile(snapshot)
                self._wake_or_sleep(snapshot)
                await self._sweep()
                await self._buckets.look(snapshot, self._catalog)
                await self.bucket_audit.look(snapshot, self._catalog)
                await self._watch_adapters()
                await self.waiting.call_back()
                self.waiting.compare(snapshot)
                self._watch_baselines(snapshot)
                if self.waiting.loaded.is_set():
                    await self._shares.look(self.scheduler, snapshot, self._catalog)
                self.waiting.note_entitlements()
                await self._publish_standings(snapshot)
                await self._skew.measure()
                self._sample(snapshot, *queued)
                await self._publish_preview(snapshot)
            except StateUnavailable:
                pass
            await asyncio.sleep(max(0.0, due - loop.time()))

    # --- notifications

    def _notify(self) -> None:
        if not self._wake.is_set():
            self._clock.due(asyncio.get_running_loop().time())
            self._wake.set()

    def _apply(self, event: Event) -> None:
        if event.kind is EventKind.QUEUED and event.request is not None:
            self._asked_s = asyncio.get_running_loop().time()
            if not self.monitor.sleep.serves:
                self.monitor.sleep.wake(1)
            self.waiting.offer(event.request, self.waiting.now_s())
            if event.request.adapter:
                self.monitor.want([event.request.adapter])
            if event.request.resumes_at:
                self.monitor.lost(event.request.resumes_at, event.request.input_tokens, taken_back=True)
        elif event.kind is EventKind.LEFT:
            self.waiting.withdraw(event.request_id)
        elif event.kind is EventKind.SUSPECT:
            self.monitor.suspect(event.backend, event.why)
        elif event.kind is EventKind.PAUSED:
            self.monitor.pause(event.backend, event.pause_ms / 1000, event.why, refused=event.refused)
        elif event.kind is EventKind.REPORT:
            self.monitor.report(event.attempts)

    def _count_early(self) -> None:
        """What ended before the queue was read, once it was."""
        if not self.waiting.loaded.is_set():
            self.waiting.loaded.set()
            self._count_ended(self._ended_early)
            self._ended_early.clear()

    def _count_ended(self, records: Collection[LedgerRecord]) -> None:
        """What requests have really used, for policies that count it, and what engines take."""
        if not self.waiting.loaded.is_set():
            # counted after the queue is read: what waits must not be lifted to the shares of those served since
            self._ended_early.extend(records)
            return
        self._shares.ended(self.scheduler, records, self._catalog)
        self._lag.read(records)
        self._pace.read(records)
        self._kv_use.read(records)
        for r in records:
            if r.streamed and r.granted_s is not None and r.first_token_s is None:
                self.monitor.lost(r.backend, r.input_tokens_est)
        if (lag_s := self._lag.lag_s) is not None:
            self._clock.measured_lag(lag_s)

    def _effective(self, view: PoolView) -> PoolView:
        """The pool with what only the leader knows: standings, and which replicas are not ready or have less room."""
        view.standings = self.standings
        view.coefficients = self._pool.coefficients
        view.token_s = self._pace.token_s
        self.monitor.mask(view)
        return view

    # --- housekeeping

    def _watch_baselines(self, snapshot: PoolSnapshot) -> None:
        """Automatic headroom follows what baselines use."""
        if not self._pool.headroom_most:
            return
        specs, flying = self._catalog.entitlements, snapshot.entitlements.items()
        running, waiting = use_of_baselines((specs[name], e.running, e.waiting) for name, e in flying if name in specs)
        request_ms = SERVICE_MS if snapshot.service_ms is None else snapshot.service_ms
        if self._baselines is None:
            self._baselines = baselines_of(entitlements_of(self._catalog, self._pool.id).values())
        self._headroom.seen(snapshot.now_ms / 1000.0, running, waiting, request_ms / 1000.0, self._baselines)
        self._offered = sum(b.slots for b in snapshot.backends.values() if b.ready) or None
        before = self.scheduler.headroom
        self._keep_headroom()
        if self._kept != self.decider.announced[1] or self.scheduler.headroom < before:
            self._notify()

    def _overcommit(self, snapshot: PoolSnapshot) -> None:
        """What may be reserved of the replicas' KV caches follows what requests use of it."""
        self._kv_use.keep(self._catalog.entitlements)
        reserved = snapshot.kv_running([*self.scheduler, *self.waiting.parked])
        running = {name: (snapshot.entitlements[name].running, tokens) for name, tokens in reserved.items()}
        by_replica = {name: there.kv_used for name, there in snapshot.backends.items()}
        tbt_s = strictest_tbt_s(self._catalog, [name for name, (count, _) in running.items() if count])
        self.monitor.overcommit(self._kv_use, running, self._kv_overcommit, by_replica, tbt_s)

    def _wake_or_sleep(self, snapshot: PoolSnapshot) -> None:
        """Has sleeping replicas woken where requests wait, and puts idle ones to sleep where the pool says so."""
        asked = asyncio.get_running_loop().time() - self._asked_s < WANTED_S
        waiting = max(snapshot.waiting, int(asked and not self.monitor.sleep.serves))
        if waiting > 0:
            self.monitor.sleep.wake(waiting)
        else:
            self.monitor.sleep.not_wanted()
        self.monitor.sleep.rest(idle=snapshot.waiting == 0 and snapshot.running == 0 and not asked)

    async def _watch_adapters(self) -> None:
        """Has adapters loaded that requests wait for, and refuses those who wait for one that cannot be had."""
        wanted = {r.adapter for r in self.scheduler if r.adapter} if self._pool.adapters or self._adapted else set()
        self._adapted = bool(wanted)
        self.monitor.want(sorted(wanted))
        if hopeless := self.monitor.hopeless(wanted):
            vain = [r for r in self.scheduler if r.adapter in hopeless][:BATCH]
            log.warning(
                "pool %s: no replica has %s and none can load it: %d waiting requests are refused",
                self._pool.id, ", ".join(sorted(hopeless)), len(vain),
            )  # fmt: skip
            for request in vain:
                await self._store.refuse(request, Reason.NO_ADAPTER)

    def _keep_headroom(self) -> None:
        pool = self._pool
        if pool.headroom_most:
            self.scheduler.headroom = self._headroom.slots(pool.headroom_slots, pool.headroom_most, self._offered)

    @property
    def _kept(self) -> int | None:
        """Free slots that are kept for baselines, where that is not what is configured."""
        kept = self.scheduler.headroom
        return kept if kept != self._pool.headroom_slots else None

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(SWEEPS):
            at_s, before_s = loop.time(), self._swept_s
            swept = await self._store.sweep(self._epoch, None if before_s is None else at_s - before_s)
            self._swept_s = at_s
            for request in swept:
                self.waiting.withdraw(request.request_id)
            if len(swept) < BATCH:
                return
        log.warning("pool %s: more abandoned requests than one sweep ends; going on in a second", self._pool.id)

    async def _publish_standings(self, snapshot: PoolSnapshot) -> None:
        """Looks at what everyone has, and every five seconds publishes where that leaves them."""
        standings = self._standings
        if standings is None or snapshot.rebuilding_ms:
            return
        waiting = [*self.scheduler, *self.waiting.parked]
        standings.look(snapshot, waiting)
        if not self._standings_due and standings.age_s(snapshot) < STANDING_S:
            return
        self._standings_due = False
        gone = standings.gone
        await self._store.set_standing(self._epoch, standings.tick(snapshot, waiting), gone)

    async def _publish_preview(self, snapshot: PoolSnapshot) -> None:
        now_s = snapshot.now_ms / 1000.0
        view = self._effective(snapshot.pool_view(now_s))
        await self._preview.show(
            self.scheduler, view, now_s, snapshot.service_ms, self.policy, parked=len(self.waiting.parked)
        )

    def _queued(self, snapshot: PoolSnapshot) -> tuple[list[QueuedRequest], list[QueuePart]]:
        """What waits, and the parts of the policy's queue."""
        return [*self.scheduler, *self.waiting.parked], [*parts_of(self.scheduler, snapshot.now_ms / 1000.0)]

    def _sample(self, snapshot: PoolSnapshot, waiting: Sequence[QueuedRequest], parts: Sequence[QueuePart]) -> None:
        if self._sampling is not None and not self._sampling.done():
            return  # the thread is busy: a dashboard may miss a second
        sleep = self.monitor.sleep
        asked = asyncio.get_running_loop().time() - self._asked_s < WANTED_S
        known = replace(snapshot, standings=self.standings)
        sample = replace(
            self._sampler.sample(known, self._pool, self.policy, waiting, self.monitor.statuses(), parts),
            shares={} if self._standings is None else dict(self._standings.shares),
            headroom=self.scheduler.headroom,
            clock_skew_s=self._skew.seconds,
            turnaround_s=self._clock.measured_s,
            ledger_since_s=self._ledger.behind_since_s,
            bucket_gaps=dict(self.bucket_audit.gaps),
            wanted=not sleep.serves and (asked or snapshot.waiting > 0),
            wakes_in_s=sleep.wakes_in_s,
        )
        self._sampling = asyncio.get_running_loop().run_in_executor(self._thread, self._telemetry.sample, sample)
        self._sampling.add_done_callback(self._sampled)

    def _sampled(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            log.error("pool %s: a sample could not be taken: %r", self._pool.id, done.exception())
