"""A real vLLM whose KV cache is reserved beyond its size preempts an answer in its middle: what its client gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane import sse
from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import BackendSpec
from scheduling.engines.client import control_http
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import until_await
from tests.support.real_vllm import Watching, real_vllm
from tests.support.two_tiers import TwoTiers, two_tiers

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
BLOCKS, BLOCK = 33, 128  # vLLM keeps one for itself
EOS = {"logit_bias": {"2": 100}}  # the answer ends at once
SILENCE_S = 0.5  # shorter than the time that the preempted answer stands still


async def stream(pool: TwoTiers, key: str, first: int, prompt: int, tokens: int, **more: Any) -> list[Any]:
    """The events of an answer of ``tokens`` tokens to a prompt of so many, which begins with token ``first``."""
    ids = [first] + [10 + n % 900 for n in range(prompt - 1)]
    body = {"model": "demo", "prompt": ids, "max_tokens": tokens, "stream": True} | more
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=pool.base, headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return sse.events_of(answer.text)


async def test_an_answer_that_its_engine_preempts_for_another_waits_for_room_and_is_whole(
    redis_url: str, pool_id: str, tmp_path: Path
) -> None:
    options = ("--num-gpu-blocks-override", str(BLOCKS))
    config = GatewayConfig(idle_token_timeout_s=SILENCE_S, renew_every_s=0.1)
    with real_vllm(tmp_path, *options) as url:
        backends = [BackendSpec(f"{pool_id}-0", pool_id, url, 32, BLOCKS * BLOCK)]
        async with (
            two_tiers(
                redis_url, pool_id, backends, ready_s=PATIENCE_S, upstream_model=serve.MODEL_NAME,
                max_model_len=serve.MAX_MODEL_LEN, max_output_tokens=2000, headroom_slots=0, config=config,
            ) as pool,
            control_http() as http,
        ):  # fmt: skip
            control = Watching(url, http=http)
            for n in range(16):  # answers are short, so the cache is reserved beyond its size
                await stream(pool, (pool.key, pool.urgent)[n % 2], 3, 8, 2000, **EOS)
            await asyncio.sleep(2.5)  # the leader has told what it offers
            asked = {"ignore_eos": True, "stream_options": {"include_usage": True}}
            patient = asyncio.create_task(stream(pool, pool.key, 4, 2400, 1600, **asked))
            await until_await(lambda: _running(control, 1), PATIENCE_S)
            urgent = await stream(pool, pool.urgent, 5, 400, 1900, **asked)
            for events, tokens in ((urgent, 1900), (await patient, 1600)):
                assert events[-1] == sse.DONE
                assert events[-2]["usage"]["completion_tokens"] == tokens
            assert (await control.scrape()).preemptions > 0  # vLLM counts one once the answer goes on


async def _running(control: VllmClient, count: int) -> bool:
    return (await control.scrape()).running == count
