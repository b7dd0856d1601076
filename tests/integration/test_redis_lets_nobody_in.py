"""Redis that is there and refuses this process: its words are in the log, once, and in the answer of ``/readyz``."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.web.health import LOOK_AGAIN_S, Readiness
from scheduling.state import resp as resp_module
from scheduling.state.resp import RespConnection
from telemetry.feed.store import LiveStore, LiveUnavailable
from tests.support.dispatch_world import until_await
from tests.support.gateway_world import until
from tests.support.redis_server import RedisServer


async def test_why_nobody_is_let_in_is_told_in_the_middle_of_an_outage(
    private_redis: RedisServer, caplog: pytest.LogCaptureFixture
):
    """The connection that was there ended for another reason: that the server closed it."""
    caplog.set_level(logging.INFO)
    private_redis.command("ACL", "SETUSER", "qm", "on", ">first", "~*", "&*", "+@all")
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={"p": None}))
    readiness = Readiness(cast(Any, catalog), private_redis.url.replace("redis://", "redis://qm:first@"))
    await readiness.start()
    try:
        private_redis.command("ACL", "SETUSER", "qm", "resetpass", ">second")
        private_redis.command("CLIENT", "KILL", "USER", "qm")
        await until(lambda: any("still unavailable, Redis: WRONGPASS" in m for m in caplog.messages))
        await asyncio.sleep(1.5)  # further attempts
        assert [m.count("WRONGPASS") for m in caplog.messages if "still" in m] == [1]
        serves, report = await readiness.look()
        assert not serves
        assert report["waiting_for"][0].startswith("Redis: this process is not let in: WRONGPASS")
        private_redis.command("ACL", "SETUSER", "qm", ">first")

        await until(lambda: any("available again" in m for m in caplog.messages))
        await asyncio.sleep(LOOK_AGAIN_S * 1.1)
        assert "not let in" not in str((await readiness.look())[1])
    finally:
        await readiness.stop()


async def test_one_client_too_many_is_told_as_such(private_redis: RedisServer, caplog: pytest.LogCaptureFixture):
    """Redis says so before it is asked anything, and closes the connection."""
    caplog.set_level(logging.INFO)
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={"p": None}))
    other, readiness = RespConnection(private_redis.url, name="other"), Readiness(cast(Any, catalog), private_redis.url)
    await other.start()
    await readiness.start()
    store = LiveStore(private_redis.url)
    said = "ERR max number of clients reached"
    try:
        await other.call("CONFIG", "SET", "maxclients", 1)
        await other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: any("unavailable, " in m for m in caplog.messages))
        for _ in range(5):
            await asyncio.sleep(LOOK_AGAIN_S * 1.1)
            assert (await readiness.look())[1]["waiting_for"] == [f"Redis: this process is not let in: {said}"]
        assert [m.endswith(f"still unavailable, Redis: {said}") for m in caplog.messages if "still" in m] == [True]
        with pytest.raises(LiveUnavailable) as refused:
            await asyncio.to_thread(store.heads)
        assert refused.value.refuses == "max number of clients reached"
        await other.call("CONFIG", "SET", "maxclients", 100)
        await until(lambda: any("available again" in m for m in caplog.messages))
    finally:
        store.close()
        await readiness.stop()
        await other.close()


async def test_that_it_loads_its_data_is_told(caplog: pytest.LogCaptureFixture):
    async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" * 4)
        writer.close()

    server = await asyncio.start_server(loading, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    resp, store = RespConnection(url, name="early"), LiveStore(url)
    try:
        assert not await resp.start()
        await asyncio.sleep(1.0)  # further attempts
        assert sum("LOADING" in m for m in caplog.messages) == 1
        with pytest.raises(LiveUnavailable) as refused:
            await asyncio.to_thread(store.heads)
        assert refused.value.refuses == "LOADING"
    finally:
        store.close()
        await resp.close()
        server.close()


async def test_what_a_user_may_not_do_is_told_once_and_by_readyz(
    private_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    private_redis.command(
        "ACL", "SETUSER", "qm", "on", ">first", "~*", "&*", "+@all", "-@scripting", "-role", "-client"
    )
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={"p": None}))
    readiness = Readiness(cast(Any, catalog), private_redis.url.replace("redis://", "redis://qm:first@"))
    await readiness.start()
    try:
        for _ in range(2):
            serves, report = await readiness.look()
            assert not serves
            assert "it refuses what is asked" in report["waiting_for"][0]
            assert "NOPERM" in report["waiting_for"][0]
            await asyncio.sleep(LOOK_AGAIN_S * 1.1)
        assert sum("refuses view: NOPERM" in m for m in caplog.messages) == 1
        monkeypatch.setattr(resp_module, "TELL_AGAIN_S", 0.1)  # it was well meanwhile, on the same connection
        await readiness.look()
        assert sum("refuses view: NOPERM" in m for m in caplog.messages) == 2
    finally:
        await readiness.stop()


async def test_a_user_without_a_password_is_named_all_the_same(private_redis: RedisServer):
    private_redis.command("ACL", "SETUSER", "qm", "on", "nopass", "~*", "&*", "+@all")
    resp = RespConnection(private_redis.url.replace("redis://", "redis://qm@"), name="nopass")
    try:
        assert await resp.start()
        assert await resp.call("ACL", "WHOAMI") == b"qm"
    finally:
        await resp.close()


async def test_a_node_of_a_cluster_is_not_used_and_told(caplog: pytest.LogCaptureFixture):
    """A pool's keys are in one slot, and those of Celery, Channels and the catalog in others."""
    first, second = RedisServer(cluster=True), RedisServer(cluster=True)
    try:
        for node, slots in ((first, ("0", "8191")), (second, ("8192", "16383"))):
            node.start()
            assert node.command("CLUSTER", "ADDSLOTSRANGE", *slots).startswith(b"+OK")
        alone = RespConnection(first.url, name="alone")
        assert await alone.start()
        await alone.close()
        first.command("CLUSTER", "MEET", "127.0.0.1", str(second.port), str(second.bus_port))

        async def met() -> bool:
            return b"cluster_size:2" in first.command("CLUSTER", "INFO")

        await until_await(met)
        resp = RespConnection(first.url, name="cluster")
        assert not await resp.start()
        await resp.close()
        assert "one of several masters of a cluster" in caplog.messages[-1]
    finally:
        first.stop()
        second.stop()
