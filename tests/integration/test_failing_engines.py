"""Every engine fails for a long time (docs/reference/promises.md, 17): how many attempts does a request cost?

With a real leader, which ejects what fails and probes it again: its probes are no attempts of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from scheduling.core.types import BackendSpec
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import catalog_of, dispatching, until_await
from tests.support.fake_engine import Script
from tests.support.gateway_world import World, gateway_world

REPLICAS, CLIENTS = 3, 8
PER_REQUEST, FLOOR = 1.2, 4  # and what a gateway that is quiet has in store
FAILS: dict[str, Callable[[], Script]] = {
    "500": lambda: Script(status=500),
    "cut before a byte": lambda: Script(raw=lambda _: b"", then_close=True),
}


async def ask_for(world: World, seconds: float) -> Counter[str]:
    """How requests ended that eight clients sent one after the other for so long."""
    ended: Counter[str] = Counter()
    end = time.monotonic() + seconds
    async with world.http() as client:

        async def work() -> None:
            while time.monotonic() < end:
                body: dict[str, Any] = {"model": "demo", "prompt": "x", "max_tokens": 2}
                answer = await client.post("/v1/completions", json=body)
                ended[f"{answer.status_code} {answer.headers.get('x-quartermaster-reason', '')}"] += 1
                await asyncio.sleep(0.1)

        await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return ended


async def fails(redis_url: str, pool_id: str, how: str, seconds: float) -> None:
    async with gateway_world(redis_url, pool_id, engines=REPLICAS, lead=False, config=GatewayConfig()) as world:
        backends = tuple(BackendSpec(f"{pool_id}-b{i}", pool_id, e.url, 16, 10**6) for i, e in enumerate(world.engines))
        await world.configure(pool={"backends": backends})
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True):

            async def ready() -> bool:
                return sum(b.ready for b in (await world.store.view()).backends.values()) == REPLICAS

            await until_await(ready, 60)
            for engine in world.engines:
                engine.script = FAILS[how]()
                engine.heads.clear()
            ended = await ask_for(world, seconds)
            attempts = sum("x-request-id" in head for engine in world.engines for head in engine.heads)
            await world.settled()
        told = world.metrics.records
    requests = sum(ended.values())
    began = sum(r.attempts for r in told if r.granted_s is not None)
    print(
        f"\nall engines fail ({how}) for {seconds:g} s: {requests} requests, {dict(ended)}, {attempts} attempts at "
        f"engines ({began} in the ledger), {attempts / requests:.2f} for each"
    )
    assert not any(kind.startswith("200") for kind in ended)
    assert attempts > 0
    assert attempts <= PER_REQUEST * requests + FLOOR


@pytest.mark.parametrize("how", FAILS)
async def test_while_every_engine_fails_a_request_costs_little_more_than_one_attempt(
    redis_url: str, pool_id: str, how: str
) -> None:
    await fails(redis_url, pool_id, how, 2.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("minutes", [2, 10])
async def test_minutes_in_which_every_engine_fails(redis_url: str, pool_id: str, minutes: int) -> None:
    await fails(redis_url, pool_id, "500", minutes * 60.0)
