"""Requests as today's clients send them (OpenAI's SDK, Codex, Claude Code), each field of which somebody relies on:
taken whole, or refused with the field's name."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.gateway_world import World
from tests.support.simulated_world import simulated_world

CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def _png() -> str:
    """One black pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


IMAGE = _png()
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "w", "description": "d", "parameters": SCHEMA, "strict": True}}
FLAT = {"type": "function", "name": "w", "description": "d", "parameters": SCHEMA, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "description": "d",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}  # fmt: skip
CLAUDES = {"name": "w", "description": "d", "input_schema": SCHEMA}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
INLINE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
CALL = {"id": "1", "type": "function", "index": 0, "function": {"name": "w", "arguments": "{}"}}
SAID = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "t1", "name": "w", "input": {"c": "x"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "is_error": False,
         "content": [{"type": "text", "text": "x"}, INLINE]}]},
]  # fmt: skip

TAKEN: list[tuple[str, str, dict[str, Any]]] = [
    ("stream with tools", CHAT, {
        "messages": HELLO, "stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False},
        "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True}),
    ("a tool by name", CHAT, {
        "messages": HELLO, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "w"}}}),
    ("schema", CHAT, {"messages": HELLO, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}),
    ("an image", CHAT, {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "what"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}", "detail": "low"}}]}]}),
    ("logprobs", CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 5}),
    ("what only OpenAI's own models know", CHAT, {
        "messages": HELLO, "reasoning_effort": "low", "verbosity": "low", "service_tier": "auto",
        "modalities": ["text"],
        "prompt_cache_key": "k", "safety_identifier": "u", "prediction": {"type": "content", "content": "a"}}),
    ("an answer as the SDK dumps it", CHAT, {"tools": [TOOL], "messages": [
        *HELLO,
        {"role": "assistant", "content": "", "refusal": None, "annotations": [], "audio": None, "function_call": None,
         "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}], "name": "w"}]}),
    ("token ids", TEXT, {"prompt": [5, 6, 7, 8], "max_tokens": 4}),
    ("lists of them", TEXT, {
        "prompt": [[5, 6], [7]], "max_tokens": 4, "logprobs": 1, "echo": False, "best_of": 1, "suffix": None}),
    ("vectors of ids", VECTORS, {"input": [5, 6, 7]}),
    ("Codex", RESPONSES, {
        "instructions": "be brief", "tools": [FLAT, PATCH], "tool_choice": "auto", "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "medium"},
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "id": "fc", "call_id": "c", "name": "w", "arguments": "{}",
             "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]}]}),
    ("a seen image", RESPONSES, {"store": False, "input": [{"type": "message", "role": "user", "content": [
        {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}", "detail": "auto"}]}]}),
    ("Claude Code", MESSAGES + "?beta=true", {
        "max_tokens": 2000, "stream": True, "messages": SAID, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "system": [{"type": "text", "text": "a", "cache_control": EPHEMERAL}],
        "tools": [{**CLAUDES, "cache_control": EPHEMERAL, "eager_input_streaming": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "metadata": {"user_id": "u"}}),
    ("Claude Code that lets go of thoughts", MESSAGES + "?beta=true", {
        "max_tokens": 9, "messages": HELLO, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
    ("a service's cache and pace", MESSAGES, {
        "max_tokens": 9, "messages": HELLO, "cache_control": EPHEMERAL, "speed": "standard"}),
    ("its count", MESSAGES + "/count_tokens", {
        "messages": HELLO, "cache_control": EPHEMERAL, "speed": "standard", "tools": [CLAUDES],
        "thinking": {"type": "enabled", "budget_tokens": 1024}}),
]  # fmt: skip

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": HELLO, "web_search_options": {}}, "web_search_options"),
    (CHAT, {"messages": HELLO, "functions": [{"name": "w", "parameters": {}}]}, "functions"),
    (CHAT, {"messages": HELLO, "tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    (RESPONSES, {"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
    (MESSAGES, {"max_tokens": 9, "messages": HELLO, "tools": [{"type": "web_search_20250305", "name": "s"}]},
     "tools[0].type"),
    (MESSAGES, {"max_tokens": 9, "messages": HELLO, "speed": "fast"}, "speed"),
]  # fmt: skip


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with simulated_world(redis_url, pool_id) as (made, _):
        yield made


async def test_what_clients_send_is_taken(world: World) -> None:
    async with world.http() as client:
        for name, path, body in TAKEN:
            answer = await client.post(path, json={"model": "demo", **body}, headers={"anthropic-beta": "x-2025-05-14"})
            assert answer.status_code == 200, f"{name}: {answer.text}"
            if body.get("stream"):
                assert answer.headers["content-type"].startswith("text/event-stream"), name
                assert '"error"' not in answer.text.replace('"error":null', ""), name
                assert any(word in answer.text for word in ("[DONE]", "message_stop", "response.completed")), name
    await world.settled()


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
async def test_what_no_engine_here_can_do_is_refused_by_its_name(
    world: World, path: str, body: dict[str, Any], param: str
) -> None:
    async with world.http() as client:
        answer = await client.post(path, json={"model": "demo", **body})
    assert answer.status_code == 400
    assert param in answer.json()["error"]["message"]


class City(BaseModel):
    name: str


async def test_the_sdks_own_helpers_read_what_comes_back(world: World) -> None:
    async with world.sdk() as client:
        tools: Any = [FLAT]
        async with client.responses.stream(model="demo", input="hello", tools=tools, max_output_tokens=9) as events:
            kinds = [event.type async for event in events]
            final = await events.get_final_response()
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert final.usage is not None
        assert final.usage.output_tokens == 9

        chat: Any = {"model": "demo", "messages": HELLO, "max_tokens": 9}
        pieces = [piece async for piece in await client.chat.completions.create(
            **chat, stream=True, stream_options={"include_usage": True})]  # fmt: skip
        assert pieces[-1].usage is not None
        assert pieces[-1].usage.completion_tokens == 9

        floats = await client.embeddings.create(model="demo", input="a", encoding_format="float", dimensions=64)
        packed = await client.embeddings.create(model="demo", input="a", dimensions=64)  # the SDK asks for base64
        assert len(floats.data[0].embedding) == len(packed.data[0].embedding) == 64
        assert packed.data[0].embedding == pytest.approx(floats.data[0].embedding, abs=1e-6)

        sent = await client.chat.completions.with_raw_response.create(
            **chat,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "City", "schema": City.model_json_schema()},
            },
        )
        assert sent.status_code == 200
        assert (await client.models.retrieve("demo")).id == "demo"
    await world.settled()
