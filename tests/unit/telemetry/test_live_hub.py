"""What a web process keeps of the live feed for all its sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest
from channels.layers import channel_layers
from django.conf import settings

from scheduling.core.types import EntitlementSpec
from telemetry.feed import hub, rows, snapshots
from telemetry.feed.sources import Sources
from tests.support.live_screens import Feed
from tests.support.telemetry_world import ENTITLEMENTS, POOL, MemoryStore


@pytest.fixture(autouse=True)
def layer() -> Iterator[None]:
    with mock.patch.object(
        settings, "CHANNEL_LAYERS", {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    ):
        channel_layers.backends = {}
        yield
    channel_layers.backends = {}


@pytest.fixture
def leader() -> Feed:
    return Feed(MemoryStore())


@pytest.fixture
def the_hub(leader: Feed) -> hub.LiveHub:
    return hub.LiveHub(leader.store, Sources())


async def test_the_hub_rests_when_the_last_socket_is_gone(the_hub: hub.LiveHub, leader: Feed) -> None:
    await leader.second()
    subscriber = await the_hub.subscribe(None)
    tasks = list(the_hub._tasks)
    await the_hub.unsubscribe(subscriber)
    assert len(tasks) == 2
    assert all(task.done() for task in tasks)
    assert the_hub._pools == {}


async def test_a_slow_socket_gets_one_snapshot_instead_of_a_backlog(the_hub: hub.LiveHub, leader: Feed) -> None:
    await leader.second()
    subscriber = await the_hub.subscribe(None)
    try:
        while await the_hub.next_message(subscriber) is not None:
            pass
        for _ in range(20):
            latest = await leader.second()
        async with asyncio.timeout(20):
            while the_hub._pools["llama"].snapshot["seq"] != latest["seq"]:
                await asyncio.sleep(0.01)
        text = await the_hub.next_message(subscriber)
        assert text is not None
        assert json.loads(text)["type"] == "snapshot"
        assert json.loads(text)["data"] == latest
        assert await the_hub.next_message(subscriber) is None
    finally:
        await the_hub.unsubscribe(subscriber)


async def test_a_frame_is_encoded_once_for_all_sockets_of_a_sight(the_hub: hub.LiveHub, leader: Feed) -> None:
    await leader.second()
    sights = [None, frozenset({"acme"}), frozenset({"globex"})]
    subscribers = [await the_hub.subscribe(sights[n % 3]) for n in range(30)]
    try:
        for s in subscribers:
            while await the_hub.next_message(s) is not None:
                pass
        latest = await leader.second()
        async with asyncio.timeout(20):
            while the_hub._pools["llama"].snapshot["seq"] != latest["seq"]:
                await asyncio.sleep(0.01)
        with mock.patch.object(hub, "_text", wraps=hub._text) as encoded:
            texts = [await the_hub.next_message(s) for s in subscribers]
        assert encoded.call_count == 2  # for members; that of who sees all was encoded when it came
        assert all(json.loads(t or "")["type"] == "delta" for t in texts)
    finally:
        for s in subscribers:
            await the_hub.unsubscribe(s)


def many(number: int) -> dict[str, EntitlementSpec]:
    return {f"e-{i}": replace(ENTITLEMENTS["acme-llama"], id=f"e-{i}") for i in range(number)}


async def up_to(the_hub: hub.LiveHub, pool: str, latest: snapshots.Snapshot) -> None:
    async with asyncio.timeout(20):
        while the_hub._pools[pool].snapshot["seq"] != latest["seq"]:
            await asyncio.sleep(0.01)


async def rest_of(the_hub: hub.LiveHub, subscriber: hub.Subscriber) -> list[str]:
    texts = []
    while (text := await the_hub.next_message(subscriber)) is not None:
        texts.append(text)
    return texts


async def test_a_socket_that_missed_changes_of_a_large_pool_gets_these_and_no_snapshot(
    the_hub: hub.LiveHub, leader: Feed
) -> None:
    """Over a slow link there are more changes while a snapshot is on its way: it would be followed by another."""
    leader.entitlements = many(400)
    await leader.second()
    subscriber = await the_hub.subscribe(None)
    try:
        (first,) = [t for t in await rest_of(the_hub, subscriber) if json.loads(t)["type"] == "snapshot"]
        for _ in range(9):
            latest = await leader.second()
        await up_to(the_hub, "llama", latest)
        texts = await rest_of(the_hub, subscriber)
        messages = [json.loads(text) for text in texts]
        assert [message["type"] for message in messages] == ["delta"] * 9
        assert sum(map(len, texts)) < len(first) / 20
        shown = json.loads(first)["data"]
        for message in messages:
            assert message["seq"] == shown["seq"] + 1
            shown = snapshots.apply(shown, message["patch"])
        names = {table: shown[table].keys() for table in rows.TABLES}
        assert shown == rows.narrowed(latest, names)
        assert shown["left_out"] == {"entitlements": 400 - rows.ROWS}
    finally:
        await the_hub.unsubscribe(subscriber)


@pytest.mark.parametrize("sight", [None, frozenset({"acme"})])
async def test_a_pool_that_becomes_large_and_small_again_is_the_same_on_a_screen(
    sight: frozenset[str] | None, the_hub: hub.LiveHub, leader: Feed
) -> None:
    await leader.second()
    subscriber, slow = await the_hub.subscribe(sight), await the_hub.subscribe(sight)
    screens: dict[hub.Subscriber, snapshots.Snapshot] = {subscriber: {}, slow: {}}

    async def read(who: hub.Subscriber) -> snapshots.Snapshot:
        for message in map(json.loads, await rest_of(the_hub, who)):
            if message["type"] == "snapshot":
                screens[who] = message["data"]
            elif message["type"] == "delta":
                screens[who] = snapshots.apply(screens[who], message["patch"])
        return screens[who]

    try:
        await read(subscriber), await read(slow)
        for turn, size in enumerate([3, 3, 300, 300, 301, 2, 2, 300, 300]):
            leader.entitlements = many(size)
            latest = await leader.second()
            await up_to(the_hub, "llama", latest)
            for who in (subscriber, slow) if turn % 2 else (subscriber,):
                shown, seen = await read(who), snapshots.visible(latest, sight)
                assert seen is not None
                assert shown == rows.narrowed(seen, {table: shown[table].keys() for table in rows.TABLES})
                assert len(shown["entitlements"]) <= rows.ROWS
    finally:
        await the_hub.unsubscribe(subscriber)
        await the_hub.unsubscribe(slow)


async def test_a_pool_that_changes_all_the_time_keeps_no_other_from_a_slow_socket(
    the_hub: hub.LiveHub, leader: Feed
) -> None:
    names = [f"pool-{n}" for n in range(4)]
    for name in names:
        await leader.second(pool=replace(POOL, id=name))
    subscriber = await the_hub.subscribe(None)
    subscriber.histories = False
    try:
        seen = []
        for _ in names:
            text = await the_hub.next_message(subscriber)
            seen.append(json.loads(text or "")["pool"])
            await up_to(the_hub, names[0], await leader.second(pool=replace(POOL, id=names[0])))
        assert seen == names
    finally:
        await the_hub.unsubscribe(subscriber)
