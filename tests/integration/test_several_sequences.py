"""Requests of several answers run that many sequences in their engine: its slots count them. Real gateway, leader and
Redis, a simulated engine over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.types import BackendSpec, OverLimit
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import catalog_of, dispatching, until_await
from tests.support.gateway_world import TIER, World, gateway_world

WIDE = 8  # answers of a request
SLOTS = 16
RUNS = 4 * SLOTS  # what the engine could run at once: nothing hides how much it is given
PATIENT = replace(TIER, over_limit=OverLimit.WAIT, max_wait_s=600.0)
ANSWERS: dict[str, dict[str, Any]] = {
    "n": {"prompt": "a", "n": WIDE},
    "prompts": {"prompt": [f"{i}" for i in range(WIDE)]},
    "prompts, and n": {"prompt": ["a", "b"], "n": WIDE // 2},
}


async def most_inside(world: World, server: SimulatedServer, bodies: list[dict[str, Any]]) -> int:
    """How many sequences the engine had at once, at most."""
    inside = 0
    async with world.sdk() as client:
        asked = [asyncio.ensure_future(client.completions.create(model="demo", max_tokens=8, **b)) for b in bodies]
        while not all(task.done() for task in asked):
            inside = max(inside, len(server.engine.running) + server.engine.waiting)
            await asyncio.sleep(0.005)
        for answer, body in zip(await asyncio.gather(*asked), bodies, strict=True):
            prompts = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
            assert len(answer.choices) == prompts * body.get("n", 1)
    return inside


@pytest.mark.parametrize("several", ANSWERS)
async def test_a_request_of_several_answers_takes_as_many_slots(redis_url: str, pool_id: str, several: str) -> None:
    options = EngineOptions(model="fake-upstream", slots=RUNS, kv_tokens=65_536, speed=2.0)
    async with serving(options) as server, gateway_world(redis_url, pool_id, lead=False) as world:
        one = BackendSpec(f"{pool_id}-b0", pool_id, server.url, SLOTS, 10**9)
        world.entitlement = replace(world.entitlement, tier=PATIENT, concurrency=64)
        await world.configure(pool={"backends": (one,)})
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True):

            async def offered() -> bool:
                seen = (await world.store.view()).backends.get(one.id)
                return seen is not None and seen.slots == SLOTS

            await until_await(offered)
            wide, narrow = ANSWERS[several], {"prompt": "a"}
            inside = await most_inside(world, server, [wide, wide, narrow, wide] * 6)
            assert inside <= SLOTS + WIDE - 1, "a request takes its replica's last free slot, and no more than its own"
            assert inside > SLOTS - WIDE, "slots stay empty beside what waits"
            await world.settled()
            [seen] = (await world.store.view()).backends.values()
            assert seen.running == 0, "what they took is given back"


async def test_prompts_of_one_stream_hold_its_prefill_credit_until_each_has_its_first_token(
    redis_url: str, pool_id: str
) -> None:
    options = EngineOptions(model="fake-upstream", slots=RUNS, kv_tokens=65_536, token_budget=256, max_model_len=8192)
    async with serving(options) as server, gateway_world(redis_url, pool_id) as world:
        one = BackendSpec(f"{pool_id}-b0", pool_id, server.url, SLOTS, 10**9, prefill_tokens=1)
        await world.configure(pool={"backends": (one,), "max_model_len": 8192})
        await world.store.set_ready(world.epoch, one.id, one)

        async def held() -> int:
            return (await world.store.view()).backends[one.id].prefill_used

        async def stall(whether: bool) -> None:
            async with httpx.AsyncClient(trust_env=False) as engine:
                (await engine.post(f"{server.url}/sim/fault", json={"stall": whether})).raise_for_status()

        async with world.sdk() as client:
            prompts = [f"{n} " + "word " * 1500 for n in range(4)]
            stream = await client.completions.create(model="demo", prompt=prompts, max_tokens=20, stream=True)
            begun = {choice.index for choice in (await anext(stream)).choices}
            await stall(True)
            await asyncio.sleep(0.1)
            assert await held() > 0, "its other prompts wait in the engine"
            await stall(False)
            while (chunk := await anext(stream, None)) is not None:
                begun.update(choice.index for choice in chunk.choices)
            assert begun == set(range(4))
        await world.settled()
        assert await held() == 0
