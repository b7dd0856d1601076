"""When Redis dies, freezes, forgets, or its answer is lost: calls end at once or in time, and nothing happens twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from scheduling.core.outcomes import Reason
from scheduling.state import resp as resp_module
from scheduling.state.address import parse_url
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import (
    AdmissionStatus,
    BucketDebit,
    FinishStatus,
    RenewStatus,
    StateError,
    StateUnavailable,
)
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request

SPEC = entitlement("acme", tokens_per_s=0.001, burst_tokens=1000.0)
POOL = pool_spec()
EST = estimate()


async def until(condition: Callable[[], bool], limit_s: float = 20) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def connected(url: str, **options: object) -> AsyncIterator[RespConnection]:
    connection = RespConnection(url, name="test", **options)  # type: ignore[arg-type]
    await connection.start()
    try:
        yield connection
    finally:
        await connection.close()


async def ready_pool(resp: RespConnection) -> PoolStore:
    store = PoolStore(resp, "p")
    election = await store.elect("leader", 0, first_start=True)
    await leads_on(store)
    await store.set_ready(election.epoch, "b1", backend())
    return store


async def admit(store: PoolStore, name: str):
    return await store.admit(SPEC, POOL, request(name, SPEC, EST), EST, 10, FACTS)


async def test_a_killed_server_fails_calls_at_once_and_comes_back_without_a_restart(
    private_redis: RedisServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "quartermaster.state")
    changes: list[bool] = []
    async with connected(private_redis.url, on_change=changes.append) as resp:
        store = await ready_pool(resp)
        private_redis.kill()
        await until(lambda: not resp.available)
        for i in range(50):
            with pytest.raises(StateUnavailable):
                async with asyncio.timeout(0.2):
                    await admit(store, f"r{i}")
        await asyncio.sleep(1.5)  # several failed attempts to connect
        private_redis.start()
        await until(lambda: resp.available)
        assert (await store.renew("gw-1", [("r1", 1, 0)]))[0].status is RenewStatus.UNKNOWN
    assert changes == [True, False, True]
    assert len(caplog.messages) == 2, "one line per change of state"


async def test_a_frozen_server_fails_calls_within_their_limit_and_the_rest_at_once(private_redis: RedisServer):
    async with connected(private_redis.url) as resp:
        store = await ready_pool(resp)
        private_redis.freeze()
        async with asyncio.timeout(resp_module.CALL_TIMEOUT_S + 2):
            answers = await asyncio.gather(*(admit(store, f"r{i}") for i in range(20)), return_exceptions=True)
        assert all(isinstance(a, StateUnavailable) for a in answers)
        # The kernel still accepts connections for it: only an answer makes it available again.
        await asyncio.sleep(1.2)
        assert not resp.available
        with pytest.raises(StateUnavailable):
            async with asyncio.timeout(0.2):
                await admit(store, "r99")
        private_redis.thaw()
        await until(lambda: resp.available)
        view = await store.view()
        assert view.running + view.waiting in range(21), "what the frozen server had read may have been done"


async def test_late_replies_are_never_taken_for_those_of_later_calls(private_redis: RedisServer):
    async with connected(private_redis.url, call_timeout=0.3) as resp:
        assert await resp.call("SET", "a", "old") == b"OK"
        private_redis.freeze()
        with pytest.raises(StateUnavailable):
            await resp.call("GET", "a")
        private_redis.thaw()
        await until(lambda: resp.available)
        assert await asyncio.gather(*(resp.call("ECHO", str(i)) for i in range(100))) == [
            str(i).encode() for i in range(100)
        ]


async def test_a_cancelled_call_does_not_shift_the_replies_of_others(redis_url: str):
    async with connected(redis_url) as resp:
        tasks = [asyncio.create_task(resp.call("ECHO", str(i))) for i in range(100)]
        await asyncio.sleep(0)
        for t in tasks[::3]:
            t.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for i, a in enumerate(answers):
            assert isinstance(a, asyncio.CancelledError) if i % 3 == 0 else a == str(i).encode()


class ReplyEater:
    """A TCP proxy that can swallow what the server answers, then cut the line."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.eating = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
            while data := await source.read(65536):
                if answers and self.eating:
                    break
                target.write(data)
            for w in (writer, upstream_writer):
                w.close()

        for pair in ((reader, upstream_writer, False), (upstream_reader, writer, True)):
            task = asyncio.create_task(pump(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_the_same_call_after_a_lost_reply_changes_nothing(private_redis: RedisServer):
    proxy = ReplyEater(private_redis.port)
    url = await proxy.start()
    async with connected(private_redis.url) as direct, connected(url) as lossy:
        sure = await ready_pool(direct)
        unsure = PoolStore(lossy, "p")
        await admit(unsure, "r0")  # both scripts are known to the server now: a lost reply is not a lost NOSCRIPT
        await unsure.finish("r0", 1, Reason.STOP, 150, True, ledger("r0"))

        async def lost(call: Callable[[], object]) -> None:
            proxy.eating = True
            with pytest.raises(StateUnavailable):
                await call()  # type: ignore[misc]
            proxy.eating = False
            await until(lambda: lossy.available)

        await lost(lambda: admit(unsure, "r1"))
        once = await sure.view()
        assert once.running == 1, "it took effect, only its reply was lost"
        again = await admit(unsure, "r1")
        assert (again.status, again.backend) == (AdmissionStatus.GRANTED, "b1")
        twice = await sure.view()
        assert (twice.running, twice.entitlements["acme"].running) == (1, 1)
        assert twice.entitlements["acme"].level_tokens == pytest.approx(700, abs=0.1)

        end = ("r1", 1, Reason.STOP, 100, True, ledger("r1"))
        await lost(lambda: unsure.finish(*end))
        assert (await unsure.finish(*end)).status is FinishStatus.ENDED
        assert [e.record.request_id for e in await sure.ledger_read(10) if e.record] == ["r0", "r1"]
        view = await sure.view()
        assert (view.running, view.entitlements["acme"].level_tokens) == (0, pytest.approx(750, abs=0.1))
    await proxy.stop()


async def test_a_flushed_script_cache_is_filled_again_without_an_error(private_redis: RedisServer):
    async with connected(private_redis.url) as resp:
        store = await ready_pool(resp)
        await resp.call("SCRIPT", "FLUSH")
        answers = await asyncio.gather(*(admit(store, f"r{i}") for i in range(3)))
        assert {a.status for a in answers} == {AdmissionStatus.GRANTED}


async def test_a_full_server_is_unavailable_and_a_broken_call_is_an_error(private_redis: RedisServer):
    async with connected(private_redis.url) as resp:
        store = await ready_pool(resp)
        await resp.call("SET", "text", "x")
        with pytest.raises(StateError, match="WRONGTYPE"):
            await resp.call("HGET", "text", "f")
        await resp.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StateUnavailable, match="OOM"):
            await admit(store, "r1")
        await resp.call("CONFIG", "SET", "maxmemory", "0")
        assert (await admit(store, "r1")).status is AdmissionStatus.GRANTED


async def test_nothing_listens_then_something_does(private_redis: RedisServer):
    private_redis.kill()
    async with connected(private_redis.url) as resp:
        assert not resp.available
        with pytest.raises(StateUnavailable):
            await resp.call("PING")
        private_redis.start()
        await until(lambda: resp.available)
        assert await resp.call("PING") == b"PONG"


async def test_a_subscriber_hears_again_after_kill_and_freeze(private_redis: RedisServer):
    heard: list[bytes] = []
    ready: list[None] = []
    ears = Subscriber(private_redis.url, ["bell"], lambda _c, p: heard.append(p), on_ready=lambda: ready.append(None))
    await ears.start()
    try:
        async with connected(private_redis.url) as resp:

            async def rings(word: bytes) -> None:
                async with asyncio.timeout(20):
                    while word not in heard:
                        with contextlib.suppress(StateUnavailable):
                            await resp.call("PUBLISH", "bell", word)
                        await asyncio.sleep(0.05)

            await rings(b"one")
            private_redis.kill()
            await until(lambda: not ears.available)
            private_redis.start()
            await rings(b"two")
            private_redis.freeze()
            await until(lambda: not ears.available)
            private_redis.thaw()
            await rings(b"three")
            assert len(ready) == 3
    finally:
        await ears.close()


async def test_a_password_is_sent_and_never_shown(private_redis: RedisServer, caplog: pytest.LogCaptureFixture):
    private_redis.command("CONFIG", "SET", "requirepass", "s3cret word")
    url = private_redis.url.replace("redis://", "redis://:s3cret%20word@").replace("/0", "/3")
    async with connected(url) as resp:
        assert await resp.call("SET", "here", "1") == b"OK"
        assert b"db=3" in await resp.call("CLIENT", "INFO")
    async with connected(url.replace("s3cret", "wrong")) as resp:
        assert not resp.available
    assert "wrong" not in caplog.text.replace("WRONGPASS", "")
    assert "s3cret" not in repr(parse_url(url))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h/0", "the scheme must be redis:// or unix://"),
        ("redis://h/x", "the database must be a number"),
        ("unix://", "needs the path of a socket"),
    ],
)
def test_a_wrong_url_says_what_is_wrong_with_it(url: str, says: str):
    with pytest.raises(ValueError, match=says):
        parse_url(url)


def test_a_unix_socket_and_a_user_can_be_named():
    address = parse_url("unix://app:pw@/run/qm/redis.sock?db=2")
    assert (address.path, address.username, address.password, address.db) == ("/run/qm/redis.sock", "app", "pw", 2)


@contextlib.asynccontextmanager
async def forgetting(resp: RespConnection) -> AsyncIterator[None]:
    """What is written inside is lost: as by a Redis that is killed before it has written its last second to disk."""
    keys = sorted(await resp.call(b"KEYS", b"qm:{p}:*"))
    kept = [(key, await resp.call(b"DUMP", key)) for key in keys]
    yield
    await resp.call(b"FLUSHALL")
    for key, value in kept:
        await resp.call(b"RESTORE", key, b"0", value)


async def level(resp: RespConnection, store: PoolStore) -> float:
    return float(await resp.call(b"HGET", store._key("buckets"), b"acme:level"))


async def test_a_request_of_the_second_that_redis_lost_pays_all_the_same(private_redis: RedisServer):
    async with connected(private_redis.url) as resp:
        store = await ready_pool(resp)
        await admit(store, "before")
        await store.finish("before", 1, Reason.STOP, 140, True, ledger("before"))
        async with forgetting(resp):
            await admit(store, "whole")
            await store.finish("whole", 1, Reason.STOP, 140, True, ledger("whole"))
            await admit(store, "half")
        assert await level(resp, store) == pytest.approx(860, abs=0.1)
        for _ in range(2):  # its gateway cannot know what was lost, and sends what ended in the last minute again
            await store.record([ledger("before"), ledger("whole")])
        assert await level(resp, store) == pytest.approx(720, abs=0.1)
        for _ in range(2):
            await store.finish("half", 1, Reason.STOP, 140, True, ledger("half"))
        assert await level(resp, store) == pytest.approx(580, abs=0.1)
        refused = ledger("refused", Reason.TOKEN_BUDGET, granted_s=None, input_tokens=0, output_tokens=0)
        await store.record([refused])
        assert await level(resp, store) == pytest.approx(580, abs=0.1)
        entries = await store.ledger_read(10)
        assert [e.record.request_id for e in entries if e.record] == ["before", "whole", "half", "refused"]


async def test_where_all_data_was_lost_buckets_are_left_to_the_ledger(private_redis: RedisServer):
    async with connected(private_redis.url) as resp:
        store = await ready_pool(resp)
        await resp.call(b"FLUSHALL")
        epoch = (await store.elect("leader", 1, first_start=False)).epoch
        await leads_on(store)
        await store.set_ready(epoch, "b1", backend())
        await store.debit(epoch, 0, [BucketDebit("acme", 140.0, 0.001, 1000.0)])
        await store.record([ledger("stored")])  # it is among the 140
        await store.finish("unstored", 1, Reason.STOP, 140, True, ledger("unstored"))
        assert await level(resp, store) == pytest.approx(860, abs=0.1)
