"""Two real vLLMs on the CPU, one that computes prompts and one that writes answers, behind gateway and leader. The KV
cache goes over a shared folder (``tests/support/whole_blocks.py``), which is what a CPU build can do.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import BackendSpec, Phase
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.engines.client import control_http, counted
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching
from tests.support.gateway_world import World, gateway_world
from tests.support.real_vllm import ROOT, Watching, real_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
BLOCK = 128  # tokens, of the CPU build: whole blocks are handed over


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A prefill replica and a decode replica."""
    store = tmp_path_factory.mktemp("store")
    transfer = {
        "kv_connector": "WholeBlocks", "kv_connector_module_path": "tests.support.whole_blocks", "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(store)},
    }  # fmt: skip
    options = ("--enable-prompt-tokens-details", "--kv-transfer-config", json.dumps(transfer))
    folders, path = [tmp_path_factory.mktemp(name) for name in ("prefill", "decode")], {"PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        yield [stack.enter_context(real_vllm(folder, *options, environ=path)) for folder in folders]


@pytest.fixture
async def served(redis_url: str, pool_id: str, engines: list[str]) -> AsyncIterator[tuple[World, PoolDispatcher]]:
    async with gateway_world(redis_url, pool_id, engines=0, lead=False) as world:
        world.granting = False
        backends = tuple(
            BackendSpec(f"{pool_id}-{phase}", pool_id, url, 8, 8_000, phase=phase)
            for phase, url in zip((Phase.PREFILL, Phase.DECODE), engines, strict=True)
        )
        world.pool = replace(
            world.pool, upstream_model=serve.MODEL_NAME, backends=backends, max_model_len=serve.MAX_MODEL_LEN,
            headroom_slots=0,
        )  # fmt: skip
        await world.configure()
        catalog = catalog_of(world.pool, world.entitlement)
        async with dispatching(redis_url, catalog, telemetry=Telemetry(), over_http=True) as dispatcher:
            async with asyncio.timeout(PATIENCE_S):
                while not any(b.ready for b in (await world.store.view()).backends.values()):
                    await asyncio.sleep(0.05)
            yield world, dispatcher


async def test_an_answer_is_written_from_the_kv_cache_that_another_vllm_computed(
    served: tuple[World, PoolDispatcher], engines: list[str]
) -> None:
    world, _ = served
    prompt = "stone " * 200
    async with control_http() as http, world.sdk() as client:
        clients = [Watching(url, http=http) for url in engines]
        before = [await counted(c) for c in clients]
        answer = await client.completions.create(
            model="demo", prompt=prompt, max_tokens=16, temperature=0, extra_body={"ignore_eos": True}
        )
        after = [await counted(c) for c in clients]
        alone = await http.post(
            f"{engines[0]}/v1/completions",
            json={
                "model": serve.MODEL_NAME, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True,
            },
            timeout=60,
        )  # fmt: skip
    written = [b.generation_tokens - a.generation_tokens for a, b in zip(before, after, strict=True)]
    assert written == [1, 16]
    assert answer.choices[0].text == alone.json()["choices"][0]["text"], "as one that computed the prompt itself"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= BLOCK, "handed over, not computed again"


async def test_a_stream_has_both_legs(served: tuple[World, PoolDispatcher], engines: list[str]) -> None:
    world, _ = served
    async with control_http() as http, world.sdk() as client:
        first = Watching(engines[0], http=http)
        before = await counted(first)
        stream = await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "river " * 150}], max_tokens=8, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        frames = [chunk async for chunk in stream]
        after = await counted(first)
    assert frames[-1].choices[0].finish_reason == "length"
    assert after.generation_tokens - before.generation_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_messages_and_responses_have_both_legs(
    served: tuple[World, PoolDispatcher], engines: list[str], path: str, stream: bool
) -> None:
    prompt = f"{path} {stream} " * 60  # that no cache has seen
    body: dict[str, Any] = {"max_tokens": 8, "messages": [{"role": "user", "content": prompt}]}
    if path == "/v1/responses":
        body = {"max_output_tokens": 8, "input": prompt}
    world, _ = served
    async with control_http() as http, world.http() as client:
        clients = [Watching(url, http=http) for url in engines]
        before, had = [await counted(c) for c in clients], await _taken_over(http, engines[1])
        answer = await client.post(path, json={"model": "demo", **body, "stream": stream}, timeout=60)
        after, has = [await counted(c) for c in clients], await _taken_over(http, engines[1])
    assert answer.status_code == 200, answer.text
    first, second = (b.generation_tokens - a.generation_tokens for a, b in zip(before, after, strict=True))
    assert first == 1
    assert 1 <= second <= 8
    assert has - had >= BLOCK, "handed over, not computed again"


async def _taken_over(http: httpx.AsyncClient, url: str) -> float:
    """Prompt tokens that this vLLM took from another's KV cache."""
    page = (await http.get(f"{url}/metrics")).text
    return sum(map(float, re.findall(r"^vllm:external_prefix_cache_hits_total\{[^}]*\} (\S+)", page, re.M)))
