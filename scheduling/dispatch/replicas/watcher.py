"""Looks at a pool's replicas, one task each: reads a replica's figures once a second and probes it when in doubt.

One that does not answer or does not move (:mod:`scheduling.dispatch.replicas.progress`) is ejected, and comes back only
after a real generation. What its figures say is learned here as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from scheduling.core.capacity.prefill_credit import Counters
from scheduling.dispatch.replicas.adapters import AdapterHomes
from scheduling.dispatch.replicas.offers import Offers
from scheduling.dispatch.replicas.progress import HealthStep, ProgressWatch
from scheduling.dispatch.replicas.watched import (
    WHY_CHARS,
    LeaseCounts,
    WatchedBackend,
    limits_of,
    patience_s,
    return_patience_s,
)
from scheduling.engines.client import EngineError, EngineMetrics

log = logging.getLogger("quartermaster.dispatch")

SCRAPE_S = 1.0
ASK_EVERY_S = 3.0  # so often at most a generation is asked because gateways say that requests fail
MOVED_S = 3.0  # tokens that gateways saw so long ago are progress
ASK_AGAIN_S = 10.0  # for its limits, where an engine did not answer
LEASES_FRESH_S = 3.0  # older lease counts say nothing; the engine's own are used


class Watcher:
    """Follows the replicas of one pool for one term of leadership."""

    def __init__(
        self,
        leases: LeaseCounts,
        offers: Offers,
        adapters: AdapterHomes,
        begin: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        change: Callable[[WatchedBackend, str, str], Awaitable[None]],
        scrape_s: float = SCRAPE_S,
    ) -> None:
        """``leases``: the monitor's own. ``begin`` starts a task of this term, ``change`` sets a replica's state."""
        self._leases = leases
        self._offers = offers
        self._adapters = adapters
        self._begin = begin
        self._change = change
        self._scrape_s = scrape_s

    async def follow(self, backend: WatchedBackend) -> None:
        """Until it is cancelled."""
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
            backend.token_time.forget()
        if backend.facts is None and backend.asking is None and backend.state == "ready":
            backend.asking = self._begin(self._ask(backend, engines), f"ask-{backend.spec.id}")
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
                await self._offers.longest()
            if why := limits_of(backend)[1]:
                log.warning("backend %s: %s", backend.spec.id, why)

    def _learn(self, backend: WatchedBackend, metrics: EngineMetrics, leases: int, now_s: float) -> None:
        """Learns from the engine's counters how many sequences it runs at once and how full its steps are."""
        if limits_of(backend)[0].prefill_tokens and (backend.facts is None or backend.facts.slots is None):
            backend.learned.seen(metrics.running, metrics.waiting, leases, now_s, metrics.kv_usage)
        backend.foreign.append(max(0, metrics.running + metrics.waiting - leases))
        backend.token_time.seen(now_s, metrics.between_tokens_s, metrics.between_tokens)
        prompts, outputs = metrics.prompt_tokens, metrics.generation_tokens
        if prompts is None or outputs is None:
            return
        self._offers.caches.count(backend.spec.id, metrics.cached_tokens, prompts)
        ours = max(0, min(metrics.waiting, leases - metrics.running))
        counted = Counters(now_s, metrics.steps_of_each, prompts - metrics.cached_tokens, outputs, ours)
        backend.credit.seen(counted, backend.limited, backend.prefill_per_s)
        backend.speed.seen(counted, backend.limited, backend.credit.budget)

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
            fresh = now_s - self._leases.read_s <= LEASES_FRESH_S
            if metrics is not None and metrics.asleep:
                await self._change(backend, "asleep", "its engine was put to sleep")
                return
            verdict = self._seen(backend, metrics, now_s, fresh)
            await self._adapters.look(backend.spec.id, backend.control)
            backend.doubted = False
            if metrics is not None:
                await self._offers.prefilled(backend, metrics, now_s)
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
        leases = self._leases.of.get(backend.spec.id, 0) if fresh else None
        if metrics is None:
            backend.kv_room.pressure.seen(now_s, None, None)
            return backend.watch.answered(leases or 0, backend.outlier.moved(now_s, MOVED_S), now_s)
        backend.kv_room.pressure.seen(now_s, metrics.kv_usage, metrics.preemptions)
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
            await self._adapters.look(backend.spec.id, backend.control)
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
