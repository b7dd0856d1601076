"""LoRA adapters, live: a real gateway, leader and Redis in front of simulated engines that list and load adapters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from scheduling.core.types import AdapterSpec, BackendSpec, Catalog, EntitlementSpec, OverLimit, ProjectSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.dispatch.replicas import adapters
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import catalog_of, dispatching, until
from tests.support.gateway_world import TIER, World, gateway_world

SQL, LAW = ("demo-sql", "sql-v2"), ("demo-law", "law-v1")  # what clients ask for, and the engines' names
WAITS = replace(TIER, over_limit=OverLimit.WAIT)
Modules = Mapping[str, str]
BOTH: Modules = {SQL[1]: "/adapters/sql", LAW[1]: "/adapters/law"}


@dataclass
class Fleet:
    """One pool with its base model and two adapters, and a key that opens all three."""

    world: World
    engines: list[SimulatedServer]
    dispatcher: PoolDispatcher
    peaks: Counter[str] = field(default_factory=Counter)  # most that ran at once, by entitlement; "": of the pool

    def loaded(self, n: int) -> set[str]:
        assert self.engines[n].api is not None
        return set(self.engines[n].api.adapters.loaded)

    def seen(self, n: int) -> Mapping[str, str]:
        """What the leader says of a replica's adapters."""
        assert self.dispatcher._term is not None
        status = {s.id: s.adapters for s in self.dispatcher._term.monitor.statuses()}[self.backend(n)]
        assert status is not None
        return status.states

    def why(self, n: int) -> str:
        assert self.dispatcher._term is not None
        status = {s.id: s.adapters for s in self.dispatcher._term.monitor.statuses()}[self.backend(n)]
        assert status is not None
        return status.why

    def backend(self, n: int) -> str:
        return self.world.pool.backends[n].id

    async def ask(self, client: httpx.AsyncClient, model: str, **changes: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 8} | changes
        return await client.post("/v1/chat/completions", json=body)

    async def places(self, count: int) -> list[tuple[str, str]]:
        """Of all requests that ended: the model they asked for, and where they ran."""
        async with asyncio.timeout(30):
            while len(self.world.metrics.records) < count:
                await asyncio.sleep(0.01)
        return [(r.model, r.backend) for r in self.world.metrics.records]

    async def watch(self) -> None:
        """Notes how many run at once."""
        while True:
            view = await self.world.store.view()
            self.peaks[""] = max(self.peaks[""], view.running)
            for name, e in view.entitlements.items():
                self.peaks[name] = max(self.peaks[name], e.running)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def fleet(
    redis_url: str,
    pool_id: str,
    *modules: Modules,
    loads: bool = False,
    slots: int = 8,
    limits: Mapping[str, int] | None = None,
    **options: Any,
) -> AsyncIterator[Fleet]:
    """``modules``: of each replica, the adapters that it starts with; ``limits``: of entitlements, how many may run."""
    engine = EngineOptions(
        **({"model": "upstream", "speed": 20.0, "slots": slots, "kv_tokens": 400_000, "runtime_lora": loads} | options)
    )
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(serving(replace(engine, adapters=tuple(given.items()))))
            for given in modules
        ]
        world = await stack.enter_async_context(gateway_world(redis_url, pool_id, engines=0, lead=False))
        world.granting = False
        world.pool = replace(
            world.pool,
            backends=tuple(
                BackendSpec(f"{pool_id}-{n}", pool_id, server.url, slots, 400_000) for n, server in enumerate(engines)
            ),
            upstream_model="upstream",
            adapters=(
                AdapterSpec("sql", *SQL, BOTH[SQL[1]] if loads else ""),
                AdapterSpec("law", *LAW, BOTH[LAW[1]] if loads else ""),
            ),
            load_adapters=loads,
            headroom_slots=0,
        )
        specs = entitlements_of(world, limits or {})
        world._catalog = lambda version: catalog_with(world, specs, version)  # type: ignore[method-assign]
        await world.configure()
        dispatcher = await stack.enter_async_context(
            dispatching(redis_url, catalog_of(world.pool, *specs), over_http=True)
        )
        made = Fleet(world, engines, dispatcher)
        await until(lambda: dispatcher._term is not None and len(all_seen(made)) == len(engines))
        yield made


def all_seen(made: Fleet) -> list[Mapping[str, str]]:
    """Of the replicas that are ready and have said what they have."""
    assert made.dispatcher._term is not None
    statuses = [s for s in made.dispatcher._term.monitor.statuses() if s.state == "ready" and s.adapters is not None]
    return [s.adapters.states for s in statuses if "unknown" not in s.adapters.states.values()]  # type: ignore[union-attr]


def entitlements_of(world: World, limits: Mapping[str, int]) -> list[EntitlementSpec]:
    one = replace(world.entitlement, tier=WAITS)
    return [
        replace(one, id=f"{one.pool}-{name or 'base'}", adapter=name, concurrency=limits.get(name or "base", 64))
        for name in ("", "sql", "law")
    ]


def catalog_with(world: World, specs: list[EntitlementSpec], version: int) -> Catalog:
    project = ProjectSpec("team", "acme", tuple(e.id for e in specs))
    key = replace(world.key_spec, entitlement="", project="team")
    return Catalog(
        version, {world.pool.id: world.pool}, {e.id: e for e in specs}, {key.id: key}, projects={"team": project}
    )


async def test_an_adapter_is_a_model_of_its_own_to_clients_and_in_the_ledger(redis_url: str, pool_id: str):
    async with fleet(redis_url, pool_id, BOTH) as made, made.world.http() as client:
        listed = {m["id"]: m for m in (await client.get("/v1/models")).json()["data"]}
        assert {name: m["parent"] for name, m in listed.items()} == {
            "demo": None, "default": None, SQL[0]: "demo", LAW[0]: "demo"
        }  # fmt: skip
        assert {m["max_model_len"] for m in listed.values()} == {made.world.pool.max_model_len}
        whole, streamed = await made.ask(client, SQL[0]), await made.ask(client, LAW[0], stream=True)
        assert whole.json()["model"] == SQL[0]
        assert f'"model":"{LAW[0]}"' in streamed.text
        assert LAW[1] not in streamed.text
        assert (await made.ask(client, "demo")).json()["model"] == "demo"
        assert (await made.ask(client, SQL[1])).status_code == 404, "the engines' own names are not offered"
        records = (await made.places(4))[:3]
    assert [model for model, _ in records] == [SQL[0], LAW[0], "demo"]
    assert [r.entitlement for r in made.world.metrics.records[:3]] == [f"{pool_id}-{n}" for n in ("sql", "law", "base")]


async def test_adapters_and_base_share_the_capacity_and_each_keeps_its_own_limit(redis_url: str, pool_id: str):
    limits = {"base": 2, "sql": 1, "law": 3}
    async with (
        fleet(redis_url, pool_id, BOTH, BOTH, slots=2, limits=limits, speed=2.0) as made,
        made.world.http() as client,
    ):
        watching = asyncio.create_task(made.watch())
        answers = await asyncio.gather(
            *(made.ask(client, model, max_tokens=24) for model in ("demo", SQL[0], LAW[0]) for _ in range(8))
        )
        watching.cancel()
        assert {a.status_code for a in answers} == {200}
    assert made.peaks[""] == 4, "the slots of both replicas, and not one more"
    assert {name: made.peaks[f"{pool_id}-{name}"] for name in limits} == limits


async def test_requests_run_where_their_adapter_is(redis_url: str, pool_id: str):
    here, there = {SQL[1]: "/adapters/sql"}, {LAW[1]: "/adapters/law"}
    async with fleet(redis_url, pool_id, here, there) as made, made.world.http() as client:
        asked = [model for _ in range(12) for model in (SQL[0], LAW[0], "demo")]
        answers = await asyncio.gather(*(made.ask(client, model, max_tokens=16) for model in asked))
        assert {a.status_code for a in answers} == {200}
        where: dict[str, set[str]] = {}
        for model, backend in await made.places(len(asked)):
            where.setdefault(model, set()).add(backend)
    assert {r.attempts for r in made.world.metrics.records} == {1}, "no engine was asked for what it has not got"
    both = {made.backend(0), made.backend(1)}
    assert where == {SQL[0]: {made.backend(0)}, LAW[0]: {made.backend(1)}, "demo": both}
    assert [made.loaded(0), made.loaded(1)] == [{SQL[1]}, {LAW[1]}]


async def test_an_adapter_that_no_replica_has_is_loaded_once_before_its_requests_run(redis_url: str, pool_id: str):
    async with fleet(redis_url, pool_id, {}, {}, loads=True) as made, made.world.http() as client:
        for engine in made.engines:
            assert engine.api is not None
            engine.api.faults.load_s = 0.3
        asking = [asyncio.create_task(made.ask(client, SQL[0])) for _ in range(6)]
        await until(lambda: "loading" in (made.seen(0)[SQL[1]], made.seen(1)[SQL[1]]))
        neighbour = await made.ask(client, "demo")
        assert neighbour.status_code == 200
        assert not any(task.done() for task in asking), "nothing is granted before the adapter is there"
        assert [a.status_code for a in await asyncio.gather(*asking)] == [200] * 6
        homes = {made.backend(n) for n in (0, 1) if SQL[1] in made.loaded(n)}
        assert len(homes) == 1, "six requests that fit on one replica need it on no other"
        assert {b for m, b in await made.places(7) if m == SQL[0]} == homes


async def test_where_all_that_have_it_are_full_another_replica_loads_it(redis_url: str, pool_id: str):
    async with fleet(redis_url, pool_id, {}, {}, loads=True, slots=1, speed=1.0) as made, made.world.http() as client:
        answers = await asyncio.gather(*(made.ask(client, SQL[0], max_tokens=100, ignore_eos=True) for _ in range(6)))
        assert [a.status_code for a in answers] == [200] * 6
        assert SQL[1] in made.loaded(0)
        assert SQL[1] in made.loaded(1)
        assert {b for _, b in await made.places(6)} == {made.backend(0), made.backend(1)}


async def test_what_may_not_be_loaded_and_is_nowhere_is_refused_at_once(redis_url: str, pool_id: str):
    async with fleet(redis_url, pool_id, {LAW[1]: "/adapters/law"}) as made, made.world.http() as client:
        refused, served = await made.ask(client, SQL[0]), await made.ask(client, LAW[0])
    assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (503, "no_adapter")
    assert "adapter" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert served.status_code == 200


async def test_who_waits_for_what_cannot_be_loaded_is_refused_and_operators_read_why_and_where(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adapters, "GIVE_UP_S", 0.3)
    async with fleet(redis_url, pool_id, {}, {}, loads=True) as made, made.world.http() as client:
        for engine in made.engines:
            assert engine.api is not None
            engine.api.faults.load_fails = True
        answer = await made.ask(client, SQL[0])
        assert (answer.status_code, answer.headers["x-quartermaster-reason"]) == (503, "no_adapter")
        assert "/adapters/sql" not in answer.text, "paths of the installation are the operators' business"
        for n in (0, 1):
            assert made.seen(n)[SQL[1]] == "failed"
            assert "could not be loaded from /adapters/sql" in made.why(n)
            assert "/v1/load_lora_adapter" in made.why(n)
        again = await made.ask(client, SQL[0])  # while nobody may be asked again, nobody waits in vain
        assert again.headers["x-quartermaster-reason"] == "no_adapter"
        assert (await made.ask(client, "demo")).status_code == 200


async def test_an_engine_that_lost_its_adapters_loads_them_again_and_its_neighbours_notice_nothing(
    redis_url: str, pool_id: str
):
    async with fleet(redis_url, pool_id, BOTH, loads=True) as made, made.world.http() as client:
        assert (await made.ask(client, SQL[0])).status_code == 200
        assert made.engines[0].api is not None
        made.engines[0].api.adapters.loaded.clear()  # as after a restart that nobody has seen yet
        answers = await asyncio.gather(*(made.ask(client, m) for m in (SQL[0], "demo", LAW[0], "demo")))
        assert [a.status_code for a in answers] == [200] * 4
        assert made.loaded(0) == set(BOTH)
        assert [r.attempts for r in made.world.metrics.records if r.model == "demo"] == [1, 1]


async def test_an_engine_that_lost_an_adapter_for_good_is_asked_for_it_by_nobody(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adapters, "GIVE_UP_S", 0.3)
    async with fleet(redis_url, pool_id, BOTH) as made, made.world.http() as client:
        assert made.engines[0].api is not None
        del made.engines[0].api.adapters.loaded[SQL[1]]
        lost = await made.ask(client, SQL[0])
        assert (lost.status_code, lost.headers["x-quartermaster-reason"]) == (503, "no_adapter")
        assert made.seen(0) == {SQL[1]: "missing", LAW[1]: "loaded"}
        answers = [await made.ask(client, m) for m in (LAW[0], "demo")]
    assert [a.status_code for a in answers] == [200, 200], "the replica serves everything else"


async def test_a_list_of_models_without_end_is_read_in_part_and_shown_in_part(redis_url: str, pool_id: str):
    async with fleet(redis_url, pool_id, BOTH) as made, made.world.http() as client:
        assert made.engines[0].api is not None
        listed = made.engines[0].api.adapters.loaded
        listed.update({f"stray-{n:05}" + "x" * (n % 500): "/x" for n in range(900)})
        await until(lambda: "unconfigured" in made.seen(0).values())
        assert len(made.seen(0)) == len(BOTH) + adapters.SHOWN
        listed.update({f"stray-{n:06}" + "x" * 200: "/x" for n in range(20_000)})  # 7 MB: more than is read
        await until(lambda: "cannot be read" in made.why(0))
        assert (await made.ask(client, "demo")).status_code == 200


async def test_a_new_leader_does_not_forget_where_adapters_are(redis_url: str, pool_id: str):
    async with fleet(redis_url, pool_id, BOTH, {}) as made, made.world.http() as client:
        specs = entitlements_of(made.world, {})
        assert (await made.ask(client, SQL[0])).status_code == 200
        statuses: list[int] = []

        async def keep_asking(done: Callable[[], bool]) -> None:
            while not done():
                statuses.append((await made.ask(client, SQL[0], max_tokens=1)).status_code)

        over = asyncio.Event()
        asking = asyncio.create_task(keep_asking(over.is_set))
        async with dispatching(redis_url, catalog_of(made.world.pool, *specs), holder="leader-b", over_http=True) as b:
            assert made.dispatcher._leadership is not None
            await made.world.store.resign("leader-a")
            await until(lambda: b._term is not None, 30)
            await asyncio.sleep(0.5)
            over.set()
            await asking
    assert statuses
    assert set(statuses) == {200}
