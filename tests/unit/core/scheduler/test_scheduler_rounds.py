"""Rights of service classes inside any order: owners of reserved capacity first, and who may burst last."""

from __future__ import annotations

from itertools import combinations

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing, modifiers, orderings
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.step import Holds, SchedulerStep
from scheduling.core.types import ServiceClass
from tests.support.scheduling_world import backend_view, pool_view, waiting

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
def test_an_owner_goes_before_a_crowd_that_has_no_limit(policy: str, around: tuple[str, ...]):
    world = scheduler(policy, around)
    for number in range(400):  # all of them without a turn, more than a queue looks past one by one
        world.offer(waiting(number, f"elastic-{number % 5}", 1, concurrency=0), 1000.0)
    world.offer(waiting(500, "owner", 0, concurrency=5), 1000.0)
    (grant,) = world.step(pool_view(backend_view(slots=1)), 1100.0)
    assert grant.request.entitlement == "owner"


@every_composition
def test_an_owner_has_what_is_reserved_for_it_when_it_is_late_as_well(policy: str, around: tuple[str, ...]):
    """What cannot be in time gives way within the pool's surplus; slots that are reserved are the owner's all the
    same, before others that can be in time."""
    world = scheduler(policy, around)
    for number in range(200):
        world.offer(waiting(number, f"elastic-{number % 5}", 1, concurrency=0, ttft_deadline_s=2000.0), 1000.0)
    for number in range(500, 503):
        world.offer(waiting(number, "owner", 0, concurrency=2, ttft_deadline_s=1001.0), 1000.0)
    view = pool_view(backend_view(slots=3))
    before = remember(view, world)
    grants = world.step(view, 1100.0)
    assert [grant.request.entitlement.partition("-")[0] for grant in grants] == ["owner", "owner", "elastic"]
    assert check_step(before, grants, world, 1100.0, rights=True) == []


@every_composition
def test_idle_capacity_goes_to_bursting_requests_when_no_other_can_use_it(policy: str, around: tuple[str, ...]):
    world = scheduler(policy, around)
    for number in range(100):  # at their limits, and they may not burst
        world.offer(waiting(number, f"owner-{number % 3}", 0, concurrency=2), 1000.0)
    world.offer(waiting(200, "bursting", 1, concurrency=2), 1000.0)
    world.offer(waiting(201, "within", 1, concurrency=2), 1000.0)
    running = {"owner-0": 2, "owner-1": 2, "owner-2": 2, "bursting": 2}
    for slots, name in ((1, "within"), (2, "bursting")):
        view = pool_view(backend_view(slots=slots, running=slots - 1), running=running)
        before = remember(view, world)
        (grant,) = world.step(view, 1100.0)
        assert grant.request.entitlement == name
        assert check_step(before, [grant], world, 1100.0, rights=True) == []


def of_two_tiers(policy: str, around: tuple[str, ...] = ()) -> Scheduler:
    """A standard request beyond its concurrency, due soon, and a batch request within its own, due in ten minutes."""
    world = scheduler(policy, around)
    world.offer(waiting(1, "standard", 1, concurrency=2, ttft_deadline_s=1105.0), 1000.0)
    batch = waiting(0, "batch", 2, concurrency=50, ttft_deadline_s=None, ttlt_deadline_s=1600.0)
    world.offer(batch, 1000.0)
    return world


@pytest.mark.parametrize(
    ("policy", "around", "first"),
    [
        ("unified", (), "standard"),
        ("edf", ("bands", "fair"), "standard"),
        ("edf", (), "batch"),
        ("hybrid", ("relegate",), "batch"),
    ],
)
def test_concurrency_orders_nothing_while_there_is_a_slot_for_everyone(
    policy: str, around: tuple[str, ...], first: str
) -> None:
    """What is short is prefill credit: it goes by the policy, if that minds what each has had."""
    world = of_two_tiers(policy, around)
    view = pool_view(backend_view(slots=64, prefill_credit=1), running={"standard": 2})
    before = remember(view, world)
    (grant,) = world.step(view, 1100.0)
    assert grant.request.entitlement == first
    assert check_step(before, [grant], world, 1100.0, rights=True, credit_holds=world.credit_holds) == []


def test_concurrency_orders_who_gets_the_last_slot() -> None:
    world = of_two_tiers("unified")
    (grant,) = world.step(pool_view(backend_view(slots=1), running={"standard": 2}), 1100.0)
    assert grant.request.entitlement == "batch"


def of_a_batch_backlog() -> Scheduler:
    """A standard request beyond its concurrency, and a batch backlog that may have the whole pool."""
    world = scheduler("unified")
    world.offer(waiting(1, "standard", 1, concurrency=2, ttft_deadline_s=1105.0), 1000.0)
    spot = {"service_class": ServiceClass.SPOT, "concurrency": 64, "ttlt_deadline_s": 1600.0}
    for number in range(10, 80):
        world.offer(waiting(number, "batch", 2, ttft_deadline_s=None, **spot), 1000.0)
    return world


@pytest.mark.parametrize("free", [3, 60])
def test_a_backlog_without_a_baseline_that_waits_for_credit_makes_no_slots_short(free: int) -> None:
    view = pool_view(
        *(backend_view(f"b{n}", slots=64, running=64 - free // 3, prefill_credit=1) for n in range(3)),
        running={"standard": 2},
    )
    granted = [grant.request.entitlement for grant in of_a_batch_backlog().step(view, 1100.0)]
    assert granted[0] == ("batch" if free == 3 else "standard"), "one slot each: all are short"


def test_a_backlog_without_a_baseline_makes_slots_short_where_nothing_else_stops_it() -> None:
    view = pool_view(backend_view(slots=64, running=4), running={"standard": 2})
    granted = [grant.request.entitlement for grant in of_a_batch_backlog().step(view, 1100.0)]
    assert granted == ["batch"] * 60


@pytest.mark.parametrize("policy", ["unified", "edf"])
def test_slots_of_the_headroom_are_lent_to_nobody(policy: str) -> None:
    world = scheduler(policy)
    world.headroom = 4
    for number in range(10):
        world.offer(waiting(number, "bursting", 1, concurrency=2), 1000.0)
    view = pool_view(backend_view(slots=64, running=58), running={"bursting": 2})
    assert len(world.step(view, 1100.0)) == 2
    world.offer(waiting(20, "within", 1, concurrency=1), 1000.0)
    assert [grant.request.entitlement for grant in world.step(view, 1100.0)] == ["within"]


def test_what_short_prompts_without_a_baseline_take_is_not_lent_again() -> None:
    """One slot is counted for them at a replica with a prefill credit, which has room for many of them."""
    world = scheduler("edf", ("fair",))
    world.headroom = 4
    for number in range(20):
        world.offer(waiting(number, "loud", 1, concurrency=2, ttft_deadline_s=1190.0), 1000.0)
    spot = {"service_class": ServiceClass.SPOT, "concurrency": 64, "ttft_deadline_s": 1101.0}
    for number in range(30, 50):
        world.offer(waiting(number, f"batch-{number % 4}", 2, **spot), 1000.0)
    view = pool_view(backend_view(slots=64, running=54, prefill_credit=8192), running={"loud": 2})
    before = remember(view, world)
    grants = world.step(view, 1100.0)
    granted = [grant.request.entitlement for grant in grants]
    assert len(granted) == 6, "the last four are the headroom"
    assert granted.count("loud") < 6
    assert check_step(before, grants, world, 1100.0, rights=True, headroom=4, credit_holds=world.credit_holds) == []


class Asked(dict[str, int]):
    """What runs, and of whom that was asked."""

    def __init__(self, running: dict[str, int]) -> None:
        super().__init__(running)
        self.names: set[str] = set()

    def get(self, name: str, default: int = 0) -> int:  # type: ignore[override]
        self.names.add(name)
        return super().get(name, default)


def test_few_of_many_entitlements_without_a_baseline_are_looked_at() -> None:
    world = scheduler("unified")
    world.offer(waiting(1, "standard", 1, concurrency=2, ttft_deadline_s=1105.0), 1000.0)
    for number in range(10, 1010):
        world.offer(waiting(number, f"batch-{number}", 2, service_class=ServiceClass.SPOT), 1000.0)
    view = pool_view(*(backend_view(f"b{n}", slots=64, prefill_credit=1) for n in range(3)))
    view.running_by_entitlement = Asked({"standard": 2})
    assert world.step(view, 1100.0)[0].request.entitlement == "standard"
    assert len(view.running_by_entitlement.names) < 100


def test_only_slots_that_nobody_within_its_concurrency_needs_are_lent() -> None:
    """Those beyond theirs are due earlier."""
    world = scheduler("unified")
    for number in range(10):
        world.offer(waiting(number, "bursting", 1, concurrency=2, ttft_deadline_s=1101.0 + number), 1000.0)
    for number in range(20, 24):
        world.offer(waiting(number, "within", 1, concurrency=3, ttft_deadline_s=1190.0), 1000.0)
    world.withdraw("req_000023")
    view = pool_view(backend_view(slots=5), running={"bursting": 2})
    before = remember(view, world)
    grants = world.step(view, 1100.0)
    assert sorted(grant.request.entitlement for grant in grants) == ["bursting"] * 2 + ["within"] * 3
    assert check_step(before, grants, world, 1100.0, rights=True) == []


def test_nothing_is_lent_to_who_has_no_baseline() -> None:
    world = scheduler("edf", ("fair",))
    spot = waiting(1, "spot", 1, concurrency=2, service_class=ServiceClass.SPOT, ttft_deadline_s=1101.0)
    world.offer(spot, 1000.0)
    world.offer(waiting(2, "loud", 1, concurrency=2, ttft_deadline_s=1190.0), 1000.0)
    world.offer(waiting(3, "within", 1, concurrency=2, ttft_deadline_s=1200.0), 1000.0)
    view = pool_view(backend_view(slots=64), running={"spot": 2, "loud": 2})
    assert [grant.request.entitlement for grant in world.step(view, 1100.0)][-1] == "spot"


def test_a_wide_request_takes_no_slot_from_those_within_their_concurrency() -> None:
    """Whether it starts within its concurrency and exceeds it, or beyond it already."""
    within = [waiting(number, "within", 1, concurrency=10, ttft_deadline_s=1190.0) for number in range(20, 24)]
    exceeds = waiting(1, "wide", 1, concurrency=20, sequences=16, ttft_deadline_s=1101.0)
    bursting = [waiting(n, "bursting", 1, concurrency=2, ttft_deadline_s=1102.0) for n in range(2, 10)]
    for running, replicas in ((19, (5, 5)), (20, (10,))):
        world = scheduler("unified")
        for request in (exceeds, *bursting, *within):
            world.offer(request, 1000.0)
        backends = [backend_view(f"b{n}", slots=slots) for n, slots in enumerate(replicas)]
        view = pool_view(*backends, running={"wide": running, "bursting": 2})
        granted = [grant.request.entitlement for grant in world.step(view, 1100.0)]
        assert granted.count("within") == 4


def test_who_exceeds_its_concurrency_and_lacks_kv_cache_stops_nobody_within_theirs() -> None:
    world = scheduler("unified")
    for number in range(200):  # more than a queue looks past one by one
        world.offer(waiting(number, "loud", 1, concurrency=2, kv_tokens=5000, ttft_deadline_s=1200.0), 1000.0)
    world.offer(waiting(500, "within", 1, concurrency=5, kv_tokens=10, ttft_deadline_s=1300.0), 1000.0)
    view = pool_view(backend_view(slots=64, kv_tokens=4000), running={"loud": 2})
    (grant,) = world.step(view, 1100.0)
    assert grant.request.entitlement == "within"


def test_a_replica_is_kept_free_for_who_is_within_its_concurrency_beside_one_that_is_not() -> None:
    """Both lack KV cache, and smaller ones come again and again."""
    world = scheduler("unified")
    world.offer(waiting(1, "loud", 1, concurrency=2, kv_tokens=5000, ttft_deadline_s=1200.0), 1000.0)
    world.offer(waiting(2, "within", 1, concurrency=5, kv_tokens=5000, ttft_deadline_s=1300.0), 1000.0)
    for number in range(6):
        small = waiting(10 + number, "small", 1, concurrency=50, kv_tokens=10, ttft_deadline_s=1400.0)
        world.offer(small, 1000.0)
        view = pool_view(backend_view(slots=64, running=4, kv_tokens=9000, kv_used=4800), running={"loud": 2})
        world.step(view, 1100.0 + number)
    assert world.kv_hold == "req_000002"
    assert small.id in world


def test_the_turn_of_who_lacks_credit_is_kept_for_who_is_within_its_concurrency() -> None:
    fitting = waiting(1, "small", 1, input_tokens=10)
    loud, within = (waiting(n, name, 1, input_tokens=900, concurrency=2) for n, name in ((2, "loud"), (3, "within")))
    holds, asked = Holds(), {request.id: request for request in (fitting, loud, within)}
    view = pool_view(backend_view(slots=9, prefill_credit=1000, prefill_used=500), running={"loud": 2})
    step = SchedulerStep(
        view, 1100.0, holds, asked, patience_s=2.0, headroom=0, unreserved=frozenset(), rights=True,
        warmth=lambda request: None,
    )  # fmt: skip
    step.lend(2, 0)
    assert [step.fits_lent(request) for request in asked.values()] == [True, False, False]
    assert holds.credit is not None
    assert holds.credit.request_id == within.id


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


def test_a_limit_holds_for_classes_that_may_not_burst():
    world = scheduler("fifo", ("bands", "fair"))
    for number, service_class in enumerate(ServiceClass):
        world.offer(waiting(number, service_class.value, service_class=service_class, concurrency=1), 1000.0)
    running = {c.value: 1 for c in ServiceClass}
    granted = [g.request.service_class for g in world.step(pool_view(backend_view(slots=9), running=running), 1100.0)]
    assert granted == [
        ServiceClass.DEDICATED,
        ServiceClass.ELASTIC,
        ServiceClass.SPOT,
        ServiceClass.PREEMPTIBLE,
    ], "all but guaranteed take what is idle (token pools, Table 1), better classes first"


@every_composition
def test_the_last_free_slots_are_kept_for_those_within_a_baseline(policy: str, around: tuple[str, ...]):
    world = scheduler(policy, around)
    world.headroom = 2
    for number in range(60):
        world.offer(waiting(number, "spot", 2, service_class=ServiceClass.SPOT, concurrency=9), 1000.0)
        world.offer(waiting(number + 100, "bursting", 1, concurrency=1), 1000.0)
    view = pool_view(backend_view(slots=4), running={"bursting": 1})
    before = remember(view, world)
    grants = world.step(view, 1100.0)
    assert {grant.request.entitlement for grant in grants} <= {"spot", "bursting"}
    assert len(grants) == 2
    assert check_step(before, grants, world, 1100.0, rights=True, headroom=2) == []
    assert [v.law for v in check_step(before, grants, world, 1100.0, rights=True)] == [4]
    world.offer(waiting(300, "within", 1, concurrency=1), 1101.0)
    world.offer(waiting(301, "owner", 0, concurrency=1, service_class=ServiceClass.GUARANTEED), 1101.0)
    before = remember(view, world)
    grants = world.step(view, 1101.0)
    assert sorted(grant.request.entitlement for grant in grants) == ["owner", "within"]
    assert check_step(before, grants, world, 1101.0, rights=True, headroom=2) == []


def test_who_is_promised_what_the_pool_cannot_give_goes_with_the_others():
    orders = []
    for unreserved in (frozenset(), frozenset({"owner"})):
        world = scheduler("fifo")
        world.unreserved = unreserved
        world.offer(waiting(1, "first", 1, concurrency=5), 1000.0)
        world.offer(waiting(2, "owner", 0, concurrency=5), 1000.0)
        orders.append(world.step(pool_view(backend_view(slots=1)), 1001.0)[0].request.entitlement)
    assert orders == ["owner", "first"]
