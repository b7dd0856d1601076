"""A key of a project: the model chooses the entitlement; aliases, a default and fallbacks are the project's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.types import BackendSpec, Catalog, EntitlementState, FallbackSpec, PoolSpec, ProjectSpec, Slo
from scheduling.state.store import PoolStore
from tests.support.gateway_world import World, gateway_world, make_key, until
from tests.support.state_world import leads_on

BOTH = ("big", "small")


class Team:
    """Two pools, one project with an entitlement for each, and a key of the whole project."""

    def __init__(self, world: World) -> None:
        self.world = world
        big, small = f"{world.pool.id}-big", f"{world.pool.id}-small"
        engine = world.engines[0].url
        self.pools = {
            model: PoolSpec(
                pool, model, "fake-upstream", (BackendSpec(f"{pool}-b", pool, engine, 64, 1_000_000),),
                max_model_len=length, aliases=(f"{model}-latest",),
            )
            for model, pool, length in (("big", big, 8192), ("small", small, 4096))
        }  # fmt: skip
        self.entitlements = {
            model: replace(world.entitlement, id=f"{pool.id}-ent", pool=pool.id) for model, pool in self.pools.items()
        }
        self.project = ProjectSpec(f"{world.pool.id}-team", "acme", tuple(e.id for e in self.entitlements.values()))
        self.key, spec = make_key(700_000_000 + uuid.uuid4().int % 10**8, "")
        self.spec = replace(spec, project=self.project.id)
        self.stores = {model: PoolStore(world.resp, pool.id) for model, pool in self.pools.items()}

    async def lead(self, *models: str) -> None:
        for model in models:
            election = await self.stores[model].elect("test-leader", 0, True)
            await leads_on(self.stores[model])
            for backend in self.pools[model].backends:
                await self.stores[model].set_ready(election.epoch, backend.id, backend)

    async def configure(self, **project: Any) -> None:
        world = self.world
        self.project = replace(self.project, **project)
        world.catalog = Catalog(
            world.catalog.version + 1,
            {world.pool.id: world.pool} | {p.id: p for p in self.pools.values()},
            {world.entitlement.id: world.entitlement} | {e.id: e for e in self.entitlements.values()},
            {world.key_spec.id: world.key_spec, self.spec.id: self.spec},
            projects={self.project.id: self.project},
        )
        await world.app._catalog.refreshed(10)

    def http(self) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.world.base, headers=headers, timeout=60)

    async def ask(self, model: str | None, **body: Any) -> httpx.Response:
        asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4} | body
        if model is not None:
            asked["model"] = model
        async with self.http() as client:
            return await client.post("/v1/chat/completions", json=asked)

    async def ledger(self, model: str, count: int) -> list[Any]:
        """The pool's ledger, once it has ``count`` entries."""
        async with asyncio.timeout(20):
            while len(entries := await self.stores[model].ledger_read(1000)) < count:
                await asyncio.sleep(0.02)
        records = [e.record for e in entries if e.record is not None]
        assert len(records) == count
        return records


@asynccontextmanager
async def team(redis_url: str, *led: str) -> AsyncIterator[Team]:
    async with gateway_world(redis_url, f"p{uuid.uuid4().hex[:8]}") as world:
        made = Team(world)
        await made.lead(*led)
        await made.configure()
        yield made


def untold(response: httpx.Response, *names: str) -> tuple[int, bytes, dict[str, str]]:
    """An answer without what is different each time, and without the name that was asked for."""
    body = response.content
    for name in names:
        body = body.replace(name.encode(), b"NAME")
    headers = {k: v for k, v in response.headers.items() if k not in ("x-request-id", "date", "content-length")}
    return response.status_code, body, headers


async def test_the_model_chooses_the_entitlement_and_one_row_says_which(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        async with made.http() as client:
            listed = (await client.get("/v1/models")).json()["data"]
        assert {card["id"]: card["max_model_len"] for card in listed} == {
            "big": 8192, "small": 4096, "big-latest": 8192, "small-latest": 4096,
        }  # fmt: skip
        for asked, model in (("big", "big"), ("small", "small"), ("small-latest", "small")):
            answer = await made.ask(asked)
            assert (answer.status_code, answer.json()["model"]) == (200, model)
        assert [r.entitlement for r in await made.ledger("big", 1)] == [made.entitlements["big"].id]
        assert [r.entitlement for r in await made.ledger("small", 2)] == [made.entitlements["small"].id] * 2


async def test_a_body_that_is_wrong_is_refused_under_the_model_that_it_names(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        for model in BOTH:
            for wrong in ({"spelled_wrong": 1}, {"max_tokens": "4"}, {"messages": []}):
                assert (await made.ask(model, **wrong)).status_code == 400
            records = await made.ledger(model, 3)
            assert {(r.model, r.reason) for r in records} == {(model, "invalid_request")}
        async with made.http() as client:
            assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 400


async def test_a_model_of_others_is_refused_as_one_that_does_not_exist(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        # "demo" is the world's own entitlement, outside the project; the subset leaves "big" out
        made.spec = replace(made.spec, subset=(made.entitlements["small"].id,))
        await made.configure(aliases={"hers": made.world.entitlement.id, "mine": "small", "gone": "nowhere"})
        nowhere = untold(await made.ask("nonexistent"), "nonexistent")
        assert nowhere[0] == 404
        for name in ("demo", "big", "hers", "gone", made.entitlements["big"].id):
            assert untold(await made.ask(name), name) == nowhere
        async with made.http() as client:
            listed = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
            assert sorted(listed) == ["mine", "small", "small-latest"]
            cards = [await client.get(f"/v1/models/{name}") for name in ("nonexistent", "demo")]
        assert untold(cards[0], "nonexistent") == untold(cards[1], "demo")
        assert (await made.ask("mine")).json()["model"] == "small"


async def test_a_default_serves_requests_without_a_model_and_none_refuses_them(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        refused = await made.ask(None)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        await made.configure(default_model="small")
        assert (await made.ask(None)).json()["model"] == "small"
        assert (await made.ask("other")).status_code == 404


async def test_an_alias_goes_before_a_model_of_the_same_name(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        await made.configure(aliases={"big": "small", "gpt-4o": made.entitlements["big"].id})
        assert (await made.ask("big")).json()["model"] == "small"
        assert (await made.ask("gpt-4o")).json()["model"] == "big"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_takes_over_what_cannot_be_served_and_says_so(redis_url: str, stream: bool) -> None:
    async with team(redis_url, "small") as made:  # nothing serves "big"
        alone = await made.ask("big", stream=stream)
        assert (alone.status_code, alone.headers["x-quartermaster-reason"]) == (503, "no_backend")
        assert "x-quartermaster-fallback" not in alone.headers
        await made.configure(fallbacks={"big": FallbackSpec("small", frozenset({"unavailable"}))})
        taken = await made.ask("big", stream=stream)
        assert taken.status_code == 200
        assert taken.headers["x-quartermaster-fallback"] == "big; no_backend"
        assert taken.headers["x-quartermaster-model"] == "small"
        assert [r.reason for r in await made.ledger("big", 1)] == ["no_backend"]  # that of the first request
        (row,) = await made.ledger("small", 1)
        assert (row.entitlement, row.model) == (made.entitlements["small"].id, "small")
        assert f'"instead_of":"{made.entitlements["big"].id}","instead_why":"no_backend"' in row.admission


async def test_what_is_too_long_for_one_model_falls_back_to_a_longer_one(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        made.pools["small"] = replace(made.pools["small"], max_model_len=128)
        await made.configure()
        long = [{"role": "user", "content": "some words " * 200}]
        assert (await made.ask("small", messages=long)).headers["x-quartermaster-reason"] == "too_long"
        await made.configure(fallbacks={"small": FallbackSpec("big", frozenset({"too_long"}))})
        taken = await made.ask("small", messages=long)
        assert (taken.status_code, taken.json()["model"]) == (200, "big")
        assert (await made.ask("small")).json()["model"] == "small"
        fits = [{"role": "user", "content": "some words " * 30}]
        assert (await made.ask("small", messages=fits, max_tokens=120)).json()["model"] == "big", "not cut short"


async def test_where_the_fallback_refuses_too_the_first_refusal_counts(redis_url: str) -> None:
    async with team(redis_url) as made:
        await made.configure(fallbacks={"big": FallbackSpec("small", frozenset({"unavailable"}))})
        refused = await made.ask("big")
        assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (503, "no_backend")
        assert "x-quartermaster-fallback" not in refused.headers
        assert len(await made.ledger("big", 1)) == 1
        assert await made.ledger("small", 0) == []


async def test_a_fallback_that_has_ended_takes_nothing(redis_url: str) -> None:
    async with team(redis_url, "small") as made:
        made.entitlements["small"] = replace(made.entitlements["small"], state=EntitlementState.EXPIRED)
        await made.configure(fallbacks={"big": FallbackSpec("small", frozenset({"unavailable"}))})
        assert (await made.ask("big")).headers["x-quartermaster-reason"] == "no_backend"


async def test_a_request_over_its_limit_falls_back_rather_than_take_the_place_of_a_late_one(redis_url: str) -> None:
    async with team(redis_url) as made:
        big, ent = made.pools["big"], made.entitlements["big"]
        made.pools["big"] = replace(big, backends=(replace(big.backends[0], slots=1),))
        tier = replace(ent.tier, slo=Slo(ttft_s=0.3, tbt_s=1.0))
        made.entitlements["big"] = replace(ent, concurrency=2, tier=tier)
        await made.lead(*BOTH)
        await made.configure(fallbacks={"big": FallbackSpec("small", frozenset({"over_limit"}))})
        made.world.engines[0].script.first_pause_s = 2.0
        asking = [asyncio.create_task(made.ask("big"))]
        await until(lambda: made.world.engines[0].open == 1)
        asking.append(asyncio.create_task(made.ask("big")))
        while (await made.stores["big"].view()).waiting < 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # its first token is late
        taken = await made.ask("big")
        assert (taken.status_code, taken.headers["x-quartermaster-fallback"]) == (200, "big; concurrency")
        assert not asking[1].done(), "it waits on"
        asking[1].cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_request_that_takes_no_fallback_asks_shared_state_once(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made:
        await made.configure(fallbacks={"big": FallbackSpec("small", frozenset({"unavailable", "over_limit"}))})
        asked: list[str] = []
        for model, store in ((m, made.world.app._store(p.id)) for m, p in made.pools.items()):
            admit = store.admit

            async def counted(*args: Any, model: str = model, admit: Any = admit, **kwargs: Any) -> Any:
                asked.append(model)
                return await admit(*args, **kwargs)

            store.admit = counted  # type: ignore[method-assign]
        assert (await made.ask("big")).status_code == 200
        assert asked == ["big"]


async def test_a_key_of_a_project_that_has_nothing_is_valid_and_opens_nothing(redis_url: str) -> None:
    async with team(redis_url) as made:
        await made.configure(entitlements=())
        answer = await made.ask("big")
        assert (answer.status_code, answer.headers["x-quartermaster-reason"]) == (403, "not_entitled")
        made.key = made.key[:-1] + "x"
        assert (await made.ask("big")).status_code == 401


async def test_a_key_of_one_entitlement_works_as_before(redis_url: str) -> None:
    async with team(redis_url, *BOTH) as made, made.world.http() as client:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        assert (await client.post("/v1/chat/completions", json=body | {"model": "demo"})).status_code == 200
        assert (await client.post("/v1/chat/completions", json=body | {"model": "big"})).status_code == 404
        listed = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
        assert listed == ["demo", "default"]


@pytest.mark.parametrize("deleted", ["key", "project"])
async def test_a_revoked_key_of_a_project_ends_what_runs_under_each_of_its_models(redis_url: str, deleted: str) -> None:
    async with team(redis_url, *BOTH) as made:
        world = made.world
        world.engines[0].script = replace(world.engines[0].script, pause_s=0.05)
        asked = [asyncio.create_task(made.ask(model, stream=True, max_tokens=1200)) for model in BOTH]
        await until(lambda: world.engines[0].open == 2)
        left = {k: v for k, v in world.catalog.keys.items() if k != made.spec.id}
        projects = {} if deleted == "project" else world.catalog.projects
        world.catalog = replace(world.catalog, version=world.catalog.version + 1, keys=left, projects=projects)
        await world.app._catalog.refreshed(10)
        for task in asked:
            answer = await task
            assert '"code":"key_revoked"' in answer.text
            assert "[DONE]" not in answer.text
        assert (await made.ask("big")).status_code == 401
        await until(lambda: world.engines[0].open == 0)
        assert [(await made.ledger(model, 1))[0].reason for model in BOTH] == ["key_revoked"] * 2
