"""Clients that leave without having said how long they wait: a real gateway learns it, key by key."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.estimate import client_timeout
from scheduling.core.estimate.client_timeout import DEPARTURES
from scheduling.core.types import Catalog, QueuedRequest
from tests.support.gateway_world import World, gateway_world, make_key, until


async def asked(world: World, client: httpx.AsyncClient, key: str, **body: Any) -> tuple[asyncio.Task[Any], str]:
    """A request that no engine answers, once it is admitted; and its id."""
    known = set(world.app._in_flight.calls)
    body = {"model": "demo", "prompt": "hi", "max_tokens": 4} | body
    task = asyncio.ensure_future(client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}))
    await until(lambda: len(world.app._in_flight.calls) > len(known))
    (new,) = set(world.app._in_flight.calls) - known
    await until(lambda: world.app._in_flight.calls[new].admitted)
    return task, new


async def leave(world: World, task: asyncio.Task[Any]) -> None:
    await until(lambda: all(call.listener is not None for call in world.app._watch.calls))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await world.settled()


def request(world: World, name: str) -> QueuedRequest:
    return world.app._in_flight.calls[name].estimated.request


async def test_after_departures_that_agree_a_request_of_the_same_key_is_thought_to_leave_as_well(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client_timeout, "AGREE_S", 60.0)  # a machine that others use makes them a little later
    async with gateway_world(redis_url, pool_id) as world, world.http() as client:
        other = replace(world.entitlement, id=f"{pool_id}-other", tenant="other")
        other_key, other_spec = make_key(901, other.id)
        ents = {each.id: each for each in (world.entitlement, other)}
        keys = {each.id: each for each in (world.key_spec, other_spec)}
        world.catalog = Catalog(2, {pool_id: world.pool}, ents, keys)
        await world.app._catalog.refreshed(10)
        world.engines[0].script.pause_s = world.engines[0].script.first_pause_s = 3600.0

        for _ in range(DEPARTURES):
            task, name = await asked(world, client, world.key)
            assert request(world, name).leaves_s is None
            await leave(world, task)

        open_: list[asyncio.Task[Any]] = []
        for key, body, thought in (
            (world.key, {}, True),
            (world.key, {"stream": True}, False),  # whoever waits for a whole answer said nothing of streams
            (other_key, {}, False),
        ):
            task, name = await asked(world, client, key, **body)
            open_.append(task)
            assert (request(world, name).leaves_s is not None) is thought
        assert not any(task.done() for task in open_), "nobody is refused for it"
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)
        await world.settled()
