"""Which replicas may get work, for the pool's leader: by the catalog, by what a :class:`Watcher` sees of them, and by
what gateways report. :class:`Offers` tells shared state.

A replica is *probing* until it has generated one token, then *ready*; it is *ejected* when it does not answer or does
not move, and comes back only after a real generation. A *draining* one keeps its leases and gets no new ones. One that
is *asleep* (vLLM's sleep mode) is woken when requests wait. After a loss of state or a failed write the once-a-second
:meth:`BackendMonitor.reconcile` puts shared state right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from scheduling.core.capacity.kv_overcommit import KvUse
from scheduling.core.capacity.prefill_credit import Prompts
from scheduling.core.types import BackendSpec, PoolSpec, PoolView
from scheduling.dispatch.ports import BackendStatus
from scheduling.dispatch.replicas.adapters import AdapterHomes, Candidate
from scheduling.dispatch.replicas.offers import Offers
from scheduling.dispatch.replicas.outliers import worse
from scheduling.dispatch.replicas.phases import Phases
from scheduling.dispatch.replicas.sleeping import PoolSleep
from scheduling.dispatch.replicas.status import status_of
from scheduling.dispatch.replicas.step_logs import follow_steps
from scheduling.dispatch.replicas.watched import (
    WAKE_S,
    EngineFactory,
    LeaseCounts,
    WatchedBackend,
    address,
    engine_use,
    limits_of,
    resumes,
    serves,
    wanted_credit,
)
from scheduling.dispatch.replicas.watcher import SCRAPE_S, Watcher
from scheduling.engines.kinds import kind_of
from scheduling.state.store import PoolStore
from scheduling.state.types import MAX_PAUSE_S, Attempts, PoolSnapshot, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")


class BackendMonitor:
    """Watches the replicas of one pool for one term of leadership."""

    def __init__(
        self,
        store: PoolStore,
        epoch: int,
        engine: EngineFactory,
        group: asyncio.TaskGroup,
        on_ready: Callable[[], None],
        *,
        scrape_s: float = SCRAPE_S,
        prefill_preemption: bool = True,
    ) -> None:
        """Tasks run in ``group``, so that :class:`Fenced` ends the term. ``on_ready`` is called when room appears.
        ``prefill_preemption``: the prefill of long prompts may be interrupted."""
        self._engine = engine
        self._group = group
        self._on_ready = on_ready
        self._prefill_preemption = prefill_preemption
        self._backends: dict[str, WatchedBackend] = {}
        self.phases = Phases(self._backends)
        self._leases = LeaseCounts()
        self._adapters_of: tuple[object, ...] = ((), False)
        self._prompts = Prompts()
        self.offers = Offers(store, epoch, self._backends, self.phases, self._leases, on_ready)
        self.sleep = PoolSleep(store, epoch, self._backends, self.phases, self._begin, self.change)
        self.adapters = AdapterHomes(store, epoch, self._begin, lambda: asyncio.get_running_loop().time(), on_ready)
        self.watcher = Watcher(self._leases, self.offers, self.adapters, self._begin, self.change, scrape_s)

    def update(
        self,
        pool: PoolSpec,
        inherited: set[str] | None = None,
        credits: Mapping[str, int] | None = None,
        parts: Mapping[str, float] | None = None,
    ) -> None:
        """Follows the catalog: new replicas are probed, gone ones dropped, moved ones probed again.

        ``inherited`` names replicas that a former leader had found ready: they stay so until they fail, and go on with
        the prefill ``credits`` and the ``parts`` of the pool's KV overcommit that they had (not known: 1).
        """
        specs, kind = {spec.id: spec for spec in pool.backends}, kind_of(pool.engine)
        self.sleep.configure(pool)
        if inherited:
            self.adapters.inherit(inherited & specs.keys())
        configured = (pool.adapters, pool.load_adapters and kind.loads_adapters)
        if configured != self._adapters_of:
            self._adapters_of = configured
            self.adapters.configure(pool, kind)
            for backend in self._backends.values():
                backend.nudge.set()
        for name in [name for name in self._backends if name not in specs]:
            self._drop(name)
        self.offers.configure(pool)
        for name, spec in specs.items():
            former = self._backends.get(name)
            if former is not None and address(former.spec, former.kind) != address(spec, kind):
                self._drop(name)
                former = None
            if former is None:
                backend = self._found(spec, pool)
                if inherited is not None and name in inherited:
                    backend.state, backend.why = "ready", "ready under the previous leader"
                    backend.credit.inherit((credits or {}).get(name, 0))
                    backend.kv_room.pressure.inherit((parts or {}).get(name, 1.0))
                backend.task = self._begin(self.watcher.follow(backend), f"health-{pool.id}-{name}")
                if kind.logs_steps:
                    backend.reading = self._begin(follow_steps(backend), f"steps-{pool.id}-{name}")
                continue
            if former.spec != spec or former.model != pool.upstream_model:
                former.facts = None
                former.spec, former.control, former.model = spec, self._engine(spec, pool), pool.upstream_model
                former.outlier.back_from_s = 0.0  # it may be well now
                former.nudge.set()
            former.longest, former.wanted_credit = pool.max_model_len, wanted_credit(pool, kind)

    def _found(self, spec: BackendSpec, pool: PoolSpec) -> WatchedBackend:
        """A replica that is new here."""
        kind = kind_of(pool.engine)
        backend = self._backends[spec.id] = WatchedBackend(
            spec,
            kind,
            self._engine(spec, pool),
            model=pool.upstream_model,
            prefill_preemption=self._prefill_preemption,
        )
        backend.credit.prompts = self._prompts
        backend.longest, backend.wanted_credit = pool.max_model_len, wanted_credit(pool, kind)
        backend.wake_s = pool.wakes_in_s or WAKE_S
        return backend

    def _drop(self, name: str) -> None:
        gone = self._backends.pop(name)
        self.adapters.forget(name)
        for task in (gone.task, gone.asking, gone.reading):
            if task is not None:
                task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._group.create_task(work, name=name)

    # --- what decisions say, and what they ask

    def decided(self, view: PoolView, waits: bool, prompts: Iterable[int], turnaround_s: float = 0.0) -> None:
        """After a decision that granted all it could. ``view``: the pool with its grants; ``waits``: whether a request
        is left that could run somewhere; ``prompts``: the lengths of the granted prompts [tokens]; ``turnaround_s``:
        from a first token to the prompt that follows from it."""
        self._prompts.add(prompts)
        for name, backend in self._backends.items():
            seen = view.backends.get(name)
            backend.limited = waits and seen is not None and backend.credit.binds(seen)
            backend.credit.turnaround_s = turnaround_s
        self.phases.limited(view, waits)

    def lost(self, name: str, tokens: int, *, taken_back: bool = False) -> None:
        """A prompt of ``tokens`` left a replica before its end: its client left, or it was ``taken_back``. The engine
        does not count what it computed of it."""
        if (backend := self._backends.get(name)) is not None:
            backend.credit.lost(tokens)
            backend.speed.taken_back() if taken_back else backend.speed.lost(tokens)

    def idle(self) -> None:
        """Nobody waits, or nothing is decided about yet."""
        for backend in self._backends.values():
            backend.limited = False

    def overcommit(
        self,
        use: KvUse,
        running: Mapping[str, tuple[int, int]],
        most: float,
        reserved: Mapping[str, int] | None = None,
        tbt_s: float | None = None,
    ) -> None:
        """Sets how much may be reserved of each replica's KV cache. ``running``: by entitlement, how many requests run
        and the KV tokens that they reserve; ``reserved``: the same by replica; ``tbt_s``: the strictest time between
        tokens that is promised to one of them."""
        expected, now_s = use.expected(running), asyncio.get_running_loop().time()
        for name, backend in self._backends.items():
            found = engine_use(backend, (reserved or {}).get(name, 0))
            backend.kv_room.look(now_s, found, expected, tbt_s, most)

    def mask(self, view: PoolView) -> None:
        """Takes replicas out of a decision's view that this monitor would not use, and adds how fast the others are."""
        for name, seen in view.backends.items():
            backend = self._backends.get(name)
            seen.adapters = self.adapters.of(name)
            if backend is not None:
                seen.prefill_per_s = backend.prefill_per_s
                seen.resumes = resumes(backend)
            if backend is None or backend.doubted or not self.phases.answers(backend):
                seen.ready = False

    def want(self, adapters: Iterable[str]) -> None:
        """Requests wait for these adapters."""
        self.adapters.want(adapters, self._candidates())

    def hopeless(self, adapters: Iterable[str]) -> set[str]:
        """Which of these nobody should wait for any longer."""
        return self.adapters.hopeless(adapters, self._candidates())

    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(name, b.control, self._leases.of.get(name, 0), limits_of(b)[0].slots)
            for name, b in self._backends.items()
            if serves(b)
        ]

    # --- what gateways report

    def suspect(self, name: str, why: str) -> None:
        """A gateway reports a failure: the replica is probed at once, and gets no grants until the answer is in."""
        backend = self._backends.get(name)
        if backend is None or backend.state != "ready":
            return
        log.info("backend %s: suspected by a gateway (%s)", name, why)
        backend.watch.suspected()
        backend.doubted = True
        backend.nudge.set()

    def pause(self, name: str, pause_s: float, why: str, *, refused: bool) -> None:
        """A gateway paused the replica. If it failed requests, it is probed; one that admits nothing (``refused``)
        would refuse the probe as well, and may only be busy."""
        backend = self._backends.get(name)
        if backend is None or backend.state != "ready":
            return
        if pause_s > 0:
            log.info("backend %s: paused for %.1f s by a gateway (%s)", name, pause_s, why)
            now_s = asyncio.get_running_loop().time()
            backend.outlier.pause(min(pause_s, MAX_PAUSE_S), self._leases.of.get(name, 0), why, now_s)
        if not refused:
            backend.outlier.failed(why)  # also where it was not paused: it is the last one that serves
            backend.ask = True
            backend.nudge.set()

    def report(self, attempts: Mapping[str, Attempts]) -> None:
        """Takes one gateway's attempts: a replica that fails what others serve is ejected, unless it is the last one
        that serves."""
        now_s = asyncio.get_running_loop().time()
        told = {name: self._backends[name] for name in attempts if name in self._backends}
        whys = {name: backend.outlier.report(attempts[name], now_s) for name, backend in told.items()}
        for name, backend in told.items():
            others = (b.outlier for b in self._backends.values() if b is not backend)
            why = whys[name] or worse(backend.outlier, others, now_s)
            if why:
                self._group.create_task(self._eject_outlier(backend, why), name=f"eject-{name}")

    async def _eject_outlier(self, backend: WatchedBackend, why: str) -> None:
        if not serves(backend) or self.phases.alone(backend):  # of several that one report names, one stays
            return
        backend.outlier.ejected(asyncio.get_running_loop().time())
        backend.watch.why = why
        await self.change(backend, "ejected", why)

    # --- what is said of it

    def statuses(self) -> list[BackendStatus]:
        """All replicas as they are seen now, by name."""
        now_s = asyncio.get_running_loop().time()
        comes = not self.sleep.serves and self.sleep.added_in_s(now_s) > 0
        return [status_of(b, self.phases, self.adapters, comes, now_s) for _, b in sorted(self._backends.items())]

    async def reconcile(self, snapshot: PoolSnapshot) -> None:
        """Corrects shared state where it differs from what this monitor knows, and reads the lease counts."""
        self._leases.of = {name: totals.running for name, totals in snapshot.backends.items()}
        if self.offers.has_prefill:
            await self.offers.prefill()
        self._leases.read_s = asyncio.get_running_loop().time()
        await self.offers.cached(snapshot)
        self.phases.compare()
        self.sleep.told_ms = snapshot.waking_ms
        await self.sleep.tell_waking()
        await self.offers.withdraw(snapshot)
        if self.adapters:
            await self.adapters.publish(again=True)
        await self.offers.correct(snapshot)

    async def change(self, backend: WatchedBackend, state: str, why: str) -> None:
        """Sets a replica's state, and tells shared state."""
        name = backend.spec.id
        log.log(logging.WARNING if state == "ejected" else logging.INFO, "backend %s: %s, %s", name, state, why)
        backend.state, backend.why, backend.doubted, backend.ask = state, why, False, False
        if state != "ready":
            self.adapters.forget(name)
        try:
            if state == "asleep":
                await self.sleep.tell_waking()  # before it is out of what is ready: nobody is refused in between
            await self.offers.changed(backend)
        except StateUnavailable:
            return  # reconcile writes it when Redis is back
        if state == "asleep":
            self._on_ready()  # requests may wait already
        if serves(backend):
            self._on_ready()
