"""The connections of control calls, where a pool has many replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import certifi
import httpx
import pytest

from scheduling import tls
from scheduling.engines import client
from scheduling.engines.client import control_http, fetch
from scheduling.engines.kinds.vllm import VllmClient

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Replica:
    """Answers each request, or accepts it and never answers; counts the connections made to it."""

    def __init__(self, hangs: bool = False) -> None:
        self.hangs = hangs
        self.connections = 0
        self.open = 0
        self.asked = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Replica]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
                if not self.hangs:
                    writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


async def ask(http: httpx.AsyncClient, replica: Replica, timeout_s: float = 30.0) -> bytes:
    return (await fetch(http, "GET", replica.url, "GET /metrics", timeout_s=timeout_s))[1]


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_each_of_eighty_replicas_keeps_its_connection_from_one_look_to_the_next() -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Replica().serving()) for _ in range(80)]
        http = await stack.enter_async_context(control_http())
        for _ in range(3):
            assert await asyncio.gather(*(ask(http, one) for one in replicas)) == [b"ok"] * 80
        assert [one.connections for one in replicas] == [1] * 80


async def test_eighty_replicas_that_hang_keep_no_other_from_being_asked() -> None:
    async with AsyncExitStack() as stack:
        hanging = [await stack.enter_async_context(Replica(hangs=True).serving()) for _ in range(80)]
        well = await stack.enter_async_context(Replica().serving())
        http = await stack.enter_async_context(control_http())
        calls = [asyncio.create_task(ask(http, one, timeout_s=600)) for one in hanging]
        try:
            await until(lambda: sum(one.asked for one in hanging) >= 64)
            assert await ask(http, well, timeout_s=10) == b"ok"
            await until(lambda: all(one.asked for one in hanging))
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_connections_to_a_replica_that_is_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        gone, new = [await stack.enter_async_context(Replica().serving()) for _ in range(2)]
        http = await stack.enter_async_context(control_http())
        await ask(http, gone)
        assert gone.open == 1
        monkeypatch.setattr(client, "FORGOTTEN_S", 0.0)
        await ask(http, new)
        await until(lambda: gone.open == 0)


@pytest.mark.parametrize("installed", [False, True])
def test_where_the_system_has_no_authorities_certifi_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """Small images have the folder, and nothing in it."""
    if installed:
        (tmp_path / "authority.pem").write_text("")
    where = SimpleNamespace(cafile=None, capath=str(tmp_path))
    monkeypatch.setattr(tls.ssl, "get_default_verify_paths", lambda: where)
    files: list[str | None] = []
    monkeypatch.setattr(tls.ssl, "create_default_context", lambda cafile: files.append(cafile))
    tls.authorities.__wrapped__()
    assert files == [None if installed else certifi.where()]


async def test_a_probe_is_on_a_new_connection_and_other_calls_keep_theirs() -> None:
    """Kept connections work on where new ones do not: files ran out, a certificate expired, the name moved."""
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(Replica().serving())
        http = await stack.enter_async_context(control_http())
        engine = VllmClient(replica.url, http=http, model="m")
        assert await engine.health()
        for probes in range(1, 3):
            await engine.probe()
            assert await engine.health()
            assert replica.connections == 1 + probes
        await until(lambda: replica.open == 1)
