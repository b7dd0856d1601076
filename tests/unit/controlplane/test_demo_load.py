"""The demo load, and the second pool whose tuning it shows."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import pytest

from controlplane import env_loading
from controlplane.embedded import engines
from controlplane.embedded.home import Home
from controlplane.embedded.load import Load, run
from controlplane.env import Env
from tenants import demo
from tenants.models import Backend, Budget, Pool, Price, TuningMode
from tenants.tuning import tuning_of

FIRST = {"model": "llama-3-8b", "keys": {"premium": "p", "standard": "s", "batch": "b"}}
SECOND = {"model": "summaries", "pool": "summaries", "keys": {"premium": "p2", "standard": "s2", "batch": "b2"}}


def settings(home: Path, demo_load: str) -> Env:
    return env_loading.load(
        {"QUARTERMASTER_HOME": str(home), "DEMO_LOAD": demo_load, "QUARTERMASTER_SIM_REPLICAS": "2"}
    )


def planned(home: Path, demo_load: str) -> tuple[list[str], list[str], set[str]]:
    plan = engines.simulated(settings(home, demo_load), Home(home))
    return [engine.name for engine in plan.engines], [engine.name for engine in plan.summaries], set(plan.commands)


def test_the_second_pool_has_an_engine_of_its_own_which_it_keeps_without_the_demo_load(tmp_path: Path) -> None:
    first = ["engine-0", "engine-1"]
    assert planned(tmp_path, "off") == (first, [], set(first))
    assert planned(tmp_path, "on") == (first, ["summaries-0"], {*first, "summaries-0"})
    assert planned(tmp_path, "off") == (first, ["summaries-0"], {*first, "summaries-0"})


def test_every_pool_is_sent_its_own_model_with_its_own_keys() -> None:
    loads = Load.of({**FIRST, "summaries": SECOND})
    assert [load.model for load in loads] == ["llama-3-8b", "summaries"]
    assert [load.model for load in Load.of(FIRST)] == ["llama-3-8b"]
    asked: Counter[tuple[str, str]] = Counter()
    stop = asyncio.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        asked[json.loads(request.content)["model"], request.headers["authorization"].removeprefix("Bearer ")] += 1
        if len(asked) == 6:
            stop.set()
        return httpx.Response(200)

    async def send() -> None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url="http://demo", transport=transport) as http:
            quick = [Load(load.model, load.keys, per_s=500.0, stack=0) for load in loads]
            await asyncio.wait_for(asyncio.gather(*(run(http, load, stop) for load in quick)), 60)

    asyncio.run(send())
    assert set(asked) == {(load.model, key) for load in loads for key in load.keys.values()}


@pytest.mark.django_db
def test_only_the_second_pool_begins_with_queues_by_length_and_tunes_itself() -> None:
    passwords = dict.fromkeys(("admin", "operator", "member"), "correct horse 9")
    demo.ensure_demo("llama-3-8b", "llama-3-8b", [("engine-0", "http://127.0.0.1:9000", 8, 1000)], passwords=passwords)
    second = [("summaries-0", "http://127.0.0.1:9001", 8, 1000)]
    demo.ensure_demo(
        *("summaries", "summaries", second, "llama-3-8b"), passwords=passwords, remembered={}, show_tuning=True
    )
    pools = {pool.slug: (pool.policy, tuning_of(pool).mode) for pool in Pool.objects.all()}
    assert pools == {
        "llama-3-8b": (Pool().policy, TuningMode.ADVISE),
        "summaries": ("ewsjf", TuningMode.AUTOMATIC),
    }
    assert not Price.objects.exists()
    assert {backend.slug: backend.pool.slug for backend in Backend.objects.all()} == {
        "engine-0": "llama-3-8b",
        "summaries-0": "summaries",
    }


@pytest.mark.django_db
def test_the_demo_has_prices_and_one_budget_that_refuses_nothing_and_a_price_taken_away_stays_away() -> None:
    passwords = dict.fromkeys(("admin", "operator", "member"), "correct horse 9")
    engines = [("engine-0", "http://127.0.0.1:9000", 8, 1000)]
    demo.ensure_demo("llama-3-8b", "llama-3-8b", engines, passwords=passwords, priced=True)
    assert [(price.pool.slug, price.per_million_output > 0) for price in Price.objects.all()] == [("llama-3-8b", True)]
    assert [(budget.tenant.slug, budget.hard_amount) for budget in Budget.objects.all()] == [("acme", None)]
    Budget.objects.all().delete()
    demo.ensure_demo("llama-3-8b", "llama-3-8b", engines, passwords=passwords, remembered={}, priced=True)
    assert (Price.objects.count(), Budget.objects.count()) == (1, 0)
