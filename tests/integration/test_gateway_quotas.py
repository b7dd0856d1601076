"""A hard quota as a client meets it: over HTTP, with the figures in a real Redis."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from scheduling.core.types import QuotaSpec
from scheduling.state.usage import USAGE_KEY, PoolUsage, encode_usage, period_bounds_s, period_names
from tests.support.gateway_world import gateway_world


async def _well_within_a_day() -> float:
    """The time [epoch s], once the UTC day has a minute left: usage of a day that ends in between refuses nobody."""
    left_s = period_bounds_s(time.time(), "day")[1] - time.time()
    if left_s < 60:
        await asyncio.sleep(left_s + 1)
    return time.time()


async def test_a_spent_quota_refuses_until_the_day_ends_and_the_soft_one_nobody(redis_url, pool_id):
    async with gateway_world(redis_url, pool_id) as world:
        tenant = f"{pool_id}-tenant"
        await world.configure(tenant=tenant)
        world.catalog = replace(
            world.catalog, version=world.catalog.version + 1, quotas={tenant: (QuotaSpec("day", 10, 20_000),)}
        )
        await world.app._catalog.refreshed(10)
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        async with world.http() as http:
            first = await http.post("/v1/chat/completions", json=body)
            assert first.status_code == 200, "the soft limit refuses nobody"
            now_s = await _well_within_a_day()
            day, month = period_names(now_s)
            told = PoolUsage(now_s - 60, day, month, {tenant: (20_000, 20_000)})
            await world.resp.call("HSET", USAGE_KEY, pool_id, encode_usage(told))
            async with asyncio.timeout(20):
                while (answer := await http.post("/v1/chat/completions", json=body)).status_code == 200:
                    await asyncio.sleep(0.1)
            assert answer.status_code == 429
            assert answer.headers["x-quartermaster-reason"] == "quota_exceeded"
            assert answer.headers["x-should-retry"] == "false"
            left_s = period_bounds_s(now_s, "day")[1] - now_s
            assert left_s - 30 <= int(answer.headers["retry-after"]) <= left_s + 62
            assert answer.json()["error"]["type"] == "insufficient_quota"
            await world.resp.call("HDEL", USAGE_KEY, pool_id)
            async with asyncio.timeout(20):
                while (await http.post("/v1/chat/completions", json=body)).status_code != 200:
                    await asyncio.sleep(0.1)
        await world.settled()
        assert {r.reason for r in await world.ledger() if r.outcome == "refused"} == {"quota_exceeded"}
