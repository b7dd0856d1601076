"""What is refused before it costs anything, and how: sizes, deadlines, malformed input, unknown paths, slow readers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.v1_routes import MOST_OF_TENANT, DatabaseRoutes
from controlplane.web.connections import ConnectionLimits
from scheduling.core.types import Catalog, OverLimit, ServiceClass
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import Head
from scheduling.gateway.estimate.questions import AT_ONCE
from scheduling.gateway.stages import TAKEN_BYTES, Call
from tests.support.gateway_world import World, gateway_world, make_key, until

LIMIT = 100_000
CONFIG = GatewayConfig(
    body_timeout_s=0.5, header_timeout_s=0.5, send_timeout_s=0.5, idle_token_timeout_s=5.0, max_body_bytes=LIMIT,
    max_header_bytes=4096, drain_s=0.3,
)  # fmt: skip


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as made:
        yield made


class Raw:
    """One answer as it came over the socket."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split(" ")[1]) if data else 0
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}

    @property
    def error(self) -> Any:
        body = self.body
        if self.headers.get("transfer-encoding") == "chunked":
            body = body.partition(b"\r\n")[2].rpartition(b"\r\n0\r\n\r\n")[0]
        return json.loads(body)["error"]


def head_of(world: World, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {world.key}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def talk(world: World, *parts: bytes, wait_s: float = 20) -> Raw:
    """Sends the parts, then reads until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(wait_s):
            return Raw(await reader.read(-1))
    finally:
        writer.transport.abort()


async def test_a_declared_size_over_the_limit_is_refused_unread(world: World) -> None:
    size = LIMIT + 1
    answer = await talk(world, head_of(world, f"content-length: {size}"), b"x" * size)
    assert answer.status == 413
    assert answer.error["code"] == "too_large"
    assert answer.error["message"] == f"The request body is larger than {LIMIT} bytes."
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-should-retry"] == "false"
    assert world.engines[0].bodies == []


async def test_the_size_is_refused_before_the_key_is_looked_at(world: World) -> None:
    world.key = "nobody"
    answer = await talk(world, head_of(world, "content-length: 99999999"))
    assert answer.status == 413


async def test_a_body_without_length_is_counted(world: World) -> None:
    piece = b"%x\r\n" % 40_000 + b"x" * 40_000 + b"\r\n"
    answer = await talk(world, head_of(world, "transfer-encoding: chunked"), *[piece] * 3, b"0\r\n\r\n")
    assert answer.status == 413
    [record] = await world.ledger_of(1)
    assert (record.reason, record.status) == ("too_large", 413)


async def test_a_body_that_does_not_come_is_given_up(world: World) -> None:
    answer = await talk(world, head_of(world, "content-length: 500"), b'{"model"')
    assert answer.status == 408
    assert answer.error["code"] == "slow_request"
    [record] = await world.ledger_of(1)
    assert record.reason == "slow_request"
    await world.settled()


async def test_a_request_arrives_when_all_of_it_has_come(world: World) -> None:
    """Otherwise a body that is held back is as old as its head, and passes everything that others sent meanwhile."""
    body = json.dumps({"model": "demo", "prompt": "x"}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head_of(world, f"content-length: {len(body)}", "connection: close", path="/v1/completions") + body[:5])
    await until(lambda: world.app.open_requests == 1)
    held_back_s = time.time()
    await asyncio.sleep(0.05)
    writer.write(body[5:])
    assert b"200 OK" in await reader.read(-1)
    [record] = await world.ledger_of(1)
    assert record.received_s > held_back_s
    assert record.received_s <= (record.granted_s or 0.0) <= record.done_s
    writer.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_one_key_cannot_hold_more_requests_open_than_it_may_however_slowly_they_come(
    redis_url: str, pool_id: str, path: str
) -> None:
    config = replace(CONFIG, max_open_per_key=2, body_timeout_s=30.0)
    async with gateway_world(redis_url, pool_id, config=config) as world:
        slow = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(2)]
        for _, writer in slow:
            writer.write(head_of(world, "content-length: 500", path=path) + b"{")
        await until(lambda: world.app.open_requests == 2)
        answer = await talk(world, head_of(world, "content-length: 500", path=path), b"{" + b" " * 499)
        assert answer.status == 429
        assert answer.error["code"] == "concurrency"
        assert "2 requests or answers in flight; it is entitled to 2" in answer.error["message"]
        for _, writer in slow:
            writer.transport.abort()
        await until(lambda: world.app.open_requests == 0)
        async with world.http() as client:
            body = {"model": "demo", "prompt": "x", "max_tokens": 2}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        await world.settled()
        await until(lambda: not world.app._requests._open.of_key)  # the answer is out before its accounts are closed


def another_tenant(world: World, name: str) -> str:
    """A tenant with an entitlement to the same pool; its key."""
    key, spec = make_key(900_000 + len(world.catalog.keys), f"{world.pool.id}-{name}")
    entitlement = replace(world.entitlement, id=spec.entitlement, tenant=name)
    made = world._catalog

    def catalog(version: int) -> Catalog:
        before = made(version)
        return replace(
            before,
            entitlements=dict(before.entitlements) | {entitlement.id: entitlement},
            keys=dict(before.keys) | {spec.id: spec},
        )

    world._catalog = catalog  # type: ignore[method-assign]
    return key


@pytest.mark.parametrize("connections", [(120, 0), (10_000, 120)], ids=["of the process", "of their address"])
async def test_a_tenant_whose_requests_wait_leaves_places_to_others(
    redis_url: str, pool_id: str, connections: Any
) -> None:
    """Its queue would hold all of them, and each waiting request holds a connection."""
    config = replace(CONFIG, header_timeout_s=30.0, body_timeout_s=30.0, send_timeout_s=30.0)
    counting = ConnectionLimits(*connections)
    async with gateway_world(redis_url, pool_id, config=config, connections=counting) as world:
        world.granting = False
        quiet = another_tenant(world, "quiet")
        await world.configure(concurrency=1000, tier=replace(world.entitlement.tier, queue_limit=1000))
        backend = world.pool.backends[0]
        await world.store.set_ready(world.epoch, backend.id, replace(backend, slots=1))
        world.engines[0].script.first_pause_s = 100.0
        body = {"model": "demo", "prompt": "x", "max_tokens": 2}
        async with world.http() as client:
            holder = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: world.engines[0].open == 1, 60)  # all others wait
            asked = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(110)]
            # Its requests hold half of the places: as many as are free besides.
            await until(lambda: world.app.open_requests == 60 and sum(t.done() for t in asked) == 51, 60)
            refused = [t.result() for t in asked if t.done()]
            assert {r.status_code for r in refused} == {429}
            first = refused[0]
            assert first.headers["x-quartermaster-reason"] == first.json()["error"]["code"] == "tenant_connections"
            assert "retry-after" in first.headers
            headers = {"authorization": f"Bearer {quiet}"}
            others = [
                asyncio.create_task(client.post("/v1/completions", json=body, headers=headers)) for _ in range(20)
            ]
            await until(lambda: world.app.open_requests == 80, 60)  # none of them was refused
            holder.cancel()
            world.engines[0].script.first_pause_s = 0.0
            await world.store.set_ready(world.epoch, backend.id, backend)
            world.granting = True
            answers = await asyncio.gather(*others, *asked)
        assert [r.status_code for r in answers[:20]] == [200] * 20
        rows = [r for r in await world.ledger_of(131) if r.reason == "tenant_connections"]
        assert len(rows) == len(refused)
        assert {r.tenant for r in rows} == {"acme"}
        await until(lambda: not world.app._requests._open.of_tenant)


async def test_a_client_that_leaves_while_sending_is_forgotten(world: World) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head_of(world, "content-length: 500") + b"{")
    await until(lambda: world.app.open_requests == 1)
    writer.transport.abort()
    [record] = await world.ledger_of(1)
    assert record.reason == "client_left"


async def test_a_large_head_is_refused(world: World) -> None:
    answer = await talk(world, head_of(world, "x-filler: " + "y" * 5000, "content-length: 0"))
    assert answer.status == 431


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'{"model": "demo"}',
        b'{"model": "demo", "messages": []}',
        b'{"model": "demo", "messages": "hi"}',
        b'{"model": "demo", "messages": [{"role": "wizard", "content": "x"}]}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "n": 129}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 21}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 999999}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "stop": [' + b'"a",' * 16 + b'"a"]}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream_options": {"include_usage": true}}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "x": ' + b"[" * 40_000 + b"}",
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": '
        b'{"name": "f", "parameters": ' + b"[" * 40_000 + b"]" * 40_000 + b"}}]}",
        b'{"model": "demo", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": '
        b'{"url": "http://169.254.169.254/"}}]}]}',
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "model": 7}',
        b"{" * 50_000,
        b"[" * 50_000,
    ],
)
async def test_what_cannot_be_meant_is_a_400_that_says_what(world: World, body: bytes) -> None:
    answer = await talk(world, head_of(world, "connection: close", f"content-length: {len(body)}"), body)
    assert answer.status == 400, answer.body
    error = answer.error
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_request"
    assert 5 < len(error["message"]) < 600
    assert world.engines[0].bodies == []
    await world.ledger_of(1)


async def test_media_that_would_be_fetched_is_refused_with_a_word_about_it(world: World) -> None:
    async with world.http() as client:
        part = {"type": "image_url", "image_url": {"url": "http://x/"}}
        body = {"model": "demo", "messages": [{"role": "user", "content": [part]}]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert "Nothing is fetched here" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages[0].content[0].image_url.url"
    assert world.engines[0].heads == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/pooling", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/inference/v1/generate", 404),
        ("POST", "/v1/../tokenize", 404),
        ("POST", "/v1/%2e%2e/sleep", 404),
        ("GET", "/metrics", 404),
        ("POST", "/reset_prefix_cache", 404),
        ("GET", "/v1/responses/resp_1", 404),
        ("POST", "/v1/responses/resp_1/cancel", 404),
        ("POST", "/collective_rpc", 404),
    ],
)
async def test_no_other_path_reaches_an_engine(world: World, method: str, path: str, status: int) -> None:
    request = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.key}\r\nconnection: close\r\n"
    answer = await talk(world, request.encode() + b"content-length: 2\r\n\r\n{}")
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"
    assert "x-request-id" in answer.headers
    takes = {"/v1/models": "GET, HEAD", "/v1/chat/completions": "POST"}
    assert answer.headers.get("allow") == (takes[path] if status == 405 else None)
    assert world.engines[0].heads == []


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\rx: y\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /v1/mod els HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_ambiguous_framing_is_refused(world: World, head: bytes) -> None:
    key = b"\r\nauthorization: Bearer " + world.key.encode()
    answer = await talk(world, head.replace(b" HTTP/1.1", b" HTTP/1.1" + key))
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


async def test_forged_internal_headers_do_not_travel(world: World) -> None:
    async with world.http() as client:
        await client.post(
            "/v1/completions",
            json={"model": "demo", "prompt": "x"},
            headers={
                "x-request-id": "req_forged",
                "x-forwarded-for": "1.2.3.4",
                "x-quartermaster-tenant": "other",
                "x-gateway-inference-fairness-id": "other",
                "x-llm-d-inference-objective": "other",
            },
        )
    [head] = world.engines[0].heads
    told = {f"x-{who}-inference-{what}" for who in ("gateway", "llm-d") for what in ("fairness-id", "objective")}
    assert set(head) == {"", "host", "content-type", "accept", "x-request-id", "content-length"} | told
    assert "other" not in {head[name] for name in told}
    assert head["x-request-id"] != "req_forged"


@pytest.mark.parametrize(
    "host", ["a#@b", "x/v1/models?#@b", "evil.example:1@127.0.0.1", "[::1", "%2e%2e/", "a\xe9", "", "127.0.0.1:99999"]
)
async def test_whatever_host_is_asked_for_the_request_line_alone_decides_where_it_goes(world: World, host: str) -> None:
    body = b'{"model": "demo", "prompt": "x", "max_tokens": 2}'
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {world.key}\r\n"
    tail = f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    answer = await talk(world, (head + tail).encode("latin-1"), body)
    assert answer.status == 200
    [seen] = world.engines[0].heads
    assert seen["host"] == world.engines[0].url.removeprefix("http://")
    closed = head.replace("/v1/completions", "/v1/load_lora_adapter")
    assert (await talk(world, (closed + tail).encode("latin-1"), body)).status == 404
    assert len(world.engines[0].heads) == 1


@pytest.mark.parametrize("value", ["0", "-5", "nan", "soon", "1e99"])
async def test_a_hint_must_be_a_time(world: World, value: str) -> None:
    async with world.http() as client:
        answer = await client.post(
            "/v1/completions", json={"model": "demo", "prompt": "x"}, headers={"x-quartermaster-slo-ttft-ms": value}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-quartermaster-slo-ttft-ms"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_does_not_read_is_dropped(world: World, streamed: bool) -> None:
    """Of a whole answer as well, which would else lie in the process after its request has ended."""
    engine = world.engines[0]
    engine.script = replace(engine.script, word=" " + "w" * 8000, tokens=4000)
    body = json.dumps({"model": "demo", "prompt": "x", "stream": streamed, "max_tokens": 4000}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(head_of(world, f"content-length: {len(body)}", path="/v1/completions") + body)
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason) == ("failed", "slow_reader")
    await world.settled()
    await until(lambda: not world.server.server_state.connections)
    writer.transport.abort()


async def test_a_client_that_reads_a_little_now_and_then_does_not_keep_its_slot(redis_url: str, pool_id: str) -> None:
    """A slot is held until the last piece is sent, and its engine has long finished."""
    async with gateway_world(redis_url, pool_id, config=replace(CONFIG, send_timeout_s=2.0)) as world:
        engine = world.engines[0]
        engine.script = replace(engine.script, word=" " + "w" * 8000, tokens=4000)
        body = json.dumps({"model": "demo", "prompt": "x", "stream": True, "max_tokens": 4000}).encode()
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(narrow, ("127.0.0.1", world.port))
        await loop.sock_sendall(narrow, head_of(world, f"content-length: {len(body)}", path="/v1/completions") + body)

        async def sip() -> None:
            with suppress(OSError):
                while await loop.sock_recv(narrow, 2048):
                    await asyncio.sleep(0.04)  # a piece of 32 KiB takes less than a send may

        sips = asyncio.create_task(sip())
        [record] = await world.ledger_of(1)
        assert (record.outcome, record.reason) == ("failed", "slow_reader")
        await world.settled()
        await sips
        narrow.close()


SAID = json.dumps({"prompt": "w" * 15_000_000}).encode()  # more than what kernels hold for a reader


async def detokenize(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A question whose answer has begun, and of which nobody reads more than its first line."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(SAID), SAID)
    world.engines[0].script = replace(world.engines[0].script, raw=lambda name: answer)
    body = b'{"model": "demo", "tokens": [1]}'
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
    writer.write(head_of(world, f"content-length: {len(body)}", "connection: close", path="/detokenize") + body)
    return reader, writer


async def test_questions_whose_answers_are_not_read_count_until_they_are(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id, config=replace(CONFIG, send_timeout_s=60)) as world:
        asked = [await detokenize(world) for _ in range(AT_ONCE)]
        assert [(await reader.readline()).split()[1] for reader, _ in asked] == [b"200"] * AT_ONCE
        asked.append(await detokenize(world))
        assert (await asked[-1][0].readline()).split()[1] == b"429"
        assert (await asked[0][0].read(-1)).endswith(SAID)
        await until(lambda: world.app.open_requests == AT_ONCE - 1)
        asked.append(await detokenize(world))
        assert (await asked[-1][0].readline()).split()[1] == b"200"
        for _, writer in asked:
            writer.transport.abort()


async def test_a_question_whose_answer_is_not_read_is_given_up(world: World) -> None:
    reader, writer = await detokenize(world)
    assert (await reader.readline()).split()[1] == b"200"
    await until(lambda: not world.app.open_requests)
    await until(lambda: not world.server.server_state.connections)
    writer.transport.abort()


class Large(DatabaseRoutes):
    """A path of ``/v1`` whose answers are as large as kept responses may be."""

    def serves(self, path: str) -> bool:
        return path == "/v1/large"

    async def route(self, call: Call, access: Access, head: Head) -> None:
        await self.answer(call, SAID)


async def test_kept_answers_that_are_not_read_count_until_they_are(redis_url: str, pool_id: str) -> None:
    env: Any = SimpleNamespace(send_timeout_s=60.0, request_timeout_s=60.0)
    async with gateway_world(redis_url, pool_id, config=CONFIG, routes=[Large(env, "large")]) as world:
        head = head_of(world, "connection: close", path="/v1/large").replace(b"POST", b"GET")
        asked = []
        for status in [b"200"] * MOST_OF_TENANT + [b"429"]:
            asked.append(await asyncio.open_connection("127.0.0.1", world.port, limit=1024))
            asked[-1][1].write(head)
            assert (await asked[-1][0].readline()).split()[1] == status
        assert (await asked[0][0].read(-1)).endswith(SAID)
        for _, writer in asked:
            writer.transport.abort()


async def test_who_takes_a_long_answer_slowly_gets_all_of_it(world: World) -> None:
    """More slowly than the time for one send, which a reader has for each part of it."""
    engine = world.engines[0]
    engine.script = replace(engine.script, word=" " + "w" * 8000, tokens=1000)
    body = json.dumps({"model": "demo", "prompt": "x", "max_tokens": 1000}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
    writer.write(head_of(world, f"content-length: {len(body)}", path="/v1/completions") + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    taken = bytearray()
    while len(taken) < length:
        taken += await reader.readexactly(min(TAKEN_BYTES, length - len(taken)))
        await asyncio.sleep(world.config.send_timeout_s / 10)
    assert json.loads(taken)["choices"][0]["text"] == engine.script.word * 1000
    [record] = await world.ledger_of(1)
    assert record.outcome == "completed"
    writer.close()


async def test_a_drain_is_not_held_up_by_clients_that_do_not_read(world: World) -> None:
    world.app.config = replace(world.app.config, send_timeout_s=60)
    engine = world.engines[0]
    engine.script = replace(engine.script, word=" " + "w" * 8000, tokens=4000)
    body = json.dumps({"model": "demo", "prompt": "x", "stream": True, "max_tokens": 4000}).encode()
    writers = []
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(head_of(world, f"content-length: {len(body)}", path="/v1/completions") + body)
        writers.append(writer)
    await until(lambda: engine.open == 5, 50)
    async with asyncio.timeout(40):  # less than what a client may go without reading
        await world.app.drain()
    assert world.app.open_requests == 0
    await until(lambda: not world.server.server_state.connections, 30)
    for writer in writers:
        writer.transport.abort()


@pytest.mark.parametrize("second", ["the same", "qm-else"])
@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
async def test_of_two_keys_in_one_request_none_counts(world: World, name: str, second: str) -> None:
    key = world.key if second == "the same" else second
    more = (
        [f"authorization: Bearer {key}"]
        if name == "authorization"
        else [f"x-api-key: {world.key}", f"x-api-key: {key}"]
    )
    answer = await talk(world, head_of(world, *more, "content-length: 2"), b"{}")
    assert answer.status == 400
    assert answer.error["message"] == f"The header {name} is there more than once. Send one key."


async def test_who_runs_more_than_its_share_is_told_its_share_and_not_a_limit_that_it_passed(
    redis_url: str, pool_id: str
) -> None:
    async with gateway_world(redis_url, pool_id) as world, world.http() as client:
        bursting = replace(
            world.entitlement.tier, service_class=ServiceClass.ELASTIC, over_limit=OverLimit.REFUSE, queue_limit=100
        )
        await world.configure(concurrency=1, tier=bursting)
        backend = world.pool.backends[0]
        await world.store.set_ready(world.epoch, backend.id, replace(backend, slots=2))
        world.engines[0].script.first_pause_s = 100.0
        body = {"model": "demo", "prompt": "x", "max_tokens": 2}
        running = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(2)]
        await until(lambda: world.engines[0].open == 2)
        refused = (await client.post("/v1/completions", json=body)).json()["error"]
        assert refused["code"] == "concurrency"
        assert refused["message"].endswith("has 2 requests or answers in flight; it is entitled to 1.")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
