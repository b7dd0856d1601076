"""A client's ``priority`` and tighter SLO headers, from its request to the engine: real gateway, real leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.types import BackendSpec, Catalog, OverLimit, ServiceClass, Slo
from tests.support.dispatch_world import catalog_of, dispatching, until_await
from tests.support.gateway_world import TIER, gateway_world, make_key, until

STANDARD = replace(
    TIER, name="standard", service_class=ServiceClass.ELASTIC, rank=3, slo=Slo(ttft_s=60.0, tbt_s=1.0),
    over_limit=OverLimit.WAIT, max_wait_s=600.0,
)  # fmt: skip
EACH = 6


async def places(redis_url: str, pool_id: str, policy: str, hints: bool) -> tuple[list[str], list[int]]:
    """The prompts in the order in which the engine got them, one slot, all waiting before the first goes; and the
    priorities that the engine was told."""
    async with gateway_world(redis_url, pool_id, lead=False) as world:
        engine = world.engines[0]
        one = BackendSpec(f"{pool_id}-b0", pool_id, engine.url, 1, 1_000_000)
        world.pool = replace(world.pool, backends=(one,), policy=policy)
        specs = {
            name: replace(world.entitlement, id=f"{pool_id}-{name}", tenant=name, tier=STANDARD)
            for name in ("quiet", "eager")
        }
        keys = {name: make_key(n, spec.id) for n, (name, spec) in enumerate(specs.items(), start=900)}
        world.catalog = Catalog(
            2,
            {pool_id: world.pool},
            {spec.id: spec for spec in specs.values()},
            {key.id: key for _, key in keys.values()},
        )
        await world.app._catalog.refreshed(10)

        def ask(client: httpx.AsyncClient, name: str, number: int, **changes: Any) -> asyncio.Task[httpx.Response]:
            headers = {"authorization": f"Bearer {keys[name][0]}"}
            body: dict[str, Any] = {"model": "demo", "prompt": f"{name} {number}", "max_tokens": 4} | changes
            if hints and name == "eager":
                body["priority"] = -number  # the latest is wanted first
                headers |= {"x-quartermaster-slo-ttft-ms": "1"}
            return asyncio.ensure_future(client.post("/v1/completions", json=body, headers=headers))

        async with (
            dispatching(redis_url, catalog_of(world.pool, *specs.values())) as dispatcher,
            world.http() as client,
        ):
            await until_await(lambda: ready(world))
            engine.script.first_pause_s = 3600.0
            first = ask(client, "quiet", 99)
            await until(lambda: engine.open == 1)
            asked = []
            for number in range(EACH):
                for name in ("quiet", "eager"):
                    asked.append(ask(client, name, number))
                    await until_await(lambda: waits(world, len(asked)))
            await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 2 * EACH)
            engine.script.first_pause_s = 0.0
            first.cancel()
            answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        told = [body for body in engine.bodies if body["prompt"] != "quiet 99"]
        return [body["prompt"] for body in told if body["prompt"] != "ok"], [
            body["priority"] for body in told if body["prompt"] != "ok"
        ]


async def ready(world: Any) -> bool:
    return any(backend.ready for backend in (await world.store.view()).backends.values())


async def waits(world: Any, count: int) -> bool:
    return bool((await world.running())[1] == count)


def owners(prompts: list[str]) -> list[str]:
    return [prompt.split()[0] for prompt in prompts]


def arrived(prompt: str) -> tuple[int, bool]:
    """When a prompt of :func:`places` was sent: in rounds, the quiet one first."""
    owner, number = prompt.split()
    return int(number), owner == "eager"


def mean_place(prompts: list[str], name: str) -> float:
    """How many requests went before one of this tenant, on average: its wait, in turns."""
    mine = [at for at, owner in enumerate(owners(prompts)) if owner == name]
    return sum(mine) / len(mine)


@pytest.mark.parametrize("policy", ["unified", "edf", "priority"])
async def test_hints_of_one_tenant_leave_the_turns_of_another_of_its_tier_as_they_are(
    redis_url: str, pool_id: str, policy: str
):
    without, _ = await places(redis_url, f"{pool_id}-0", policy, hints=False)
    hinted, priorities = await places(redis_url, f"{pool_id}-1", policy, hints=True)
    for name in ("quiet", "eager"):
        assert mean_place(hinted, name) == mean_place(without, name)
    assert owners(hinted) == owners(without)
    assert [p for p in hinted if p.startswith("quiet")] == [p for p in without if p.startswith("quiet")]
    eager = [p for p in hinted if p.startswith("eager")]
    assert eager == [f"eager {number}" for number in reversed(range(EACH))], "its client still orders its own"
    in_turn = [
        priority for _, priority in sorted(zip(hinted, priorities, strict=True), key=lambda row: arrived(row[0]))
    ]
    assert in_turn == sorted(in_turn), (
        "the engine is told the policy's order, with no wish in it: who came first is first"
    )
