"""Redis killed, frozen and slow under load, seen from clients and from the gateway's process (promises 20 and 21).

Streams run, new requests come at a steady rate, a real leader grants; the gateway is a process of its own. Slow is
Redis to both. (A gateway that alone is cut off for longer than its leases loses what it runs, as one that died does.)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest

from scheduling.core.types import BackendSpec
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import catalog_of, dispatching, until, until_await
from tests.support.gateway_process import gateway_process, held
from tests.support.gateway_world import World, gateway_world
from tests.support.percentiles import summary
from tests.support.redis_server import RedisServer
from tests.support.slow_link import SlowLink

STREAMS, PER_S = 20, 20.0
TOKEN_S = 0.1
LINES = 12  # of an outage and its end: each connection to Redis says both, once more where it comes back slowly
SLOW_S = 2.0  # of each answer of Redis


@dataclass
class Seen:
    """What clients saw: when a request was sent, how long its answer took, and what it was."""

    answers: list[tuple[float, float, str]] = field(default_factory=list)
    streams: Counter[str] = field(default_factory=Counter)

    def took_s(self, what: str, since_s: float, until_s: float) -> list[float]:
        return [took for at, took, kind in self.answers if kind == what and since_s <= at < until_s]


class Clients:
    """Streams that run through, and new requests at a steady rate until they are stopped."""

    def __init__(self, session: aiohttp.ClientSession, world: World, port: int) -> None:
        self.seen = Seen()
        self._session = session
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._headers = {"authorization": f"Bearer {world.key}"}
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving: asyncio.Task[None] | None = None

    async def _ask(self, tokens: int, stream: bool) -> tuple[int, str]:
        body = {"model": "demo", "prompt": "x", "max_tokens": tokens, "stream": stream}
        async with self._session.post(self._url, json=body, headers=self._headers) as answer:
            text = await answer.text()
            if stream:
                return answer.status, "whole" if text.endswith("data: [DONE]\n\n") else text[-200:]
            return answer.status, json.loads(text)["error"]["code"] if answer.status != 200 else ""

    async def _one(self) -> None:
        at = time.monotonic()
        status, why = await self._ask(1, False)
        self.seen.answers.append((at, time.monotonic() - at, f"{status} {why}".strip()))

    async def _stream(self, tokens: int) -> None:
        self.seen.streams[(await self._ask(tokens, True))[1]] += 1

    def _spawn(self, work: asyncio.Task[None]) -> None:
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    def stream(self, tokens: int) -> None:
        self._spawn(asyncio.create_task(self._stream(tokens)))

    async def _arrive(self) -> None:
        while True:
            self._spawn(asyncio.create_task(self._one()))
            await asyncio.sleep(1 / PER_S)

    def arrive(self) -> None:
        self._arriving = asyncio.create_task(self._arrive())

    async def stop(self) -> None:
        assert self._arriving is not None
        self._arriving.cancel()
        await asyncio.gather(*list(self._tasks))


@asynccontextmanager
async def served(url: str, link: SlowLink, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(url, pool_id, lead=False, config=GatewayConfig()) as world:
        world.engines[0].script.pause_s = TOKEN_S
        backend = BackendSpec(f"{pool_id}-b0", pool_id, world.engines[0].url, 64, 1_000_000)
        await world.configure(pool={"backends": (backend,)})
        async with dispatching(link.redis_url, catalog_of(world.pool, world.entitlement), over_http=True):

            async def ready() -> bool:
                return any(b.ready for b in (await world.store.view()).backends.values())

            await until_await(ready, 60)
            yield world


async def outage(
    server: RedisServer, pool_id: str, log: Path, how: str, for_s: float, figure: Callable[[str], None]
) -> None:
    link = SlowLink(server.port)
    await link.start()
    config = replace(GatewayConfig(), renew_every_s=1.0)
    async with (
        served(server.url, link, pool_id) as world,
        gateway_process(world, config, redis_url=link.redis_url, log=log) as (process, port),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        clients = Clients(session, world, port)
        seen = clients.seen
        for _ in range(STREAMS):
            clients.stream(round((for_s + 4) / TOKEN_S))
        clients.arrive()
        await until(lambda: world.engines[0].open >= STREAMS, timeout_s=60)
        await until(lambda: sum(kind == "200" for _, _, kind in seen.answers) >= 20, timeout_s=60)
        before = await held(process)
        lines = len(log.read_bytes().splitlines())

        began = time.monotonic()
        if how == "killed":
            server.kill()
        elif how == "frozen":
            server.freeze()
        else:
            link.delay_s = SLOW_S
        during = before
        while time.monotonic() < began + for_s:
            await asyncio.sleep(0.25)
            now = await held(process)
            during = max(during[0], now[0]), max(during[1], now[1])
        ended = time.monotonic()
        if how == "killed":
            server.start()
        elif how == "frozen":
            server.thaw()
        else:
            link.delay_s = 0.0
        await until(lambda: bool(seen.took_s("200", ended, float("inf"))), timeout_s=60)
        back_s = min(at + took for at, took, kind in seen.answers if kind == "200" and at >= ended) - ended
        await until(lambda: sum(seen.streams.values()) == STREAMS, timeout_s=60 + for_s)
        await clients.stop()
        await asyncio.sleep(0.5)
        written = log.read_text().splitlines()[lines:]
    await link.stop()

    refused = seen.took_s("503 state_unavailable", began, ended)
    known = seen.took_s("503 state_unavailable", began + 1.5, ended)
    meanwhile = sum(at + took < ended for at, took, kind in seen.answers if kind == "503 state_unavailable")
    kinds = Counter(kind for at, _, kind in seen.answers if began <= at < ended)
    print(f"\n{dict(kinds)}; 503 from 1.5 s on after {summary(known)}; streams {dict(seen.streams)}")
    figure(
        f"{how} for {for_s:g} s: 503 after {summary(refused)}, served again after {back_s:.1f} s, "
        f"{seen.streams['whole']} of {STREAMS} streams whole, tasks {before[0]} to {during[0]}, threads {before[1]} to "
        f"{during[1]}, {len(written)} lines"
    )
    assert seen.streams == {"whole": STREAMS}
    assert meanwhile, "who was refused had waited for Redis"
    assert kinds["503 state_unavailable"] >= 0.8 * sum(kinds.values())
    # each request that is just being refused is a task or two: what piles up would be many more
    assert during[0] <= 2 * before[0] + PER_S
    assert during[1] <= 2 * before[1]
    assert 1 <= len(written) <= LINES, "\n".join(written)


@pytest.mark.parametrize("how", [pytest.param("frozen", marks=pytest.mark.slow), "slow"])
async def test_under_load_new_requests_are_refused_at_once_running_streams_finish_and_nothing_piles_up(
    pool_id: str, tmp_path: Path, how: str, figure: Callable[[str], None]
) -> None:
    server = RedisServer(appendonly=True)
    server.start()
    try:
        await outage(server, pool_id, tmp_path / "log", how, 3.0, figure)
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["killed", "frozen", "slow"])
async def test_a_minute_without_redis_under_load(
    pool_id: str, tmp_path: Path, how: str, figure: Callable[[str], None]
) -> None:
    server = RedisServer(appendonly=True)
    server.start()
    try:
        await outage(server, pool_id, tmp_path / "log", how, 60.0, figure)
    finally:
        server.stop()
