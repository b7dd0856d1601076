"""A long prompt is taken back from its engine for an interactive request of a better tier, and resumes where it
stopped. A real gateway, a real leader, a simulated engine with a prefix cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import BackendSpec, ServiceClass, TierSpec
from scheduling.dispatch.replicas.monitor import BackendMonitor
from scheduling.engines.kinds.vllm import parse_metrics
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import until
from tests.support.gateway_world import World
from tests.support.two_tiers import PREMIUM, TwoTiers, two_tiers

WORDS = "The parties agree upon the following terms and conditions of the lease. "
LONG = WORDS * 2500  # some 30,000 tokens: seconds of prefill
OWNER = replace(PREMIUM, service_class=ServiceClass.GUARANTEED)


class Pool(TwoTiers):
    engine: SimulatedServer


@asynccontextmanager
async def pool_of(
    redis_url: str, pool_id: str, tier: TierSpec, *, caches: bool = True, prefill_preemption: bool = True
) -> AsyncIterator[Pool]:
    options = EngineOptions(
        model="demo",
        speed=2,
        slots=64,
        kv_tokens=400_000,
        max_model_len=65_536,
        prefix_cache=caches,
        priority_scheduling=True,
    )
    async with serving(options) as engine:
        backend = BackendSpec(f"{pool_id}-b", pool_id, engine.url, 64, 400_000)
        async with two_tiers(
            redis_url, pool_id, [backend], urgent=tier, resumes=caches and prefill_preemption,
            prefill_preemption=prefill_preemption, upstream_model="demo", max_model_len=65_536,
        ) as world:  # fmt: skip
            pool: Pool = world  # type: ignore[assignment]
            pool.engine = engine
            yield pool


async def ask(world: World, key: str, prompt: str, firsts: list[str], name: str, answer: int = 8) -> list[str]:
    """Its stream's pieces; ``firsts`` gets its name with the first of them."""
    body = {
        "model": "demo", "messages": [{"role": "user", "content": prompt}], "max_tokens": answer, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    pieces: list[str] = []
    async with (
        httpx.AsyncClient(base_url=world.base, headers={"authorization": f"Bearer {key}"}, timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"]
                if delta and delta[0]["delta"].get("content"):
                    if not pieces:
                        firsts.append(name)
                    pieces.append(delta[0]["delta"]["content"])
    return pieces


def computing(pool: Pool) -> bool:
    """Whether the engine is in the middle of a long prompt."""
    return any(4096 < seq.computed < seq.prompt_tokens for seq in pool.engine.engine.running)


async def found_cached(pool: Pool) -> float:
    """Tokens of prompts that the engine has found in its prefix cache."""
    async with httpx.AsyncClient() as client:
        return parse_metrics((await client.get(f"{pool.engine.url}/metrics")).text).cached_tokens


async def long_then_short(pool: Pool) -> tuple[list[str], LedgerRecord, LedgerRecord]:
    """In which order first tokens came, and the records of both."""
    firsts: list[str] = []
    long = asyncio.create_task(ask(pool, pool.key, LONG, firsts, "long"))
    await until(lambda: computing(pool))
    short = asyncio.create_task(ask(pool, pool.urgent, "And now?", firsts, "short"))
    assert [len(await short), len(await long)] == [8, 8], "both answers are whole"
    await until(lambda: len(pool.told.records) == 2)
    by_tier = {record.tier: record for record in pool.told.records}
    await pool.settled()
    view = await pool.store.view()
    assert [replica.prefill_used for replica in view.backends.values()] == [0]
    assert not await pool.store.long_prompts()
    return firsts, by_tier["batch"], by_tier["premium"]


@pytest.mark.parametrize("tier", [PREMIUM, OWNER], ids=["elastic", "owner"])
async def test_an_interactive_request_interrupts_the_prefill_of_a_long_prompt_which_resumes(
    redis_url: str, pool_id: str, tier: TierSpec
) -> None:
    async with pool_of(redis_url, pool_id, tier) as pool:
        firsts, long, short = await long_then_short(pool)
        assert firsts == ["short", "long"]
        assert (short.attempts, short.interruptions, long.attempts, long.interruptions) == (1, 0, 1, 1)
        assert await found_cached(pool) > 2048, "what was computed is not computed again"
        assert (long.reason, short.reason) == ("length", "length")


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Tokens of prompts that the leader knows to have left an engine early, and whether it took them back."""
    told: list[tuple[int, bool]] = []
    whole = BackendMonitor.lost

    def noted(self: BackendMonitor, name: str, tokens: int, *, taken_back: bool = False) -> None:
        told.append((tokens, taken_back))
        whole(self, name, tokens, taken_back=taken_back)

    monkeypatch.setattr(BackendMonitor, "lost", noted)
    return told


async def test_a_prompt_that_was_taken_back_counts_as_one_that_its_engine_says_nothing_of(
    redis_url: str, pool_id: str, lost: list[tuple[int, bool]]
) -> None:
    async with pool_of(redis_url, pool_id, PREMIUM) as pool:
        await long_then_short(pool)
        assert [taken_back for _, taken_back in lost] == [True]
        assert lost[0][0] > 20_000


async def test_so_does_a_prompt_whose_client_left(redis_url: str, pool_id: str, lost: list[tuple[int, bool]]) -> None:
    async with pool_of(redis_url, pool_id, PREMIUM) as pool:
        await ask(pool, pool.key, "And now?", [], "whole")
        long = asyncio.create_task(ask(pool, pool.key, LONG, [], "long"))
        await until(lambda: computing(pool))
        long.cancel()
        await until(lambda: len(pool.told.records) == 2)
        assert [taken_back for _, taken_back in lost] == [False]
        assert lost[0][0] > 20_000


async def test_an_owner_that_arrives_when_a_prompt_has_just_resumed_does_not_wait_for_all_of_it(
    redis_url: str, pool_id: str
) -> None:
    """It is granted at once, beside the prompt, and nobody waits: the leader looks again all the same."""
    async with pool_of(redis_url, pool_id, OWNER) as pool:
        firsts: list[str] = []
        long = asyncio.create_task(ask(pool, pool.key, LONG, firsts, "long"))
        await until(lambda: computing(pool))
        await ask(pool, pool.urgent, "And now?", firsts, "first")
        await until(lambda: computing(pool))
        await ask(pool, pool.urgent, "And then?", firsts, "second")
        assert len(await long) == 8
        assert firsts == ["first", "second", "long"]
        await pool.settled()


@pytest.mark.parametrize(
    ("caches", "prefill_preemption"), [(False, True), (True, False)], ids=["no prefix cache", "switched off"]
)
async def test_a_prefill_goes_on_where_its_engine_would_forget_it_or_nobody_wants_it_interrupted(
    redis_url: str, pool_id: str, caches: bool, prefill_preemption: bool
) -> None:
    async with pool_of(redis_url, pool_id, PREMIUM, caches=caches, prefill_preemption=prefill_preemption) as pool:
        firsts, long, _ = await long_then_short(pool)
        assert firsts == ["long", "short"]
        assert long.attempts == 1
