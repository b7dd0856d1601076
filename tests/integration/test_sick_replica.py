"""One replica, or all but one, fails every request at once: a real gateway and a real leader serve around it.

A replica that fails fast has the least outstanding work, so whoever grants by that sends everything there. 300 requests
each time at a sixth of what three replicas could do; 2 in 100 may fail while one replica is healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.types import BackendSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import catalog_of, dispatching, until
from tests.support.fake_engine import FakeEngine, Script
from tests.support.gateway_world import World, gateway_world, make_key

REQUESTS, WORKERS, SLOTS = 300, 8, 16
MAX_FAILED = REQUESTS * 2 // 100
HTML = b"<html><body>It works!</body></html>"


def page(_name: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b" % (len(HTML), HTML)


def redirect(_name: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/login\r\ncontent-length: 0\r\n\r\n"


SICK: dict[str, Script] = {
    "401": Script(status=401),
    "404": Script(status=404),
    "429": Script(status=429),
    "503": Script(status=503),
    "302": Script(raw=redirect),
    "html": Script(raw=page),
    "reset": Script(refuse=True),
    "slow 500": Script(status=500, first_pause_s=0.5),
}


@asynccontextmanager
async def three(
    redis_url: str, pool_id: str, well: Script, contexts: tuple[int | None, ...] = (None,) * 3
) -> AsyncIterator[tuple[World, PoolDispatcher]]:
    """Three ready replicas behind one gateway and one leader."""
    async with gateway_world(redis_url, pool_id, engines=3, lead=False, config=GatewayConfig()) as world:
        for engine, context in zip(world.engines, contexts, strict=True):
            engine.script, engine.context = replace(well), context
        backends = tuple(
            BackendSpec(f"{pool_id}-b{i}", pool_id, e.url, SLOTS, 1_000_000) for i, e in enumerate(world.engines)
        )
        await world.configure(pool={"backends": backends})
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True) as dispatcher:
            await until(lambda: states(dispatcher) == ["ready"] * 3)
            yield world, dispatcher


def states(dispatcher: PoolDispatcher) -> list[str]:
    return [s.state for s in dispatcher.term.monitor.statuses()] if dispatcher.term is not None else []


def why(dispatcher: PoolDispatcher, number: int) -> str:
    assert dispatcher.term is not None
    return dispatcher.term.monitor.statuses()[number].why


async def answers(
    world: World, count: int = REQUESTS, *, tokens: int = 4, whole_of: int = 2, prompt: str | list[int] = "x"
) -> list[str]:
    """How so many requests ended: "200", or status and reason. One of ``whole_of`` is a whole answer, the others are
    streams."""
    left, ended = list(range(count)), []
    async with world.http() as client:

        async def work() -> None:
            while left:
                number = left.pop()
                body: dict[str, Any] = {
                    "model": "demo",
                    "prompt": prompt,
                    "max_tokens": tokens,
                    "stream": number % whole_of > 0,
                }
                answer = await client.post("/v1/completions", json=body)
                good = answer.status_code == 200 and (not body["stream"] or "[DONE]" in answer.text)
                told = answer.headers.get("x-quartermaster-reason", "stream")
                ended.append("200" if good else f"{answer.status_code} {told}")

        await asyncio.gather(*(work() for _ in range(WORKERS)))
    return ended


def failed(ended: list[str]) -> dict[str, int]:
    return {kind: ended.count(kind) for kind in sorted(set(ended)) if kind != "200"}


def of(ended: dict[str, int]) -> str:
    return f" ({', '.join(f'{n} x {kind}' for kind, n in ended.items())})" if ended else ""


async def infect(engine: FakeEngine, script: Script) -> None:
    engine.script = replace(script, statuses=[])


USUAL = {(1, "404"), (1, "429"), (1, "html"), (2, "503")}  # in every run; the others take minutes


@pytest.mark.parametrize(
    ("sick", "kind"),
    [
        pytest.param(sick, kind, marks=() if (sick, kind) in USUAL else pytest.mark.slow)
        for sick in (1, 2)
        for kind in SICK
    ],
)
async def test_what_one_replica_fails_the_others_serve(
    redis_url: str, pool_id: str, kind: str, sick: int, figure: Callable[[str], None]
) -> None:
    async with three(redis_url, pool_id, Script(pause_s=0.02)) as (world, dispatcher):
        await answers(world, 20)
        for engine in world.engines[:sick]:
            await infect(engine, SICK[kind])
        ended = failed(await answers(world))
        figure(f"{kind} by {sick} of 3: {sum(ended.values())} of {REQUESTS} failed{of(ended)}")
        assert sum(ended.values()) <= MAX_FAILED, ended
        assert states(dispatcher)[2] == "ready"
        if kind not in ("429", "503"):
            assert set(states(dispatcher)[:sick]) == {"ejected"}, [why(dispatcher, n) for n in range(sick)]
            assert kind not in ("401", "404", "302") or f"answers {kind}" in why(dispatcher, 0)


async def test_a_replica_that_cuts_its_streams_halfway_is_ejected_although_each_of_them_began(
    redis_url: str, pool_id: str, figure: Callable[[str], None]
) -> None:
    """What was cut after its first token is lost to its client, and nothing else runs there: no probe is cut."""
    async with three(redis_url, pool_id, Script(pause_s=0.02)) as (world, dispatcher):
        await answers(world, 20)
        world.engines[0].script.cut_after, world.engines[0].script.whole_cut = 2, False
        work, seen = asyncio.create_task(answers(world, whole_of=3)), set[tuple[str, ...]]()
        while not work.done():
            seen.add(tuple(states(dispatcher)))
            await asyncio.sleep(0.05)
        ended = failed(await work)
        figure(f"streams cut by 1 of 3: {sum(ended.values())} of {REQUESTS} failed{of(ended)}")
        assert seen >= {("ejected", "ready", "ready")}
        assert not seen - {("ejected", "ready", "ready"), ("ready", "ready", "ready")}, "nobody else"


async def test_a_replica_that_cuts_every_third_stream_is_ejected_where_others_cut_none(
    redis_url: str, pool_id: str, figure: Callable[[str], None]
) -> None:
    """Less than half: only the others show that it is not the requests."""
    async with three(redis_url, pool_id, Script(pause_s=0.02)) as (world, dispatcher):
        sick, begun = world.engines[0], 0

        def next_is_cut(_body: dict[str, Any], begins: bool) -> None:
            nonlocal begun
            begun += begins
            sick.script = replace(sick.script, cut_after=2 if begun % 3 == 0 else None, whole_cut=False)

        await answers(world, 20)
        sick.watch = next_is_cut
        work, seen = asyncio.create_task(answers(world, whole_of=REQUESTS)), set[tuple[str, ...]]()
        while not work.done():
            seen.add(tuple(states(dispatcher)))
            await asyncio.sleep(0.05)
        ended = failed(await work)
        figure(f"every third stream cut by 1 of 3: {sum(ended.values())} of {REQUESTS} failed{of(ended)}")
        assert seen == {("ejected", "ready", "ready"), ("ready", "ready", "ready")}


async def test_a_replica_that_answers_without_content_what_others_answer_is_ejected(
    redis_url: str, pool_id: str, figure: Callable[[str], None]
) -> None:
    """It is done at once, so it draws nearly everything, and nobody says that anything failed."""
    async with three(redis_url, pool_id, Script(pause_s=0.02)) as (world, dispatcher):
        await answers(world, 20)
        before = len(world.engines[0].bodies)
        world.engines[0].script = Script(pause_s=0.005, word="")
        work, seen = asyncio.create_task(answers(world, 4 * REQUESTS)), set[tuple[str, ...]]()
        while not work.done():
            seen.add(tuple(states(dispatcher)))
            await asyncio.sleep(0.05)
        assert failed(await work) == {}
        figure(f"{len(world.engines[0].bodies) - before} of {4 * REQUESTS} answers without content, by 1 of 3")
        assert seen == {("ejected", "ready", "ready"), ("ready", "ready", "ready")}


async def test_where_all_replicas_answer_without_content_none_is_ejected(redis_url: str, pool_id: str) -> None:
    async with three(redis_url, pool_id, Script(pause_s=0.01, word="")) as (world, dispatcher):
        work, seen = asyncio.create_task(answers(world, 2 * REQUESTS)), set[tuple[str, ...]]()
        while not work.done():
            seen.add(tuple(states(dispatcher)))
            await asyncio.sleep(0.05)
        assert failed(await work) == {}
        assert seen == {("ready",) * 3}


async def test_a_replica_that_refuses_what_others_serve_is_ejected_and_one_that_refuses_as_they_do_is_not(
    redis_url: str, pool_id: str, figure: Callable[[str], None]
) -> None:
    """400 says that the client is wrong. An engine that was started otherwise than the others says so to everybody, at
    once, and would draw most requests."""
    async with three(redis_url, pool_id, Script(pause_s=0.02)) as (world, dispatcher):
        await answers(world, 20)
        sent = sum(len(engine.bodies) for engine in world.engines)
        for engine in world.engines:
            engine.script.status = 400
        assert failed(await answers(world, 50)) == {"400 invalid_request": 50}
        tried = sum(len(engine.bodies) for engine in world.engines) - sent
        assert tried <= 3 * 50, "each on a connection of its own as well, and few of them elsewhere"
        assert states(dispatcher) == ["ready"] * 3
        for engine in world.engines[1:]:
            engine.script.status = 200
        many = 2 * REQUESTS  # refusals are quick: the gateway reports once a second
        work, seen = asyncio.create_task(answers(world, many)), set[tuple[str, ...]]()
        while not work.done():
            seen.add(tuple(states(dispatcher)))
            await asyncio.sleep(0.05)
        ended = failed(await work)
        figure(f"400 by 1 of 3: {sum(ended.values())} of {many} failed{of(ended)}")
        assert seen <= {("ejected", "ready", "ready"), ("ready", "ready", "ready")}
        assert ("ejected", "ready", "ready") in seen
        assert "refuses inputs that another replica serves" in why(dispatcher, 0)


async def test_a_replica_with_a_shorter_context_draws_no_requests_that_it_would_refuse(
    redis_url: str, pool_id: str, figure: Callable[[str], None]
) -> None:
    """An engine refuses at once what is longer than its context, so it would have the least work of all."""
    async with three(redis_url, pool_id, Script(pause_s=0.02), contexts=(64, 2000, 2000)) as (world, _):
        short = world.engines[0]
        assert failed(await answers(world, 60)) == {}
        assert short.generated > 0, "it serves what is short"
        asked = len(short.bodies)
        ended = failed(await answers(world, prompt=[1] * 100))
        figure(f"too long for 1 of 3: {sum(ended.values())} of {REQUESTS} failed{of(ended)}")
        assert ended == {}
        assert len(short.bodies) == asked


async def test_a_tenant_whose_requests_every_engine_fails_takes_no_replica_from_others(
    redis_url: str, pool_id: str, figure: Callable[[str], None]
) -> None:
    """Two tenants, one of which sends what vLLM answers with 500 wherever it runs."""
    async with three(redis_url, pool_id, Script(pause_s=0.02, fails="odd")) as (world, dispatcher):
        other = replace(world.entitlement, id=f"{pool_id}-odd", tenant="odd")
        key, spec = make_key(1, other.id)
        entitlements = {one.id: one for one in (world.entitlement, other)}
        keys = {one.id: one for one in (world.key_spec, spec)}
        world.catalog = replace(world.catalog, version=9, entitlements=entitlements, keys=keys)
        await world.app._catalog.refreshed(10)
        await answers(world, 20)
        going, odd, seen = True, 0, set[str]()

        async def storm() -> None:
            nonlocal odd
            async with world.http() as client:
                client.headers["authorization"] = f"Bearer {key}"
                while going:
                    body = {"model": "demo", "prompt": "odd", "max_tokens": 4}
                    assert (await client.post("/v1/completions", json=body)).status_code != 200
                    odd += 1
                    seen.update(states(dispatcher))

        storms = [asyncio.create_task(storm()) for _ in range(WORKERS)]
        ended = failed(await answers(world))
        going = False
        await asyncio.gather(*storms)
        figure(f"{sum(ended.values())} of {REQUESTS} failed{of(ended)} beside {odd} that every engine fails")
        assert odd > 20
        assert sum(ended.values()) <= MAX_FAILED, ended
        assert seen == {"ready"}, "no replica was out at any time"


def head(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def without_lines() -> bytes:
    return head(b"200 OK", b"python_gc_objects_collected_total 1\n")


async def empty() -> bytes:
    return head(b"200 OK", b"")


async def missing() -> bytes:
    return head(b"404 Not Found", b"")


async def garbage() -> bytes:
    return head(b"200 OK", bytes(range(256)) * 8)


async def hanging() -> bytes:
    await asyncio.sleep(3600)
    return b""


async def slow() -> bytes:
    await asyncio.sleep(3.0)
    return await empty()


@pytest.mark.parametrize(
    "metrics",
    [
        without_lines,
        hanging,
        *(pytest.param(page, marks=pytest.mark.slow) for page in (empty, missing, garbage, slow)),
    ],
    ids=lambda m: m.__name__,
)
async def test_a_broken_metrics_page_stops_nothing(
    redis_url: str, pool_id: str, metrics: Any, figure: Callable[[str], None]
) -> None:
    """Streams and whole answers of 2 s each for 12 s: none fails, and no replica is taken out."""
    async with three(redis_url, pool_id, Script(pause_s=0.1)) as (world, dispatcher):
        for engine in world.engines:
            engine.metrics = metrics
        seen: set[str] = set()
        work = asyncio.create_task(answers(world, WORKERS * 10, tokens=20))
        while not work.done():
            seen |= set(states(dispatcher))
            await asyncio.sleep(0.1)
        ended = failed(await work)
        lost = f"{sum(ended.values())} of {WORKERS * 10} failed{of(ended)}"
        figure(f"{metrics.__name__}: {lost}, replicas {', '.join(sorted(seen))}")
        assert (ended, seen) == ({}, {"ready"})
