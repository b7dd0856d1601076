"""Embeddings, rerank, score and classify through the gateway: admitted, charged by their input, answered whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from scheduling.engines.simulated.server import SimulatedServer
from scheduling.gateway.config import GatewayConfig
from tests.support.fake_engine import raw_answer
from tests.support.gateway_world import World, gateway_world, until
from tests.support.simulated_world import simulated_world

TEXTS = ["the queue of the city", "a river in the winter light", "the city has a queue"]
Both = tuple[World, SimulatedServer]


@pytest.fixture
async def both(redis_url: str, pool_id: str) -> AsyncIterator[Both]:
    async with simulated_world(redis_url, pool_id) as (world, [server]):
        yield world, server


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/embeddings", "/v1/embeddings", {"input": TEXTS}),
    ("/v1/embeddings", "/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64", "dimensions": 16}),
    ("/v1/embeddings", "/v1/embeddings", {"input": [[1, 2, 3], [4]]}),
    ("/v1/embeddings", "/v1/embeddings", {"messages": [{"role": "user", "content": "hello there"}]}),
    ("/v1/rerank", "/rerank", {"query": "queue city", "documents": TEXTS, "top_n": 2, "return_documents": True}),
    ("/v2/rerank", "/rerank", {"query": "queue city", "documents": TEXTS}),
    ("/rerank", "/rerank", {"query": "queue city", "documents": TEXTS[0]}),
    ("/v1/score", "/score", {"text_1": "queue city", "text_2": TEXTS}),
    ("/score", "/score", {"queries": TEXTS, "items": TEXTS}),
    ("/v1/classify", "/classify", {"input": TEXTS}),
]


@pytest.mark.parametrize(("path", "theirs", "body"), CASES, ids=[f"{p}-{next(iter(b))}" for p, _, b in CASES])
async def test_the_answer_is_the_engines_and_is_booked_by_its_input(
    both: Both, path: str, theirs: str, body: dict[str, Any]
) -> None:
    world, server = both
    async with world.http() as client, httpx.AsyncClient() as direct:
        answer = await client.post(path, json={"model": "demo", **body})
        sent = {name: value for name, value in body.items() if name != "return_documents"}
        wanted = (await direct.post(server.url + theirs, json=sent)).json()
    assert answer.status_code == 200, answer.text
    got = answer.json()
    assert answer.headers["x-request-id"] in got["id"]
    assert got["model"] == "demo", "the engine's own name of the model does not show"
    for one in (got, wanted):
        for name in ("id", "model", "created"):
            one.pop(name, None)
    assert got == wanted
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason, record.status) == ("completed", "stop", 200)
    assert (record.input_tokens, record.output_tokens) == (wanted["usage"]["prompt_tokens"], 0)
    assert (record.output_bound, record.streamed, record.slo_met) == (0, False, True)
    assert record.input_tokens_est > 0
    await world.settled()
    assert server.engine.totals.generation_tokens == 0


async def test_the_sdk_gets_vectors_that_say_which_texts_are_alike(both: Both) -> None:
    world, _ = both
    async with world.sdk() as client:
        answer = await client.embeddings.create(model="demo", input=TEXTS)  # it asks for base64
    first, second, third = [one.embedding for one in answer.data]
    assert len(first) == 64
    assert sum(a * b for a, b in zip(first, third, strict=True)) > sum(
        a * b for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
        ("/v1/embeddings", {"input": ["a", 1]}, "input[1]"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
        ("/v1/embeddings", {"input": "a", "spelled_wrong": 1}, "spelled_wrong"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "chat_template": "x"}, "chat_template"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"image": "http://10.0.0.1/"}]}, "documents[0]"),
        ("/v1/score", {"text_1": "a"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/classify", {"input": "a", "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(both: Both, path: str, body: dict[str, Any], param: str | None) -> None:
    world, server = both
    async with world.http() as client:
        answer = await client.post(path, json={"model": "demo", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"
    assert answer.json()["error"]["param"] == param
    assert server.engine.steps == 0


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_path_that_the_engines_lack_costs_its_asker_alone(redis_url: str, pool_id: str, status: int) -> None:
    """Otherwise a tenant that asks a chat model for embeddings would get every replica paused for its neighbours."""
    async with gateway_world(redis_url, pool_id, engines=1) as world, world.http() as client:
        [engine] = world.engines
        engine.script.status = status
        for _ in range(5):
            answer = await client.post("/v1/embeddings", json={"model": "demo", "input": "hello"})
            assert answer.status_code == 404, answer.text
            assert "/v1/embeddings" in answer.json()["error"]["message"]
        asked = await client.post("/v1/detokenize", json={"model": "demo", "tokens": [1, 2]})
        assert asked.status_code == 404, asked.text
        engine.script.status = 200
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        assert len(engine.bodies) == 7, "each was sent to the engine once"
        events = await world.resp.call(b"XRANGE", f"qm:{{{world.pool.id}}}:events", b"-", b"+")
        assert not [fields for _, fields in events if fields[0] == b"s"], "nobody is asked to look at the replica"


@pytest.mark.parametrize("engines", [1, 2])
async def test_a_chat_with_a_model_that_makes_vectors_costs_its_asker_alone(
    redis_url: str, pool_id: str, engines: int
) -> None:
    async with gateway_world(redis_url, pool_id, engines=engines) as world, world.http() as client:
        body, hello = b'{"detail":"Not Found"}', [{"role": "user", "content": "hello"}]
        for engine in world.engines:
            engine.script.raw = lambda _: b"HTTP/1.1 404 X\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        for path, asked in (("/v1/chat/completions", {"messages": hello}), ("/v1/completions", {"prompt": "hello"})):
            answer = await client.post(path, json={"model": "demo", "max_tokens": 4, **asked})
            assert answer.status_code == 404, answer.text
            assert f"do not serve {path}" in answer.json()["error"]["message"]
            assert answer.headers["x-should-retry"] == "false"
        assert len(world.engines[0].bodies) >= 1
        events = await world.resp.call(b"XRANGE", f"qm:{{{world.pool.id}}}:events", b"-", b"+")
        assert not [fields for _, fields in events if fields[0] == b"s"], "nobody is asked to look at the replica"
        await world.settled()


async def test_a_slot_and_the_charge_are_held_until_the_answer(redis_url: str, pool_id: str) -> None:
    async with simulated_world(redis_url, pool_id) as (world, [server]):
        await world.configure(concurrency=1, tokens_per_s=1.0, burst_tokens=100.0)
        async with world.sdk() as client, httpx.AsyncClient() as direct:
            await direct.post(server.url + "/sim/fault", json={"stall": True})
            first = asyncio.create_task(client.embeddings.create(model="demo", input=TEXTS))
            await until(lambda: server.engine.waiting + len(server.engine.running) == len(TEXTS))
            assert await world.running() == (1, 0)
            with pytest.raises(openai.RateLimitError) as refused:
                await client.embeddings.create(model="demo", input="b")
            assert refused.value.code == "concurrency"
            await direct.post(server.url + "/sim/fault", json={"stall": 0})
            await first
            with pytest.raises(openai.RateLimitError) as refused:
                await client.embeddings.create(model="demo", input="word " * 99)
            assert refused.value.code == "token_budget"
        await world.settled()


async def test_leaving_reaches_the_engine(both: Both) -> None:
    world, server = both
    async with world.sdk(timeout=0.5) as client, httpx.AsyncClient() as direct:
        await direct.post(server.url + "/sim/fault", json={"stall": True})
        with pytest.raises(openai.APITimeoutError):
            await client.embeddings.create(model="demo", input=TEXTS)
        await until(lambda: server.engine.totals.aborted == len(TEXTS))
    [record] = await world.ledger_of(1)
    assert record.reason == "client_left"
    await world.settled()


async def test_the_same_idempotency_key_gets_the_same_vectors_and_runs_once(redis_url: str, pool_id: str) -> None:
    config = GatewayConfig(idempotency_answers=True, idempotency_secret=b"s" * 32)
    async with simulated_world(redis_url, pool_id, config=config) as (world, [server]):
        headers = {"Idempotency-Key": "k1"}
        body = {"model": "demo", "input": TEXTS}
        async with world.http() as client:
            first = await client.post("/v1/embeddings", json=body, headers=headers)
            again = await client.post("/v1/embeddings", json=body, headers=headers)
            other = await client.post("/v1/classify", json=body, headers=headers)
        assert first.content == again.content
        assert again.headers["idempotent-replayed"] == "true"
        assert other.json()["error"]["code"] == "key_reused"
        assert server.engine.totals.finished_stop == len(TEXTS)


async def test_more_vectors_than_fit_into_an_answer_are_the_requests_fault_not_the_replicas(
    redis_url: str, pool_id: str
) -> None:
    async with simulated_world(redis_url, pool_id, config=GatewayConfig(max_answer_bytes=4096)) as (world, _):
        async with world.http() as client:
            large = await client.post("/v1/embeddings", json={"model": "demo", "input": TEXTS * 40})
            small = await client.post("/v1/embeddings", json={"model": "demo", "input": "a", "dimensions": 4})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
        assert small.status_code == 200


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("a row is missing", {"data": []}),
    ("a vector is a word", {"data": [{"index": 0, "embedding": {"a": 1}}]}),
    ("a row of another input", {"data": [{"index": 7, "embedding": [0.1]}]}),
    ("it says it failed", {"data": [{"index": 0, "embedding": [0.1]}], "error": {"message": "x"}}),
]


@pytest.mark.parametrize("answer", [a for _, a in BROKEN], ids=[why for why, _ in BROKEN])
async def test_what_is_no_embedding_is_not_passed_on(redis_url: str, pool_id: str, answer: dict[str, Any]) -> None:

    async with gateway_world(redis_url, pool_id) as world:
        world.engines[0].script.raw = raw_answer(answer)
        async with world.http() as client:
            got = await client.post("/v1/embeddings", json={"model": "demo", "input": "a"})
        assert (got.status_code, got.json()["error"]["code"]) == (502, "backend_error")


@pytest.mark.parametrize("told", [None, {"prompt_tokens": -1}, {"prompt_tokens": 10**9}, {"prompt_tokens": "x"}])
async def test_a_usage_that_cannot_be_true_is_replaced(redis_url: str, pool_id: str, told: Any) -> None:

    async with gateway_world(redis_url, pool_id) as world:
        world.engines[0].script.raw = raw_answer({"data": [{"index": 0, "embedding": [0.1]}], "usage": told})
        async with world.http() as client:
            got = await client.post("/v1/embeddings", json={"model": "demo", "input": "a b c"})
        assert got.json()["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
        [record] = await world.ledger_of(1)
        assert (record.input_tokens, record.output_tokens) == (3, 0)
        assert world.metrics.usage_rejections


@pytest.mark.parametrize(
    ("path", "body", "rows"),
    [
        ("/v1/embeddings", {"input": "a b c"}, {"data": [{"index": 0, "embedding": [0.1]}]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, {"results": [{"index": 0, "relevance_score": 0.5}]}),
    ],
)
async def test_they_are_answered_in_a_pool_with_a_tokenizer(
    redis_url: str, pool_id: str, path: str, body: dict[str, Any], rows: dict[str, Any]
) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        await world.configure(pool={"tokenizer": "backend"})
        world.engines[0].script.raw = raw_answer(rows | {"usage": {"prompt_tokens": 5, "total_tokens": 5}})
        async with world.http() as client:
            got = await client.post(path, json={"model": "demo", **body})
        assert got.status_code == 200, got.text
