"""The dispatch service of one process: its own thread and event loop, one dispatcher per pool of the catalog.

It needs Redis, the catalog's loader and the ports of :mod:`scheduling.dispatch.ports`, all handed in by the shell, and
nothing of Django or Celery. Redis or the database being away at start or later only delays it: no restart is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from scheduling.catalog import CatalogCache
from scheduling.core.capacity.kv_overcommit import MAX_OVERCOMMIT
from scheduling.core.policies.registry import modifiers, orderings, routings
from scheduling.core.types import Catalog
from scheduling.dispatch.installation import Installation
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.dispatch.ports import EpochFloor, TelemetryPort
from scheduling.dispatch.redis_policy import EvictionWatch
from scheduling.dispatch.replicas.watched import EngineFactory
from scheduling.dispatch.resources import Resources
from scheduling.state.resp import RespConnection
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import CATALOG_CHANNEL, RESIGNED_CHANNEL, leader_channel

log = logging.getLogger("quartermaster.dispatch")

RESTART_S = 1.0
STOP_S = 10.0
ROLL_CALL_S = 2.0


@dataclass(frozen=True, slots=True)
class DispatchSetup:
    """What the shell hands in. ``load_catalog``, ``catalog_version`` and ``epochs`` may block; they run in threads."""

    redis_url: str
    load_catalog: Callable[[], Catalog]
    catalog_version: Callable[[], int]
    telemetry: TelemetryPort
    epochs: EpochFloor
    name: str = ""  # for people: which worker this is
    engine: Callable[[httpx.AsyncClient], EngineFactory] | None = None  # None: by the pool's kind of engine
    kv_overcommit: float = MAX_OVERCOMMIT  # times a KV cache that may be reserved at most
    prefill_preemption: bool = True  # the prefill of long prompts may be interrupted
    installation: tuple[str, ...] = ()  # marks of this installation's processes, this one's first; empty: not compared
    alive: Path | None = None  # touched as long as the loop runs, for a health check


class DispatchService:
    """Start it and stop it once; the work happens in a daemon thread of its own."""

    def __init__(self, setup: DispatchSetup) -> None:
        self._setup = setup
        self.holder = f"{setup.name or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}".replace(" ", "_")
        self.dispatchers: dict[str, PoolDispatcher] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resources: Resources | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns at once. RuntimeError when it was started before."""
        if self._thread is not None:
            raise RuntimeError("DispatchService was already started")
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)
        self._thread.start()

    def begin_stop(self) -> None:
        """Gives all leaderships back and begins to end; returns at once. Also from a signal handler."""
        self._stopping.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(stop.set)

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """As :meth:`begin_stop`, and waits; False when it did not end in time. May be called twice."""
        self.begin_stop()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def leading(self) -> dict[str, int]:
        """Pools led now, with their epochs. For tests and status pages on the service's own loop."""
        return {name: dispatcher.epoch for name, dispatcher in self.dispatchers.items() if dispatcher.epoch}

    async def serve(self) -> None:
        """The service itself, on the running loop, until stopped or cancelled."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stopping.is_set():
            return
        setup = self._setup
        telemetry_thread = ThreadPoolExecutor(1, thread_name_prefix="dispatch-telemetry")
        database = ThreadPoolExecutor(4, thread_name_prefix="dispatch-db")
        resp = RespConnection(setup.redis_url, name="dispatch")
        catalog = CatalogCache(setup.load_catalog, setup.catalog_version)
        bell = Subscriber(
            setup.redis_url,
            [CATALOG_CHANNEL, RESIGNED_CHANNEL, leader_channel(self.holder)],
            self._heard(catalog),
            name="dispatch-bell",
            on_ready=catalog.notify,
        )
        installation = Installation(resp, setup.installation)
        roll_call: asyncio.Task[None] | None = None
        claims: asyncio.Task[None] | None = None
        evictions: asyncio.Task[None] | None = None
        try:
            await resp.start()
            await installation.look()
            claims = asyncio.create_task(installation.run(), name="dispatch-installation")
            evictions = asyncio.create_task(EvictionWatch(resp).run(), name="dispatch-evictions")
            for registered in (orderings, routings, modifiers):
                registered()  # imports them: the first term of a process that has followed begins at once
            self._resources = Resources(
                setup.redis_url, resp, self.holder, setup.telemetry, telemetry_thread, setup.epochs, database,
                setup.engine, setup.kv_overcommit, setup.prefill_preemption, lambda: installation.ours,
            )  # fmt: skip
            catalog.on_change(self._catalog_changed)
            await catalog.start()
            await bell.start()
            roll_call = asyncio.create_task(self._call_roll(catalog, telemetry_thread), name="dispatch-roll-call")
            await self._stop.wait()
        finally:
            for task in (roll_call, claims, evictions):
                if task is not None:
                    task.cancel()
            # First of all: who follows need not wait until the rest has ended.
            await asyncio.gather(*(d.resign() for d in self.dispatchers.values()), return_exceptions=True)
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()
            self.dispatchers.clear()
            await bell.close()
            await catalog.close()
            await resp.close()
            telemetry_thread.shutdown(wait=False, cancel_futures=True)
            database.shutdown(wait=False, cancel_futures=True)

    def _heard(self, catalog: CatalogCache) -> Callable[[str, bytes], None]:
        def heard(channel: str, payload: bytes) -> None:
            if channel == CATALOG_CHANNEL:
                catalog.notify()
            elif (
                channel == RESIGNED_CHANNEL
                and (dispatcher := self.dispatchers.get(payload.decode(errors="replace"))) is not None
            ):
                dispatcher.given_back()

        return heard

    def _catalog_changed(self, catalog: Catalog) -> None:
        assert self._resources is not None
        for name in [name for name in self._tasks if name not in catalog.pools]:
            log.info("pool %s: no longer in the catalog", name)
            self._tasks.pop(name).cancel()
            del self.dispatchers[name]
        for name in catalog.pools:
            if name in self.dispatchers:
                try:
                    self.dispatchers[name].update(catalog)
                except Exception:  # one pool's trouble must not keep the catalog from the others
                    log.exception("pool %s: a new catalog could not be taken", name)
                continue
            dispatcher = self.dispatchers[name] = PoolDispatcher(self._resources, name, catalog)
            self._tasks[name] = asyncio.get_running_loop().create_task(dispatcher.run(), name=f"dispatch-{name}")

    async def _call_roll(self, catalog: CatalogCache, telemetry_thread: Executor) -> None:
        """Tells telemetry which pools there are, again and again: a leader may die with the pool it led."""
        loop = asyncio.get_running_loop()
        while True:
            if self._setup.alive is not None:
                with contextlib.suppress(OSError):  # a full disk is no reason to be restarted more often
                    self._setup.alive.touch()
            await asyncio.sleep(ROLL_CALL_S)
            if not catalog.loaded:  # no pool is known is not the same as no pool
                continue
            try:
                names = frozenset(catalog.current.pools)
                await loop.run_in_executor(telemetry_thread, self._setup.telemetry.pools, names)
            except Exception:
                log.exception("telemetry did not take the list of pools")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with asyncio.Runner(loop_factory=_fast_loop()) as runner:
                    runner.run(self.serve())
            except Exception:
                log.exception("the dispatch service failed and is started again")
                self._stopping.wait(RESTART_S)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
