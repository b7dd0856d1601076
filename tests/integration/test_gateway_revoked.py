"""A key that is revoked, deleted or expires takes its waiting and running requests with it: told at once, charged for
what they got, and nothing of them is left at the engine or in shared state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from controlplane import sse
from scheduling.core.types import BackendSpec
from scheduling.gateway.config import GatewayConfig
from scheduling.state.types import CATALOG_CHANNEL
from tests.support.gateway_world import World, gateway_world, make_key, until

SLOTS = 4
Change = Callable[[World], dict[str, Any]]


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    """One replica with four slots, whose streams produce a token every 50 ms for a minute."""
    async with gateway_world(redis_url, pool_id, config=GatewayConfig(renew_every_s=0.2)) as made:
        one = BackendSpec(f"{pool_id}-b0", pool_id, made.engines[0].url, SLOTS, 1_000_000)
        await made.configure(pool={"backends": (one,)}, tokens_per_s=1e-6, burst_tokens=100_000.0)
        await made.store.set_ready(made.epoch, one.id, one)
        made.engines[0].script = replace(made.engines[0].script, pause_s=0.05)
        yield made


async def ask(client: httpx.AsyncClient, number: int, **headers: str) -> httpx.Response:
    body = {
        "model": "demo",
        "prompt": f"request {number}",
        "max_tokens": 1200,
        "stream": number < SLOTS or number % 2 == 0,
    }
    return await client.post("/v1/completions", json=body, headers=headers)


async def ten_open(world: World, client: httpx.AsyncClient) -> list[asyncio.Task[httpx.Response]]:
    """Four streams that run, and six that wait, streams and others."""
    calls = world.app._in_flight.calls
    asked: list[asyncio.Task[httpx.Response]] = []
    for number in range(10):
        asked.append(asyncio.create_task(ask(client, number)))
        await until(lambda: len(calls) == len(asked))
    await until(lambda: world.engines[0].open == SLOTS)
    await until(lambda: sum(c.frames is not None and c.frames.count > 3 for c in calls.values()) == SLOTS)
    while await world.running() != (SLOTS, 6):  # what waits is in Redis a moment later
        await asyncio.sleep(0.01)
    return asked


def no_key(world: World) -> dict[str, Any]:
    return {"keys": {}}


def no_entitlement(world: World) -> dict[str, Any]:
    return {"keys": {}, "entitlements": {}}


def about_to_expire(world: World) -> dict[str, Any]:
    return {"keys": {world.key_spec.id: replace(world.key_spec, expires_s=time.time() + 0.3)}}


def code_of(answer: httpx.Response) -> str:
    """The error a client sees: of the answer, or of a stream's last event."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        frames = sse.events_of(answer.text)
        assert sse.DONE not in frames
        return str(frames[-1]["error"]["code"])
    return str(answer.json()["error"]["code"])


@pytest.mark.parametrize("heard", [True, False], ids=["told by notification", "found by the poll"])
@pytest.mark.parametrize("change", [no_key, no_entitlement, about_to_expire])
async def test_what_waits_and_runs_under_a_key_that_is_not_valid_any_more_ends(
    world: World, change: Change, heard: bool
):
    async with world.http() as client:
        asked = await ten_open(world, client)
        world.catalog = replace(world.catalog, version=world.catalog.version + 1, **change(world))
        if heard:
            await world.resp.call("PUBLISH", CATALOG_CHANNEL, str(world.catalog.version))
        answers = await asyncio.gather(*asked)
    assert [code_of(answer) for answer in answers] == ["key_revoked"] * 10
    assert [answer.status_code for answer in answers] == [200] * SLOTS + [401] * 6, "a stream had begun with 200"
    await world.settled()
    assert world.engines[0].aborted == SLOTS
    records = await world.ledger_of(10)
    assert {(r.outcome, r.reason) for r in records} == {("cancelled", "key_revoked")}
    assert sum(r.input_tokens > 0 for r in records) == SLOTS, "who ran is charged"
    assert sum(r.output_tokens > 3 for r in records) == SLOTS
    used = sum(r.input_tokens + r.output_tokens for r in records)
    bucket = (await world.store.view()).entitlements[world.entitlement.id]
    assert bucket.level_tokens == pytest.approx(100_000 - used, abs=0.1)


async def test_requests_of_other_keys_go_on(world: World):
    token, other = make_key(990, world.entitlement.id)
    both = replace(
        world.catalog, version=world.catalog.version + 1, keys={world.key_spec.id: world.key_spec, other.id: other}
    )
    world.catalog = both
    world.engines[0].script = replace(world.engines[0].script, first_pause_s=3600.0)
    await world.app._catalog.refreshed(10)
    async with world.http() as client:
        mine = asyncio.create_task(ask(client, 1))
        theirs = asyncio.create_task(ask(client, 2, authorization=f"Bearer {token}"))
        await until(lambda: world.engines[0].open == 2)
        world.catalog = replace(both, version=both.version + 1, keys={other.id: other})
        assert code_of(await mine) == "key_revoked"
        world.catalog = replace(world.catalog, version=world.catalog.version + 1)  # a change that takes no key
        await world.app._catalog.refreshed(10)
        assert not theirs.done()
        theirs.cancel()
    await world.settled()


async def test_an_idempotency_key_is_free_at_once(world: World):
    token, other = make_key(991, world.entitlement.id)
    async with world.http() as client:
        world.engines[0].script = replace(world.engines[0].script, first_pause_s=3600.0)
        running = asyncio.create_task(ask(client, 9, **{"idempotency-key": "once"}))
        await until(lambda: world.engines[0].open == 1)
        world.catalog = replace(world.catalog, version=world.catalog.version + 1, keys={other.id: other})
        assert code_of(await running) == "key_revoked"
        world.engines[0].script = replace(world.engines[0].script, first_pause_s=0.0, pause_s=0.0)
        again = await ask(client, 9, **{"idempotency-key": "once", "authorization": f"Bearer {token}"})
    assert again.status_code == 200
    await world.settled()
