"""A server whose name has several addresses, of which the first drops connections, as a machine that is gone does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from scheduling import connecting
from scheduling.connecting import connect
from scheduling.engines import client
from scheduling.engines.client import control_http
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.gateway.config import GatewayConfig
from scheduling.state.resp import RespConnection
from tests.support.fake_engine import FakeEngine
from tests.support.gateway_world import World, gateway_world, until
from tests.support.redis_server import RedisServer
from tests.support.tls import tls_port, write_certificate

GONE, HERE = "127.0.0.2", "127.0.0.1"


@contextmanager
def gone(port: int) -> Iterator[None]:
    """An address that answers no connection: those that nobody accepts fill its queue, and the kernel drops more."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((GONE, port))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((GONE, port))
        yield


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends in ``.example`` is at both addresses."""
    ask = asyncio.BaseEventLoop.getaddrinfo

    async def answered(self: Any, host: str, port: Any, **more: Any) -> list[Any]:
        if host.endswith(".example"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in (GONE, HERE)]
        return await ask(self, host, port, **more)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", answered)


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=GatewayConfig()) as made:
        yield made


async def test_requests_reach_an_engine_at_the_address_that_answers(world: World) -> None:
    port = int(world.engines[0].url.rpartition(":")[2])
    [backend] = world.pool.backends
    await world.configure(pool={"backends": (replace(backend, url=f"http://engine.example:{port}"),)})
    with gone(port):
        for _ in range(2):
            await world.sdk().chat.completions.create(model="demo", messages=[{"role": "user", "content": "hello"}])
    await world.settled()


async def test_redis_is_reached_at_the_address_that_answers(private_redis: RedisServer) -> None:
    with gone(int(private_redis.url.rpartition(":")[2].partition("/")[0])):
        connection = RespConnection(private_redis.url.replace(HERE, "redis.example"))
        try:
            await connection.start()
            await until(lambda: connection.available)
        finally:
            await connection.close()


async def test_a_leader_reaches_an_engine_at_the_address_that_answers() -> None:
    engine = FakeEngine()
    await engine.start()
    try:
        with gone(int(engine.url.rpartition(":")[2])):
            async with control_http() as http:
                control = VllmClient(engine.url.replace(HERE, "engine.example"), http=http, model="m")
                assert await control.health()
                assert (await control.probe()).ok
    finally:
        await engine.stop()


async def test_a_leader_asks_for_the_certificate_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    await engine.start()
    certificate = write_certificate(tmp_path / "engine.pem", names=["engine.example"])
    trusts = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(client, "authorities", lambda: trusts)
    try:
        async with tls_port(HERE, int(engine.url.rpartition(":")[2]), certificate) as port, control_http() as http:
            with gone(port):
                assert await VllmClient(f"https://engine.example:{port}", http=http, model="m").health()
                probe = await VllmClient(f"https://other.example:{port}", http=http, model="m").probe()
        assert not probe.ok
        assert "certificate" in probe.why
    finally:
        await engine.stop()


class Heard(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_certificate_has_to_be_that_of_the_name(tmp_path: Path, new_loop: Callable[[], Any]) -> None:
    certificate = write_certificate(tmp_path / "engine.pem", names=["engine.example"])
    trusts = ssl.create_default_context(cafile=str(certificate))

    async def ask() -> None:
        async with tls_port(HERE, 9, certificate) as port:
            with gone(port):
                (await connect(Heard, [GONE, HERE], port, trusts, "engine.example")).transport.abort()
                with pytest.raises(ssl.SSLCertVerificationError):
                    await connect(Heard, [GONE, HERE], port, trusts, "other.example")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())


async def test_what_comes_of_the_others_while_one_is_taken_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    both = asyncio.Event()

    async def at_once(host: str, port: int) -> socket.socket:
        made.append(socket.socket())
        if len(made) == 2:
            both.set()
        await both.wait()
        return made[0 if host == HERE else 1]

    monkeypatch.setattr(connecting, "_try", at_once)
    monkeypatch.setattr(connecting, "NEXT_S", 0.0)
    taken = await connecting._first([HERE, GONE], 1)
    await asyncio.sleep(0)
    assert [one.fileno() >= 0 for one in made].count(True) == 1
    taken.close()


async def test_where_no_address_answers_the_first_one_says_why() -> None:
    with pytest.raises(ConnectionRefusedError):
        await connect(Heard, [HERE, GONE], 9)


def test_addresses_of_both_kinds_are_tried_by_turns_and_each_once() -> None:
    assert connecting._by_turns(["fe80::1", "fe80::2", "10.0.0.1", "fe80::1"]) == ["fe80::1", "10.0.0.1", "fe80::2"]
    assert connecting._by_turns([]) == []
