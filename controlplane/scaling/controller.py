"""Makes it so: engines are ordered, registered, drained and ended, one pool's turn at a time in a thread of its own.

Ownership: the catalog says which backends a pool has; the driver says which engines there are. A turn brings both to
the planner's target. It can be repeated, and a new leader goes on where the last one stopped: what is leaving is
marked in the catalog.

A replica leaves in three steps, so that no request is lost: it is marked (draining: the leader takes it out of
``ready``, after which neither admission nor grants can choose it), it empties, and only then is it ended. Empty means:
not ready, no lease and, as far as the engine says, nothing running, at every look for a while; or a limit has passed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.db.models import F

from controlplane.scaling.drivers import Driver, DriverError, Order, Replica, make_driver
from controlplane.scaling.planner_loop import Turn, finish
from scheduling.core.capacity.planner import one_replica
from scheduling.core.types import PoolSpec
from scheduling.dispatch.ports import Sample
from telemetry.models import ScalingDecision
from tenants import ownership, services
from tenants.audit import Actor
from tenants.connections import own_connection
from tenants.models import Backend, Pool
from tenants.rows import pool_spec

log = logging.getLogger(__name__)

ACTOR = Actor("scaling", "system")
EMPTY_FOR_S = 4.0  # a lease that was lost with Redis is announced again within this time (docs/internals/state.md)
LOOK_EVERY_S = 3.0  # at what the driver has, while nothing is to be done


class Controller:
    """Takes turns from the telemetry thread and works them off. Start it once; it lives as long as the process."""

    def __init__(
        self, make: Callable[[PoolSpec], Driver] = make_driver, clock: Callable[[], float] = time.time
    ) -> None:
        self._make = make
        self._clock = clock
        self._turns: dict[str, Turn] = {}  # the newest per pool, not begun
        self._lock = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._empty_since: dict[str, float] = {}  # leaving backend -> when it was first seen empty
        self._looked: dict[str, float] = {}  # pool -> when the driver was last asked
        self._failing: dict[str, str] = {}  # pool -> what failed last

    def __call__(self, turn: Turn) -> None:
        """Takes a turn over. A turn with a target is never replaced by one without."""
        pool = turn.sample.pool.id
        with self._lock:
            waiting = self._turns.get(pool)
            if turn.target is None and waiting is not None and waiting.target is not None:
                turn = Turn(turn.sample, waiting.target, waiting.decision)
            self._turns[pool] = turn
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scaling", daemon=True)
                self._thread.start()
        self._wake.put(None)

    def _work(self) -> None:
        while True:
            self._wake.get()
            with self._lock:
                if not self._turns:
                    continue
                pool = next(iter(self._turns))
                turn = self._turns.pop(pool)
            self.turn(turn)

    def turn(self, turn: Turn) -> None:
        """Works one turn off. Never raises; what fails is the decision's outcome, and logged once."""
        pool = turn.sample.pool.id
        try:
            self._turn(turn)
        except (DriverError, DatabaseError, ValidationError) as error:
            words = str(error) if isinstance(error, DriverError) else type(error).__name__
            if self._failing.get(pool) != words:
                log.warning("pool %s: scaling: %s", pool, words)
            self._failing[pool] = words
            self._failed(turn, words)
        except Exception:
            log.exception("pool %s: scaling failed", pool)
            self._failed(turn, "an internal error; it is in the worker's log")
        else:
            self._failing.pop(pool, None)

    @own_connection
    def _failed(self, turn: Turn, words: str) -> None:
        if turn.decision:
            finish(turn.decision, "failed", words)

    @own_connection
    def _turn(self, turn: Turn) -> None:
        row = Pool.objects.prefetch_related("backends").filter(slug=turn.sample.pool.id).first()
        if row is None:
            return
        leaving = [b for b in row.backends.all() if b.leaving_since is not None]
        for backend in row.backends.all():
            if backend.leaving_since is None:  # called back: when it leaves again, it is watched anew
                self._empty_since.pop(backend.slug, None)
        due = turn.target is not None or bool(leaving)
        now_s = self._clock()
        if not due and now_s - self._looked.get(row.slug, 0.0) < LOOK_EVERY_S:
            return
        self._looked[row.slug] = now_s
        driver = self._make(pool_spec(row))
        self._register(row, driver)
        if turn.target is not None:
            self._reach(row, driver, turn)
            self._register(row, driver)
        else:
            self._end(row, driver, turn.sample)

    # --- the steps of a turn

    def _register(self, pool: Pool, driver: Driver) -> None:
        """The catalog has the engines that the driver has, as far as it can tell."""
        there = None if ownership.are_listed_by_cluster(pool) else driver.replicas()
        if there is None:
            return
        spec = pool_spec(pool)
        size = one_replica(spec.scaling, spec.backends)
        urls = {replica.name: replica.url for replica in there}
        for backend in _managed(pool):
            if urls.get(backend.slug) == backend.url:
                del urls[backend.slug]
                continue
            log.info("pool %s: %s is gone, its backend goes too", pool.slug, backend.slug)
            services.delete(actor=ACTOR, instance=backend)
        for name, url in urls.items():
            backend = Backend(
                slug=name,
                pool=pool,
                url=url,
                slots=int(size.slots) or 1,
                kv_tokens=int(size.kv_tokens) or 1,
                managed=True,
                description="Made by the scaling driver.",
            )
            log.info("pool %s: %s is there", pool.slug, name)
            services.save(actor=ACTOR, instance=backend)

    def _reach(self, pool: Pool, driver: Driver, turn: Turn) -> None:
        assert turn.target is not None
        staying = list(Backend.objects.filter(pool=pool, leaving_since=None, draining=False))
        managed = [b for b in staying if b.managed]
        by_hand = len(staying) - len(managed)
        missing = turn.target - len(staying)
        if missing > 0:
            leaving = pool.backends.filter(managed=True, leaving_since__isnull=False).order_by("-leaving_since")
            for backend in leaving[:missing]:  # cheaper than a new one: it is warm
                services.drain_backend(actor=ACTOR, backend=backend, draining=False)
                missing -= 1
        if missing > 0:
            why = _reason(pk=turn.decision)
            driver.grow(Order(f"scale-{turn.decision}", turn.target - by_hand, why=why))
        elif missing < 0:
            running = {name: b.running for name, b in turn.sample.view.backends.items()}
            managed.sort(key=lambda b: (running.get(b.slug, 0), b.created_at, b.pk))
            if (order := driver.in_turn([b.slug for b in managed])) is not None:
                managed.sort(key=lambda b: order.index(b.slug))
            if not managed:
                raise DriverError("all backends were made by hand, and only a person ends those")
            for backend in managed[:-missing]:
                services.retire_backend(actor=ACTOR, backend=backend)

    def _end(self, pool: Pool, driver: Driver, sample: Sample) -> None:
        """Ends what has drained."""
        leaving = list(pool.backends.filter(managed=True, leaving_since__isnull=False))
        done = []
        for backend in leaving:
            assert backend.leaving_since is not None
            waited_s = sample.at_s - backend.leaving_since.timestamp()
            if not _empty(backend.slug, sample):
                self._empty_since.pop(backend.slug, None)
            elif sample.at_s - self._empty_since.setdefault(backend.slug, sample.at_s) >= EMPTY_FOR_S:
                done.append(backend)
                continue
            if waited_s > pool.drain_limit_s:
                log.warning("pool %s: %s did not drain in %.0f s and is ended", pool.slug, backend.slug, waited_s)
                done.append(backend)
        order = driver.in_turn([b.slug for b in _managed(pool)])
        if order is not None:  # who empties out of turn waits: another one would be ended for it
            ended = list(takewhile({b.slug for b in done}.__contains__, order))
            done = [b for b in done if b.slug in ended]
        if done:
            left = pool.backends.filter(managed=True).count() - len(done)
            gone = tuple(Replica(b.slug, b.url) for b in done)
            why = _reason(pool=pool.slug, applied=True, to_replicas__lt=F("from_replicas"))
            driver.shrink(Order(f"end-{done[0].slug}-{done[0].leaving_since:%Y%m%d%H%M%S}", left, gone, why))
            for backend in done:
                log.info("pool %s: %s has drained and is ended", pool.slug, backend.slug)
                services.delete(actor=ACTOR, instance=backend)
                self._empty_since.pop(backend.slug, None)
        if len(done) == len(leaving):
            self._shrunk(pool.slug)

    def _shrunk(self, pool: str) -> None:
        for decision in ScalingDecision.objects.filter(pool=pool, outcome="running"):
            if decision.to_replicas < decision.from_replicas:
                finish(decision.pk, "done", "")


def _reason(**which: Any) -> str:
    """Why the newest of these decisions was taken."""
    return ScalingDecision.objects.filter(**which).values_list("reason", flat=True).first() or ""


def _managed(pool: Pool) -> list[Backend]:
    return list(Backend.objects.filter(pool=pool, managed=True))


def _empty(name: str, sample: Sample) -> bool:
    """Whether nothing runs on a replica and nothing new can come, as of a sample of the leader."""
    if not any(b.id == name and b.draining for b in sample.pool.backends):
        return False  # the leader does not know yet that it leaves
    seen = sample.view.backends.get(name)
    if seen is not None and (seen.ready or seen.running):
        return False
    return not any(status.engine_running for status in sample.backends if status.id == name)
