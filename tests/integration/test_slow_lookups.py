"""A resolver that takes longer for Redis' name than connecting may take, as one whose first server is dead."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from scheduling.state import resp as resp_module
from scheduling.state.resp import CONNECT_TIMEOUT_S, RespConnection
from tests.support.gateway_world import until
from tests.support.redis_server import RedisServer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the resolver was asked for, each of which takes it a while."""
    names: list[str] = []

    async def slowly(self: Any, host: str, port: Any, **_: Any) -> list[Any]:
        names.append(host)
        await asyncio.sleep(CONNECT_TIMEOUT_S * 3)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", slowly)
    return names


async def test_redis_is_reached_by_a_name_that_takes_long_and_is_asked_for_once(
    private_redis: RedisServer, asked: list[str]
):
    url = private_redis.url.replace("127.0.0.1", "redis.example")
    connections = [RespConnection(url, name=f"c{n}") for n in range(3)]
    try:
        assert not any(await asyncio.gather(*(c.start() for c in connections)))  # who starts does not wait for it
        await until(lambda: all(c.available for c in connections), 10)
        assert asked == ["redis.example"]
    finally:
        for connection in connections:
            await connection.close()


async def test_a_name_that_is_never_found_is_told_as_such(
    private_redis: RedisServer, asked: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(resp_module, "CONNECT_TIMEOUT_S", 0.1)
    resp = RespConnection(private_redis.url.replace("127.0.0.1", "redis.example"))
    try:
        assert not await resp.start()
        [told] = caplog.messages
        assert told.endswith("unavailable, Redis: the name redis.example was not looked up within 0.1 s")
    finally:
        await resp.close()
