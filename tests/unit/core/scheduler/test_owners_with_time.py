"""Where slots are left for all, an owner with time left takes turns with others, and goes first when it is pressing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.admission.rule import limited
from scheduling.core.deadline import prefill_due_s
from scheduling.core.policies.order.fifo import Fifo
from scheduling.core.policies.queues.pressing import BACKLOGS, CROWDED, MARGIN_S, MAX_MOVES, PressingQueue
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import (
    PREFILL_PER_S,
    EntitlementSpec,
    EntitlementState,
    OverLimit,
    QueuedRequest,
    ServiceClass,
    Slo,
    TierSpec,
)
from tests.support.scheduling_world import backend_view, ids, pool_view, waiting

NOW_S = 2000.0
TOKENS = 100


def owners(number: int, in_s: float, **changes: Any) -> QueuedRequest:
    """An owner's, due in so many seconds, with a hundredth of its entitlement's queue."""
    return waiting(
        number, "owner", 0, **({"ttft_deadline_s": NOW_S + in_s, "fills": 0.01, "concurrency": 20} | changes)
    )


def others(number: int, in_s: float, **changes: Any) -> QueuedRequest:
    return waiting(number, "other", 1, **({"ttft_deadline_s": NOW_S + in_s, "concurrency": 20} | changes))


def order(*requests: QueuedRequest, slots: int = 64, **params: int) -> list[str]:
    """Who is granted, one a step."""
    world = Scheduler(make_ordering("unified", params), make_routing("least_work"), rights=True)
    for request in requests:
        world.offer(request, NOW_S)
    found = []
    for number in range(len(requests)):
        grants = world.step(pool_view(backend_view(slots=slots, prefill_credit=1)), NOW_S + number / 1000)
        found += [grant.request.id for grant in grants]
    return found


def test_an_owner_with_time_left_lets_those_go_first_that_are_due_before_it() -> None:
    assert order(owners(1, 30), others(2, 1), others(3, 2)) == ids([others(2, 1), others(3, 2), owners(1, 30)])


def test_it_takes_its_turn_by_deadline_and_not_after_all_others() -> None:
    assert order(owners(1, 30), others(2, 60)) == ids([owners(1, 30), others(2, 60)])


def test_it_goes_first_once_it_is_pressing() -> None:
    assert order(owners(1, MARGIN_S), others(2, 1)) == ids([owners(1, MARGIN_S), others(2, 1)])


def test_it_goes_first_where_its_tier_refuses_what_is_beyond_its_concurrency() -> None:
    """Whoever waits has a place of those that may run."""
    assert order(owners(1, 30, fills=1.0), others(2, 1)) == ids([owners(1, 30), others(2, 1)])


def test_it_goes_first_where_slots_are_short() -> None:
    crowd = [others(number, 1) for number in range(2, 8)]
    assert order(owners(1, 30), *crowd, slots=4)[0] == owners(1, 30).id


@pytest.mark.parametrize("relegate", [0, 2])
def test_it_goes_first_with_an_order_that_keeps_classes_apart(relegate: int) -> None:
    assert order(owners(1, 30), others(2, 1), relegate=relegate)[0] == owners(1, 30).id


def test_an_owner_without_a_deadline_goes_first() -> None:
    assert order(owners(1, 0, ttft_deadline_s=None), others(2, 1))[0] == owners(1, 0).id


def queue() -> PressingQueue:
    return PressingQueue(Fifo().queue(), Fifo().queue(), lambda request: prefill_due_s(request, 0.1))


def pressing(waiting_: PressingQueue, now_s: float = NOW_S, speed: float = PREFILL_PER_S) -> list[str]:
    """What presses, each taken out and put back."""
    view = pool_view(backend_view(prefill_per_s=speed))
    found = []
    while (request := waiting_.select(Round(view, lambda _: True, pressing=True), now_s)) is not None:
        found.append(request)
    for request in found:
        waiting_.push(request, now_s)
    return ids(found)


def test_it_is_pressing_before_it_is_due_by_its_prefill_a_margin_and_what_waits_of_owners() -> None:
    world = queue()
    world.push(owners(1, 30, input_tokens=8_500), NOW_S)  # a second of prefill
    ahead_s = 1 + MARGIN_S + BACKLOGS * 1
    assert pressing(world, NOW_S + 30 - ahead_s - 0.01) == []
    assert pressing(world, NOW_S + 30 - ahead_s) == [owners(1, 30).id]


def test_what_waits_of_owners_is_shared_by_the_replicas_that_are_ready() -> None:
    world = queue()
    world.push(owners(1, 30, input_tokens=17 * 8_500), NOW_S)  # 17 s of one, 34 of it ahead
    four = [backend_view(f"b{number}", ready=number < 4, prefill_per_s=PREFILL_PER_S) for number in range(8)]
    ahead_s = 17 + MARGIN_S + BACKLOGS * 17 / 4
    for at_s, found in ((30 - ahead_s - 0.01, None), (30 - ahead_s, owners(1, 30).id)):
        chosen = world.select(Round(pool_view(*four), lambda _: True, pressing=True), NOW_S + at_s)
        assert (chosen and chosen.id) == found


def test_pressing_ones_go_before_others_also_where_nobody_has_precedence() -> None:
    """As where slots are short, or those of an owner beyond its concurrency."""
    world = queue()
    world.push(others(1, 1), NOW_S)
    world.push(owners(2, 1), NOW_S)
    found = [world.select(Round(pool_view(backend_view()), lambda _: True), NOW_S) for _ in range(2)]
    assert [request and request.id for request in found] == [owners(2, 1).id, others(1, 1).id]


def test_a_round_that_is_asked_anew_is_for_the_same_requests() -> None:
    round_ = Round(pool_view(backend_view()), lambda _: True, timely=True, pressing=True)
    for again in (round_.asking(lambda _: False), round_.counting_misses()):
        assert (again.timely, again.pressing) == (True, True)


def test_prompts_of_other_owners_count_and_those_of_others_do_not() -> None:
    world = queue()
    world.push(owners(1, 30), NOW_S)
    world.push(others(2, 1, input_tokens=1_000_000), NOW_S)
    assert pressing(world) == []
    world.push(owners(3, 100, input_tokens=17 * 8_500), NOW_S)
    assert pressing(world) == [owners(1, 30).id]


def test_on_slower_replicas_it_is_pressing_sooner() -> None:
    world = queue()
    world.push(owners(1, 30, input_tokens=8_500), NOW_S)
    assert pressing(world) == []
    assert pressing(world, speed=8_500 / 15) == [owners(1, 30).id]


def test_replicas_that_prove_slow_make_those_pressing_that_wait_already() -> None:
    """As after each change of policy or leader: all requests come before anything is measured."""
    world = queue()
    world.push(owners(1, 60, input_tokens=17_000), NOW_S)
    slow = pool_view(*[backend_view(f"b{number}", prefill_per_s=850.0) for number in range(16)])
    chosen = world.select(Round(slow, lambda _: True, pressing=True), NOW_S + 40 - MARGIN_S)
    assert chosen is not None, "its prefill takes twenty of the sixty seconds"


def test_a_slower_pace_of_answers_makes_those_pressing_that_wait_already() -> None:
    world = Scheduler(make_ordering("unified", {}), make_routing("least_work"), rights=True)
    whole = owners(1, 0, ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 300, output_tokens=500.0)
    world.offer(whole, NOW_S)
    for number in range(2, 6):
        world.offer(others(number, 100), NOW_S)
    slower = replace(pool_view(backend_view(slots=64, prefill_credit=1)), token_s=0.4)  # 200 s of the 300
    world.step(replace(pool_view(backend_view(slots=64, prefill_credit=1, prefill_used=1)), token_s=0.4), NOW_S)
    assert ids([grant.request for grant in world.step(slower, NOW_S + 100 - MARGIN_S)]) == [whole.id]


def test_it_is_pressing_before_it_may_wait_no_longer() -> None:
    world = queue()
    world.push(owners(1, 300, expires_s=NOW_S + 10), NOW_S)
    assert pressing(world) == []
    assert pressing(world, NOW_S + 9) == [owners(1, 300).id]


def test_all_of_an_entitlement_are_pressing_once_half_of_its_queue_is_taken() -> None:
    world = queue()
    for number in range(3):
        world.push(owners(number, 30, fills=CROWDED / 3), NOW_S)
    world.push(replace(owners(7, 30, fills=CROWDED / 3), entitlement="neighbour"), NOW_S)
    assert pressing(world) == []
    world.push(owners(3, 30, fills=CROWDED / 3), NOW_S)
    assert pressing(world) == ids([owners(n, 30) for n in range(4)])


def test_where_very_many_become_pressing_a_step_moves_the_first_of_them_and_the_next_steps_the_others() -> None:
    world = queue()
    for number in range(MAX_MOVES + 10):
        world.push(owners(number, 3_000 - number, fills=0.0), NOW_S)
    view, left = pool_view(backend_view()), []
    for _ in range(2):
        full = Round(view, lambda _: False, pressing=True)
        assert world.select(full, NOW_S + 2_990) is None
        assert world.select(full, NOW_S + 2_990) is None
        left.append({request.id for request in world if world.explain(request).startswith("elastic")})
    assert left == [{owners(number, 1).id for number in range(10)}, set()]


def test_what_has_left_takes_nothing_of_its_queue() -> None:
    world = queue()
    for number in range(100):
        world.push(owners(number, 30, fills=CROWDED / 2), NOW_S)
        assert world.discard(owners(number, 30).id)
    world.push(owners(100, 30, fills=CROWDED / 2), NOW_S)
    assert pressing(world) == []
    assert len(world) == 1


def test_a_patient_one_that_stays_costs_no_memory_for_those_that_come_and_leave() -> None:
    world = queue()
    world.push(owners(0, 1_000), NOW_S)
    for number in range(1, 1_000):
        world.push(owners(number, 2_000), NOW_S)
        assert world.discard(owners(number, 2_000).id)
    assert len(world._begins) < 100


def test_what_was_begun_and_left_counts_no_more_for_those_that_wait() -> None:
    world = queue()
    for number in range(2, 10):
        begun = owners(number, 1, input_tokens=40_000, prefilled=39_000)
        world.push(begun, NOW_S)
        assert world.discard(begun.id)
    world.push(owners(1, 30), NOW_S)
    assert pressing(world) == []


def test_what_was_begun_is_pressing() -> None:
    world = queue()
    world.push(owners(1, 30, prefilled=10), NOW_S)
    assert pressing(world) == [owners(1, 30).id]


def test_each_says_whether_it_goes_first_or_takes_its_turn() -> None:
    world = queue()
    for request in (owners(1, 30), owners(2, 1), others(3, 1)):
        world.push(request, NOW_S)
    said = [world.explain(request).partition(",")[0] for request in (owners(1, 30), owners(2, 1), others(3, 1))]
    assert said == ["elastic band while it has time", "reserved band", "elastic band"]
    assert [(part.name, part.waiting) for part in world.parts(NOW_S)] == [("reserved band", 1), ("elastic band", 2)]
    taken = world.select(Round(pool_view(backend_view()), lambda request: request.id == owners(1, 30).id), NOW_S)
    assert taken is not None
    assert world.explain(taken).startswith("elastic band while it has time")
    begun = replace(taken, prefilled=1)
    world.push(begun, NOW_S)
    assert world.explain(begun).startswith("reserved band")


def spec(over: OverLimit, queue_limit: int = 50, kv_tokens: int = 0) -> EntitlementSpec:
    tier = TierSpec("gold", ServiceClass.GUARANTEED, 0, 1.0, Slo(), over, queue_limit)
    return EntitlementSpec("owner", "owner", "pool", tier, EntitlementState.BOUND, 0, 0, kv_tokens, 8)


def test_a_request_takes_as_much_of_its_queue_as_refuses_the_next_ones() -> None:
    request = owners(1, 30)
    assert limited(request, spec(OverLimit.REFUSE)).fills == 1.0
    assert limited(request, spec(OverLimit.WAIT)).fills == 1 / 50
    assert limited(request, spec(OverLimit.WAIT, queue_limit=0)).fills == 1.0
    assert limited(request, spec(OverLimit.WAIT)).concurrency == 8


def test_what_waits_counts_twice_against_a_kv_budget_which_what_runs_takes_as_well() -> None:
    request = owners(1, 30, kv_tokens=200)
    assert limited(request, spec(OverLimit.WAIT, kv_tokens=1_000)).fills == 400 / 1_000
    assert limited(request, spec(OverLimit.WAIT, kv_tokens=300)).fills == 1.0


def test_a_request_that_has_its_limits_stays_as_it_is() -> None:
    request = limited(owners(1, 30), spec(OverLimit.WAIT))
    assert limited(request, spec(OverLimit.WAIT)) is request
    assert limited(request, None) is request
    assert limited(request, replace(spec(OverLimit.WAIT), concurrency=9)) is not request
