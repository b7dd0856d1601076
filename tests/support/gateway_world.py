"""A gateway under test: served by uvicorn in this loop, with a real Redis, scripted engines and a terse leader."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from controlplane.web.connections import ConnectionLimits
from controlplane.web.protocol import protocol
from scheduling.catalog import CatalogCache
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import (
    BackendSpec,
    Catalog,
    EntitlementSpec,
    EntitlementState,
    KeySpec,
    OverLimit,
    PoolSpec,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.gateway.answers.stored import ResponseStore
from scheduling.gateway.app import GatewayApp
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.ports import Routes
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import Fenced, GrantItem, StateUnavailable
from tests.support.fake_engine import FakeEngine
from tests.support.state_world import leads_on

if TYPE_CHECKING:
    import openai

TIER = TierSpec(
    "premium", ServiceClass.GUARANTEED, 0, 50.0, Slo(ttft_s=5.0, tbt_s=1.0), over_limit=OverLimit.REFUSE,
    queue_limit=100, max_wait_s=30.0,
)  # fmt: skip
_ids = itertools.count(1)


class SeenMetrics:
    """What the gateway told its metrics."""

    def __init__(self) -> None:
        self.records: list[LedgerRecord] = []
        self.rejections: list[tuple[str, int]] = []
        self.gauges: dict[str, float | None] = {}
        self.usage_rejections: list[str] = []  # replicas
        self.storm_refusals: list[str] = []  # reasons
        self.answer_rejections: list[tuple[str, str]] = []  # replica, cause
        self.preemptions: list[str] = []  # replicas

    def usage_rejected(self, pool: str, backend: str) -> None:
        self.usage_rejections.append(backend)

    def prefill_preempted(self, pool: str, backend: str) -> None:
        self.preemptions.append(backend)

    def answer_rejected(self, pool: str, backend: str, cause: str) -> None:
        self.answer_rejections.append((backend, cause))

    def ended(self, record: LedgerRecord) -> None:
        self.records.append(record)

    def rejected(self, reason: str, status: int) -> None:
        self.rejections.append((reason, status))

    def storm_refused(self, pool: str, tenant: str, reason: str) -> None:
        self.storm_refusals.append(reason)

    def state_available(self, available: bool) -> None:
        self.gauges["state_available"] = float(available)

    def gauge(self, name: str, value: float | None) -> None:
        self.gauges[name] = value


def make_key(number: int, entitlement: str) -> tuple[str, KeySpec]:
    key_id, secret = f"key{number:09d}", f"secret-{number}" * 4
    return f"qm-{key_id}.{secret}", KeySpec(key_id, hashlib.sha256(secret.encode()).digest(), entitlement)


class World:
    """Everything around one gateway. Change ``catalog`` through ``configure``."""

    def __init__(self, redis_url: str, pool_id: str, engines: list[FakeEngine], config: GatewayConfig) -> None:
        self.redis_url = redis_url
        self.engines = engines
        self.config = config
        self.metrics = SeenMetrics()
        self.pool = PoolSpec(
            pool_id,
            "demo",
            "fake-upstream",
            tuple(BackendSpec(f"{pool_id}-b{i}", pool_id, e.url, 64, 1_000_000) for i, e in enumerate(engines)),
            aliases=("default",),
        )
        self.entitlement = EntitlementSpec(
            f"{pool_id}-ent", "acme", pool_id, TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 256
        )
        self.key, self.key_spec = make_key(next(_ids), self.entitlement.id)
        self.catalog = self._catalog(1)
        self.loads = 0
        self.database_down = False
        self.resp = RespConnection(redis_url, name="test-leader")
        self.store = PoolStore(self.resp, pool_id)
        self.epoch = 0
        self.granting = True
        self.app: GatewayApp
        self.server: Server
        self.port = 0

    def _catalog(self, version: int) -> Catalog:
        return Catalog(
            version,
            {self.pool.id: self.pool},
            {self.entitlement.id: self.entitlement},
            {self.key_spec.id: self.key_spec},
        )

    async def configure(self, *, pool: dict[str, Any] | None = None, **entitlement: Any) -> None:
        """Changes the pool and the entitlement, and waits until the gateway knows."""
        self.pool = replace(self.pool, **(pool or {}))
        self.entitlement = replace(self.entitlement, **entitlement)
        self.catalog = self._catalog(self.catalog.version + 1)
        await self.app._catalog.refreshed(10)

    def load(self) -> Catalog:
        self.loads += 1
        return self.catalog

    def version(self) -> int:
        if self.database_down:
            raise OSError("no database")
        return self.catalog.version

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sdk(self, **kwargs: Any) -> openai.AsyncOpenAI:
        import openai  # half a second; most tests speak HTTP themselves

        options: dict[str, Any] = {"api_key": self.key, "max_retries": 0, "base_url": self.base + "/v1", "timeout": 60}
        return openai.AsyncOpenAI(**(options | kwargs))

    def http(self, **kwargs: Any) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.key}"}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.base, headers=headers, timeout=60, limits=limits, **kwargs)

    # --- the leader

    async def lead(self) -> None:
        """Becomes leader, makes all replicas ready, and from then on grants whatever waits."""
        election = await self.store.elect("test-leader", 0, True)
        assert election.leader
        await leads_on(self.store)
        self.epoch = election.epoch
        for backend in self.pool.backends:
            await self.store.set_ready(self.epoch, backend.id, backend)

    async def _grant_loop(self) -> None:
        resumed_s = 0.0
        while True:
            await asyncio.sleep(0.02)
            if not self.granting or not self.epoch:
                continue
            try:
                _, queue = await self.store.load_queue()
                if queue and time.monotonic() - resumed_s >= 1.0:
                    resumed_s = time.monotonic()
                    await self._resume()
                for request in queue[:100]:
                    for backend in self.pool.backends:
                        if backend.id == request.exclude_backend:
                            continue
                        item = GrantItem(request.id, request.attempt, backend.id, request.concurrency, "fifo@1", "test")
                        if (await self.store.grant(self.epoch, [item]))[0].value == "ok":
                            break
            except (StateUnavailable, Fenced):
                continue

    async def _resume(self) -> None:
        """A second is long enough for what a gateway paused."""
        seen = (await self.store.view()).backends
        for backend in self.pool.backends:
            if backend.id in seen and seen[backend.id].ready and not seen[backend.id].slots:
                await self.store.set_ready(self.epoch, backend.id, backend)

    # --- what it looks like afterwards

    async def running(self) -> tuple[int, int]:
        view = await _answered(self.store.view)
        return view.running, view.waiting

    async def ledger(self) -> list[LedgerRecord]:
        return [e.record for e in await _answered(lambda: self.store.ledger_read(100_000)) if e.record is not None]

    async def ledger_of(self, count: int) -> list[LedgerRecord]:
        """The ledger, once it has ``count`` entries."""
        async with asyncio.timeout(20):
            while len(records := await self.ledger()) < count:
                await asyncio.sleep(0.02)
        assert len(records) == count
        return records

    async def settled(self) -> None:
        """Nothing is open anywhere: gateway, engines, shared state."""
        async with asyncio.timeout(60):
            while self.app.open_requests or any(e.open for e in self.engines) or await self.running() != (0, 0):
                await asyncio.sleep(0.01)


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What Redis says, once this test's own connection has found it again after an outage."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except StateUnavailable:
                await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


class Server(uvicorn.Server):
    """Ends at once. uvicorn's looks every tenth of a second whether it should, and once more whether its connections
    have gone: 0.2 s of each of 700 tests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaves = asyncio.Event()

    def leave(self) -> None:
        self.should_exit = True
        self._leaves.set()

    async def main_loop(self) -> None:
        tenths = 0
        while not await self.on_tick(tenths):
            tenths += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaves.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            await until(lambda: not self.server_state.connections and not self.server_state.tasks, 0.1)
            for server in self.servers:
                await server.wait_closed()
            return
        await super().shutdown(sockets)  # which has patience with them, and cancels what is left


@asynccontextmanager
async def gateway_world(
    redis_url: str,
    pool_id: str,
    *,
    engines: int = 1,
    lead: bool = True,
    config: GatewayConfig | None = None,
    connections: ConnectionLimits | None = None,
    routes: Collection[Routes] = (),
    responses: ResponseStore | None = None,
) -> AsyncIterator[World]:
    connections = connections or ConnectionLimits(10_000, 0)
    fakes = [FakeEngine() for _ in range(engines)]
    for fake in fakes:
        await fake.start()
    world = World(redis_url, pool_id, fakes, config or GatewayConfig())
    await world.resp.start()
    if lead:
        await world.lead()
    granting = asyncio.create_task(world._grant_loop())
    world.app = GatewayApp(
        world.config, CatalogCache(world.load, world.version), redis_url, world.metrics, connections, routes, responses
    )
    server = Server(
        uvicorn.Config(
            world.app,
            port=0,
            http=protocol(world.config.max_header_bytes, world.config.header_timeout_s, connections),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    )
    world.server = server
    await world.app.start()
    serving = asyncio.create_task(server._serve())
    try:
        await until(lambda: server.started)
        world.port = server.servers[0].sockets[0].getsockname()[1]
        yield world
    finally:
        granting.cancel()
        await asyncio.gather(granting, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # what was answered is still being written down
            await until(lambda: not world.app.open_requests, 0.05)
        world.app.config = replace(world.app.config, drain_s=0)
        await world.app.drain()
        server.leave()
        await serving
        await world.app.stop()
        await world.resp.close()
        for fake in fakes:
            await fake.stop()
