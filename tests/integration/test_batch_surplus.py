"""Lines of batches run on what is idle, beside nobody: real Redis, a web gateway and a gateway of batches.

The broken variant runs lines under their entitlement itself, as a client of ``/v1`` who sends many would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controlplane.batches import gateway as surplus
from controlplane.batches.gateway import LineAnswer, SurplusGateway
from scheduling.catalog import CatalogCache
from scheduling.core.admission.batch_account import REQUEST_ID, account_of
from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec, ProjectSpec, RateLimits
from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world, until

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()


@asynccontextmanager
async def world_of(redis_url: str, pool_id: str, slots: int) -> AsyncIterator[tuple[World, SurplusGateway]]:
    """One replica, an entitlement that may run one request at a time, and a gateway for its batches."""
    async with gateway_world(redis_url, pool_id) as world:
        one = BackendSpec(f"{pool_id}-b0", pool_id, world.engines[0].url, slots, 1_000_000)
        await world.configure(pool={"backends": (one,)}, concurrency=1)
        await world.store.set_ready(world.epoch, one.id, one)
        gateway = SurplusGateway(GatewayConfig(), CatalogCache(world.load, world.version), redis_url)
        await gateway.start()
        try:
            yield world, gateway
        finally:
            await gateway.drain(0)
            await gateway.stop()


def run(world: World, gateway: SurplusGateway, number: int) -> asyncio.Task[LineAnswer]:
    return asyncio.create_task(gateway.run_line(world.key_spec.id, CHAT, BODY, f"{REQUEST_ID}x-1-{number}.1"))


async def runs(world: World, count: int) -> None:
    async with asyncio.timeout(20):
        while (await world.running())[0] < count:
            await asyncio.sleep(0.01)


async def test_lines_of_an_entitlement_that_may_run_one_request_use_all_that_is_idle(redis_url: str, pool_id: str):
    async with world_of(redis_url, pool_id, slots=4) as (world, gateway):
        world.engines[0].script = replace(world.engines[0].script, pause_s=0.5)
        lines = [run(world, gateway, n) for n in range(4)]
        await runs(world, 4)
        answers = await asyncio.gather(*lines)
        assert {a.status for a in answers} == {200}
        records = await world.ledger_of(4)
        assert {r.entitlement for r in records} == {account_of(world.entitlement.id)}
        assert {r.tenant for r in records} == {world.entitlement.tenant}
        assert all(r.request_id.startswith(REQUEST_ID) and r.output_tokens == 4 for r in records)


@pytest.mark.parametrize("variant", [None, "under the entitlement itself"])
async def test_a_person_of_the_same_entitlement_takes_the_slot_of_a_line_at_once(
    redis_url: str, pool_id: str, variant: str | None, monkeypatch: pytest.MonkeyPatch
):
    if variant is not None:
        monkeypatch.setattr(surplus, "surplus_of", lambda spec: spec)
    async with world_of(redis_url, pool_id, slots=1) as (world, gateway):
        engine = world.engines[0]
        engine.script = replace(engine.script, pause_s=30.0)
        line = run(world, gateway, 1)
        await until(lambda: engine.open == 1)
        engine.script = replace(engine.script, pause_s=0.0)
        async with world.http() as client:
            answer = await client.post(CHAT, content=BODY, headers={"content-type": "application/json"})
        person = (answer.status_code, answer.headers.get("x-quartermaster-queue-ms"))
        if variant is not None:
            assert person[0] == 429  # its share is in flight
            line.cancel()
            await asyncio.gather(line, return_exceptions=True)
            return
        assert person == (200, "0")
        ended = await line
        assert (ended.reason, ended.waits) == (Reason.EVICTED, True)  # and runs again later


@pytest.mark.parametrize("variant", [None, "anywhere"])
async def test_lines_leave_a_replica_to_people_while_these_are_there(
    redis_url: str, pool_id: str, variant: str | None, monkeypatch: pytest.MonkeyPatch
):
    """The broken variant places lines as it places people."""
    if variant is not None:
        monkeypatch.setattr(SurplusGateway, "_avoided", lambda self, pool: ())
    async with gateway_world(redis_url, pool_id, engines=2) as world:
        both = tuple(BackendSpec(f"{pool_id}-b{n}", pool_id, e.url, 4, 1_000_000) for n, e in enumerate(world.engines))
        await world.configure(pool={"backends": both}, concurrency=8)
        for one in both:
            await world.store.set_ready(world.epoch, one.id, one)
        kept = [both[0].id]
        gateway = SurplusGateway(GatewayConfig(), CatalogCache(world.load, world.version), redis_url, lambda pool: kept)
        await gateway.start()
        try:
            for engine in world.engines:
                engine.script = replace(engine.script, pause_s=1.0)
            lines = [run(world, gateway, n) for n in range(4)]
            await runs(world, 4)
            if variant is not None:
                await until(lambda: world.engines[0].open > 0)
                await asyncio.gather(*lines)
                return
            await until(lambda: [engine.open for engine in world.engines] == [0, 4])
            refused = await run(world, gateway, 4)
            assert (refused.status, refused.waits) == (429, True), "however idle the other one is"
            kept.clear()  # people have gone
            lines.append(run(world, gateway, 5))
            await until(lambda: world.engines[0].open == 1)
            assert {a.status for a in await asyncio.gather(*lines)} == {200}
        finally:
            await gateway.drain(0)
            await gateway.stop()


async def test_a_line_without_room_is_refused_and_leaves_no_row(redis_url: str, pool_id: str):
    async with world_of(redis_url, pool_id, slots=1) as (world, gateway):
        engine = world.engines[0]
        engine.script = replace(engine.script, pause_s=1.0)
        async with world.http() as client:
            asking = asyncio.create_task(client.post(CHAT, content=BODY, headers={"content-type": "application/json"}))
            await until(lambda: engine.open == 1)
            refused = await asyncio.gather(*(run(world, gateway, n) for n in range(5)))
            assert all(a.waits and a.status == 429 for a in refused)
            assert await world.running() == (1, 0)  # none of them waits in the pool's queue
            assert (await asking).status_code == 200
        served = await run(world, gateway, 9)
        assert served.status == 200
        assert len(await world.ledger_of(2)) == 2


async def test_what_is_wrong_with_a_line_is_its_result(redis_url: str, pool_id: str):
    async with world_of(redis_url, pool_id, slots=1) as (world, gateway):
        bad = json.dumps({"model": "demo", "messages": [], "max_tokens": -1}).encode()
        answer = await gateway.run_line(world.key_spec.id, CHAT, bad, f"{REQUEST_ID}x-1-1.1")
        assert (answer.status, answer.waits, answer.may_pass) == (400, False, False)
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        nobody = await gateway.run_line("key999999999", CHAT, BODY, f"{REQUEST_ID}x-1-2.1")
        assert (nobody.reason, nobody.waits) == (Reason.NO_KEY, False)


async def test_lines_of_a_projects_key_are_limited_apart_from_people_and_name_their_users(redis_url: str, pool_id: str):
    async with world_of(redis_url, pool_id, slots=8) as (world, gateway):
        limits = RateLimits(requests_per_minute=2)
        key = replace(world.key_spec, entitlement="", project="team", limits=limits, user="nightly")
        projects = {"team": ProjectSpec("team", "acme", (world.entitlement.id,))}
        world.catalog = replace(world.catalog, version=world.catalog.version + 1, keys={key.id: key}, projects=projects)
        for app in (world.app, gateway):
            await app._catalog.refreshed(10)
        named = json.dumps(json.loads(BODY) | {"user": "ada"}).encode()
        first = await gateway.run_line(key.id, CHAT, named, f"{REQUEST_ID}x-1-1.1")
        second = await run(world, gateway, 2)
        assert (first.status, second.status) == (200, 200)
        third = await run(world, gateway, 3)
        assert (third.reason, third.waits) == (Reason.KEY_LIMIT, True)  # it runs when the minute has room again
        async with world.http() as client:  # people have the key's limits to themselves
            answer = await client.post(CHAT, content=BODY, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        records = {r.request_id: r for r in await world.ledger_of(3)}
        assert [records[f"{REQUEST_ID}x-1-{n}.1"].user for n in (1, 2)] == ["ada", "nightly"]
        assert {r.key_id for r in records.values()} == {key.id}


async def test_a_line_that_no_minute_has_room_for_fails_and_holds_up_no_other(redis_url: str, pool_id: str):
    async with world_of(redis_url, pool_id, slots=8) as (world, gateway):
        key = replace(world.key_spec, limits=RateLimits(tokens_per_minute=100))
        world.catalog = replace(world.catalog, version=world.catalog.version + 1, keys={key.id: key})
        await gateway._catalog.refreshed(10)
        large = json.dumps(json.loads(BODY) | {"max_tokens": 500}).encode()
        answer = await gateway.run_line(key.id, CHAT, large, f"{REQUEST_ID}x-1-1.1")
        assert (answer.status, answer.reason, answer.waits, answer.may_pass) == (429, Reason.KEY_LIMIT, False, False)
        assert (await run(world, gateway, 2)).status == 200
