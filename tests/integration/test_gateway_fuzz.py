"""Requests that nobody would write: ``/v1`` answers each in the API's own words, and nothing of it stays behind.

``make fuzz REQUESTS=20000 SEED=7`` sends more; a failure names the seed and the request's number.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections import Counter
from typing import Any

import pytest

from scheduling.core.outcomes import ENDINGS, Reason
from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "600"))
SEED = int(os.environ.get("FUZZ_SEED", "20261122"))
AT_ONCE = 16
LIMIT = 64 * 1024
CONFIG = GatewayConfig(
    body_timeout_s=2.0, header_timeout_s=2.0, send_timeout_s=5.0, max_body_bytes=LIMIT, max_header_bytes=4096,
    drain_s=0.3,
)  # fmt: skip

CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "reasoning": "so",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "max_tokens": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "stop": ["x"],
    "logit_bias": {"7": 1},
    "metadata": {"a": "b"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
    "vllm_xargs": {"a": 1},
    "chat_template_kwargs": {"enable_thinking": False},
}
COMPLETION: dict[str, Any] = {
    "model": "demo", "prompt": "a b c", "suffix": "d", "max_tokens": 3, "stop": "x", "seed": 1, "cache_salt": "mine",
    "structured_outputs": {"regex": "a+"}, "bad_words": ["b"], "priority": 3,
}  # fmt: skip
NASTY: list[Any] = [
    None, True, 0, -1, 1e308, 2**63, -(2**63), 10**30, 0.1, "", "\x00", "\u2028", "a" * 5000, "\ud800", [], [[]], {},
    {"": None}, [None], ["a", 1], {"type": "text"}, "demo", "stream", 3, "3",
]  # fmt: skip
PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/demo", "/v1/models/%00", "/v1", "/v1/",
    "/v1//models", "/v1/chat/completions/", "/v1/embeddings", "/v1/models/..%2f..%2fadmin", "/v1/chat/completions?x=1",
]  # fmt: skip
HEADERS = [
    "idempotency-key: a b", "idempotency-key: \x7f", "x-quartermaster-slo-ttft-ms: nan",
    "x-quartermaster-slo-ttft-ms: 1", "x-quartermaster-slo-ttlt-ms: -5", "traceparent: 00-0-0-0",
    "content-encoding: gzip", "expect: 100-continue", "upgrade: h2c", "te: trailers", "x-a: " + "b" * 5000,
    "transfer-encoding: gzip, chunked", "content-type: text/plain", "accept: text/html", "host: y",
]  # fmt: skip


def nested(chance: random.Random) -> str:
    """JSON that is deep rather than long."""
    depth = chance.choice((60, 2000, 20_000))
    opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
    return opening * depth + "1" + closing * depth


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every node of a JSON value."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


def changed_body(chance: random.Random, body: dict[str, Any]) -> bytes:
    """A request that was right, with one to three things wrong or odd."""
    body = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(places(body)[1:] or [("model",)])
        inside: Any = body
        for step in path[:-1]:
            inside = inside[step]
        how = chance.random()
        if how < 0.5:
            inside[path[-1]] = copy.deepcopy(chance.choice(NASTY))
        elif how < 0.7:
            del inside[path[-1]]
        elif isinstance(inside, dict):
            name = chance.choice(("n", "echo", "tpyo", "prompt_logprobs", "\x00", "best_of"))
            inside[name] = copy.deepcopy(chance.choice(NASTY))  # a shared list would grow from request to request
        else:
            copies = chance.choice((1, 200))
            if len(json.dumps(inside[0])) * copies < 8 * LIMIT:  # lists of copies of lists would take minutes to make
                inside.extend([copy.deepcopy(inside[0])] * copies)
        if not body:
            break
    text = json.dumps(body)
    if chance.random() < 0.1:
        text = text.replace('"hello"', nested(chance), 1).replace('"a b c"', nested(chance), 1)
    if chance.random() < 0.05:
        text = text[:-1] + ', "model": "other"}'
    return text.encode()


def changed_bytes(chance: random.Random, data: bytes) -> bytes:
    """The same with bytes flipped, lost or put in."""
    raw = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(raw) + 1)
        how = chance.random()
        if how < 0.4 and at < len(raw):
            raw[at] = chance.randrange(256)
        elif how < 0.7:
            raw[at:at] = bytes([chance.randrange(256)]) * chance.choice((1, 3))
        elif at < len(raw):
            del raw[at : at + chance.randint(1, 20)]
    return bytes(raw)


def request_of(chance: random.Random, key: str) -> bytes:
    """One request as it goes over the wire."""
    chat = chance.random() < 0.6
    body = changed_body(chance, CHAT if chat else COMPLETION)
    if chance.random() < 0.15:
        body = changed_bytes(chance, body)
    if chance.random() < 0.02:
        body = b" " * (LIMIT + 1)
    path = PATHS[0 if chat else 1] if chance.random() < 0.85 else chance.choice(PATHS)
    method = "POST" if chance.random() < 0.93 else chance.choice(("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "BREW"))
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close"]
    if chance.random() < 0.95:
        lines.append(f"authorization: Bearer {key}")
    lines += chance.sample(HEADERS, chance.choice((0, 0, 0, 1, 2)))
    if chance.random() < 0.2:
        lines.append("transfer-encoding: chunked")
        size = chance.choice((1, 7, 500, 100_000))
        pieces = [body[at : at + size] for at in range(0, min(len(body), 4000 * size), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        wrong = chance.random() < 0.03
        lines.append(f"content-length: {len(body) + (chance.choice((-1, 1, 7)) if wrong else 0)}")
    head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
    if chance.random() < 0.04:
        head = changed_bytes(chance, head)
    return head + body


async def ask(world: World, data: bytes, leave: bool) -> bytes:
    """What the server says until it closes; ``leave``: the client goes away at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    try:
        writer.write(data)
        if leave:
            return b"left"
        async with asyncio.timeout(120):
            return await reader.read(-1)
    except (ConnectionResetError, BrokenPipeError):
        return b""
    finally:
        writer.transport.abort()


def fault_of(answer: bytes) -> str:
    """What is wrong with an answer; nothing is the empty string."""
    head, _, body = answer.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    if status >= 500 or status not in range(200, 500):
        return f"status {status}"
    if "x-request-id" not in headers:
        return "no x-request-id"
    if headers.get("transfer-encoding") == "chunked":
        text, rest = b"", body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        body = text
    if not body:
        return "" if "content-length" in headers or status in (204, 304) else "no body"
    if headers.get("content-type", "").startswith("text/event-stream"):
        events = [event for event in body.split(b"\n\n") if event.startswith(b"data: ")]
        *frames, last = [event[6:] for event in events]
        whole = [json.loads(frame) for frame in frames] if last == b"[DONE]" else []
        return "" if whole and all("choices" in frame for frame in whole) else f"a stream that ends with {last[:80]!r}"
    try:
        told = json.loads(body)
    except ValueError:
        return f"not JSON: {body[:80]!r}"
    if status < 300:
        return "" if "choices" in told or "data" in told or told.get("object") == "model" else f"what is {told}?"
    error = told.get("error", {})
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return f"not the API's error: {told}"
    codes = {reason.value for reason in ENDINGS}
    if error["code"] not in codes or headers.get("x-quartermaster-reason") != error["code"]:
        return f"code {error['code']}, reason {headers.get('x-quartermaster-reason')}"
    return "Traceback" if "Traceback" in error["message"] else ""


@pytest.mark.timeout(max(300, REQUESTS))
async def test_whatever_is_sent_is_answered_in_the_apis_words_and_leaves_nothing_behind(
    redis_url: str, pool_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[str] = []
    seen: Counter[str] = Counter()
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world:
        numbers = iter(range(REQUESTS))

        async def client() -> None:
            for number in numbers:
                chance = random.Random(SEED * 1_000_003 + number)
                data = request_of(chance, world.key)
                answer = await ask(world, data, leave=chance.random() < 0.03)
                seen["left" if answer == b"left" else answer[9:12].decode() or "closed"] += 1
                if answer not in (b"", b"left") and (fault := fault_of(answer)):
                    faults.append(f"request {number} of seed {SEED}: {fault}\n{data[:300]!r}")

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        await world.settled()
        ran = [record for record in world.metrics.records if record.granted_s is not None]
        internal = [record.request_id for record in world.metrics.records if record.reason is Reason.INTERNAL]
        async with world.sdk() as sdk:  # and it still serves
            answer = await sdk.completions.create(model="demo", prompt="a b c", max_tokens=2)
        assert answer.choices[0].text
    print(dict(seen))
    assert not faults, "\n".join(faults[:20])
    assert internal == []
    assert [line.getMessage() for line in caplog.records if line.levelname == "ERROR"] == [], "an answer broke off"
    assert seen["200"] > REQUESTS / 50, "hardly anything got through: this fuzzes the parser's first line only"
    assert ran
