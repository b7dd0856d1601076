"""A leader in a process of its own is stopped for three leases and goes on as if nothing had been.

Another leads while it is stopped, and of what it still writes nothing is accepted (docs/reference/promises.md, 8). The
bad variants show that this would be seen: a leader that does not notice its lease is over is held by the fence alone,
and without the fence its grants count.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import OverLimit
from scheduling.state import codec
from scheduling.state.notices import GrantNotice
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import LEADER_MS, gateway_channel
from tests.support.dispatch_world import until, until_await
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(200)]

WAITING = 200
WRITE = re.compile(
    rb'"EVALSHA" "[0-9a-f]+" "1" "qm:\{p\}:" "(\d+)"(?: "-?\d+"| "[^"]*" "[01]" "\d+" "\d+" "[01]"| "r\d+".*)?$'
)


@contextmanager
def dispatcher(url: str, number: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.dispatch_process", url, "p", str(number), *flags],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def leader_writes(server: RedisServer) -> Iterator[list[int]]:
    """The epochs under which leaders write, as Redis receives them."""
    epochs: list[int] = []
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(b"MONITOR\r\n")

        def read() -> None:
            with suppress(OSError), wire.makefile("rb") as lines:
                for line in lines:
                    if found := WRITE.search(line.strip()):
                        epochs.append(int(found[1]))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        yield epochs
        wire.shutdown(socket.SHUT_RDWR)
        thread.join(5)


class Gateway:
    """Keeps a queue of requests alive, and ends the oldest grant every half second."""

    def __init__(self, store: PoolStore) -> None:
        self.store = store
        self.notices: list[GrantNotice] = []

    async def admit_all(self) -> None:
        spec = entitlement("acme", "p", tier=tier(over_limit=OverLimit.WAIT, queue_limit=1000))
        pool, est = pool_spec("p", backends=(backend("b1", 1, pool="p"),)), estimate()
        for n in range(WAITING):
            asked = request(f"r{n}", spec, est, arrival_s=1_700_000_000.0 + n)
            await self.store.admit(spec, pool, asked, est, 300, FACTS)
        await self._finish("r0")

    async def serve(self) -> None:
        served, renewed = 0, 0.0
        while True:
            await asyncio.sleep(0.5)
            if served < len(self.notices):
                await self._finish(self.notices[served].request_id)
                served += 1
            if time.monotonic() - renewed > 2.0:
                await self.store.renew("gw-1", [(f"r{n}", 1, 0) for n in range(WAITING)])
                renewed = time.monotonic()

    async def _finish(self, request_id: str) -> None:
        await self.store.finish(request_id, 1, Reason.STOP, 140, True, ledger(request_id))

    def granted_by(self, number: int) -> int:
        return sum(notice.policy == f"fifo@{number}" for notice in self.notices)


@pytest.mark.parametrize(
    ("flags", "stopped_s"),
    [((), 3 * LEADER_MS / 1000), (("--deaf",), 3 * LEADER_MS / 1000), (("--deaf", "--fenceless"), 0.0)],
    ids=["a leader", "a leader that never notices", "a leader that never notices, without a fence"],
)
async def test_nothing_that_a_stopped_leader_writes_is_accepted(
    private_redis: RedisServer, flags: tuple[str, ...], stopped_s: float
):
    resp = RespConnection(private_redis.url)
    await resp.start()
    gateway = Gateway(PoolStore(resp, "p"))
    ear = Subscriber(
        private_redis.url, [gateway_channel("gw-1")], lambda _, data: gateway.notices.append(codec.decode_notice(data))
    )
    await ear.start()

    async def led_by(number: int) -> bool:
        snapshot = await gateway.store.view()
        return snapshot.leader.startswith(f"d{number}-") and any(b.ready for b in snapshot.backends.values())

    with ExitStack() as stack:
        first = stack.enter_context(dispatcher(private_redis.url, 1, *flags))
        await until_await(lambda: led_by(1))
        second = stack.enter_context(dispatcher(private_redis.url, 2, *flags[1:]))
        writes = stack.enter_context(leader_writes(private_redis))
        await gateway.admit_all()
        serving = asyncio.create_task(gateway.serve())
        await until(lambda: gateway.granted_by(1) >= 5)
        await asyncio.sleep(3.0)  # the second process has started and follows
        assert gateway.granted_by(2) == 0
        epoch = (await gateway.store.view()).epoch

        stopped = time.monotonic()
        first.send_signal(signal.SIGSTOP)
        await until_await(lambda: led_by(2), 60)
        followed_s = time.monotonic() - stopped
        before = gateway.granted_by(2)
        await until(lambda: gateway.granted_by(2) >= before + 2)
        await asyncio.sleep(max(0.0, stopped + stopped_s - time.monotonic()))

        by_first, asked = gateway.granted_by(1), len(writes)
        first.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.0)
        for _ in range(6 if "--fenceless" in flags else 1):
            second.send_signal(signal.SIGSTOP)  # now nobody else takes what the first would like to grant
            await asyncio.sleep(1.0)  # less than is left of the second's lease
            if gateway.granted_by(1) > by_first:
                break
            second.send_signal(signal.SIGCONT)
            await asyncio.sleep(1.0)
        stale, accepted = writes[asked:].count(epoch), gateway.granted_by(1) - by_first
        print(f"\n{flags}: followed after {followed_s:.1f} s, {stale} stale writes, {accepted} stale grants accepted")
        serving.cancel()
        if "--fenceless" in flags:
            assert accepted > 0, "the broken variant does no harm: this test would not notice a missing fence"
        else:
            assert accepted == 0
            assert (await gateway.store.view()).epoch > epoch, "nobody else was elected"
        if "--deaf" in flags:
            assert stale > 0, "the stopped leader did not try: the fence was not asked"
    await asyncio.gather(serving, return_exceptions=True)
    await ear.close()
    await resp.close()
