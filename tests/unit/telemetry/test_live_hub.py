"""What a web process keeps of the live feed for all its sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from unittest import mock

import pytest
from channels.layers import channel_layers
from django.conf import settings

from telemetry.feed import hub
from telemetry.feed.sources import Sources
from tests.support.live_screens import Feed
from tests.support.telemetry_world import MemoryStore


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
        assert encoded.call_count == 3
        assert all(json.loads(t or "")["type"] == "delta" for t in texts)
    finally:
        for s in subscribers:
            await the_hub.unsubscribe(s)
