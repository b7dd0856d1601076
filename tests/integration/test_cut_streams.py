"""Streams that an engine cuts at a random byte (docs/reference/promises.md, 9), over sockets: what does a client see?

The engine's answer is the true one, up to a byte that chance chooses, in its head as well; then its connection is
reset. The client reads the raw bytes and knows three explicit ends: ``[DONE]``, an error (an event, or a status of 4xx
or 5xx), and a connection that ends without the last chunk.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from functools import partial

import pytest

from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world

TOKENS = 30
AT_ONCE = 40
ENGINES = 6  # one that sends no token is paused for a second
LAST_CHUNK = b"\r\n0\r\n\r\n"


def answer(name: str) -> bytes:
    """A whole stream, as vLLM sends it."""
    base = {"id": f"cmpl-{name}", "object": "text_completion", "created": 1, "model": "fake-upstream"}
    events = [
        base | {"choices": [{"index": 0, "logprobs": None, "text": f" word{n}",
                             "finish_reason": "length" if n == TOKENS - 1 else None}]}
        for n in range(TOKENS)
    ]  # fmt: skip
    usage = {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": 3 + TOKENS}
    events.append(base | {"choices": [], "usage": usage})
    frames = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunks + b"0\r\n\r\n"
    )  # fmt: skip


def cut_answer(rng: random.Random, name: str) -> bytes:
    whole = answer(name)
    return whole[: rng.randrange(len(whole))]


def end_of(raw: bytes) -> str:
    """How a client's stream ended; "silent": as if it were complete, without ``[DONE]``."""
    head, _, body = raw.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d+) ", head)
    if found is None:
        return "reset"
    if found[1] != b"200":
        return f"status {found[1].decode()}"
    if b"data: [DONE]\n\n" in body:
        return "[DONE]"
    if not body.endswith(LAST_CHUNK):
        return "reset"
    text = re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", body)
    events = [e for e in text.split(b"\n\n") if e.startswith(b"data: ")]
    return "error event" if events and b'{"error"' in events[-1] else "silent"


async def cut(world: World, number: int, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    for engine in world.engines:
        engine.script.raw, engine.script.then_close = partial(cut_answer, rng), True
    body = json.dumps({"model": "demo", "prompt": "x", "max_tokens": TOKENS, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.key}\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> str:
        async with gate, asyncio.timeout(90):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(head + body)
            raw = b""
            try:
                while data := await reader.read(65536):
                    raw += data
            except ConnectionResetError:
                pass
            finally:
                writer.transport.abort()
            return end_of(raw)

    return Counter(await asyncio.gather(*(one() for _ in range(number))))


async def ends(redis_url: str, pool_id: str, number: int) -> None:
    seed = random.randrange(10**6)
    config = GatewayConfig(first_token_timeout_s=20.0)
    async with gateway_world(redis_url, pool_id, engines=ENGINES, config=config) as world:
        found = await cut(world, number, seed)
        await world.settled()
        records = await world.ledger_of(number)
    print(f"\nseed {seed}, {number} streams cut at random bytes: {dict(found)}")
    assert found["silent"] == 0
    assert found["error event"] > 0
    told = {r.reason for r in records if r.outcome == "completed"}
    assert sum(r.outcome == "completed" for r in records) == found["[DONE]"], told


async def test_a_stream_that_is_cut_anywhere_ends_explicitly(redis_url: str, pool_id: str) -> None:
    await ends(redis_url, pool_id, 60)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_thousand_streams_that_are_cut_anywhere_end_explicitly(redis_url: str, pool_id: str) -> None:
    await ends(redis_url, pool_id, 2_000)
