"""How a leader's changes reach the channel layer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from telemetry.feed.publisher import GroupSender


class SlowLayer:
    """Takes messages, and lets nobody go on before it is told to."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.goes_on = threading.Event()

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.taken.append((message["pool"], message["seq"]))
        while not self.goes_on.is_set():
            await asyncio.sleep(0.005)


@pytest.fixture
def layer() -> Iterator[SlowLayer]:
    layer = SlowLayer()
    with mock.patch("channels.layers.get_channel_layer", return_value=layer):
        yield layer
        layer.goes_on.set()


@pytest.fixture
def sender(layer: SlowLayer) -> Iterator[GroupSender]:
    sender = GroupSender()
    yield sender
    layer.goes_on.set()
    sender.close()


def until(layer: SlowLayer, number: int) -> None:
    deadline = time.monotonic() + 10
    while len(layer.taken) < number and time.monotonic() < deadline:
        time.sleep(0.005)


def test_a_pools_change_on_its_way_keeps_back_none_of_the_others(layer: SlowLayer, sender: GroupSender) -> None:
    for pool in ("a", "b", "c"):
        sender({"pool": pool, "seq": 1})
    until(layer, 3)
    assert layer.taken == [("a", 1), ("b", 1), ("c", 1)]


def test_of_each_pool_one_change_is_on_its_way(layer: SlowLayer, sender: GroupSender) -> None:
    for seq in (1, 2, 3):
        for pool in ("a", "b"):
            sender({"pool": pool, "seq": seq})
    layer.goes_on.set()
    sender.close()
    assert layer.taken == [("a", 1), ("b", 1)]
