"""A resolver that takes longer for a name than connecting may take, as one whose first server is dead: for the name of
Redis, or of an engine."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from scheduling.core.types import BackendSpec
from scheduling.engines import reach
from scheduling.engines.client import control_http
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.gateway.engine import upstream
from scheduling.gateway.engine.engine_connection import UpstreamError
from scheduling.gateway.engine.upstream import Backend
from scheduling.state import resp as resp_module
from scheduling.state.resp import CONNECT_TIMEOUT_S, RespConnection
from tests.support.fake_engine import FakeEngine
from tests.support.gateway_world import until
from tests.support.redis_server import RedisServer

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}'


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


async def test_an_engine_whose_name_takes_long_is_reached_and_is_not_taken_for_dead(asked: list[str]):
    engine = FakeEngine()
    await engine.start()
    spec = BackendSpec("b1", "pool", engine.url.replace("127.0.0.1", "engine.example"), 4, 1000)
    backend = Backend(spec, CONNECT_TIMEOUT_S)
    try:
        answers = await asyncio.gather(
            *(backend.exchange("/v1/chat/completions", BODY, f"r{n}", whole=True, limit=100_000) for n in range(3))
        )
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert asked == ["engine.example"]
    finally:
        backend.close()
        await engine.stop()


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (None, "cannot connect, the name engine.example was not looked up within 0.1 s"),
        (socket.gaierror(-2, "Name or service not known"), "cannot connect, the name engine.example is not known"),
    ],
)
async def test_an_engine_whose_name_is_not_found_is_told_as_such(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, fails: OSError | None, said: str
):
    if fails is not None:

        async def refuse(*_: Any, **__: Any) -> list[Any]:
            raise fails

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", refuse)
    monkeypatch.setattr(upstream, "LOOKUP_TIMEOUT_S", 0.1)
    backend = Backend(BackendSpec("b1", "pool", "http://engine.example:1", 4, 1000), CONNECT_TIMEOUT_S)
    with pytest.raises(UpstreamError) as error:
        await backend.exchange("/v1/chat/completions", BODY, "r", whole=True)
    assert str(error.value) == said
    assert error.value.connect


async def test_a_leader_sees_an_engine_whose_name_takes_longer_than_its_calls_may(asked: list[str]):
    """What its lookup takes says nothing of the engine."""
    engine = FakeEngine()
    await engine.start()
    try:
        async with control_http() as http:
            control = VllmClient(engine.url.replace("127.0.0.1", "engine.example"), http=http, model="m")
            assert all(await asyncio.gather(*(control.health(CONNECT_TIMEOUT_S) for _ in range(3))))
            assert asked == ["engine.example"], "once for all three"
            assert (await control.probe(CONNECT_TIMEOUT_S)).ok
            assert await control.health(CONNECT_TIMEOUT_S), "on the connection that it had"
            assert len(asked) == 2
    finally:
        await engine.stop()


async def test_a_leader_says_which_name_is_not_found(asked: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reach, "LOOKUP_TIMEOUT_S", 0.1)
    async with control_http() as http:
        probe = await VllmClient("http://engine.example:1", http=http, model="m").probe(CONNECT_TIMEOUT_S)
    assert not probe.ok
    assert probe.why.endswith("failed: the name engine.example was not looked up within 0.1 s")


async def test_an_engine_that_does_not_answer_is_given_up_after_the_lookup(asked: list[str]):
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    try:
        async with control_http() as http:
            url = f"http://engine.example:{server.sockets[0].getsockname()[1]}"
            probe = await VllmClient(url, http=http, model="m").probe(CONNECT_TIMEOUT_S)
        assert probe.why.endswith("did not answer within 0.5 s")
    finally:
        server.close()


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
async def test_what_is_no_name_is_told_as_such(host: str, caplog: pytest.LogCaptureFixture):
    backend = Backend(BackendSpec("b1", "pool", f"http://{host}:1", 4, 1000), CONNECT_TIMEOUT_S)
    with pytest.raises(UpstreamError) as error:
        await backend.exchange("/v1/chat/completions", BODY, "r", whole=True)
    assert str(error.value) == f"cannot connect, {host} is no name that can be looked up"
    async with control_http() as http:
        probe = await VllmClient(f"http://{host}:1", http=http, model="m").probe()
    assert f"{host} is no name" in probe.why
    resp = RespConnection(f"redis://{host}:1/0")
    try:
        assert not await resp.start()
        await until(lambda: f"Redis: {host} is no name that can be looked up" in caplog.text)
    finally:
        await resp.close()
