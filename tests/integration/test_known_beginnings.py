"""Prompts whose beginning a replica has in its prefix cache: several of them are prefilled at once, where its engine
bears it out. A real gateway and a real leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from scheduling.core.types import BackendSpec, OverLimit
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.engines.simulated.server import EngineOptions, serving
from scheduling.state.types import PoolSnapshot
from tests.support.dispatch_world import catalog_of, dispatching, until, until_await
from tests.support.gateway_world import TIER, World, gateway_world

RULES = "Say whether the text keeps the rules of the house, in one word. " * 400  # some 6,000 tokens
AT_ONCE, FEW_WAVES, MOST_WAVES = 12, 3, 100
TRUSTED = 700  # per mille


def states(dispatcher: PoolDispatcher) -> list[str]:
    return [s.state for s in dispatcher.term.monitor.statuses()] if dispatcher.term is not None else []


@asynccontextmanager
async def one_replica(
    redis_url: str, pool_id: str, *, caches: bool, uncounted_s: float | None
) -> AsyncIterator[tuple[World, PoolDispatcher]]:
    options = EngineOptions(
        model="demo", speed=2, slots=64, kv_tokens=400_000, max_model_len=32_768, prefix_cache=caches
    )
    async with gateway_world(redis_url, pool_id, engines=0, lead=False) as world, serving(options) as engine:
        pool = {
            "backends": (BackendSpec(f"{pool_id}-b", pool_id, engine.url, 64, 400_000),), "upstream_model": "demo",
            "max_model_len": 32_768, "routing": "prefix_affinity",
            "routing_params": {} if uncounted_s is None else {"uncounted_s": uncounted_s},
            "prefill_credit": None,
        }  # fmt: skip
        await world.configure(pool=pool, tier=replace(TIER, over_limit=OverLimit.WAIT, queue_limit=100))
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True) as dispatcher:
            await until(lambda: states(dispatcher) == ["ready"])
            yield world, dispatcher


async def idle(world: World) -> bool:
    view = await world.store.view()
    return view.running + view.waiting == 0


async def moderate(world: World, wave: int) -> list[PoolSnapshot]:
    """Short questions about the same long rules, all at once; the pool as it was seen meanwhile."""
    seen: list[PoolSnapshot] = []
    async with world.http() as client:

        async def ask(number: int) -> None:
            messages = [{"role": "system", "content": RULES}, {"role": "user", "content": f"Text {number}, and so on."}]
            body = {"model": "demo", "messages": messages, "max_tokens": 3, "stream": True}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

        asking = [asyncio.create_task(ask(wave * AT_ONCE + n)) for n in range(AT_ONCE)]
        while not all(task.done() for task in asking):
            seen.append(await world.store.view())
            await asyncio.sleep(0.02)
        await asyncio.gather(*asking)
    return seen


def held(seen: list[PoolSnapshot]) -> list[int]:
    return [replica.prefill_used for snapshot in seen for replica in snapshot.backends.values()]


def expected_of(snapshot: PoolSnapshot) -> int:
    (replica,) = snapshot.backends.values()
    return replica.expected_tokens


def trust_of(snapshot: PoolSnapshot) -> int:
    (replica,) = snapshot.backends.values()
    return replica.cache_trust


@pytest.mark.parametrize(("caches", "uncounted_s"), [(True, None), (False, None), (True, 0.0)])
async def test_a_known_beginning_counts_against_the_prefill_credit_as_far_as_engines_find_it_cached(
    redis_url: str, pool_id: str, caches: bool, uncounted_s: float | None
) -> None:
    async with one_replica(redis_url, pool_id, caches=caches, uncounted_s=uncounted_s) as (world, _):
        seen = await moderate(world, 0)
        whole, wave = next(tokens for tokens in held(seen) if tokens), 0
        trusted = caches and uncounted_s is None
        while wave < (MOST_WAVES if trusted else FEW_WAVES) and trust_of(seen[-1]) < TRUSTED:
            wave += 1
            seen = await moderate(world, wave)
        seen = await moderate(world, wave + 1)
        last, most = seen[-1], max(held(seen))
        print(f"trusted {trust_of(last)} per mille after {wave} waves, first {whole} tokens, then {most} held at most")
        if trusted:
            assert TRUSTED <= trust_of(last) <= 1000
            assert 0 < most < whole, "each takes of the credit what it lacks"
        else:
            assert trust_of(last) == (0 if uncounted_s is None else -1)
            assert (expected_of(last) > 0) is (uncounted_s is None)
            assert most > 0.99 * whole, "as if nobody had expected anything"
        await until_await(lambda: idle(world), 30)
        assert held([await world.store.view()]) == [0]
