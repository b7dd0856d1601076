"""Rights of service classes inside any order: owners of reserved capacity first, and who may burst last."""

from __future__ import annotations

from itertools import combinations

import pytest

from scheduling.core.compose import make_policy
from scheduling.core.invariants import check_step, remember
from scheduling.core.registry import make_routing, modifiers, orderings
from scheduling.core.scheduler import Scheduler
from scheduling.core.types import ServiceClass
from tests.scheduling_world import backend_view, ids, pool_view, waiting

SETS = [(), *(names for size in (1, len(modifiers())) for names in combinations(modifiers(), size))]
every_composition = pytest.mark.parametrize(
    ("policy", "around"),
    [(policy, names) for policy in sorted(orderings()) for names in SETS],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)


def scheduler(policy: str, around: tuple[str, ...] = ()) -> Scheduler:
    made = make_policy(policy, None, {name: {} for name in around})
    return Scheduler(made, make_routing("least_work"), rights=True)


@every_composition
def test_an_owner_within_its_share_goes_before_a_crowd_of_others(policy: str, around: tuple[str, ...]):
    world = scheduler(policy, around)
    for number in range(200):  # more than a queue looks past one by one
        world.offer(waiting(number, f"elastic-{number % 5}", 1), 1000.0)
    world.offer(waiting(500, "owner", 0, concurrency=5), 1000.0)
    (grant,) = world.step(pool_view(backend_view(slots=1)), 1100.0)
    assert grant.request.entitlement == "owner"
    (grant,) = world.step(pool_view(backend_view(slots=1)), 1100.5)
    assert grant.request.entitlement.startswith("elastic")


@every_composition
def test_idle_capacity_goes_to_who_may_burst_when_nobody_else_can_use_it(policy: str, around: tuple[str, ...]):
    world = scheduler(policy, around)
    for number in range(100):  # at their limits, and they may not burst
        world.offer(waiting(number, f"owner-{number % 3}", 0, concurrency=2), 1000.0)
    world.offer(waiting(200, "bursting", 1, concurrency=2), 1000.0)
    world.offer(waiting(201, "within", 1, concurrency=2), 1000.0)
    running = {"owner-0": 2, "owner-1": 2, "owner-2": 2, "bursting": 2}
    view = pool_view(backend_view(slots=2), running=running)
    before = remember(view, world)
    grants = world.step(view, 1100.0)
    assert [grant.request.entitlement for grant in grants] == ["within", "bursting"]
    assert check_step(before, grants, world, 1100.0, rights=True) == []


def test_fair_shares_are_not_forgotten_while_owners_take_the_slots():
    """Those that have no turn for a while keep their places among themselves."""
    world = scheduler("fifo", ("fair",))
    for number in range(40):
        for name in ("first", "second"):
            asked = waiting(number, name, 1, id=f"{name}-{number}", input_tokens=100, output_tokens=0.0)
            world.offer(asked, 1000.0 + number)

    def grant(now_s: float) -> str:
        return world.step(pool_view(backend_view(slots=1)), now_s)[0].request.entitlement

    # five grants of one size: "first" is one ahead
    assert [grant(1100.0 + n) for n in range(5)] == ["first", "second", "first", "second", "first"]
    for number in range(10):
        world.offer(waiting(1000 + number, "owner", 0, concurrency=5, input_tokens=9000), 1200.0)
        assert grant(1200.0 + number) == "owner"
    assert grant(1300.0) == "second"


def test_a_limit_is_kept_by_who_may_not_burst():
    world = scheduler("fifo", ("bands", "fair"))
    for number, service_class in enumerate((ServiceClass.GUARANTEED, ServiceClass.SPOT, ServiceClass.PREEMPTIBLE)):
        world.offer(waiting(number, service_class.value, service_class=service_class, concurrency=1), 1000.0)
    running = {c.value: 1 for c in ServiceClass}
    assert ids(g.request for g in world.step(pool_view(backend_view(slots=9), running=running), 1100.0)) == []
