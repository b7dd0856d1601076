"""Redis that answers and takes no writes, and Redis that moves to another node behind the same name.

Full, or unable to save: told once, refused explicitly. Moved: requests go on within seconds, although the
old node lives on as a replica and nobody closes the connections to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from controlplane.web.health import LOOK_AGAIN_S, Readiness
from scheduling.gateway.config import GatewayConfig
from scheduling.state import resp as resp_module
from scheduling.state.resp import RespConnection
from scheduling.state.types import StateUnavailable
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until_await
from tests.support.gateway_world import gateway_world, until
from tests.support.pool_gateway import make_gateway, ready
from tests.support.redis_server import RedisServer, Sentinel
from tests.support.state_world import entitlement

CONFIG = GatewayConfig(renew_every_s=0.2)


def limit(server: RedisServer, bytes_: int) -> None:
    assert server.command("CONFIG", "SET", "maxmemory", str(bytes_)).startswith(b"+OK")


async def ask(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5} | changes
    return await client.post("/v1/chat/completions", json=body)


async def fill(server: RedisServer) -> None:
    limit(server, 1)


async def empty(server: RedisServer) -> None:
    limit(server, 0)


async def fail_to_save(server: RedisServer) -> None:
    """Its file cannot be replaced, as on a full disk, so that it refuses writes (``stop-writes-on-bgsave-error``)."""
    (server.folder / "dump.rdb").mkdir()
    (server.folder / "dump.rdb" / "in the way").touch()
    assert server.command("CONFIG", "SET", "save", "1 1").startswith(b"+OK")
    server.command("BGSAVE")

    async def failed() -> bool:
        return b"rdb_last_bgsave_status:err" in server.command("INFO", "persistence")

    await until_await(failed, 60)


async def save_again(server: RedisServer) -> None:
    """There is room again: Redis tries once in 5 s by itself."""
    (server.folder / "dump.rdb" / "in the way").unlink()
    (server.folder / "dump.rdb").rmdir()


async def want_a_replica(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")


async def want_none(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "0")


async def run_for_ever(server: RedisServer) -> None:
    """Somebody else's script, beside which every command is refused."""
    server.command("CONFIG", "SET", "busy-reply-threshold", "50")
    with suppress(TimeoutError):  # it does not end
        await asyncio.to_thread(server.command, "EVAL", "while true do end", "0")


async def end_it(server: RedisServer) -> None:
    assert server.command("SCRIPT", "KILL").startswith(b"+OK")


@pytest.mark.parametrize(
    ("begin", "end", "code", "frees"),
    [
        (fill, empty, "OOM", True),
        (fail_to_save, save_again, "MISCONF", False),
        (want_a_replica, want_none, "NOREPLICAS", False),
        (run_for_ever, end_it, "BUSY", False),
    ],
    ids=["out of memory", "its last save failed", "a replica is missing", "a script does not end"],
)
async def test_a_redis_that_takes_no_writes_is_logged_once_and_serves_again_by_itself(
    private_redis: RedisServer,
    pool_id: str,
    caplog: pytest.LogCaptureFixture,
    begin: Callable[[RedisServer], Awaitable[None]],
    end: Callable[[RedisServer], Awaitable[None]],
    code: str,
    frees: bool,
):
    """``frees``: whether what only frees memory goes on, so that a request that ends gives its slot back meanwhile."""
    caplog.set_level(logging.INFO)

    def lines(text: str) -> int:
        return len([r for r in caplog.records if text in r.getMessage() and f"({gateway})" in r.getMessage()])

    async with gateway_world(private_redis.url, pool_id, config=CONFIG) as world, world.http() as client:
        gateway, gauges = world.config.gateway_id, world.metrics.gauges
        catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={pool_id: None}))
        readiness = Readiness(cast(Any, catalog), private_redis.url)
        await readiness.start()
        assert (await ask(client)).status_code == 200
        assert (await readiness.look())[0]
        world.engines[0].script.pause_s = 0.05
        running = asyncio.create_task(ask(client, stream=True, max_tokens=60))
        await until(lambda: world.engines[0].open == 1)
        await begin(private_redis)
        for _ in range(5):
            answer = await ask(client)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "state_unavailable")
            assert float(answer.headers["retry-after"]) > 0
        await until(lambda: gauges.get("state_refuses_writes") == 1.0)
        await asyncio.sleep(LOOK_AGAIN_S * 1.1)
        serves, report = await readiness.look()
        assert not serves
        assert any(m.startswith(f"Redis: it takes no writes: {code}") for m in report["waiting_for"])
        assert (await running).text.endswith("data: [DONE]\n\n")  # what runs is renewed, and ends
        if frees:

            async def freed() -> bool:
                return await world.running() == (0, 0)

            await until_await(freed)
        await end(private_redis)
        await until(lambda: gauges.get("state_refuses_writes") == 0.0, 60)
        assert (await ask(client)).status_code == 200
        await world.settled()
        assert lines(f"refuses writes: {code}") == lines("takes writes again") == 1
        assert len({r.request_id for r in await world.ledger_of(8)}) == 8
        await readiness.stop()


async def test_a_node_that_becomes_a_replica_is_no_error_to_who_reads_there(private_redis: RedisServer):
    """It ends the reads that wait, with a word of its own, and the answer of ``/readyz`` says what it has become."""
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={"p": None}))
    readiness = Readiness(cast(Any, catalog), private_redis.url)
    await readiness.start()
    resp = RespConnection(private_redis.url, call_timeout=20)
    await resp.start()
    try:
        reading = asyncio.create_task(resp.call("XREAD", "BLOCK", 15_000, "STREAMS", "s", "$"))

        async def waits() -> bool:
            return b"blocked_clients:1" in private_redis.command("INFO", "clients")

        await until_await(waits)
        private_redis.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StateUnavailable):
            await reading

        async def said() -> bool:
            return (await readiness.look())[1]["waiting_for"] == ["Redis: this node is a replica and takes no writes"]

        await until_await(said)
        private_redis.command("REPLICAOF", "NO", "ONE")

        async def over() -> bool:
            return "Redis" not in str((await readiness.look())[1]["waiting_for"])

        await until_await(over)
    finally:
        await resp.close()
        await readiness.stop()


@pytest.mark.slow
async def test_the_leader_goes_on_in_a_full_redis_and_moves_the_ledger_out(private_redis: RedisServer, pool_id: str):
    """Redis may be full of ledger entries: where nobody led, nobody would ever take them out."""
    telemetry, spec = Telemetry(), entitlement("acme", pool_id)
    resp = RespConnection(private_redis.url)
    await resp.start()
    async with (
        make_gateway(private_redis.url, resp, pool_id) as gateway,
        dispatching(private_redis.url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        telemetry.failures = 10**6  # the database is away
        await gateway.admit("r1", spec)
        await gateway.finish("r1")
        limit(private_redis, 1)
        view = await gateway.store.view()
        ends_ms, epoch = view.now_ms + 8_000, view.epoch  # longer than a leadership

        async def longer() -> bool:
            return (await gateway.store.view()).now_ms > ends_ms

        await until_await(longer)
        telemetry.failures = 0
        await until(lambda: len(telemetry.records) == 1)
        view = await gateway.store.view()
        assert (view.epoch, bool(view.leader)) == (epoch, True)
    await resp.close()


class Proxy:
    """One address before whatever node is the master. Connections that are there stay where they are."""

    def __init__(self) -> None:
        self.to = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_node, to_node = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, to_node}
        await asyncio.gather(self._copy(reader, to_node), self._copy(from_node, writer))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0.05)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[RedisServer, RedisServer, Proxy]]:
    first, second, proxy = RedisServer(), RedisServer(), Proxy()
    first.start()
    second.start()
    first.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    second.command("REPLICAOF", "127.0.0.1", str(first.port))

    async def in_step() -> bool:
        return b"master_link_status:up" in second.command("INFO", "replication")

    await until_await(in_step, 60)
    proxy.to = first.port
    await proxy.start()
    try:
        yield first, second, proxy
    finally:
        await proxy.close()
        first.stop()
        second.stop()


def demote(first: RedisServer, second: RedisServer) -> None:
    second.command("REPLICAOF", "NO", "ONE")
    first.command("REPLICAOF", "127.0.0.1", str(second.port))


def kill(first: RedisServer, second: RedisServer) -> None:
    first.kill()
    second.command("REPLICAOF", "NO", "ONE")


def freeze(first: RedisServer, second: RedisServer) -> None:
    """The machine is gone: nothing closes its connections."""
    first.freeze()
    second.command("REPLICAOF", "NO", "ONE")


async def fail_over(pool_id: str, how: Callable[[RedisServer, RedisServer], None]) -> float:
    """Seconds from a fail-over to the first request that was granted from the queue of the new master."""
    loop = asyncio.get_running_loop()
    async with two_nodes() as (first, second, proxy):
        config = GatewayConfig(renew_every_s=0.2)
        async with gateway_world(proxy.url, pool_id, config=config) as world, world.http() as client:
            assert (await ask(client)).status_code == 200
            world.engines[0].script.pause_s = 0.02
            running = asyncio.create_task(ask(client, stream=True, max_tokens=100))
            await until(lambda: world.engines[0].open == 1)
            how(first, second)
            proxy.to = second.port
            began = loop.time()

            async def served() -> bool:
                return (await ask(client)).status_code == 200

            await until_await(served, 60)
            took = loop.time() - began
            assert (await running).text.endswith("data: [DONE]\n\n")
            # notifications come from the new node: who waits is granted
            backend = world.pool.backends[0]
            await world.store.set_ready(world.epoch, backend.id, None)
            world.engines[0].script.pause_s = 0.0
            world.engines[0].script.first_pause_s = 0.3
            await world.store.set_ready(world.epoch, backend.id, replace(backend, slots=1))
            answers = await asyncio.gather(ask(client), ask(client))
            assert [a.status_code for a in answers] == [200, 200]
            assert await world.store.listening([config.gateway_id]) == {config.gateway_id}
            await world.settled()
            return took


@pytest.mark.parametrize(
    "how", [demote, pytest.param(kill, marks=pytest.mark.slow), freeze], ids=lambda how: how.__name__
)
async def test_requests_go_on_when_redis_moves_to_another_node_behind_its_name(
    pool_id: str, how: Callable[[RedisServer, RedisServer], None]
):
    print(f"\n{how.__name__}: served again after {await fail_over(pool_id, how):.1f} s")


async def test_requests_go_on_when_sentinel_promotes_the_replica_of_a_master_that_was_killed(pool_id: str):
    """Nobody but a real sentinel says who is the master; the one address before them follows it."""
    async with two_nodes() as (first, second, proxy):
        sentinel = Sentinel(first)

        async def follow() -> None:
            while True:
                proxy.to = await asyncio.to_thread(sentinel.master) or proxy.to
                await asyncio.sleep(0.1)

        async def knows_both() -> bool:
            return str(second.port).encode() in await asyncio.to_thread(sentinel.ask, "SENTINEL", "replicas", "qm")

        following = asyncio.create_task(follow())
        try:
            await until_await(knows_both, 60)
            async with gateway_world(proxy.url, pool_id, config=CONFIG) as world, world.http() as client:
                assert (await ask(client)).status_code == 200
                world.engines[0].script.pause_s = 0.05
                running = asyncio.create_task(ask(client, stream=True, max_tokens=100))
                await until(lambda: world.engines[0].open == 1)
                first.kill()
                began = asyncio.get_running_loop().time()

                async def served() -> bool:
                    answer = await ask(client, max_tokens=1)
                    assert answer.status_code in (200, 503), answer.text
                    return answer.status_code == 200

                await until_await(served, 60)
                print(f"\nserved again {asyncio.get_running_loop().time() - began:.1f} s after SIGKILL of the master")
                assert proxy.to == second.port
                assert (await running).text.endswith("data: [DONE]\n\n")
                await world.settled()
        finally:
            following.cancel()
            sentinel.stop()


@pytest.mark.slow
async def test_without_leaving_a_node_that_became_a_replica_nothing_would_be_served(
    pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    """The broken variant: what the test above would see."""
    monkeypatch.setattr(resp_module.Keeper, "_leave", lambda self: None)
    async with (
        two_nodes() as (first, second, proxy),
        gateway_world(proxy.url, pool_id, config=CONFIG) as world,
        world.http() as client,
    ):
        assert (await ask(client)).status_code == 200
        demote(first, second)
        proxy.to = second.port
        for _ in range(10):
            await asyncio.sleep(0.2)
            assert (await ask(client)).status_code == 503
