"""Deadlines under load (docs/reference/promises.md, 16): random ones, a real leader and a real gateway.

Three times what one engine can serve arrives, of entitlements whose longest waits are random. What the engine gets must
not be past its time, and what is past its time leaves the queue in Redis while others wait and are served.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controlplane import sse
from scheduling.core.types import BackendSpec, Catalog, EntitlementSpec, OverLimit
from scheduling.gateway.config import GatewayConfig
from scheduling.state.types import GrantItem
from tests.support.dispatch_world import dispatching, until_await
from tests.support.gateway_world import TIER, World, gateway_world, make_key, until
from tests.support.percentiles import summary

SLOTS, SERVICE_S = 2, 0.15
OFFERED_PER_S = 3 * SLOTS / SERVICE_S / 2  # a busy machine serves less
ENTITLEMENTS = 20
ENOUGH = 10  # requests that ran, and that expired; a draw of few arrivals and long waits needs longer for it
LONGEST_OFFER_S = 60.0


@dataclass
class Found:
    """Of one load: how late what ran began [s], how long what expired stayed in the queue after its time [s], and how
    what was seen there after its time ended."""

    late: list[float]
    stayed: list[float]
    seen_late: Counter[str]
    reasons: Counter[str]


async def offer(world: World, keys: dict[str, str], seconds: float, rng: random.Random) -> None:
    """Open-loop arrivals for so long, and on until enough ran and enough expired; returns when all have ended."""
    tasks: list[asyncio.Task[Any]] = []

    def enough() -> bool:
        reasons = Counter(record.reason for record in world.metrics.records)
        return min(reasons["queue_timeout"], reasons["length"]) > ENOUGH

    async with world.http() as client:
        began = time.monotonic()
        while (passed_s := time.monotonic() - began) < seconds or (passed_s < LONGEST_OFFER_S and not enough()):
            headers = {"authorization": f"Bearer {keys[rng.choice(list(keys))]}"}
            body = {"model": "demo", "prompt": "x", "max_tokens": 4, "stream": rng.random() < 0.5}
            tasks.append(asyncio.create_task(client.post("/v1/completions", json=body, headers=headers)))
            await asyncio.sleep(rng.expovariate(OFFERED_PER_S))
        await asyncio.gather(*tasks)


async def under_load(redis_url: str, pool_id: str, longest_s: float, seconds: float, seed: int) -> Found:
    rng = random.Random(seed)
    waits = {f"{pool_id}-e{n}": rng.uniform(0.1, longest_s) for n in range(ENTITLEMENTS)}
    async with gateway_world(redis_url, pool_id, lead=False, config=GatewayConfig()) as world:
        world.engines[0].script.first_pause_s = SERVICE_S
        backend = BackendSpec(f"{pool_id}-b0", pool_id, world.engines[0].url, SLOTS, 1_000_000)
        await world.configure(pool={"backends": (backend,)})
        entitlements, keys, specs = {}, {}, {}
        for name, wait_s in waits.items():
            tier = replace(TIER, max_wait_s=wait_s, queue_limit=10_000, over_limit=OverLimit.WAIT)
            spec: EntitlementSpec = replace(world.entitlement, id=name, tier=tier)
            keys[name], key = make_key(rng.randrange(10**8, 10**9), name)
            entitlements[name], specs[key.id] = spec, key
        catalog = Catalog(world.catalog.version + 1, {pool_id: world.pool}, entitlements, specs)
        world.catalog = catalog
        await world.app._catalog.refreshed(10)
        last_seen: dict[str, tuple[float, float]] = {}  # when it was last in the queue, and its deadline [epoch s]

        async def watch() -> None:
            while True:
                asked_s = time.time()  # Redis looks later, and its answer is read later still
                _, queue = await world.store.load_queue()
                for request in queue:
                    last_seen[request.id] = asked_s, request.expires_s or float("inf")
                await asyncio.sleep(0.02)

        async with dispatching(redis_url, catalog, over_http=True):

            async def ready() -> bool:
                return any(b.ready for b in (await world.store.view()).backends.values())

            await until_await(ready, 60)
            watching = asyncio.create_task(watch())
            await offer(world, keys, seconds, rng)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await world.settled()
    records = world.metrics.records
    ran = [r for r in records if r.granted_s is not None and r.queued_s is not None and r.reason != "queue_timeout"]
    late = [r.granted_s - r.received_s - waits[r.entitlement] for r in ran if r.granted_s is not None]
    stayed = {name: seen_s - due_s for name, (seen_s, due_s) in last_seen.items() if seen_s > due_s}
    seen_late = Counter(r.reason for r in records if r.request_id in stayed)
    assert seen_late.total() == len(stayed), "what expired has one record"
    return Found(late, list(stayed.values()), seen_late, Counter(r.reason for r in records))


async def hold(redis_url: str, pool_id: str, longest_s: float, seconds: float) -> None:
    seed = random.randrange(10**6)
    found = await under_load(redis_url, pool_id, longest_s, seconds, seed)
    print(
        f"\nseed {seed}: {dict(found.reasons)}; {sum(s > 0 for s in found.late)} of {len(found.late)} that waited "
        f"began after their time; seen in the queue after its time: {summary(found.stayed)}"
    )
    assert found.reasons["queue_timeout"] > ENOUGH, "nothing expired: there was no load"
    assert found.reasons["length"] > ENOUGH
    assert max(found.late) <= 0, "it was granted after its deadline"
    assert set(found.seen_late) <= {"queue_timeout"}, "it was in the queue after its deadline and ended otherwise"


async def test_nothing_is_granted_after_a_random_deadline_and_what_expired_leaves_the_queue(
    redis_url: str, pool_id: str
) -> None:
    await hold(redis_url, pool_id, 2.0, 5.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_deadlines_of_up_to_half_a_minute_hold_under_load(redis_url: str, pool_id: str) -> None:
    await hold(redis_url, pool_id, 30.0, 90.0)


async def test_a_grant_that_is_heard_after_the_deadline_starts_nothing(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.gateway.timeouts.TICK_S", 4.0)  # the clock over open requests looks too late
    async with gateway_world(redis_url, pool_id, config=GatewayConfig()) as world, world.http() as client:
        world.granting = False
        engine, backend = world.engines[0], replace(world.pool.backends[0], slots=1)
        engine.script.first_pause_s = 1.5
        await world.configure(tier=replace(TIER, max_wait_s=1.0))
        await world.store.set_ready(world.epoch, backend.id, backend)
        body = {"model": "demo", "prompt": "x", "max_tokens": 1}
        first = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: engine.open == 1, 60)
        second = asyncio.create_task(client.post("/v1/completions", json=body))
        assert (await first).status_code == 200
        (request,) = (await world.store.load_queue())[1]
        await asyncio.sleep(1.0)
        await world.store.grant(world.epoch, [GrantItem(request.id, 1, backend.id, 256, "fifo@1", "late")])
        answer = await second
        assert answer.headers["x-quartermaster-reason"] == "queue_timeout"
        assert len(engine.bodies) == 1, "it ran after its deadline"
        await world.settled()


async def test_what_expired_leaves_the_queue_though_its_client_takes_no_answer(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.gateway.conclusion.LAST_WORD_S", 3600.0)  # a client gets that long to take it
    async with gateway_world(redis_url, pool_id, config=GatewayConfig()) as world:
        world.granting = False
        await world.configure(tier=replace(TIER, max_wait_s=0.5))
        body = json.dumps({"model": "demo", "prompt": "x", "max_tokens": 1}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        taken, left = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await taken.wait()

        headers = [(b"authorization", f"Bearer {world.key}".encode()), (b"content-type", b"application/json")]
        scope = {"type": "http", "path": "/v1/completions", "method": "POST", "headers": headers, "query_string": b""}
        backend = world.pool.backends[0]
        await world.store.set_ready(world.epoch, backend.id, replace(backend, slots=0))
        call = asyncio.create_task(world.app(scope, receive, send))

        async def queued(count: int) -> bool:
            return (await world.running())[1] == count

        await until_await(lambda: queued(1), 60)
        await until_await(lambda: queued(0), 60)
        (record,) = await world.ledger_of(1)
        assert record.reason == "queue_timeout"
        assert not call.done(), "the client has not taken its answer yet"
        taken.set()
        await call
        await world.settled()
        assert len(await world.ledger()) == 1


async def test_a_request_ends_when_its_total_time_is_over_whether_it_streams_waits_or_has_no_answer_yet(
    redis_url: str, pool_id: str
) -> None:
    config = GatewayConfig(request_timeout_s=1.5)
    async with gateway_world(redis_url, pool_id, config=config) as world, world.http() as client:
        engine = world.engines[0]
        engine.script = replace(engine.script, pause_s=0.05, stall_after=4_000)
        backend = replace(world.pool.backends[0], slots=2)
        await world.store.set_ready(world.epoch, backend.id, backend)

        async def ask(stream: bool) -> Any:
            body = {"model": "demo", "prompt": "x", "max_tokens": 4_000, "stream": stream}
            return await client.post("/v1/completions", json=body)

        running = [asyncio.create_task(ask(stream)) for stream in (True, False)]
        await until(lambda: engine.open == 2, 60)
        world.granting = False
        waiting = asyncio.create_task(ask(True))
        stream, whole = await asyncio.gather(*running)
        assert sse.events_of(stream.text)[-1]["error"]["code"] == "deadline"
        assert "[DONE]" not in stream.text
        for answer in (whole, await waiting):
            assert (answer.status_code, answer.headers["x-quartermaster-reason"]) == (504, "deadline")
        await world.settled()
        records = await world.ledger_of(3)
    assert {(r.outcome, r.reason) for r in records} == {("failed", "deadline")}
    for record in records:
        assert record.done_s - record.received_s >= config.request_timeout_s - 0.1
