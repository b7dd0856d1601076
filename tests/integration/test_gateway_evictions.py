"""A preemptible request loses its slot while a client waits for its answer: told at once, explicitly, and charged for
what it got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from controlplane import sse
from scheduling.core.types import BackendSpec, ServiceClass
from scheduling.gateway.config import GatewayConfig
from scheduling.state.types import SERVICE_MS, Admission, AdmissionStatus
from tests.support.gateway_world import TIER, World, gateway_world, until
from tests.support.state_world import FACTS, entitlement, estimate, request, tier

PROMPT: list[Any] = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    """One replica with one slot, and a preemptible entitlement with a bucket that hardly refills."""
    config = GatewayConfig(renew_every_s=0.2)
    async with gateway_world(redis_url, pool_id, config=config) as made:
        made.granting = False
        one = BackendSpec(f"{pool_id}-b0", pool_id, made.engines[0].url, 1, 1_000_000)
        await made.configure(
            pool={"backends": (one,)},
            tier=replace(TIER, name="cheap", service_class=ServiceClass.PREEMPTIBLE),
            tokens_per_s=1e-6,
            burst_tokens=10_000.0,
        )
        await made.store.set_ready(made.epoch, one.id, one)
        yield made


async def need_the_slot(world: World) -> Admission:
    """Somebody at another gateway, whose capacity is reserved."""
    owner = entitlement(f"{world.pool.id}-own", world.pool.id, tier=tier(service_class=ServiceClass.GUARANTEED))
    asked = request("req_owner", owner, gateway="gw-other")
    return await world.store.admit(owner, world.pool, asked, estimate(), 300, FACTS)


async def ask(world: World, client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": PROMPT, "max_tokens": 1000} | changes
    return await client.post("/v1/chat/completions", json=body)


def last_frame(text: str) -> dict[str, Any]:
    frames = sse.events_of(text)
    assert sse.DONE not in frames
    found: dict[str, Any] = frames[-1]
    return found


@pytest.mark.parametrize("heard", [True, False], ids=["told by notification", "told by the renewal"])
async def test_a_running_stream_ends_with_a_retriable_error_and_its_slot_is_free_at_once(world: World, heard: bool):
    engine = world.engines[0]
    engine.script = replace(engine.script, pause_s=0.01)
    async with world.http() as client:
        asking = asyncio.create_task(ask(world, client, stream=True))
        await until(
            lambda: any(c.frames is not None and c.frames.count > 5 for c in world.app._in_flight.calls.values())
        )
        if not heard:
            await world.app._subscriber.close()
        taken = await need_the_slot(world)
        assert (taken.status, taken.backend) == (AdmissionStatus.GRANTED, world.pool.backends[0].id)
        assert await world.running() == (1, 0)  # the owner; the victim counts no more
        answer = await asking
    assert answer.status_code == 200
    error = last_frame(answer.text)["error"]
    assert (error["code"], error["type"]) == ("evicted", "rate_limit_error")
    await until(lambda: engine.open == 0)
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason, record.streamed) == ("failed", "evicted", True)
    assert record.output_tokens >= 5
    bucket = (await world.store.view()).entitlements[world.entitlement.id]
    assert bucket.level_tokens == pytest.approx(10_000 - record.input_tokens - record.output_tokens, abs=0.1)
    assert bucket.served_tokens == record.input_tokens + record.output_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_before_its_first_byte_it_is_a_429_that_says_when_to_come_back(world: World, stream: bool):
    engine = world.engines[0]
    engine.script = replace(engine.script, first_pause_s=30.0, pause_s=30.0)
    async with world.http() as client:
        asking = asyncio.create_task(ask(world, client, stream=stream))
        await until(lambda: engine.open == 1 and world.app._in_flight.turn_s(world.pool.id) > 0)
        assert world.app._in_flight.turn_s(world.pool.id) == SERVICE_MS / 1000  # of one slot; no request has ended yet
        assert (await need_the_slot(world)).status is AdmissionStatus.GRANTED
        answer = await asking
    assert answer.status_code == 429
    assert answer.headers["x-quartermaster-reason"] == answer.json()["error"]["code"] == "evicted"
    assert 1500 <= int(answer.headers["retry-after-ms"]) <= 2500  # what a slot is expected to take, jittered
    assert "x-should-retry" not in answer.headers
    await until(lambda: engine.open == 0)
    assert await world.running() == (1, 0)
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.status, record.output_tokens) == ("failed", 429, 0)


async def test_while_the_slot_is_taken_a_new_preemptible_request_is_refused_and_pays_nothing(world: World):
    await need_the_slot(world)
    await world.configure(tier=replace(world.entitlement.tier, queue_limit=0))
    async with world.http() as client:
        answer = await ask(world, client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "low_priority")
    assert int(answer.headers["retry-after-ms"]) > 0
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.input_tokens + record.output_tokens) == ("refused", 0)
    met = (await world.store.view()).entitlements[world.entitlement.id]
    assert (met.level_tokens, met.served_tokens, met.refusals) == (None, 0, 1)
