"""A turn of a conversation waits for the replica that has it cached. A real gateway, a real leader, simulated engines
with prefix caches."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import pytest

from scheduling.core.types import BackendSpec, BackendView, Catalog, OverLimit, ServiceClass, Slo, TierSpec
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until, until_await
from tests.support.gateway_world import World, gateway_world

WORDS = "The parties agree upon the following terms and conditions of the lease. "
SAID = WORDS * 400  # some 5,000 tokens
MORE = WORDS * 900
MOST_TURNS = 150  # until the leader knows how far what it expects of the cache is borne out
OPTIONS = EngineOptions(
    model="demo", speed=1, slots=64, kv_tokens=400_000, max_model_len=65_536, prefix_cache=True,
    priority_scheduling=True,
)  # fmt: skip
PATIENT = TierSpec(
    "batch", ServiceClass.ELASTIC, 2, 1.0, Slo(ttlt_s=600.0), over_limit=OverLimit.WAIT, queue_limit=100,
    max_wait_s=60.0,
)  # fmt: skip


async def say(world: World, messages: list[dict[str, str]]) -> None:
    body = {"model": "demo", "messages": messages, "max_tokens": 4, "ignore_eos": True}
    async with httpx.AsyncClient(
        base_url=world.base, headers={"authorization": f"Bearer {world.key}"}, timeout=60
    ) as client:
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text


async def replicas(world: World) -> dict[str, BackendView]:
    return (await world.store.look([])).pool_view(0.0).backends


async def ready(world: World, count: int) -> bool:
    return len(await replicas(world)) == count


async def believed(world: World, name: str) -> bool:
    """Whether what is expected of its cache counts."""
    return (await replicas(world))[name].cache_trust > 0


def computing(engine: SimulatedServer) -> bool:
    return any(sequence.computed < sequence.prompt_tokens - 4096 for sequence in engine.engine.running)


@pytest.mark.parametrize(("patience", "waits"), [(20.0, True), (0.0, False)])
async def test_a_turn_waits_for_the_replica_that_has_its_conversation(
    redis_url: str, pool_id: str, patience: float, waits: bool
) -> None:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(redis_url, pool_id, engines=0, lead=False))
        engines = [await stack.enter_async_context(serving(OPTIONS)) for _ in range(2)]
        backends = tuple(BackendSpec(f"{pool_id}-{n}", pool_id, e.url, 64, 400_000) for n, e in enumerate(engines))
        world.pool = replace(
            world.pool, backends=backends, upstream_model="demo", max_model_len=65_536, routing="prefix_affinity",
            routing_params={"cache_patience": patience}, prefill_credit=None,
        )  # fmt: skip
        world.entitlement = replace(world.entitlement, tier=PATIENT)
        world.catalog = Catalog(
            2, {world.pool.id: world.pool}, {world.entitlement.id: world.entitlement},
            {world.key_spec.id: world.key_spec},
        )  # fmt: skip
        await world.app._catalog.refreshed(10)
        told = Telemetry()
        await stack.enter_async_context(
            dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True, telemetry=told)
        )
        await until_await(lambda: ready(world, 2))
        messages = [{"role": "user", "content": SAID}]
        others = [[{"role": "user", "content": f"{n}: {SAID}"}] for n in range(12)]
        await asyncio.gather(*(say(world, other) for other in others))  # tell the leader how fast engines compute
        await until(lambda: len(told.records) == len(others))
        told.records.clear()
        own = ""
        while not own or not await believed(world, own):
            assert len(told.records) < MOST_TURNS
            await say(world, messages)
            messages.extend(({"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}))
            await until(lambda: len(told.records) == len(messages) // 2)
            (own,) = {record.backend for record in told.records}
            await asyncio.sleep(0.1)
        turns = len(told.records)
        engine = engines[[b.id for b in backends].index(own)]

        long = asyncio.create_task(say(world, [*messages[:-1], {"role": "user", "content": MORE}]))
        await until(lambda: computing(engine))
        await say(world, messages)
        await long
        await until(lambda: len(told.records) == turns + 2)
        turn, asked_more = sorted(told.records[-2:], key=lambda record: record.input_tokens)
        assert asked_more.backend == own
        assert (turn.backend == own) is waits
        assert turn.attempts == 1
