"""A request leaves nothing to the cycle collector, which would be a tenth of the gateway's work."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduling.gateway.stages import Call, Estimated, Identified, Submitted
from tests.support.gateway_world import World, gateway_world

STAGES = (Call, Identified, Estimated, Submitted)
ASKED: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        yield made


def left() -> list[str]:
    """Stages of requests that exist, by name."""
    return [type(one).__name__ for one in gc.get_objects() if type(one) in STAGES]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (ASKED, 200),
        (ASKED | {"stream": True}, 200),
        (ASKED | {"max_tokens": "many"}, 400),
        (ASKED | {"model": "nobody's"}, 404),
    ],
    ids=["a whole answer", "a stream", "not valid", "an unknown model"],
)
async def test_a_request_that_has_ended_is_freed_without_the_collector(world: World, asked: Any, status: int):
    async with world.http() as client:
        await client.post("/v1/chat/completions", json=asked)  # what is made once
        await world.settled()
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                assert (await client.post("/v1/chat/completions", json=asked)).status_code == status
            await world.settled()
            await asyncio.sleep(0.05)  # the tasks that served them are over
            assert left() == []
        finally:
            gc.enable()
