"""Anthropic's ``/v1/messages`` and OpenAI's ``/v1/responses`` through the gateway: what their own servers would answer,
admitted and booked as every other request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from scheduling.engines.simulated.server import SimulatedServer
from scheduling.gateway.config import GatewayConfig
from tests.support.fake_engine import raw_answer
from tests.support.gateway_world import World, gateway_world, until
from tests.support.simulated_world import simulated_world

Both = tuple[World, SimulatedServer]
HELLO: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello there"}]}
ASK: dict[str, Any] = {"max_output_tokens": 9, "input": "hello there"}
PATHS = [("/v1/messages", HELLO), ("/v1/responses", ASK)]
NAMES = ("id", "created_at", "item_id")


@pytest.fixture
async def both(redis_url: str, pool_id: str) -> AsyncIterator[Both]:
    async with simulated_world(redis_url, pool_id) as (world, [server]):
        yield world, server


def events(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for frame in body.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        found.append((name[7:], json.loads(data[6:])))
    return found


def same(value: Any) -> Any:
    """Without names and times, which differ from request to request."""
    if isinstance(value, dict):
        return {k: same(v) for k, v in value.items() if k not in NAMES and (k, v) != ("model", "demo")}
    return [same(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_the_answer_is_the_engines_and_is_booked(
    both: Both, path: str, body: dict[str, Any], stream: bool
) -> None:
    world, server = both
    body = {**body, "stream": stream}
    async with world.http() as client, httpx.AsyncClient() as direct:
        answer = await client.post(path, json={"model": "demo", **body})
        wanted = await direct.post(server.url + path, json=body)
    assert answer.status_code == 200, answer.text
    if stream:
        got = events(answer.content)
        assert same([data for _, data in got]) == _named("demo", same([data for _, data in events(wanted.content)]))
        assert all(name == data["type"] for name, data in got)
        assert answer.headers["content-type"].startswith("text/event-stream")
    else:
        assert same(answer.json()) == _named("demo", same(wanted.json()))
    assert answer.headers["x-request-id"] in answer.text
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason, record.status) == ("completed", "length", 200)
    assert (record.output_tokens, record.output_bound, record.streamed) == (9, 9, stream)
    assert record.input_tokens == 6
    assert (record.first_token_s is not None) is stream
    await world.settled()


def _named(model: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _named(model, v) for k, v in value.items() if k != "model"}
    return [_named(model, one) for one in value] if isinstance(value, list) else value


async def test_an_anthropic_client_needs_no_bearer(both: Both) -> None:
    world, _ = both
    headers = {"x-api-key": world.key, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    async with httpx.AsyncClient(base_url=world.base, headers=headers) as client:
        answer = await client.post("/v1/messages?beta=true", json={"model": "demo", **HELLO})
        counted = await client.post("/v1/messages/count_tokens", json={"model": "demo", "messages": HELLO["messages"]})
        listed = await client.get("/v1/models")
        wrong = await client.post("/v1/messages", json={}, headers={"x-api-key": "sk-x"})
    assert answer.status_code == 200
    assert answer.json()["stop_reason"] == "max_tokens"
    assert counted.json()["input_tokens"] == 6
    assert wrong.status_code == 401
    assert wrong.json()["error"]["type"] == "authentication_error"
    assert wrong.json()["request_id"] == wrong.headers["x-request-id"]
    for one in (answer, counted, listed, wrong):
        assert one.headers["request-id"] == one.headers["x-request-id"], "Anthropic's SDKs know no other name"


async def test_openai_s_clients_get_the_id_under_one_name(both: Both) -> None:
    world, _ = both
    async with world.http() as client:
        for answer in (
            await client.get("/v1/models"),
            await client.post("/v1/responses", json={"model": "demo", **ASK}),
        ):
            assert "x-request-id" in answer.headers
            assert "request-id" not in answer.headers


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"spelled_wrong": 1}, "spelled_wrong"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "wrong": 1}]}]}, "messages[0]"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"mcp_servers": [{"url": "http://10.0.0.1"}]}, "mcp_servers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/"}}]}]},
         "messages[0].content[...].source.url"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "!!",
          "media_type": "image/png"}}]}]}, "messages[0].content[0].source.data"),
    ],
)  # fmt: skip
async def test_messages_refuses_by_name_in_its_own_dialect(both: Both, more: dict[str, Any], param: str) -> None:
    world, server = both
    async with world.http() as client:
        answer = await client.post("/v1/messages", json={"model": "demo", **HELLO, **more})
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert param.split("[")[0] in error["error"]["message"]
    assert server.engine.steps == 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"store": True}, "not stored"),
        ({"previous_response_id": "resp_1"}, "Nothing is stored"),
        ({"conversation": "c"}, "not looked up"),
        ({"background": True}, "batch"),
        ({"prompt": {"id": "p"}}, "not looked up"),
        ({"tools": [{"type": "mcp", "server_url": "http://10.0.0.1/"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"request_id": "resp_mine"}, "gateway names"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.1/"}]}]},
         "Nothing is fetched"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "Files are not read"),
        ({"max_output_tokens": 10**6}, "At most"),
    ],
)  # fmt: skip
async def test_responses_refuses_what_would_need_a_store_or_a_fetch(
    both: Both, more: dict[str, Any], told: str
) -> None:
    world, server = both
    async with world.http() as client:
        answer = await client.post("/v1/responses", json={"model": "demo", **ASK, **more})
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]["message"]
    assert server.engine.steps == 0


async def test_what_an_engine_gets_of_each(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        engine = world.engines[0]
        tool = {"name": "f", "input_schema": {"type": "object"}, "type": "custom", "cache_control": {}}
        history = [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"x": [1, None]}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "5"}]},
        ]  # fmt: skip
        engine.script.raw = raw_answer({"type": "message", "content": [], "stop_reason": "end_turn"})
        body = {"model": "demo", "max_tokens": 5, "messages": history, "tools": [tool], "metadata": {"user_id": "u"},
                "thinking": {"type": "adaptive"}, "system": "be brief"}  # fmt: skip
        async with world.http() as client:
            answer = await client.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
            engine.script.raw = raw_answer({"id": "x", "object": "response", "status": "completed", "output": []})
            asked = {"model": "demo", "input": [{"role": "user", "content": "a"}], "metadata": {"run": "7"}}
            await client.post("/v1/responses", json=asked)
    first, second = engine.bodies[0], engine.bodies[-1]
    assert first.pop("cache_salt"), "the tenant's own"
    history[0]["content"][0].pop("cache_control")  # type: ignore[attr-defined]
    assert first.pop("priority") >= 0
    assert first == {
        "model": "fake-upstream", "max_tokens": 5, "messages": history, "system": "be brief",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "adaptive"},
    }  # fmt: skip
    assert second.pop("cache_salt")
    assert second.pop("priority") >= 0
    assert second.pop("request_id").startswith("resp_req_")
    assert second == {
        "model": "fake-upstream", "input": asked["input"], "metadata": {"run": "7"}, "max_output_tokens": 512,
        "store": False,
    }  # fmt: skip


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_stream_that_breaks_ends_with_its_dialects_error_event(
    both: Both, path: str, body: dict[str, Any]
) -> None:
    world, server = both
    async with world.http() as client, httpx.AsyncClient() as direct:
        await direct.post(server.url + "/sim/fault", json={"cut_rate": 1.0})
        answer = await client.post(path, json={"model": "demo", **body, "stream": True})
    got = events(answer.content)
    name, last = got[-1]
    assert (name, last["type"]) == ("error", "error")
    if path == "/v1/messages":
        assert last["error"]["type"] == "api_error"
    else:
        assert (last["code"], last["sequence_number"]) == ("backend_lost", len(got) - 1)
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason) == ("failed", "backend_lost")
    assert 0 < record.output_tokens < 9
    await world.settled()


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_until_the_engine_did_something_another_replica_may(
    redis_url: str, pool_id: str, path: str, body: dict[str, Any]
) -> None:
    """``/v1/responses`` greets before it has a token: the greeting is held back until one came."""
    async with simulated_world(redis_url, pool_id, engines=2) as (world, servers):
        async with world.http() as client, httpx.AsyncClient() as direct:
            for server in servers:
                await direct.post(server.url + "/sim/fault", json={"stall": True})
            asking = asyncio.create_task(client.post(path, json={"model": "demo", **body, "stream": True}))
            await until(lambda: any(server.engine.waiting for server in servers))
            [first] = [server for server in servers if server.engine.waiting]
            await first.close()
            for server in servers:
                if server is not first:
                    await direct.post(server.url + "/sim/fault", json={"stall": 0})
            answer = await asking
        assert answer.status_code == 200, answer.text
        assert "error" not in [name for name, _ in events(answer.content)]
        [record] = await world.ledger_of(1)
        assert (record.reason, record.attempts) == ("length", 2)


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_limits_refuse_in_the_dialect_and_say_when(both: Both, path: str, body: dict[str, Any]) -> None:
    world, server = both
    await world.configure(concurrency=1)
    async with world.http() as client, httpx.AsyncClient() as direct:
        await direct.post(server.url + "/sim/fault", json={"stall": True})
        first = asyncio.create_task(client.post(path, json={"model": "demo", **body}))
        await until(lambda: server.engine.waiting + len(server.engine.running) == 1)
        refused = await client.post(path, json={"model": "demo", **body})
        await direct.post(server.url + "/sim/fault", json={"stall": 0})
        assert (await first).status_code == 200
    assert refused.status_code == 429
    assert int(refused.headers["retry-after-ms"]) > 0
    assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_an_idempotency_key_works_here_too(redis_url: str, pool_id: str) -> None:
    config = GatewayConfig(idempotency_answers=True, idempotency_secret=b"s" * 32)
    async with simulated_world(redis_url, pool_id, config=config) as (world, [server]):
        async with world.http() as client:
            for path, body in PATHS:
                answers = [
                    await client.post(path, json={"model": "demo", **body}, headers={"Idempotency-Key": "k" + path})
                    for _ in range(2)
                ]
                assert answers[0].content == answers[1].content
        assert server.engine.totals.finished_length == len(PATHS)


async def test_the_openai_sdk_speaks_responses(both: Both) -> None:
    world, _ = both
    async with world.sdk() as client:
        answer = await client.responses.create(model="demo", input="hello there", max_output_tokens=9, store=False)
        assert answer.usage is not None
        assert (answer.status, answer.usage.output_tokens, len(answer.output_text.split())) == ("incomplete", 9, 9)
        stream = await client.responses.create(model="demo", input="hello there", max_output_tokens=9, stream=True)
        seen = [event async for event in stream]
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == answer.output_text
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.model == "demo"


USAGES = [None, {"input_tokens": -5, "output_tokens": 1}, {"input_tokens": 3, "output_tokens": 10**9}]


@pytest.mark.parametrize("told", USAGES)
async def test_a_usage_that_cannot_be_true_is_replaced(redis_url: str, pool_id: str, told: Any) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        message = {"type": "message", "content": [{"type": "text", "text": "a b"}], "stop_reason": "end_turn"}
        response = {"object": "response", "status": "completed", "output": []}
        async with world.http() as client:
            for path, body, answer in (("/v1/messages", HELLO, message), ("/v1/responses", ASK, response)):
                world.engines[0].script.raw = raw_answer(answer | {"usage": told})
                got = (await client.post(path, json={"model": "demo", **body})).json()
                assert got["usage"]["input_tokens"] == 7, "our estimate"
                assert 0 <= got["usage"]["output_tokens"] <= 9


async def test_anthropics_cached_tokens_are_input(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        usage = {"input_tokens": 2, "cache_read_input_tokens": 10, "output_tokens": 3}
        message = {"type": "message", "content": [], "stop_reason": "end_turn", "usage": usage}
        world.engines[0].script.raw = raw_answer(message)
        async with world.http() as client:
            got = (await client.post("/v1/messages", json={"model": "demo", **HELLO})).json()
        assert got["usage"] == usage
        [record] = await world.ledger_of(1)
        assert (record.input_tokens, record.output_tokens) == (12, 3)
