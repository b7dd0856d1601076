"""A real vLLM on the CPU with the tiny model: our client and our simulated engine against the truth.

Needs ``python -m controlplane.embedded.vllm_cpu`` (or one ``ENGINE=vllm make up``) before.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from controlplane import sse
from controlplane.calibration import measure
from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import BackendSpec
from scheduling.engines.client import EngineMetrics, control_http
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.engines.simulated.server import EngineOptions, serving
from tests.support.real_vllm import FOLDER, Watching, real_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MODEL = serve.MODEL_NAME
KV_OF_SOME = 500 / 131_072  # of the cache, by a prompt of which some tokens are computed


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has generated a token."""
    with real_vllm(tmp_path_factory.mktemp("vllm")) as address:
        yield address


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with control_http() as client:
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


async def test_our_control_client_reads_a_real_server(url: str, http: httpx.AsyncClient) -> None:
    control = Watching(url, http=http)
    assert await control.health()
    assert [(m.id, m.max_model_len) for m in await control.models()] == [(MODEL, serve.MAX_MODEL_LEN)]
    before = await control.scrape()
    assert await control.probe()
    after = await _settled(control, before.generation_tokens + 1)
    assert after.successes == before.successes + 1
    assert (after.running, after.waiting, after.kv_usage) == (0, 0, 0.0)


async def test_a_prompt_that_is_taken_back_resumes_where_it_stopped(tmp_path: Path, http: httpx.AsyncClient) -> None:
    """What the leader goes by when it interrupts a prefill: the engine keeps the blocks that it has computed."""
    with real_vllm(tmp_path, "--max-num-batched-tokens", "128") as url:
        control = Watching(url, http=http)
        assert (await control.scrape()).keeps_prefixes

        async def complete(seed: int) -> None:
            """A prompt of 3,800 tokens of its own."""
            draw = random.Random(seed)
            body = {"model": MODEL, "prompt": [draw.randrange(10, 900) for _ in range(3800)], "max_tokens": 1}
            (await http.post(f"{url}/v1/completions", json=body, timeout=60)).raise_for_status()

        async def found_again(seed: int) -> float:
            """How many tokens of a prompt that was taken back in its middle need not be computed again."""
            sent = asyncio.create_task(complete(seed))
            async with asyncio.timeout(60):
                while not sent.done() and (await control.scrape()).kv_usage < KV_OF_SOME:
                    await asyncio.sleep(0.005)
            sent.cancel()
            await asyncio.wait([sent])
            before = await _settled(control, 0.0)
            await complete(seed)
            return (await control.scrape()).cached_tokens - before.cached_tokens

        found = list[float]()
        while len(found) < 8 and not (found and found[-1] <= 3700):  # a look may come after the whole prompt
            found.append(await found_again(len(found)))
        assert 256 <= found[-1] <= 3700, f"some of it was computed, not all: {found}"


async def _settled(control: VllmClient, tokens: float) -> EngineMetrics:
    """Metrics follow the answer within an engine step or two."""
    async with asyncio.timeout(30):
        while True:
            metrics = await control.scrape()
            if metrics.generation_tokens >= tokens and metrics.running == 0:
                return metrics
            await asyncio.sleep(0.05)


async def test_chats_complete_and_stream_with_the_same_words_and_usage(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "say something"}],
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert whole.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(url: str, http: httpx.AsyncClient, stream: bool) -> None:
    control = Watching(url, http=http)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as leaving:
        sent = asyncio.create_task(leaving.post(url + "/v1/completions", json=body))
        async with asyncio.timeout(30):
            while (await control.scrape()).running == 0:
                await asyncio.sleep(0.02)
        sent.cancel()
        await asyncio.wait([sent])
    async with asyncio.timeout(30):
        while (metrics := await control.scrape()).running or metrics.kv_usage:
            await asyncio.sleep(0.02)
    assert await control.probe()


# --- the simulated engine is as the real one


def shape(value: Any) -> Any:
    """A JSON value's structure: names and types, without what differs from answer to answer."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def frames(body: str) -> list[Any]:
    """The shapes of a stream's frames, neighbours of one shape counted once (a real engine may join tokens)."""
    found: list[Any] = []
    for event in sse.events_of(body):
        frame = event if event == sse.DONE else shape(event)
        for choice in frame["choices"] if isinstance(frame, dict) else ():
            choice.pop("prompt_token_ids", None)  # the real engine names it in a completion's first frame only
        if not found or found[-1] != frame:
            found.append(frame)
    return found


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello you"}], "max_tokens": 12, "ignore_eos": True}
TEXT = {"model": MODEL, "prompt": "hello you", "max_tokens": 12, "ignore_eos": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
ALWAYS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
STREAM_TOKENS = 400  # a busy server joins tokens; of so many some frames are neither the first nor the last


@pytest.mark.parametrize("more", [{}, {"stream": True}, USAGE, ALWAYS], ids=["whole", "stream", "usage", "always"])
@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", TEXT)], ids=["chat", "text"])
async def test_the_simulated_engine_answers_in_the_same_shape(
    url: str, http: httpx.AsyncClient, path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    if more:
        body = {**body, "max_tokens": STREAM_TOKENS}
    async with serving(EngineOptions(model=MODEL, speed=20)) as simulated:
        real, ours = [
            await http.post(f"{address}/v1/{path}", json={**body, **more}, timeout=60)
            for address in (url, simulated.url)
        ]
    assert ours.headers["content-type"] == real.headers["content-type"]
    if more:
        assert frames(ours.text) == frames(real.text)
    else:
        assert shape(ours.json()) == shape(real.json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {**CHAT, "model": "another"}),
        ("chat/completions", {"model": MODEL}),
        ("chat/completions", {**CHAT, "messages": []}),
        ("chat/completions", {**CHAT, "max_tokens": "many"}),
        ("completions", {**TEXT, "max_tokens": 0}),
        ("completions", {**TEXT, "max_tokens": 100_000}),
        ("completions", {**TEXT, "prompt": [5] * 5000}),
        ("completions", {**TEXT, "prompt": [5] * 4096}),
        ("completions", {**TEXT, "prompt": ""}),
        ("completions", {**TEXT, "prompt": []}),
        ("completions", {**TEXT, "min_tokens": 100}),
        ("completions", {**TEXT, "n": 0}),
        ("completions", {**TEXT, "stream_options": {"include_usage": True}}),
    ],
)
async def test_the_simulated_engine_refuses_what_the_real_one_refuses_with_the_same_type(
    url: str, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    async with serving(EngineOptions(model=MODEL, max_model_len=4096)) as simulated:
        real, ours = [
            await http.post(f"{address}/v1/{path}", json=body, timeout=60) for address in (url, simulated.url)
        ]
    assert ours.status_code == real.status_code >= 400
    theirs, mine = real.json()["error"], ours.json()["error"]
    assert (mine["type"], mine["param"], mine["code"]) == (theirs["type"], theirs["param"], theirs["code"])


async def test_every_metric_the_simulated_engine_shows_is_one_of_vllms_or_dcgms(
    url: str, http: httpx.AsyncClient
) -> None:
    def names(page: str) -> set[str]:
        return {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}

    async with serving(EngineOptions(model=MODEL)) as simulated:
        ours = names((await http.get(simulated.url + "/metrics")).text)
    theirs = names((await http.get(url + "/metrics")).text)
    assert {name for name in ours if not name.startswith("DCGM_")} <= theirs


async def test_calibration_finds_the_slots_and_the_kv_cache_that_the_server_was_started_with(url: str) -> None:
    measured = await measure(BackendSpec("tiny", "p", url, 16, 1), MODEL, 20.0)
    async with control_http() as http:
        page = (await http.get(url + "/metrics")).text
    said = re.search(r'kv_cache_size_tokens="(\d+)"', page)
    assert said is not None
    assert measured.kv_tokens == int(said[1])
    command = serve.command(FOLDER, 1)
    assert measured.proposal.slots == int(command[command.index("--max-num-seqs") + 1])
    assert measured.proposal.tokens_per_s > 0
    assert measured.proposal.step_time is not None
