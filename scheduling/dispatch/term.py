"""One term of leadership: hear what happens, decide, write the decisions, keep house.

Ownership: a waiting request belongs to its gateway, which ends it; the leader only orders it. A decision is nothing
until the ``grant`` script has said ``ok``; what it refuses waits on here. Missed or doubled notifications cost latency
only: a grant for something that left is answered ``gone``, and the queue is read again after every loss of contact.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain

from scheduling.core.entitlement import TICK_S as STANDING_S
from scheduling.core.headroom import Headroom, used_of_baselines
from scheduling.core.invariants import check_step, remember
from scheduling.core.ledger import LedgerRecord
from scheduling.core.placement import read_points
from scheduling.core.preview import parts_of
from scheduling.core.registry import PolicyError
from scheduling.core.types import Catalog, Grant, PoolSpec, PoolView, QueuedRequest, Standing
from scheduling.dispatch.bucket_audit import BucketAudit
from scheduling.dispatch.configured import decided_by, give_rights, limits_of, policies_of, scheduler_of
from scheduling.dispatch.decision_clock import DecisionClock
from scheduling.dispatch.drain import LedgerDrain
from scheduling.dispatch.evictions import evictions, most_running
from scheduling.dispatch.health import BackendMonitor, EngineFactory
from scheduling.dispatch.parked import Parked
from scheduling.dispatch.ports import TelemetryPort
from scheduling.dispatch.queue_preview import QueuePreview
from scheduling.dispatch.restore import Buckets
from scheduling.dispatch.samples import Sampler
from scheduling.dispatch.shares import KeptShares
from scheduling.dispatch.standing import Standings
from scheduling.dispatch.stuck import stuck
from scheduling.dispatch.totals import Totals
from scheduling.state.skew import ClockSkew
from scheduling.state.store import PoolStore
from scheduling.state.types import (
    BATCH,
    LEASE_MS,
    SERVICE_MS,
    Event,
    EventKind,
    GrantItem,
    GrantStatus,
    PoolSnapshot,
    StateUnavailable,
)

log = logging.getLogger("quartermaster.dispatch")

HOUSE_S = 1.0
BLOCK_MS = 1000  # how long one read of the notifications waits
PAUSE_S = 0.25  # after Redis did not answer
CHECK_EVERY = 64  # steps of which the laws are checked live, and only with short queues: it costs O(waiting)
CHECK_UP_TO = 500
DRIFT_TICKS = 10  # so many looks in a row that find more waiting in Redis than here: read the queue again
DRIFT_GAP_S = 30.0
SWEEPS = 50  # batches of abandoned requests ended in one round of the house
PLACES_ASKED = 500  # prompts of which is asked at once where they ran; the oldest of more are placed by work
EVICT_AGAIN_S = 0.25  # after preemptible requests could make no room


@dataclass(frozen=True, slots=True)
class Written:
    """What shared state made of a decision's grants."""

    refused: bool  # some had no room left, and wait on
    away: bool  # somebody's gateway does not listen: its requests are parked


class Term:
    """What one leader of one pool knows and does under one epoch. ``policy`` is the one in force: ``priority@3``."""

    def __init__(
        self,
        store: PoolStore,
        pool: PoolSpec,
        catalog: Catalog,
        *,
        holder: str,
        epoch: int,
        engine: EngineFactory,
        telemetry: TelemetryPort,
        telemetry_thread: Executor,
        group: asyncio.TaskGroup,
    ) -> None:
        self._store = store
        self._pool = pool
        self._sampler = Sampler(holder, epoch)
        self._skew = ClockSkew(store.time_s)
        self._preview = QueuePreview(store, epoch)
        self._shares = KeptShares(store, epoch)
        self.bucket_audit = BucketAudit(store)
        self._ledger = LedgerDrain(store, telemetry, telemetry_thread, self._count_ended, self.bucket_audit.settled)
        self._totals = Totals(store, epoch)
        self._buckets = Buckets(store, epoch, telemetry, telemetry_thread)
        self._epoch = epoch
        self._catalog = catalog
        self._telemetry = telemetry
        self._thread = telemetry_thread
        self._limits = limits_of(catalog, pool.id)
        self._policy_of = pool  # the pool's row whose policy was last asked for
        self.policy, self.scheduler = scheduler_of(pool)
        give_rights(self.scheduler, pool, catalog)
        self.monitor = BackendMonitor(store, epoch, engine, group, self._notify)
        self._parked = Parked()
        self._unplaced: deque[str] = deque(maxlen=PLACES_ASKED)  # prompts of which it was not asked where they ran
        self._entitlements: dict[str, None] = {}  # of what waits; some may have left since the last second
        self._wake = asyncio.Event()
        self._loaded = asyncio.Event()
        self._ended_early: list[LedgerRecord] = []  # before the queue was read
        self._stale = True  # the queue must be read again
        self._last_event = "0-0"
        self._steps = 0
        self._drifted = 0
        self._read_at = 0.0
        self._sampling: asyncio.Future[None] | None = None
        self._clock_offset_s = 0.0
        self._standings: Standings | None = None
        self._standings_due = True  # at once: weights are needed before the first five seconds are over
        self._evict_from = 0.0
        self._left: PoolView | None = None  # the pool as the last decision left it
        self._swept_s: float | None = None
        self._clock = DecisionClock()
        self._headroom = Headroom()
        # who is stuck, and what is kept, as it was told; what the former leader told is not known
        self._notified = (-1, 0)

    async def open(self) -> None:
        """Takes over: replicas that the former leader found ready stay so."""
        snapshot = await self._store.view()
        self._set_clock(snapshot.now_ms)
        if snapshot.lost_ms and snapshot.rebuilding_ms:
            log.warning(
                "pool %s: Redis lost its data (it was flushed, or started without it); nothing is admitted for %.1f s, "
                "until gateways have said what runs and waits",
                self._pool.id,
                snapshot.rebuilding_ms / 1000,
            )
        ready = {name: b for name, b in snapshot.backends.items() if b.ready}
        self.monitor.update(self._pool, set(ready), {name: b.prefill_credit for name, b in ready.items()})
        self._standings = Standings(self._pool, self._catalog, snapshot)
        self._headroom.resume(snapshot.now_ms / 1000.0, snapshot.kept)
        self._keep_headroom()
        await self._shares.resume(self.scheduler)

    @property
    def standings(self) -> dict[str, Standing]:
        """Where each bound entitlement stands, since the last tick."""
        return {} if self._standings is None else self._standings.now

    def update(self, pool: PoolSpec, catalog: Catalog) -> None:
        """A new catalog: replicas, concurrency limits and policy follow it; everything that waits goes on waiting."""
        self._pool, self._catalog = pool, catalog
        self.monitor.update(pool)
        if self._standings is not None:
            self._standings.configure(pool, catalog)
            self._standings_due = True
        self._limits = limits_of(catalog, pool.id)
        give_rights(self.scheduler, pool, catalog)
        self._keep_headroom()
        now_s = self._now_s()
        for request in [r for r in self.scheduler if self._limits.get(r.entitlement, r.concurrency) != r.concurrency]:
            self._offer(request, now_s)
        if decided_by(pool) == decided_by(self._policy_of):
            return
        self._policy_of = pool
        try:
            ordering, routing = policies_of(pool)
        except PolicyError as error:
            log.error("pool %s: policy not changed, %s stays in force: %s", pool.id, self.policy, error)
            return
        self.policy = f"{pool.policy}@{pool.policy_version}"
        self.scheduler.swap(ordering, routing, now_s)
        log.info(
            "pool %s: policy is now %s (%s, %s), %d requests moved",
            pool.id, self.policy, ordering.name, routing.name, len(self.scheduler),
        )  # fmt: skip
        self._notify()

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """All that a term does, by name; each runs until cancelled."""
        return {
            "hear": self._hear(),
            "decide": self._decide(),
            "house": self._keep_house(),
            "ledger": self._ledger.run(),
        }

    # --- its loops

    async def _hear(self) -> None:
        """Reads notifications on their own connection and applies them."""
        await self._loaded.wait()
        while True:
            try:
                events = await self._store.events(self._last_event, BLOCK_MS)
            except StateUnavailable:
                self._stale = True
                self._notify()
                await asyncio.sleep(PAUSE_S)
                continue
            if events:
                self._last_event = events[-1].id
                for event in events:
                    self._apply(event)
                self._notify()

    async def _decide(self) -> None:
        """Grants what may run: on every notification, and on ticks while anyone waits."""
        while True:
            try:
                if self._stale:
                    await self._read_queue()
                await self._grant()
                await self._tell_stuck()
            except StateUnavailable:
                self._stale = True  # which of the last grants took effect is not known
                await asyncio.sleep(PAUSE_S)
                continue
            wait_s = self._clock.wait(asyncio.get_running_loop().time(), for_credit=bool(self.scheduler.credit_holds))
            try:
                async with asyncio.timeout(wait_s if len(self.scheduler) else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _keep_house(self) -> None:
        """Once a second: replicas, sweep, gateways that were away, standings, sample."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HOUSE_S
            try:
                snapshot = await self._store.view()
                if await self._totals.compare(snapshot):
                    self._notify()
                    snapshot = await self._store.view()
                await self.monitor.reconcile(snapshot)
                await self._sweep()
                await self._buckets.look(snapshot, self._catalog)
                await self.bucket_audit.look(snapshot, self._catalog)
                await self._call_back()
                self._compare(snapshot)
                self._watch_baselines(snapshot)
                if self._loaded.is_set():
                    await self._shares.look(self.scheduler, snapshot, self._catalog)
                self._entitlements = {request.entitlement: None for request in self.scheduler}
                await self._weigh(snapshot)
                await self._skew.measure()
                self._sample(snapshot)
                await self._show(snapshot)
            except StateUnavailable:
                pass
            await asyncio.sleep(max(0.0, due - loop.time()))

    # --- hearing

    def _notify(self) -> None:
        if not self._wake.is_set():
            self._clock.due(asyncio.get_running_loop().time())
            self._wake.set()

    def _set_clock(self, now_ms: int) -> float:
        """Redis time [epoch s] is the pool's clock; between looks it goes on with the loop's."""
        now_s = now_ms / 1000.0
        self._clock_offset_s = now_s - asyncio.get_running_loop().time()
        return now_s

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() + self._clock_offset_s

    def _offer(self, request: QueuedRequest, now_s: float) -> None:
        if self._parked.holds(request.gateway):
            self._parked.park(request, asyncio.get_running_loop().time())
            return
        self._entitlements[request.entitlement] = None
        if request.prefixes and self.scheduler.learns_places:
            self._unplaced.append(request.prefixes)
        limit = self._limits.get(request.entitlement, request.concurrency)
        self.scheduler.offer(request if limit == request.concurrency else replace(request, concurrency=limit), now_s)

    def _apply(self, event: Event) -> None:
        if event.kind is EventKind.QUEUED and event.request is not None:
            self._offer(event.request, self._now_s())
        elif event.kind is EventKind.LEFT:
            self._withdraw(event.request_id)
        elif event.kind is EventKind.SUSPECT:
            self.monitor.suspect(event.backend, event.why)
        elif event.kind is EventKind.PAUSED:
            self.monitor.pause(event.backend, event.pause_ms / 1000, event.why, refused=event.refused)
        elif event.kind is EventKind.REPORT:
            self.monitor.report(event.attempts)

    def _withdraw(self, request_id: str) -> None:
        self.scheduler.withdraw(request_id)
        self._parked.withdraw(request_id)

    async def _read_queue(self) -> None:
        self._last_event, waiting = await self._store.load_queue()
        self._parked.clear()
        queued = {request.id for request in waiting}
        for request in list(self.scheduler):
            if request.id not in queued:
                self.scheduler.withdraw(request.id)
        now_s = self._now_s()
        for request in waiting:
            self._offer(request, now_s)
        self._stale = False
        self._read_at = asyncio.get_running_loop().time()
        if not self._loaded.is_set():
            self._loaded.set()
            self._count_ended(self._ended_early)
            self._ended_early.clear()

    def _count_ended(self, records: Iterable[LedgerRecord]) -> None:
        """What requests have really used, for policies that count it. One may come twice."""
        if not self._loaded.is_set():  # who waits comes first: it is lifted to nobody who was served since
            self._ended_early.extend(records)
            return
        self._shares.ended(self.scheduler, records, self._catalog)

    # --- deciding

    async def _grant(self) -> None:
        """Decides until nothing more can be granted now."""
        self._left = None
        self._clock.credit_falls_s = 0.0
        if not len(self.scheduler):
            self.monitor.idle()  # else the decision before stands until the next one, which may take a while
        while len(self.scheduler):
            look = await self._store.look(list(self._entitlements))
            if look.rebuilding_ms:
                return  # leases that were not announced again yet would be overrun
            await self._learn_places()
            now_s = self._set_clock(look.now_ms)
            view = self._as_it_counts(look.pool_view(now_s))
            grants = self._step(view, now_s)
            self._left = view
            self.monitor.decided(view, len(self.scheduler) > 0, (g.request.prefill_tokens for g in grants))
            if not grants:
                falls = (view.backends[name].falls_s for name in self.scheduler.credit_holds)
                self._clock.credit_falls_s = min((s for s in falls if s), default=0.0)
                if look.preemptible:
                    await self._evict(view)
                return
            written = await self._write(grants, now_s)
            if written.away:
                continue  # what its gateway did not take is decided again at once, without it
            if written.refused:
                return
            if len(grants) < BATCH and not look.preemptible:
                return  # else the next look tells whether others must make room

    def _as_it_counts(self, view: PoolView) -> PoolView:
        """The pool with what only the leader knows: standings, and replicas that are not ready or have less room."""
        view.standings = self.standings
        view.coefficients = self._pool.coefficients
        self.monitor.mask(view)
        return view

    async def _write(self, grants: Sequence[Grant], now_s: float) -> Written:
        """Writes a decision. What shared state refuses waits on here."""
        items = [
            GrantItem(g.request.id, g.request.attempt, g.backend, most_running(g.request), self.policy, g.reason)
            for g in grants
        ]
        statuses = await self._store.grant(self._epoch, items, turnaround_s=self._clock.turnaround_s)
        self._clock.granted(asyncio.get_running_loop().time())
        refused = away = False
        for grant, status in zip(grants, statuses, strict=True):
            # gone: it left, or waits again at another attempt, of which its own notification tells
            if status in (GrantStatus.FULL, GrantStatus.ENT) and grant.request.id not in self.scheduler:
                self._offer(grant.request, now_s)
                refused = True
            elif status is GrantStatus.AWAY:
                away = True
                self.scheduler.settle(grant.request.id, 0, 0)
                self._park(grant.request)
            elif status is GrantStatus.GONE:
                self.scheduler.settle(grant.request.id, 0, 0)
        return Written(refused, away)

    async def _learn_places(self) -> None:
        """Where prompts like those that began to wait ran before: most were granted on arrival, by the script."""
        if self._unplaced:
            points = {name: None for text in self._unplaced for name, _ in read_points(text)[1]}
            self._unplaced.clear()
            self.scheduler.learn(await self._store.places(list(points)))

    async def _tell_stuck(self) -> None:
        """Arrivals may take free slots that those who wait cannot use, and leave those that are kept for baselines."""
        current = (stuck(self.scheduler, self._left), self._kept)
        if current != self._notified:
            await self._store.set_stuck(self._epoch, *current)
            self._notified = current

    async def _evict(self, view: PoolView) -> None:
        """Who may, and could not be granted a slot now, gets that of a preemptible request."""
        clock_s = asyncio.get_running_loop().time()
        items = evictions(self.scheduler, view, self.policy) if clock_s >= self._evict_from else []
        if not items:
            return
        statuses = await self._store.evict(self._epoch, items)
        for item, status in zip(items, statuses, strict=True):
            if status is GrantStatus.OK:
                self.scheduler.withdraw(item.request_id)
        if GrantStatus.OK not in statuses:
            self._evict_from = clock_s + EVICT_AGAIN_S

    def _park(self, request: QueuedRequest) -> None:
        """Nobody listens for its gateway: neither this request nor its others are decided about until somebody does."""
        now_s = asyncio.get_running_loop().time()
        if not self._parked.holds(request.gateway):
            log.info("pool %s: gateway %s does not listen, its requests are parked", self._pool.id, request.gateway)
            for other in [r for r in self.scheduler if r.gateway == request.gateway]:
                self.scheduler.withdraw(other.id)
                self._parked.park(other, now_s)
        self._parked.park(request, now_s)

    def _step(self, view: PoolView, now_s: float) -> list[Grant]:
        self._steps += 1
        if self._steps % CHECK_EVERY or len(self.scheduler) > CHECK_UP_TO:
            return self.scheduler.step(view, now_s)
        before = remember(view, self.scheduler)
        grants = self.scheduler.step(view, now_s)
        broken = check_step(
            before,
            grants,
            self.scheduler,
            now_s,
            max_grants=BATCH,
            kv_hold=self.scheduler.kv_hold is not None,
            credit_holds=self.scheduler.credit_holds,
            rights=True,
            headroom=self.scheduler.headroom,
            unreserved=self.scheduler.unreserved,
        )
        for violation in broken:
            log.error("pool %s: policy %s broke %s", self._pool.id, self.policy, violation)
        return grants

    # --- keeping house

    def _watch_baselines(self, snapshot: PoolSnapshot) -> None:
        """Automatic headroom follows what baselines use."""
        if not self._pool.headroom_most:
            return
        specs, flying = self._catalog.entitlements, snapshot.entitlements.items()
        used = used_of_baselines((specs[name], e.running, e.waiting) for name, e in flying if name in specs)
        request_ms = SERVICE_MS if snapshot.service_ms is None else snapshot.service_ms
        self._headroom.seen(snapshot.now_ms / 1000.0, used, request_ms / 1000.0)
        self._keep_headroom()
        if self._kept != self._notified[1]:
            self._notify()

    def _keep_headroom(self) -> None:
        pool = self._pool
        if pool.headroom_most:
            self.scheduler.headroom = self._headroom.slots(pool.headroom_slots, pool.headroom_most)

    @property
    def _kept(self) -> int:
        """Free slots that are kept for baselines, where that is more than is configured."""
        kept = self.scheduler.headroom
        return kept if kept > self._pool.headroom_slots else 0

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(SWEEPS):
            at_s, before_s = loop.time(), self._swept_s
            swept = await self._store.sweep(self._epoch, None if before_s is None else at_s - before_s)
            self._swept_s = at_s
            for request in swept:
                self._withdraw(request.request_id)
            if len(swept) < BATCH:
                return
        log.warning("pool %s: more abandoned requests than one sweep ends; going on in a second", self._pool.id)

    async def _call_back(self) -> None:
        """Requests of gateways that listen again are decided about again.

        After a whole heartbeat what is parked is either swept or of a gateway that renews and does not hear: the queue
        is read again, and whoever left unnoticed is forgotten.
        """
        if not len(self._parked):
            return
        if self._parked.longest_s(asyncio.get_running_loop().time()) > LEASE_MS / 1000 + HOUSE_S:
            self._stale = True
            self._notify()
            return
        back = await self._store.listening(self._parked.gateways)
        now_s = self._now_s()
        for gateway in back:
            for request in self._parked.back(gateway):
                self._offer(request, now_s)
        if back:
            self._notify()

    async def _weigh(self, snapshot: PoolSnapshot) -> None:
        """Looks at what everyone has, and every five seconds publishes where that leaves them."""
        standings = self._standings
        if standings is None or snapshot.rebuilding_ms:
            return
        waiting = [*self.scheduler, *self._parked]
        standings.look(snapshot, waiting)
        if not self._standings_due and standings.age_s(snapshot) < STANDING_S:
            return
        self._standings_due = False
        gone = standings.gone
        await self._store.set_standing(self._epoch, standings.tick(snapshot, waiting), gone)

    def _compare(self, snapshot: PoolSnapshot) -> None:
        """Notifications can be lost (the stream is bounded): when requests stay unknown the queue is read again.

        The other way round needs no care: a grant for something that left is answered ``gone``.
        """
        here = len(self.scheduler) + len(self._parked)
        self._drifted = self._drifted + 1 if snapshot.waiting > here else 0
        now_s = asyncio.get_running_loop().time()
        if self._drifted >= DRIFT_TICKS and now_s - self._read_at >= DRIFT_GAP_S:
            self._drifted = 0
            self._stale = True
            self._notify()

    async def _show(self, snapshot: PoolSnapshot) -> None:
        now_s = snapshot.now_ms / 1000.0
        view = self._as_it_counts(snapshot.pool_view(now_s))
        await self._preview.show(
            self.scheduler, view, now_s, snapshot.service_ms, self.policy, parked=len(self._parked)
        )

    def _sample(self, snapshot: PoolSnapshot) -> None:
        if self._sampling is not None and not self._sampling.done():
            return  # the thread is busy: a dashboard may miss a second
        sample = self._sampler.sample(
            replace(snapshot, standings=self.standings), self._pool, self.policy, chain(self.scheduler, self._parked),
            self.monitor.statuses(), parts_of(self.scheduler, snapshot.now_ms / 1000.0), self._skew.seconds,
            self.bucket_audit.gaps, self._ledger.behind_since_s,
        )  # fmt: skip
        self._sampling = asyncio.get_running_loop().run_in_executor(self._thread, self._telemetry.sample, sample)
        self._sampling.add_done_callback(self._sampled)

    def _sampled(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            log.error("pool %s: a sample could not be taken: %r", self._pool.id, done.exception())
