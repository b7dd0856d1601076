"""What one key, and one user of it, may take of an entitlement: refused by name, told apart, bounded, forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import AdapterSpec, ProjectSpec, RateLimits
from scheduling.state.usage import USAGE_KEY, PoolUsage, encode_usage, period_names
from tests.support.gateway_world import World, gateway_world, make_key, until

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        await made.lead()
        yield made


async def limit(world: World, *, project: RateLimits | None = None, **key: Any) -> None:
    """Gives the world's key these limits, and its project, if any is given, those of each user."""
    world.key_spec = replace(world.key_spec, **key)
    projects = {}
    if project is not None:
        projects["team"] = ProjectSpec("team", "acme", (world.entitlement.id,), user_limits=project)
        world.key_spec = replace(world.key_spec, project="team", entitlement="")
    catalog = world._catalog(world.catalog.version + 1)
    world.catalog = replace(catalog, projects=projects)
    await world.app._catalog.refreshed(10)


async def ask(world: World, path: str = "/v1/chat/completions", key: str = "", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or world.key}"}
    async with httpx.AsyncClient(base_url=world.base, headers=headers, timeout=30) as client:
        return await client.post(path, json=CHAT | body)


def told(answer: httpx.Response, what: str = "requests") -> tuple[str, ...]:
    return tuple(answer.headers[f"x-ratelimit-{kind}-{what}"] for kind in ("limit", "remaining"))


async def records(world: World, count: int) -> list[LedgerRecord]:
    """The ledger, once it has as many."""
    async with asyncio.timeout(20):
        while len(found := await world.ledger()) < count:
            await asyncio.sleep(0.02)
    assert len(found) == count
    return found


async def keys_of(world: World, pattern: str) -> list[str]:
    found = await world.resp.call("KEYS", f"qm:[{{]{world.pool.id}[}}]:{pattern}")
    return [name.decode() for name in found]


async def test_a_key_at_its_requests_a_minute_is_refused_with_what_to_do(world: World) -> None:
    await limit(world, limits=RateLimits(requests_per_minute=2))
    assert [told(await ask(world)) for _ in range(2)] == [("2", "1"), ("2", "0")]
    refused = await ask(world)
    assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (429, "key_limit")
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("key_limit", "rate_limit_error")
    assert error["message"] == "This key's limit of 2 requests a minute is reached."
    assert 22 <= int(refused.headers["retry-after"]) <= 38  # 30 s, +-25 %
    assert (told(refused), refused.headers["x-ratelimit-reset-requests"]) == (("2", "0"), "1m0s")
    assert len(world.engines[0].bodies) == 2
    (record,) = [r for r in await records(world, 3) if r.reason == "key_limit"]
    assert '"limit":"key requests"' in record.admission


async def test_each_user_of_a_key_has_limits_of_its_own_and_learns_nothing_of_others(world: World) -> None:
    await limit(world, user_limits=RateLimits(requests_per_minute=1))
    assert told(await ask(world, user="ada")) == ("1", "0")
    refused = await ask(world, user="ada")
    assert refused.headers["x-quartermaster-reason"] == "user_limit"
    assert refused.json()["error"]["message"] == (
        "The limit of 1 requests a minute for each user of this key is reached. Its other users are not affected."
    )
    assert "ada" not in refused.text
    first = await ask(world, user="bob")
    assert (first.status_code, told(first)) == (200, ("1", "0"))  # as ada's first: hers are not in it
    assert not [name for name in first.headers if name.startswith("x-ratelimit") and name.endswith("tokens")]
    assert (await ask(world, user="bob")).status_code == 429


async def test_a_user_is_named_by_either_field_in_each_dialect_and_the_engine_never_hears_it(world: World) -> None:
    await limit(world, user_limits=RateLimits(requests_per_minute=1))
    named = [
        ("/v1/chat/completions", {"safety_identifier": "a", "user": "x"}),
        ("/v1/chat/completions", {"user": "b"}),
        ("/v1/completions", {"messages": None, "prompt": "hello", "user": "c"}),
        ("/v1/messages", {"metadata": {"user_id": "d"}}),
        ("/v1/responses", {"messages": None, "max_tokens": None, "input": "hello", "safety_identifier": "e"}),
        ("/v1/embeddings", {"messages": None, "max_tokens": None, "input": "hello", "user": "f"}),
    ]
    for path, body in named:
        name = body.get("safety_identifier") or body.get("user") or body["metadata"]["user_id"]
        assert (await ask(world, user=name)).status_code == 200
        again = await ask(world, path, **body)
        assert again.headers["x-quartermaster-reason"] == "user_limit", path
    for body in world.engines[0].bodies:
        assert not {"user", "safety_identifier", "metadata"} & body.keys()
    assert {record.user for record in await records(world, 12)} == set("abcdef")


async def test_who_names_nobody_is_the_keys_user_and_otherwise_one_together(world: World) -> None:
    await limit(world, user_limits=RateLimits(requests_per_minute=1), user="nightly")
    assert (await ask(world)).status_code == 200
    assert (await ask(world, user="nightly")).status_code == 429
    assert {record.user for record in await records(world, 2)} == {"nightly"}
    await limit(world, user="")
    assert [(await ask(world, **named)).status_code for named in ({}, {"user": ""}, {"user": None})] == [200, 429, 429]


async def test_users_of_a_project_are_the_same_behind_each_of_its_keys(world: World) -> None:
    await limit(world, project=RateLimits(requests_per_minute=1))
    key, spec = make_key(900_000_001, "")
    other = replace(spec, project="team")
    world.catalog = replace(
        world.catalog, version=world.catalog.version + 1, keys=world.catalog.keys | {other.id: other}
    )
    await world.app._catalog.refreshed(10)
    assert (await ask(world, user="ada")).status_code == 200
    refused = await ask(world, user="ada", key=key)
    assert "for each user of this project" in refused.json()["error"]["message"]
    assert (await ask(world, user="bob", key=key)).status_code == 200


async def two_entitlements_of_one_pool(world: World, **key: Any) -> None:
    """A key of a project that opens the pool's model, and an adapter of it under an entitlement of its own."""
    adapter = AdapterSpec("law", "demo-law", "law")
    pool = replace(world.pool, adapters=(adapter,))
    second = replace(world.entitlement, id=f"{world.entitlement.id}-law", adapter="law")
    both = {world.entitlement.id: world.entitlement, second.id: second}
    spec = replace(world.key_spec, project="team", entitlement="", **key)
    world.catalog = replace(
        world.catalog, version=world.catalog.version + 1, pools={pool.id: pool}, entitlements=both,
        keys={spec.id: spec}, projects={"team": ProjectSpec("team", "acme", tuple(both))},
    )  # fmt: skip
    await world.app._catalog.refreshed(10)
    await world.store.set_adapters(world.epoch, {"law": (False, [b.id for b in world.pool.backends])})


@pytest.mark.parametrize("of", ["limits", "user_limits"])
async def test_the_entitlements_of_a_pool_share_a_keys_limits(world: World, of: str) -> None:
    await two_entitlements_of_one_pool(world, **{of: RateLimits(requests_per_minute=2)})
    answers = [await ask(world, model=model) for model in ("demo", "demo-law", "demo", "demo-law")]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429], [a.text for a in answers]
    assert len(await keys_of(world, "limit:*")) == 1


async def test_tokens_a_day_hold_over_all_that_a_key_opens_and_for_that_key_alone(world: World) -> None:
    await two_entitlements_of_one_pool(world, tokens_per_day=20_000)
    key, other = make_key(900_000_002, "")
    other = replace(other, project="team")
    world.catalog = replace(
        world.catalog, version=world.catalog.version + 1, keys=world.catalog.keys | {other.id: other}
    )
    await world.app._catalog.refreshed(10)
    assert (await ask(world)).status_code == 200
    now_s = time.time()
    # what two pools' leaders say of this key: each is under the limit, both together are not
    name = world.key_spec.id
    for pool, tokens in ((world.pool.id, 12_000), (f"{world.pool.id}-other", 8_000)):
        told = PoolUsage(now_s - 60, *period_names(now_s), {}, {name: tokens, other.id: 1})
        await world.resp.call("HSET", USAGE_KEY, pool, encode_usage(told))
    async with asyncio.timeout(30):
        while (refused := await ask(world, model="demo-law")).status_code == 200:
            await asyncio.sleep(0.1)
    assert refused.status_code == 429
    assert refused.headers["x-quartermaster-reason"] == "quota_exceeded"
    assert "quota of this key, 20000 tokens a day" in refused.json()["error"]["message"]
    assert (await ask(world)).status_code == 429
    assert (await ask(world, key=key)).status_code == 200
    await world.resp.call("HDEL", USAGE_KEY, world.pool.id, f"{world.pool.id}-other")


async def test_tokens_are_charged_by_the_bound_and_settled_to_what_was_used(world: World) -> None:
    await limit(world, limits=RateLimits(tokens_per_minute=1000))
    first = await ask(world, max_tokens=900)  # uses all of it
    assert int(told(first, "tokens")[1]) < 100
    refused = await ask(world, max_tokens=900)
    assert refused.json()["error"]["message"] == "This key's limit of 1000 tokens a minute is reached."
    assert refused.headers["x-ratelimit-limit-tokens"] == "1000"


async def test_an_answer_shorter_than_its_bound_leaves_the_rest_to_the_next(world: World) -> None:
    world.engines[0].script = replace(world.engines[0].script, tokens=1)
    await limit(world, limits=RateLimits(tokens_per_minute=1000))
    for _ in range(5):  # each is charged more than 900 until it has ended
        assert (await ask(world, max_tokens=900)).status_code == 200


async def test_a_request_larger_than_the_limit_is_told_so_and_not_to_come_back(world: World) -> None:
    await limit(world, limits=RateLimits(tokens_per_minute=50))
    refused = await ask(world, max_tokens=100)
    assert refused.headers["x-should-retry"] == "false"
    assert "This request alone may use 1" in refused.json()["error"]["message"].replace(": t", ". T")


async def test_requests_in_flight_are_bounded_and_free_the_place_when_they_end(world: World) -> None:
    await limit(world, user_limits=RateLimits(concurrency=1))
    world.engines[0].script = replace(world.engines[0].script, pause_s=0.05)
    running = asyncio.create_task(ask(world, user="ada", stream=True, max_tokens=1000))
    await until(lambda: world.engines[0].open == 1)
    refused = await ask(world, user="ada")
    assert refused.headers["x-quartermaster-reason"] == "user_limit"
    assert "1 requests in flight" in refused.json()["error"]["message"]
    assert (await ask(world, user="bob")).status_code == 200
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda: world.engines[0].open == 0)
    async with asyncio.timeout(10):
        while (await ask(world, user="ada")).status_code != 200:
            await asyncio.sleep(0.05)


async def test_shared_state_keeps_no_name_and_nothing_for_ever(world: World) -> None:
    await limit(world, user_limits=RateLimits(requests_per_minute=5, concurrency=2))
    for user in ("ada@example.com", "x" * 10_000, "line\nbreak\x00", "name\u200bless"):
        assert (await ask(world, user=user)).status_code == 200
    found = await keys_of(world, "limit:*") + await keys_of(world, "users:*")
    assert len(found) == 5
    assert not any("example" in name for name in found)
    assert min(await asyncio.gather(*(world.resp.call("PTTL", name) for name in found))) > 0
    users = {record.user for record in await records(world, 4)}
    assert "ada@example.com" in users
    assert len(users) == 4
    assert all(len(user) <= 64 and user.isprintable() for user in users)


async def test_a_storm_of_one_user_closes_the_door_to_nobody_else(world: World) -> None:
    await limit(world, user_limits=RateLimits(requests_per_minute=1))
    async with world.http() as client:
        for _ in range(12):
            await asyncio.gather(*(client.post("/v1/chat/completions", json=CHAT | {"user": "ada"}) for _ in range(25)))
        assert set(world.metrics.storm_refusals) == {"user_limit"}, "some leave no row; none speaks for another request"
        assert (await client.post("/v1/chat/completions", json=CHAT | {"user": "bob"})).status_code == 200


async def test_a_key_without_limits_asks_nothing_of_them(world: World) -> None:
    asked: list[bytes] = []
    await ask(world, user="ada")
    assert [record.user for record in await records(world, 1)] == ["ada"]
    assert await keys_of(world, "limit:*") + await keys_of(world, "users:*") + await keys_of(world, "using") == []
    held = world.app._store(world.pool.id)
    admit = held.admit

    async def seen(*args: Any, **kwargs: Any) -> Any:
        asked.append(args[5].limits)
        return await admit(*args, **kwargs)

    held.admit = seen  # type: ignore[method-assign]
    await ask(world, user="ada")
    assert asked == [""]
