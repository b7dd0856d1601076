"""How long one request can keep the event loop from everybody's streams, whatever its body is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest

from scheduling.gateway.bodies.prepare import MAX_PARTS, MAX_VALUES
from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_process import gateway_process, longest_turn_ms
from tests.support.gateway_world import World, gateway_world

CONFIG = GatewayConfig()
SIZE = CONFIG.max_body_bytes - 300
# Of CPU, in times of what Python's own parser takes for two million numbers, so that it holds on slow machines. Where
# that took 129 ms the worst body took 85; without a bound on values it took up to 182 where that took 114.
LONGEST = 1.25


def filled(piece: bytes, separator: bytes = b",", size: int = SIZE) -> bytes:
    return separator.join([piece] * (size // (len(piece) + len(separator))))


def chat(field: str, value: bytes) -> bytes:
    text = b'{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":"x"}],"%b":%b}'
    return text % (field.encode(), value)


def prompt(value: bytes) -> bytes:
    return b'{"model":"demo","max_tokens":2,"prompt":%b}' % value


def pairs(number: int) -> bytes:
    return b"{%b}" % b",".join(b'"k%d":"v"' % n for n in range(number))


FULL = MAX_PARTS - 50
TOO_MANY: dict[str, Callable[[], bytes]] = {
    "objects in an unknown field": lambda: chat("x", b"[%b]" % filled(b"{}")),
    "pairs in metadata": lambda: chat("metadata", pairs(280_000)),
    "messages": lambda: b'{"model":"demo","messages":[%b]}' % filled(b'{"role":"user","content":"x"}'),
    "parts": lambda: (
        b'{"model":"demo","messages":[{"role":"user","content":[%b]}]}' % filled(b'{"type":"text","text":""}')
    ),
    "tools": lambda: chat("tools", b"[%b]" % filled(b'{"type":"function","function":{"name":"f"}}')),
    "strings that end in a backslash": lambda: chat("stop", b"[%b]" % filled(b'"\\\\"')),
}
TOO_MANY_VALUES: dict[str, Callable[[], bytes]] = {
    "numbers in metadata": lambda: chat("metadata", b"[%b]" % filled(b"1e9")),
    "token ids": lambda: prompt(b"[%b]" % filled(b"1")),
}
OTHERS: dict[str, Callable[[], bytes]] = {
    "as many objects as may be, in an unknown field": lambda: chat("x", b"[%b]" % b",".join([b"{}"] * FULL)),
    "as many strings as may be, in metadata": lambda: chat("metadata", pairs(FULL // 2)),
    "as many token ids as may be": lambda: prompt(b"[%b]" % b",".join([b"128000"] * (MAX_VALUES - 50))),
    "quotes": lambda: prompt(b'"%b"' % filled(b'\\"', b"")),
    "escapes": lambda: prompt(b'"%b"' % filled(b"\\u2028", b"")),
}


def yardstick_ms() -> float:
    """What Python's own parser takes now for a body of numbers [ms of CPU]."""
    body, took = TOO_MANY_VALUES["token ids"](), []
    for _ in range(3):
        began_s = time.process_time()
        json.loads(body)
        took.append(1000 * (time.process_time() - began_s))
    return min(took)


async def ask(world: World, port: int, body: bytes) -> bytes:
    path = "/v1/completions" if b'"prompt"' in body[:60] else "/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {world.key}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(60):
            return await reader.read(-1)
    finally:
        writer.transport.abort()


@pytest.mark.timeout(240)
async def test_no_body_holds_up_the_event_loop(redis_url: str, pool_id: str) -> None:
    found: dict[str, float] = {}
    async with (
        gateway_world(redis_url, pool_id, config=CONFIG) as world,
        gateway_process(world, CONFIG) as (process, port),
    ):
        assert b" 200 " in await ask(world, port, prompt(b'"x"'))  # its lazy imports are over
        await longest_turn_ms(process)
        longest_ms = LONGEST * await asyncio.to_thread(yardstick_ms)
        for name, make in (TOO_MANY | TOO_MANY_VALUES | OTHERS).items():
            body = await asyncio.to_thread(make)
            answer = await ask(world, port, body)
            found[name] = await longest_turn_ms(process)
            if found[name] > longest_ms:  # what the body costs, it costs again; what the machine did then, it does not
                answer = await ask(world, port, body)
                found[name] = min(found[name], await longest_turn_ms(process))
            assert answer[9:12] in (b"200", b"400"), (name, answer[:300])
            assert (b"strings, objects and arrays" in answer) == (name in TOO_MANY), (name, answer[:300])
            assert (b" values. Send fewer" in answer) == (name in TOO_MANY_VALUES), (name, answer[:300])
    worst = max(found, key=lambda name: found[name])
    print(f"\nthe loop stood still for {found[worst]:.0f} of {longest_ms:.0f} ms of CPU, for: {worst}; {found}")
    assert found[worst] <= longest_ms, found
