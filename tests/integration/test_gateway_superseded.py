"""A request that waits past its promised first token keeps no newer one of its entitlement out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.types import ServiceClass, Slo
from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import TIER, World, gateway_world, until

BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 20}


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    """One slot; an entitlement of two requests in flight, with a first token promised within half a second."""
    config = GatewayConfig(renew_every_s=0.2)
    async with gateway_world(redis_url, pool_id, config=config) as made:
        made.granting = False
        one = replace(made.pool.backends[0], slots=1)
        slo = Slo(ttft_s=0.5, tbt_s=1.0)
        await made.configure(
            pool={"backends": (one,)},
            tier=replace(TIER, name="standard", service_class=ServiceClass.ELASTIC, slo=slo),
            concurrency=2,
        )
        await made.store.set_ready(made.epoch, one.id, one)
        made.engines[0].script.first_pause_s = 3.0
        yield made


async def ask(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=BODY)


@pytest.mark.parametrize("heard", [True, False], ids=["told by notification", "told by the renewal"])
async def test_a_newer_request_takes_the_place_of_one_whose_first_token_is_late(world: World, heard: bool):
    async with world.http() as client:
        runs = asyncio.create_task(ask(client))
        await until(lambda: world.engines[0].open == 1)
        waits = asyncio.create_task(ask(client))
        while await world.running() != (1, 1):
            await asyncio.sleep(0.01)
        refused = await ask(client)
        assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (429, "concurrency"), "not late yet"

        await asyncio.sleep(0.7)  # now it is
        if not heard:
            await world.app._subscriber.close()
        newer = asyncio.create_task(ask(client))
        late = await waits
        assert (late.status_code, late.headers["x-quartermaster-reason"]) == (429, "superseded")
        assert int(late.headers["retry-after"]) >= 1
        assert late.json()["error"]["code"] == "superseded"
        assert late.headers["x-ratelimit-remaining-requests"] == "0", "a newer one has its place"
        assert not newer.done(), "it waits"
        assert await world.running() == (1, 1), "as many as before"
        newer.cancel()
        await runs
    records = {r.reason: r for r in await world.ledger_of(4)}
    assert set(records) == {"concurrency", "superseded", "length", "client_left"}
    assert records["superseded"].outcome == "refused"
    assert records["superseded"].output_tokens == 0
    asked_s = json.loads(records["superseded"].admission)["retry_ms"] / 1000
    assert asked_s * 0.7 < float(late.headers["retry-after-ms"]) / 1000 < asked_s * 1.3, "as it was told"
    await world.settled()
