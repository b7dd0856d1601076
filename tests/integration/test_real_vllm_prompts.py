"""What a real vLLM counts of long prompts, finds again of those that were taken back, and keeps of conversations,
behind gateway and leader. Its model has random weights and computes some 3,000 prompt tokens a second on one core."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import BackendSpec
from scheduling.engines.client import EngineMetrics, control_http
from scheduling.engines.kinds.vllm import VllmClient
from tests.support.dispatch_world import until, until_await
from tests.support.real_vllm import Watching, real_vllm
from tests.support.two_tiers import TwoTiers, two_tiers

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
CONTEXT = 16_384
LONG = 9_000  # tokens: seconds of prefill
SLOW = {
    "num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": CONTEXT,
}  # fmt: skip
OPTIONS = (
    "--load-format", "dummy", "--hf-overrides", json.dumps(SLOW), "--max-model-len", str(CONTEXT),
    "--kv-cache-memory-bytes", "400M", "--max-num-batched-tokens", "256", "--enable-prefix-caching",
)  # fmt: skip


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(real_vllm(tmp_path_factory.mktemp("prompts"), *OPTIONS)) for _ in range(2)]


def prompt_of(seed: int, tokens: int) -> list[int]:
    """One that no other test sends."""
    draw = random.Random(seed)
    return [draw.randrange(10, 900) for _ in range(tokens)]


async def idle(control: VllmClient) -> EngineMetrics:
    """Its figures once nothing runs there."""

    async def looked() -> EngineMetrics | None:
        metrics = await control.scrape()
        return None if metrics.running or metrics.waiting else metrics

    metrics = await until_await(looked, PATIENCE_S)
    assert metrics is not None
    return metrics


async def runs(control: VllmClient) -> bool:
    return (await control.scrape()).running == 1


async def test_a_prompt_and_what_was_cached_of_it_are_counted_together_at_its_end_and_not_if_it_is_aborted(
    engines: list[str],
) -> None:
    async with control_http() as http:
        control = Watching(engines[0], http=http)

        def sent(prompt: list[int]) -> asyncio.Task[httpx.Response]:
            body = {"model": serve.MODEL_NAME, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
            return asyncio.create_task(http.post(f"{engines[0]}/v1/completions", json=body, timeout=PATIENCE_S))

        async def figures_during(prompt: list[int], *, whole: bool) -> set[tuple[int, int]]:
            """What it counted, prompts and cached, at each look from before until nothing runs any more."""
            before, seen = await idle(control), set()
            task = sent(prompt)
            await until_await(lambda: runs(control), PATIENCE_S)
            if not whole:
                await asyncio.sleep(0.2)
                task.cancel()
            while not task.done() or (await control.scrape()).running:
                now = await control.scrape()
                seen.add((int(now.prompt_tokens - before.prompt_tokens), int(now.cached_tokens - before.cached_tokens)))
                await asyncio.sleep(0.05)
            await asyncio.gather(task, return_exceptions=True)
            end = await idle(control)
            seen.add((int(end.prompt_tokens - before.prompt_tokens), int(end.cached_tokens - before.cached_tokens)))
            return seen

        prompt = prompt_of(1, LONG)
        assert await figures_during(prompt, whole=True) == {(0, 0), (LONG, 0)}, "all at once"
        known = prompt[: LONG // 2]
        kept = LONG // 2 // 128 * 128  # whole blocks
        again = known + prompt_of(2, LONG // 2)
        assert await figures_during(again, whole=True) == {(0, 0), (LONG, kept)}, "what was cached with it"
        assert await figures_during(known + prompt_of(3, LONG // 2), whole=False) == {(0, 0)}, "neither"


@asynccontextmanager
async def pool_of(redis_url: str, pool_id: str, urls: list[str], **more: Any) -> AsyncIterator[TwoTiers]:
    backends = [BackendSpec(f"{pool_id}-{n}", pool_id, url, 32, 50_000) for n, url in enumerate(urls)]
    async with two_tiers(
        redis_url, pool_id, backends, ready_s=PATIENCE_S, upstream_model=serve.MODEL_NAME, max_model_len=CONTEXT,
        headroom_slots=0, **more,
    ) as pool:  # fmt: skip
        yield pool


async def complete(pool: TwoTiers, key: str, prompt: list[int], ended: list[str], name: str) -> None:
    """``ended`` gets its name with its answer."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=pool.base, headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    ended.append(name)


async def test_a_long_prompt_is_interrupted_for_a_better_tier_and_its_engine_finds_what_it_had_computed(
    redis_url: str, pool_id: str, engines: list[str]
) -> None:
    async with pool_of(redis_url, pool_id, engines[:1]) as pool, control_http() as http:
        control, ended = Watching(engines[0], http=http), list[str]()
        before = await idle(control)
        long = asyncio.create_task(complete(pool, pool.key, prompt_of(11, LONG), ended, "long"))
        await until_await(lambda: runs(control), PATIENCE_S)
        await asyncio.sleep(0.3)  # some blocks are computed
        await complete(pool, pool.urgent, prompt_of(12, 40), ended, "short")
        await long
        assert ended == ["short", "long"]
        records = await until(lambda: pool.told.records if len(pool.told.records) == 2 else None, "ledger", PATIENCE_S)
        by_tier = {record.tier: record for record in records}
        assert (by_tier["batch"].attempts, by_tier["batch"].interruptions) == (1, 1)
        assert by_tier["premium"].interruptions == 0
        found = (await idle(control)).cached_tokens - before.cached_tokens
        assert 128 <= found < LONG, "what was computed is not computed again"


async def test_turns_of_conversations_find_the_ones_before_them_while_others_keep_their_replica_busy(
    redis_url: str, pool_id: str, engines: list[str]
) -> None:
    """Each engine computes one prompt at a time, so turns find their own replica busy, and wait for it."""
    sessions, turns, begin, more = 6, 5, 800, 300
    patient = {"routing_params": {"cache_patience": 20.0}}
    async with pool_of(redis_url, pool_id, engines, **patient) as pool, control_http() as http:
        controls, ended = [Watching(url, http=http) for url in engines], list[str]()
        before = [await idle(control) for control in controls]

        async def talk(n: int) -> None:
            said = prompt_of(20, begin)
            for turn in range(turns):
                said += prompt_of(100 * (n + 1) + turn, more)
                await complete(pool, pool.key, list(said), ended, f"{n}")

        await asyncio.gather(*(talk(n) for n in range(sessions)))
        after = [await idle(control) for control in controls]
        assert len(ended) == sessions * turns
        asked = sum(b.prompt_tokens - a.prompt_tokens for a, b in zip(before, after, strict=True))
        found = sum(b.cached_tokens - a.cached_tokens for a, b in zip(before, after, strict=True))
        assert asked == sessions * sum(begin + more * (turn + 1) for turn in range(turns))
        assert found / asked > 0.3
