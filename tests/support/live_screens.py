"""Both ends of the live feed: a leader that publishes, and a dashboard that follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator

from scheduling.core.types import EntitlementSpec
from telemetry.feed import snapshots
from telemetry.feed.publisher import GROUP, Publisher
from telemetry.feed.window import Window
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, sample


class Feed:
    """A leader in the test: makes the pool's snapshots, and loses a change when told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.messages: list[dict[str, Any]] = []
        self.publisher = Publisher(store, self.messages.append)
        self.window = Window()
        self.at_s = NOW
        self.entitlements: Mapping[str, EntitlementSpec] = ENTITLEMENTS

    async def second(self, *, lost: bool = False, **changes: Any) -> snapshots.Snapshot:
        """One second later. ``lost``: the group never hears of it."""
        self.at_s += 1
        moment = sample(self.at_s, **changes)
        self.publisher.publish(moment, self.window, self.entitlements)
        messages, self.messages[:] = list(self.messages), []
        if not lost:
            for message in messages:
                await get_channel_layer().group_send(GROUP, message)
        stored = self.store.load(moment.pool.id)
        assert stored is not None
        return stored.snapshot


class Screen:
    """A dashboard: applies what it gets as docs/reference/feed.md says."""

    def __init__(self, socket: WebsocketCommunicator) -> None:
        self.socket = socket
        self.pools: dict[str, snapshots.Snapshot] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.seen: list[str] = []
        self.gaps = 0
        self.state = ""  # what it was last told of Redis
        self.raw = ""

    async def read(self) -> dict[str, Any]:
        text = await self.socket.receive_from(timeout=10)
        self.raw += text
        message = json.loads(text)
        self.seen.append(message["type"])
        match message["type"]:
            case "snapshot":
                self.pools[message["pool"]] = message["data"]
            case "delta" if message["seq"] == self.pools[message["pool"]]["seq"] + 1:
                self.pools[message["pool"]] = snapshots.apply(self.pools[message["pool"]], message["patch"])
            case "delta":
                self.gaps += 1
                await self.socket.send_to(text_data=json.dumps({"type": "resync", "pool": message["pool"]}))
            case "history":
                self.history[message["pool"]] = message["frames"]
            case "error":
                self.state = message["code"]
            case "removed":
                del self.pools[message["pool"]]
        return message

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await self.read()
