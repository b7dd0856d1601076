"""What waits at a leader has the limits of its entitlement, as they are now."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import (
    EntitlementSpec,
    EntitlementState,
    OverLimit,
    QueuedRequest,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.dispatch.waiting import Waiting
from scheduling.state.store import PoolStore
from tests.support.scheduling_world import waiting

TIER = TierSpec("gold", ServiceClass.GUARANTEED, 0, 1.0, Slo(), OverLimit.WAIT, 50)
SPEC = EntitlementSpec("owner", "owner", "pool", TIER, EntitlementState.BOUND, 0, 0, 0, 8)


def copy_of_the_queue(*specs: EntitlementSpec) -> Waiting:
    scheduler = Scheduler(make_ordering("unified", {}), make_routing("least_work"), rights=True)
    no_store = cast(PoolStore, None)
    return Waiting(no_store, "pool", scheduler, {spec.id: spec for spec in specs}, lambda: None)


def limits(world: Waiting) -> list[tuple[int, float]]:
    return [(request.concurrency, request.fills) for request in world.scheduler]


def came(number: int, entitlement: str = "owner") -> QueuedRequest:
    return waiting(number, entitlement, 0, concurrency=20)


def test_a_request_that_comes_has_those_of_its_entitlement() -> None:
    world = copy_of_the_queue(SPEC)
    world.offer(came(1), 1000.0)
    assert limits(world) == [(8, 1 / 50)]


async def test_what_waits_follows_new_ones() -> None:
    world = copy_of_the_queue(SPEC)
    world.offer(came(1), 1000.0)
    shorter = replace(SPEC, concurrency=4, tier=replace(TIER, queue_limit=10))
    world.configure({"owner": shorter})
    assert limits(world) == [(4, 1 / 10)]
    world.configure({"owner": replace(shorter, tier=replace(TIER, over_limit=OverLimit.REFUSE))})
    assert limits(world) == [(4, 1.0)]


async def test_a_request_of_an_entitlement_that_is_gone_keeps_its_own() -> None:
    world = copy_of_the_queue(SPEC)
    world.offer(came(1), 1000.0)
    world.configure({})
    world.offer(came(2, "stranger"), 1000.0)
    assert limits(world) == [(8, 1 / 50), (20, 1.0)]
