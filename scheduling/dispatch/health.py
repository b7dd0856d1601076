"""Which replicas may get work: one watcher per replica, run by the pool's leader.

A replica is *probing* until it has generated one token, then *ready*; it is *ejected* when it does not answer or does
not move (:mod:`scheduling.dispatch.progress`), and comes back only after a real generation. A *draining* one keeps its
leases and gets no new ones. One that is *asleep* (vLLM's sleep mode) is woken when requests wait. What is ready is
written into shared state under the leader's epoch; after a loss of state or a failed write the once-a-second
:meth:`BackendMonitor.reconcile` puts it right.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from scheduling.core.kv_overcommit import KvUse
from scheduling.core.prefill_credit import Counters, Prompts
from scheduling.core.routing import uncounted_s
from scheduling.core.types import Phase, PoolSpec, PoolView
from scheduling.dispatch.adapters import AdapterHomes, Candidate
from scheduling.dispatch.backend_status import status_of
from scheduling.dispatch.outliers import worse
from scheduling.dispatch.phases import Phases
from scheduling.dispatch.ports import BackendStatus
from scheduling.dispatch.progress import HealthStep, ProgressWatch
from scheduling.dispatch.prompt_caches import PromptCaches
from scheduling.dispatch.sleeping import PoolSleep
from scheduling.dispatch.step_logs import follow_steps
from scheduling.dispatch.watched import (
    WAKE_S,
    WHY_CHARS,
    EngineFactory,
    WatchedBackend,
    address,
    limits_of,
    patience_s,
    prefills,
    resumes,
    return_patience_s,
    serves,
    wanted_credit,
)
from scheduling.engines.client import EngineError, EngineMetrics
from scheduling.engines.kinds import kind_of
from scheduling.state.store import PoolStore
from scheduling.state.types import Attempts, PoolSnapshot, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

SCRAPE_S = 1.0
ASK_EVERY_S = 3.0  # so often at most a generation is asked because gateways say that requests fail
MAX_PAUSE_S = 30.0
MOVED_S = 3.0  # tokens that gateways saw so long ago are progress
ON_ITS_WAY_S = 0.05  # what was granted so long before a look may not have been in the engine
ASK_AGAIN_S = 10.0  # for its limits, where an engine did not answer
LEASES_FRESH_S = 3.0  # older lease counts say nothing; the engine's own are used


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
        self._store = store
        self._epoch = epoch
        self._engine = engine
        self._group = group
        self._on_ready = on_ready
        self._scrape_s = scrape_s
        self._prefill_preemption = prefill_preemption
        self._backends: dict[str, WatchedBackend] = {}
        self.phases = Phases(self._backends)
        self._leases: dict[str, int] = {}
        self._leases_at = float("-inf")
        self._said_prefill = False  # in shared state: that prefill replicas are ready
        self._adapters_of: tuple[object, ...] = ((), False)
        self._prompts = Prompts()
        self._caches = PromptCaches()
        self._uncounted_s = 0.0  # of what is expected to be cached [seconds of prefill]
        self.sleep = PoolSleep(store, epoch, self._backends, self.phases, self._begin, self._change)
        self.adapters = AdapterHomes(
            store,
            epoch,
            self._begin,
            lambda: asyncio.get_running_loop().time(),
            on_ready,
        )

    def update(
        self, pool: PoolSpec, inherited: set[str] | None = None, credits: Mapping[str, int] | None = None
    ) -> None:
        """Follows the catalog: new replicas are probed, gone ones dropped, moved ones probed again.

        ``inherited`` names replicas that a former leader had found ready: they stay so until they fail, and go on with
        the prefill ``credits`` that they had.
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
        self._caches.keep_only(specs)
        self._uncounted_s = uncounted_s(pool.routing, pool.routing_params)
        for name, spec in specs.items():
            former = self._backends.get(name)
            if former is not None and address(former.spec, former.kind) != address(spec, kind):
                self._drop(name)
                former = None
            if former is None:
                backend = self._backends[name] = WatchedBackend(
                    spec,
                    kind,
                    self._engine(spec, pool),
                    model=pool.upstream_model,
                    prefill_preemption=self._prefill_preemption,
                )
                backend.credit.prompts = self._prompts
                backend.longest, backend.wanted_credit = pool.max_model_len, wanted_credit(pool, kind)
                backend.wake_s = pool.wakes_in_s or WAKE_S
                if inherited is not None and name in inherited:
                    backend.state, backend.why = "ready", "ready under the previous leader"
                    backend.credit.inherit((credits or {}).get(name, 0))
                    backend.pressure.inherit()
                backend.task = self._group.create_task(self._follow(backend), name=f"health-{pool.id}-{name}")
                if kind.logs_steps:
                    backend.reading = self._group.create_task(follow_steps(backend), name=f"steps-{pool.id}-{name}")
            elif former.spec != spec or former.model != pool.upstream_model:
                former.facts = None
                former.spec, former.control, former.model = spec, self._engine(spec, pool), pool.upstream_model
                former.outlier.back_from_s = 0.0  # it may be well now
                former.nudge.set()
            if former is not None:
                former.longest, former.wanted_credit = pool.max_model_len, wanted_credit(pool, kind)

    def decided(self, view: PoolView, waits: bool, prompts: Iterable[int]) -> None:
        """After a decision that granted all it could. ``view``: the pool with its grants; ``waits``: whether a request
        is left that could run somewhere; ``prompts``: the lengths of the granted prompts [tokens]."""
        self._prompts.add(prompts)
        for name, backend in self._backends.items():
            seen = view.backends.get(name)
            backend.limited = waits and seen is not None and backend.credit.binds(seen)
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

    def overcommit(self, use: KvUse, running: Mapping[str, tuple[int, int]], most: float) -> None:
        """Sets how much may be reserved of each replica's KV cache. ``running``: by entitlement, how many requests run
        and the KV tokens that they reserve."""
        expected = use.expected(running)
        for backend in self._backends.values():
            backend.overcommit = expected.overcommit(limits_of(backend)[0].kv_tokens, most)

    def statuses(self) -> list[BackendStatus]:
        """All replicas as they are seen now, by name."""
        now_s = asyncio.get_running_loop().time()
        comes = not self.sleep.serves and self.sleep.added_in_s(now_s) > 0
        return [status_of(b, self.phases, self.adapters, comes, now_s) for _, b in sorted(self._backends.items())]

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
            backend.outlier.pause(min(pause_s, MAX_PAUSE_S), self._leases.get(name, 0), why, now_s)
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
        await self._change(backend, "ejected", why)

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

    async def reconcile(self, snapshot: PoolSnapshot) -> None:
        """Corrects shared state where it differs from what this monitor knows, and reads the lease counts."""
        self._leases = {name: totals.running for name, totals in snapshot.backends.items()}
        if self.phases.apart or self._said_prefill:
            await self._tell_prefill()
        self._leases_at = asyncio.get_running_loop().time()
        await self._tell_cached(snapshot)
        self.sleep.told_ms = snapshot.waking_ms
        await self.sleep.tell_waking()
        for name, totals in snapshot.backends.items():
            backend = self._backends.get(name)
            if totals.ready and (backend is None or not self.phases.answers(backend)):
                ejected = backend is not None and backend.state == "ejected"
                await self._store.set_ready(self._epoch, name, None, ejected=ejected)
        if self.adapters:
            await self.adapters.publish(again=True)
        for name, backend in list(self._backends.items()):
            shared = snapshot.backends.get(name)
            offered: tuple[int, ...] | None = None
            if shared and shared.ready:
                offered = (shared.slots, shared.kv_tokens, shared.prefill_credit, shared.longest, shared.speed)
            offer = self.phases.offer(backend)
            wanted = (offer.slots, offer.kv_tokens, offer.prefill_tokens, offer.longest, offer.speed)
            if self.phases.answers(backend) and (offered != wanted or backend.told_resumes != offer.resumes):
                backend.told_resumes = offer.resumes
                await self._store.set_ready(self._epoch, name, offer)
                self._on_ready()

    async def _tell_cached(self, snapshot: PoolSnapshot) -> None:
        """Tells shared state how far to trust what it expects to be cached on each replica, where the routing uses
        that. Nothing is known where prefill replicas compute the prompts, since the expectation is of the decode
        replicas."""
        for name, shared in snapshot.backends.items():
            backend = self._backends.get(name)
            if backend is None or not shared.ready:
                continue
            self._caches.look(name, shared.expected_tokens, shared.prompt_tokens)
            wanted = (-1, 0)
            if self._uncounted_s and not self.phases.apart:
                wanted = self._caches.bound(name, self._uncounted_s * backend.prefill_per_s)
            if wanted != (shared.cache_trust, shared.uncounted_most):
                await self._store.set_cached(self._epoch, name, *wanted)

    async def _tell_prefill(self) -> None:
        """Tells shared state which prefill replicas are ready; their leases are the prompts that they compute."""
        slots = self.phases.slots()
        legs = await self._store.set_prefill(self._epoch, slots)
        self._said_prefill = bool(slots)
        self._leases |= {b.spec.id: legs.get(b.spec.id, 0) for b in self._backends.values() if prefills(b)}

    async def _offer_decode(self) -> None:
        """What decode replicas are offered with follows the prefill replicas."""
        for name, backend in list(self._backends.items()):
            if backend.spec.phase is Phase.DECODE and serves(backend):
                offer = self.phases.offer(backend) if self.phases.answers(backend) else None
                await self._store.set_ready(self._epoch, name, offer)
        self._on_ready()

    async def _offer_longest(self) -> None:
        """A context became known: those with a shorter one draw what they would refuse until that is written."""
        for name, backend in list(self._backends.items()):
            offer = self.phases.offer(backend)
            if offer.longest and self.phases.answers(backend):
                with suppress(StateUnavailable):  # reconcile writes it when Redis is back
                    await self._store.set_ready(self._epoch, name, offer)

    def _drop(self, name: str) -> None:
        gone = self._backends.pop(name)
        self.adapters.forget(name)
        for task in (gone.task, gone.asking, gone.reading):
            if task is not None:
                task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._group.create_task(work, name=name)

    def want(self, adapters: Iterable[str]) -> None:
        """Requests wait for these adapters."""
        self.adapters.want(adapters, self._candidates())

    def hopeless(self, adapters: Iterable[str]) -> set[str]:
        """Which of these nobody should wait for any longer."""
        return self.adapters.hopeless(adapters, self._candidates())

    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(name, b.control, self._leases.get(name, 0), limits_of(b)[0].slots)
            for name, b in self._backends.items()
            if serves(b)
        ]

    async def _follow(self, backend: WatchedBackend) -> None:
        while True:
            if backend.state == "ready":
                await self._check(backend)
            else:
                await self._try_back(backend)
            try:
                async with asyncio.timeout(self._scrape_s):
                    await backend.nudge.wait()
            except TimeoutError:
                pass
            backend.nudge.clear()

    async def _scrape(self, backend: WatchedBackend) -> EngineMetrics | None:
        metrics = await backend.control.scrape()
        backend.metrics, backend.observed_s = metrics, time.time()
        engines = 1 if metrics is None else metrics.engines
        if metrics and backend.replaced(metrics):
            backend.facts = None  # another process stands there
            backend.learned.forget()
        if backend.facts is None and backend.asking is None and backend.state == "ready":
            backend.asking = self._group.create_task(self._ask(backend, engines), name=f"ask-{backend.spec.id}")
        return metrics

    async def _ask(self, backend: WatchedBackend, engines: int) -> None:
        """Asks an engine for its limits, once for each of its starts, since the answer may take long."""
        try:
            backend.facts = await backend.control.facts(engines)
        except EngineError as error:
            log.info("backend %s did not say its limits: %s", backend.spec.id, error)
            await asyncio.sleep(ASK_AGAIN_S)
        finally:
            backend.asking = None
        if backend.facts is not None:
            backend.credit.set_budget(backend.facts.step_tokens)
            if backend.context != (context := backend.facts.max_model_len):
                backend.context = context
                await self._offer_longest()
            if why := limits_of(backend)[1]:
                log.warning("backend %s: %s", backend.spec.id, why)

    def _learn(self, backend: WatchedBackend, metrics: EngineMetrics, leases: int, now_s: float) -> None:
        """Learns from the engine's counters how many sequences it runs at once and how full its steps are."""
        if limits_of(backend)[0].prefill_tokens and (backend.facts is None or backend.facts.slots is None):
            backend.learned.seen(metrics.running, metrics.waiting, leases, now_s, metrics.kv_usage)
        self._caches.count(backend.spec.id, metrics.cached_tokens, metrics.prompt_tokens)
        computed = metrics.prompt_tokens - metrics.cached_tokens
        backend.foreign.append(max(0, metrics.running + metrics.waiting - leases))
        ours = max(0, min(metrics.waiting, leases - metrics.running))
        counted = Counters(now_s, metrics.steps_of_each, computed, metrics.generation_tokens, ours)
        backend.credit.seen(counted, backend.limited)
        backend.speed.seen(counted, backend.limited, backend.credit.budget)

    async def _tell_prefilled(self, backend: WatchedBackend, metrics: EngineMetrics, asked_s: float) -> None:
        """Returns the prefill credit of whole answers, whose first token nobody sees: those that do not wait in the
        engine have been prefilled."""
        if not serves(backend) or not limits_of(backend)[0].prefill_tokens or not self._leases.get(backend.spec.id, 1):
            return
        if backend.spec.phase is not Phase.BOTH:
            return  # gateways see the end of each prompt
        age_s = asyncio.get_running_loop().time() - asked_s + ON_ITS_WAY_S
        try:
            hurry = backend.credit.hurry
            await self._store.prefilled(self._epoch, backend.spec.id, metrics.waiting, age_s, hurry=hurry)
        except StateUnavailable:
            return  # the next look says it again

    async def _check(self, backend: WatchedBackend) -> None:
        now_s, asked = asyncio.get_running_loop().time(), False
        try:
            metrics = await self._scrape(backend)
        except EngineError as error:
            verdict = backend.watch.failed(str(error))
            if verdict is HealthStep.PROBE:
                backend.metrics = None  # not known, rather than old
            unread = str(error)[:WHY_CHARS]
        else:
            unread = backend.unread = ""
            fresh = now_s - self._leases_at <= LEASES_FRESH_S
            if metrics is not None and metrics.asleep:
                await self._change(backend, "asleep", "its engine was put to sleep")
                return
            verdict = self._seen(backend, metrics, now_s, fresh)
            await self.adapters.look(backend.spec.id, backend.control)
            backend.doubted = False
            if metrics is not None:
                await self._tell_prefilled(backend, metrics, now_s)
        if verdict is HealthStep.KEEP and backend.ask and now_s - backend.asked_s >= ASK_EVERY_S:
            backend.watch.why = backend.outlier.doubt
            verdict, asked = HealthStep.PROBE, True
        if verdict is HealthStep.PROBE and not asked and backend.outlier.moved(now_s, MOVED_S):
            backend.watch.alive()
            backend.doubted, backend.unread = False, unread
            verdict = HealthStep.KEEP
        if verdict is HealthStep.PROBE:
            backend.ask, backend.asked_s = False, now_s
            probe = await backend.control.probe(patience_s(backend))
            if probe or self._answers_others(backend, now_s):
                backend.watch.alive()
                backend.doubted, backend.unread = False, unread
            else:
                if asked:
                    backend.outlier.ejected(now_s)
                backend.watch.why += f"; a probe failed: {probe.why}"
                verdict = HealthStep.EJECT
        if verdict is HealthStep.EJECT and backend.state == "ready":
            await self._change(backend, "ejected", backend.watch.why)

    def _seen(self, backend: WatchedBackend, metrics: EngineMetrics | None, asked_s: float, fresh: bool) -> HealthStep:
        """Feeds an engine's counters, asked for at ``asked_s``, to the watches. ``fresh``: whether the lease counts are
        recent."""
        now_s = asyncio.get_running_loop().time()
        leases = self._leases.get(backend.spec.id, 0) if fresh else None
        if metrics is None:
            backend.pressure.seen(now_s, None, 0.0)
            return backend.watch.answered(leases or 0, backend.outlier.moved(now_s, MOVED_S), now_s)
        backend.pressure.seen(now_s, metrics.kv_usage, metrics.preemptions)
        if leases is None:
            return backend.watch.seen(metrics, metrics.running, now_s)
        step = backend.watch.seen(metrics, leases, now_s)
        self._learn(backend, metrics, leases, asked_s)
        return step

    def _answers_others(self, backend: WatchedBackend, since_s: float) -> bool:
        """Whether gateways saw tokens of a replica while it was probed and gave none. Where an engine knows no
        priority, a probe waits behind the other requests."""
        now_s = asyncio.get_running_loop().time()
        return not backend.kind.takes_priority and backend.outlier.moved(now_s, now_s - since_s)

    async def _try_back(self, backend: WatchedBackend) -> None:
        if asyncio.get_running_loop().time() < backend.outlier.back_from_s:
            return
        if backend.dozing or (backend.kind.sleeps and await self._sleeps_on(backend)):
            return
        first = backend.state == "probing"
        probe = await backend.control.probe(return_patience_s(first))
        if probe:
            backend.watch = ProgressWatch()
            backend.outlier.returned(asyncio.get_running_loop().time())
            backend.refused_wake = False
            if backend.woken_s is not None:
                backend.wake_s, backend.woken_s = max(1.0, asyncio.get_running_loop().time() - backend.woken_s), None
            await self.adapters.look(backend.spec.id, backend.control)
            await self._change(backend, "ready", probe.why)
            await self._check(backend)
            return
        backend.facts = None
        backend.why = probe.why if first else f"{backend.watch.why}; not back yet: {probe.why}"
        backend.metrics = None

    async def _sleeps_on(self, backend: WatchedBackend) -> bool:
        """Whether the engine reports that it is asleep: a probe would wait until it is woken."""
        try:
            metrics = await backend.control.scrape()
        except EngineError:
            return False
        if metrics is None or not metrics.asleep:
            return False
        backend.metrics, backend.observed_s = metrics, time.time()
        if backend.state != "asleep":
            await self._change(backend, "asleep", "its engine is asleep")
        return True

    async def _change(self, backend: WatchedBackend, state: str, why: str) -> None:
        name = backend.spec.id
        log.log(logging.WARNING if state == "ejected" else logging.INFO, "backend %s: %s, %s", name, state, why)
        backend.state, backend.why, backend.doubted, backend.ask = state, why, False, False
        if state != "ready":
            self.adapters.forget(name)
        try:
            if state == "asleep":
                await self.sleep.tell_waking()  # before it is out of what is ready: nobody is refused in between
            spec = self.phases.offer(backend) if self.phases.answers(backend) else None
            await self._store.set_ready(self._epoch, name, spec, ejected=state == "ejected")
            if prefills(backend):
                await self._tell_prefill()
                await self._offer_decode()
        except StateUnavailable:
            return  # reconcile writes it when Redis is back
        if state == "asleep":
            self._on_ready()  # requests may wait already
        if serves(backend):
            self._on_ready()
