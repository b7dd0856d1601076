"""Many dashboards, and some that do not read: how long they keep the loop from streams, and what is held for them."""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import socket
import termios
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from unittest import mock

import pytest
import uvicorn
from channels.layers import channel_layers
from django.conf import settings

from controlplane.web.websockets import BoundedSocket
from telemetry.feed import consumers, history, hub, snapshots
from telemetry.feed.sources import Sources
from telemetry.feed.window import Window
from tests.support.dashboards import IN_MEMORY, Leader, handshake, port_of, serving
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, sample

DASHBOARDS = 500
STALLED = 8
HELD_BYTES = 1_000_000  # for each that does not read


@pytest.fixture(autouse=True)
def layer() -> Iterator[None]:
    with mock.patch.object(settings, "CHANNEL_LAYERS", IN_MEMORY):
        channel_layers.backends = {}
        yield
    channel_layers.backends = {}


async def test_a_change_wakes_five_hundred_dashboards_a_few_in_each_turn_of_the_loop_and_is_encoded_once() -> None:
    store = MemoryStore()
    the_hub = hub.LiveHub(store, Sources())
    leader = Leader(store, the_hub)
    await leader.second()
    subscribers = [await the_hub.subscribe(None if n % 2 else frozenset({"acme"})) for n in range(DASHBOARDS)]
    turn, woken = 0, Counter[int]()
    got: list[str | None] = []

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def screen(subscriber: hub.Subscriber) -> None:
        while await the_hub.next_message(subscriber) is not None:
            pass
        subscriber.bell.clear()
        ready.release()
        await subscriber.bell.wait()
        woken[turn] += 1
        got.append(await the_hub.next_message(subscriber))

    ready = asyncio.Semaphore(0)
    counting = asyncio.create_task(turns())
    screens = [asyncio.create_task(screen(subscriber)) for subscriber in subscribers]
    try:
        async with asyncio.timeout(60):
            for _ in screens:
                await ready.acquire()
            with mock.patch.object(hub, "_text", wraps=hub._text) as encoded:
                await leader.second()
                await asyncio.gather(*screens)
        assert encoded.call_count == 2  # for those who see all, and for those who see one tenant
        assert {json.loads(text or "")["type"] for text in got} == {"delta"}
        assert len(got) == DASHBOARDS
        assert max(woken.values()) <= 16
    finally:
        for task in (counting, *screens):
            task.cancel()
        for subscriber in subscribers:
            await the_hub.unsubscribe(subscriber)


@pytest.fixture
async def server() -> AsyncIterator[uvicorn.Server]:
    async with serving() as server:
        yield server


def held(connection: BoundedSocket) -> int:
    """Bytes that wait for the other side: in this process, and in the kernel."""
    found = connection.transport.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        return 0
    queued = array.array("i", [0])
    fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, queued)
    return connection.transport.get_write_buffer_size() + queued[0]


@pytest.mark.django_db(transaction=True)  # Channels closes connections to it
async def test_less_than_a_megabyte_is_held_for_a_dashboard_that_does_not_read_and_it_is_closed(
    server: uvicorn.Server,
) -> None:
    store = MemoryStore()
    the_hub = hub.LiveHub(store, Sources())
    leader = Leader(store, the_hub)
    point = history.point(snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1))
    rows = {f"tenant-{n:030d}": next(iter(point["tenants"].values())) for n in range(50)}
    past = [point | {"at": NOW - 900 + n, "tenants": rows} for n in range(900)]
    await leader.second()
    port = port_of(server)
    silent: list[socket.socket] = []
    with (
        mock.patch.object(consumers, "running_hub", return_value=the_hub),
        mock.patch.object(consumers, "SEND_TIMEOUT_S", 2.0),
        mock.patch.object(store, "history", return_value=past),
    ):
        try:
            for _ in range(STALLED):
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.setblocking(False)
                await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
                await asyncio.get_running_loop().sock_sendall(one, handshake(port))
                silent.append(one)
            most = seen = 0
            async with asyncio.timeout(60):
                while seen < STALLED or the_hub._subscribers:
                    seen = max(seen, len(the_hub._subscribers))
                    await leader.second()
                    sockets = [c for c in server.server_state.connections if isinstance(c, BoundedSocket)]
                    most = max([most, *(held(c) for c in sockets)])
                    await asyncio.sleep(0.02)
                while server.server_state.connections:  # the close frame is not read either
                    await asyncio.sleep(0.05)
        finally:
            for one in silent:
                one.close()
    print(f"\n{most / 1000:.0f} KB were held at most for a dashboard that does not read")
    assert 100_000 < most <= HELD_BYTES
