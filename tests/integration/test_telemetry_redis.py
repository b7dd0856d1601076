"""The live feed over a real Redis: stored, fenced, published, and back after Redis was killed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
import pytest
from channels.layers import channel_layers, get_channel_layer
from django.conf import settings

from telemetry.feed import history, snapshots
from telemetry.feed.hub import LiveHub
from telemetry.feed.publisher import GroupSender, Publisher
from telemetry.feed.store import SILENT_S, LiveStore, LiveUnavailable
from telemetry.feed.window import Window
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import ENTITLEMENTS, POOL, record, sample


class Leader:
    """Publishes a pool's seconds from a thread of its own, as the worker does."""

    def __init__(self, url: str, epoch: int = 1) -> None:
        self.store = LiveStore(url)
        self.send = GroupSender()
        self.publisher = Publisher(self.store, self.send)
        self.window = Window()
        self.epoch = epoch

    async def second(self, **changes: Any) -> None:
        moment = sample(time.time(), epoch=self.epoch, **changes)
        await asyncio.to_thread(self.publisher.publish, moment, self.window, ENTITLEMENTS)

    def close(self) -> None:
        self.send.close()
        self.store.close()


@pytest.fixture
def layer(private_redis: RedisServer) -> Iterator[None]:
    host = {"address": private_redis.url, "socket_timeout": None, "max_connections": 2000}
    config = {"hosts": [host], "prefix": "qm:channels"}
    backend = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": config}
    with mock.patch.object(settings, "CHANNEL_LAYERS", {"default": backend}):
        channel_layers.backends = {}
        yield
    channel_layers.backends = {}


@pytest.fixture
def leader(private_redis: RedisServer, layer: None) -> Iterator[Leader]:
    one = Leader(private_redis.url)
    yield one
    one.close()


async def screen_of(hub: LiveHub, subscriber: Any, screen: dict[str, Any]) -> dict[str, Any]:
    """What a dashboard shows after everything that is there for it."""
    while (text := await hub.next_message(subscriber)) is not None:
        message = json.loads(text)
        if message["type"] == "snapshot":
            screen = message["data"]
        elif message["type"] == "delta":
            assert message["seq"] == screen["seq"] + 1
            screen = snapshots.apply(screen, message["patch"])
    return screen


async def shows(hub: LiveHub, subscriber: Any, screen: dict[str, Any], depth: int) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            screen = await screen_of(hub, subscriber, screen)
            if screen and screen["queue"]["depth"] == depth:
                return screen
            await asyncio.sleep(0.02)


def stored(url: str) -> dict[str, Any]:
    found = LiveStore(url).load("llama")
    assert found is not None
    return found.snapshot


async def test_a_published_second_is_stored_with_its_point_and_reaches_the_screen(
    leader: Leader, private_redis: RedisServer
) -> None:
    hub = LiveHub(LiveStore(private_redis.url))
    subscriber = await hub.subscribe(None)
    screen: dict[str, Any] = {}
    for n in range(1, 6):
        leader.window.add([record(n, done_s=time.time())], time.time())
        await leader.second(waiting={"acme-llama": n})
        screen = await shows(hub, subscriber, screen, depth=n)
    assert screen == stored(private_redis.url)
    points = LiveStore(private_redis.url).history("llama")
    assert [p["depth"] for p in points] == [1, 2, 3, 4, 5]
    assert LiveStore(private_redis.url).pools() == ["llama"]
    await hub.unsubscribe(subscriber)
    await get_channel_layer().flush()


async def test_changes_arrive_as_changes_over_the_channel_layer(leader: Leader, private_redis: RedisServer) -> None:
    hub = LiveHub(LiveStore(private_redis.url))
    subscriber = await hub.subscribe(frozenset({"acme"}))
    await leader.second()
    screen = await shows(hub, subscriber, {}, depth=2)
    kinds = []
    async with asyncio.timeout(30):
        for n in range(3, 8):
            await leader.second(waiting={"acme-llama": n})
            while (text := await hub.next_message(subscriber)) is None:
                await asyncio.sleep(0.01)
            kinds.append(json.loads(text)["type"])
            screen = (
                snapshots.apply(screen, json.loads(text)["patch"]) if kinds[-1] == "delta" else json.loads(text)["data"]
            )
            assert screen == snapshots.visible(stored(private_redis.url), frozenset({"acme"}))
    assert kinds.count("delta") >= 4, "the hub only polled"
    await hub.unsubscribe(subscriber)
    await get_channel_layer().flush()


async def test_a_replaced_leader_cannot_overwrite_its_successor(leader: Leader, private_redis: RedisServer) -> None:
    await leader.second()
    await leader.second()
    successor = Leader(private_redis.url, epoch=2)
    try:
        await successor.second(waiting={"acme-llama": 9})
        await leader.second(waiting={"acme-llama": 1})
        kept = stored(private_redis.url)
        assert (kept["epoch"], kept["seq"], kept["queue"]["depth"]) == (2, 3, 9)
        await successor.second(waiting={"acme-llama": 8})
        assert stored(private_redis.url)["seq"] == 4
    finally:
        successor.close()


async def test_screens_converge_after_redis_was_killed_and_came_back_empty(
    leader: Leader, private_redis: RedisServer
) -> None:
    hub = LiveHub(LiveStore(private_redis.url))
    subscriber = await hub.subscribe(None)
    await leader.second(waiting={"acme-llama": 1})
    screen = await shows(hub, subscriber, {}, depth=1)
    private_redis.kill()
    for n in range(3):
        await leader.second(waiting={"acme-llama": 10 + n})  # raises nothing
    async with asyncio.timeout(30):
        while hub.available:
            await asyncio.sleep(0.05)
    private_redis.start()
    await leader.second(waiting={"acme-llama": 77})
    screen = await shows(hub, subscriber, screen, depth=77)
    assert hub.available
    assert screen == stored(private_redis.url)
    await hub.unsubscribe(subscriber)
    await get_channel_layer().flush()


async def test_a_frozen_redis_holds_the_telemetry_thread_for_a_second_at_most(
    leader: Leader, private_redis: RedisServer
) -> None:
    await leader.second()
    private_redis.freeze()
    try:
        with pytest.raises(LiveUnavailable):
            await asyncio.to_thread(leader.store.load, "llama")
        before = time.monotonic()
        await leader.second()
        held_s = time.monotonic() - before
    finally:
        private_redis.thaw()
    assert held_s < 10, "the store's own limit is 0.5 s; the machine may be slow, but this waited for Redis"
    await leader.second()
    assert stored(private_redis.url)["seq"] >= 2


async def test_the_history_keeps_a_quarter_of_an_hour(private_redis: RedisServer) -> None:
    store = LiveStore(private_redis.url)
    shot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    for n in range(history.POINTS + 50):
        store.store("llama", 1, n, msgspec.json.encode(shot), msgspec.json.encode({"at": n, "tenants": {}}))
    points = store.history("llama")
    assert len(points) == history.POINTS
    assert (points[0]["at"], points[-1]["at"]) == (50, history.POINTS + 49)
    assert [p["at"] for p in store.history("llama", 2)] == [history.POINTS + 48, history.POINTS + 49]
    store.close()


@pytest.mark.parametrize(("snapshot", "point"), [(b"{}", b"{}"), (b"[1]", b"7"), (b"\xff", b""), (None, b"{}")])
async def test_what_another_release_stored_ends_no_socket(
    private_redis: RedisServer, snapshot: bytes | None, point: bytes
) -> None:
    store = LiveStore(private_redis.url)
    shot = msgspec.json.encode(snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1))
    store.store("llama", 1, 1, shot, msgspec.json.encode({"at": 1, "tenants": {}}))
    store.store("other", 1, 1, shot if snapshot is None else snapshot, point)
    hub = LiveHub(store)
    for sight in (None, frozenset({"acme"})):
        subscriber = await hub.subscribe(sight)
        messages = []
        while (text := await hub.next_message(subscriber)) is not None:
            messages.append(msgspec.json.decode(text))
        kinds = {(message["type"], message["pool"]) for message in messages}
        wanted = {("snapshot", "llama"), ("history", "llama")}
        assert kinds == (wanted if snapshot is not None else wanted | {("snapshot", "other"), ("history", "other")})
        assert all("at" in frame for message in messages if message["type"] == "history" for frame in message["frames"])
        await hub.unsubscribe(subscriber)
    store.close()


async def test_only_pools_that_are_neither_configured_nor_led_are_forgotten(
    leader: Leader, private_redis: RedisServer
) -> None:
    for name in ("llama", "deleted", "new"):
        await leader.second(pool=replace(POOL, id=name))
    store = LiveStore(private_redis.url)
    assert store.keep_only({"llama"}) == [], "a pool that is led now may be newer than what we know"
    with mock.patch("telemetry.feed.store.time.time", return_value=time.time() + 2 * SILENT_S):
        assert store.keep_only({"llama", "new"}) == ["deleted"]
        assert store.pools() == ["llama", "new"]
    assert store.load("deleted") is None
    assert store.history("deleted") == []
    assert len(store.history("llama")) == 1
    await leader.second(pool=replace(POOL, id="deleted"))
    assert len(store.history("deleted")) == 1, "one that is created again begins anew"
    store.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), "OOM"),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), "NOREPLICAS"),
        (("REPLICAOF", "127.0.0.1", "1"), "READONLY"),
        (("ACL", "SETUSER", "qm", "-set", "-zrange"), "NOPERM"),
    ],
)
def test_a_redis_that_refuses_says_with_which_code(private_redis: RedisServer, words: tuple[str, ...], code: str):
    private_redis.command("ACL", "SETUSER", "qm", "on", ">word", "~qm:*", "&qm:*", "+@all")
    store = LiveStore(private_redis.url.replace("redis://", "redis://qm:word@"))
    assert store.refuses() == ""
    private_redis.command(*words)
    assert store.refuses() == code
    if code == "NOPERM":
        with pytest.raises(LiveUnavailable) as refused:
            store.heads()
        assert refused.value.refuses == code
    store.close()
