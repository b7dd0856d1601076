"""Where slots are left for all, late requests of owners go first for the owner's part of the prompts only."""

from __future__ import annotations

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.contracts import relegates_owners
from scheduling.core.policies.queues.relegated import MAX_PER_STEP, MAX_PER_TIMELY
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.late_owners import KEPT, MEMORY_S, LateOwners
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.prefill_preemption import interrupted
from scheduling.core.scheduler.step import Hold
from scheduling.core.types import BackendView, PoolView
from tests.support.scheduling_world import backend_view, pool_view, waiting

NOW_S = 1100.0


def scheduler(policy: str = "unified", **params: int) -> Scheduler:
    return Scheduler(make_ordering(policy, params), make_routing("least_work"), rights=True)


def idle(slots: int = 64, **changes: int) -> BackendView:
    """One prompt at a time."""
    return backend_view(slots=slots, prefill_credit=1, **changes)


def filled(world: Scheduler, late: int = 6, timely: int = 6) -> Scheduler:
    """Late requests of an owner and as many of another entitlement that can be in time. Both have the same concurrency,
    so that half of the prompts is the owner's part."""
    for number in range(late):
        world.offer(waiting(number, "owner", 0, concurrency=20, ttft_deadline_s=NOW_S - 50), NOW_S)
    for number in range(100, 100 + timely):
        world.offer(waiting(number, "other", 1, concurrency=20, ttft_deadline_s=NOW_S + 500), NOW_S)
    return world


def order(world: Scheduler, steps: int, slots: int = 64) -> list[str]:
    """Who is granted, one a step."""
    found = []
    for number in range(steps):
        view = pool_view(idle(slots))
        before = remember(view, world)
        grants = world.step(view, NOW_S + number / 100)
        holds, first = world.credit_holds, world.owners_first
        assert check_step(before, grants, world, NOW_S, credit_holds=holds, rights=True, owners_first=first) == []
        found += [grant.request.entitlement for grant in grants]
    return found


def test_an_owner_goes_first_with_late_requests_for_its_part_of_the_prompts() -> None:
    assert order(filled(scheduler()), 8) == ["owner", "other", "owner", "other", "owner", "other", "owner", "other"]


def test_many_that_are_late_at_once_do_not_pass_for_such_that_can_be_in_time() -> None:
    """A queue relegates few in one round, and takes the next for one in time."""
    assert order(filled(scheduler(), late=100, timely=100), 20) == ["owner", "other"] * 10


def test_a_step_relegates_a_bounded_number_of_them() -> None:
    world = filled(scheduler(), late=2 * MAX_PER_TIMELY, timely=2)
    assert order(world, 1) == ["owner"]
    put_back = sum(world.explain(request).startswith("relegated") for request in world)
    assert MAX_PER_TIMELY - 1 <= put_back < MAX_PER_TIMELY + 3 * MAX_PER_STEP


def test_its_part_is_by_concurrency_among_those_with_a_baseline_that_wait() -> None:
    world = filled(scheduler())
    for number in range(200, 206):
        world.offer(waiting(number, "third", 1, concurrency=20, ttft_deadline_s=NOW_S + 900), NOW_S)
        batch = waiting(number + 100, "batch", 2, concurrency=500, ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 900)
        world.offer(batch, NOW_S)
    found = order(world, 9)
    assert found[0] == "owner"
    assert [found.count(name) for name in ("owner", "other", "third", "batch")] == [3, 6, 0, 0]


def test_where_slots_are_short_an_owner_has_those_that_are_reserved_late_or_not() -> None:
    assert order(filled(scheduler()), 4, slots=8) == ["owner", "owner", "owner", "owner"]


def test_a_backlog_without_a_baseline_and_the_headroom_make_no_slots_short() -> None:
    """What waits there takes only what is left, and the headroom is kept for baselines."""
    world = filled(scheduler())
    world.headroom = 40
    for number in range(200, 300):
        batch = waiting(number, "batch", 2, concurrency=256, ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 900)
        world.offer(batch, NOW_S)
    assert order(world, 4) == ["owner", "other", "owner", "other"]


def test_an_owner_that_can_be_in_time_goes_first_whatever_it_had() -> None:
    world = filled(scheduler(), late=0)
    for number in range(4):
        world.offer(waiting(number, "owner", 0, concurrency=20, ttft_deadline_s=NOW_S + 500), NOW_S)
    assert order(world, 4) == ["owner", "owner", "owner", "owner"]


def test_late_requests_of_an_owner_beyond_its_part_go_before_those_without_a_baseline() -> None:
    world = filled(scheduler(), late=4, timely=1)
    for number in range(200, 204):
        batch = waiting(number, "batch", 2, concurrency=20, ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 900)
        world.offer(batch, NOW_S)
    assert order(world, 6) == ["owner", "other", "owner", "owner", "owner", "batch"]


def test_an_owner_has_its_part_back_when_others_had_theirs() -> None:
    world = filled(scheduler(), late=4)
    assert order(world, 2) == ["owner", "other"]
    world._late_owners.granted("owner", 100_000, True, NOW_S)  # a long prompt
    assert order(world, 2) == ["other", "other"]
    for number in range(200, 230):
        world.offer(waiting(number, "other", 1, concurrency=20, ttft_deadline_s=NOW_S + 500), NOW_S)
    world._late_owners.granted("other", 200_000, False, NOW_S)
    assert order(world, 1) == ["owner"]


@pytest.mark.parametrize(
    ("policy", "params"), [("unified", {"relegate": 2}), ("unified", {"relegate": 0}), ("edf", {})]
)
def test_a_policy_that_does_not_relegate_across_classes_lets_owners_go_first_with_all(
    policy: str, params: dict[str, int]
) -> None:
    assert order(filled(scheduler(policy, **params)), 6) == ["owner"] * 6


def test_modifiers_decide_between_entitlements_themselves() -> None:
    assert relegates_owners(make_policy("unified"))
    assert not relegates_owners(make_policy("unified", None, {"fair": {}}))


def beside_a_neighbour() -> PoolView:
    """The credit is taken by another; an owner's own has room."""
    return pool_view(backend_view(slots=64, prefill_credit=1000, prefill_used=950))


def test_beyond_its_part_it_has_no_more_prefill_credit_than_others() -> None:
    world = filled(scheduler(), late=2, timely=1)
    world._late_owners.granted("owner", 100_000, True, NOW_S)
    view = beside_a_neighbour()
    before = remember(view, world)
    assert world.step(view, NOW_S) == []
    assert not world.owners_first
    assert check_step(before, [], world, NOW_S, rights=True, owners_first=False) == []
    broken = check_step(before, [], world, NOW_S, rights=True)
    assert [violation.law for violation in broken] == [4], "for an owner that goes first there would be room"
    within = filled(scheduler(), late=2, timely=1)
    (grant,) = within.step(beside_a_neighbour(), NOW_S)
    assert grant.request.entitlement == "owner"


def test_beyond_its_part_it_keeps_nobody_else_from_being_noted_for_want_of_credit() -> None:
    """One that was noted while its own credit was taken as well. Small requests pass another one that lacks credit."""
    world = filled(scheduler(), late=1, timely=0)
    world._late_owners.granted("owner", 100_000, True, NOW_S)
    world._holds.credit = Hold("req_000000", NOW_S - 10)
    world.offer(waiting(1, "other", input_tokens=400, concurrency=20, ttft_deadline_s=NOW_S + 90), NOW_S)
    for number in range(100, 140):
        world.offer(waiting(number, "other", input_tokens=20, concurrency=20, ttft_deadline_s=NOW_S + 90), NOW_S)
    assert len(world.step(beside_a_neighbour(), NOW_S)) == 2
    noted = world._holds.credit
    assert noted is None or noted.request_id != "req_000000"


def test_within_a_round_an_owner_may_lose_its_right_and_not_win_it() -> None:
    late = LateOwners()
    late.granted("owner", 400, True, NOW_S)
    late.granted("other", 600, False, NOW_S)
    within = late.within(20, NOW_S)
    assert [within("owner", concurrency) for concurrency in (7, 8)] == [False, True]
    late.granted("other", 9000, False, NOW_S)
    assert not within("owner", 7)
    late.granted("owner", 100, True, NOW_S)
    assert not within("owner", 8)
    assert late.within(20, NOW_S)("owner", 7)


@pytest.mark.parametrize("concurrency", range(1, 100))
def test_who_waits_alone_is_within_its_part_whatever_it_had(concurrency: int) -> None:
    late = LateOwners()
    for number in range(20):
        now_s = NOW_S + 0.7 * number
        late.granted("owner", 997 * concurrency + number, True, now_s)
        assert late.within(concurrency, now_s)("owner", concurrency)


def test_of_a_prompt_that_was_interrupted_counts_what_is_left_where_it_goes_on() -> None:
    long = waiting(1, "owner", 0, concurrency=20, input_tokens=8000, ttft_deadline_s=NOW_S - 50)
    for at, counts in (("b1", 2000), ("b2", 8000)):
        world = scheduler()
        world.offer(interrupted(long, at, 6000), NOW_S)
        assert len(world.step(pool_view(idle()), NOW_S)) == 1
        world._late_owners.granted("other", 100_000 - counts, False, NOW_S)
        within = world._late_owners.within(100_000, NOW_S)
        assert [within("owner", counts - 1), within("owner", counts)] == [False, True]


def test_what_was_granted_fades() -> None:
    late = LateOwners()
    late.granted("owner", 1000, True, NOW_S)
    later_s = NOW_S + 10 * MEMORY_S
    late.granted("other", 1000, False, later_s)
    assert late.within(100, later_s)("owner", 1)
    assert late.within(100, NOW_S)("owner", 100), "a clock that went back"


def test_owners_that_were_granted_nothing_for_longest_are_forgotten_first() -> None:
    late = LateOwners()
    for number in range(KEPT + 1):
        late.granted(f"owner-{number}", 100, True, NOW_S)
    within = late.within(1_000_000, NOW_S)
    assert within("owner-0", 0), "it is as one that had nothing"
    assert not within(f"owner-{KEPT}", 0)


def test_what_waits_is_counted_however_tiers_change() -> None:
    """An entitlement that gets another class and concurrency while its requests wait."""
    world = filled(scheduler(), late=2, timely=2)
    assert world._promised == 40
    world.offer(waiting(50, "owner", 2, concurrency=7), NOW_S)
    assert world._promised == 20
    world.offer(waiting(51, "owner", 0, concurrency=9), NOW_S)
    assert world._promised == 29
    for request in list(world):
        world.withdraw(request.id)
    assert world._promised == 0
