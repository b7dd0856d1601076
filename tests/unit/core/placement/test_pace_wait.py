"""Who waits for a replica that is fast enough, although a slower one has room, and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.admission.rule import AdmissionAnswer, AdmissionView, Ask, decide_admission
from scheduling.core.placement.cache_wait import BEFORE_EXPIRY_S, GRANT_S, LONGEST_S
from scheduling.core.placement.pace_wait import KEEPS, pace_us, pace_wait_until_s
from scheduling.core.placement.room import Need, choose_backend
from scheduling.core.placement.rule import Warmth
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.registry import make_routing
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.step import Hold, Holds, SchedulerStep
from scheduling.core.scheduler.stuck import stuck
from scheduling.core.types import BackendView, QueuedRequest, ServiceClass, Slo
from tests.support.scheduling_world import backend_view, pool_view, waiting
from tests.support.state_world import entitlement, pool_spec, tier

NOW_S = 1010.0
PACE_US = pace_us(Slo(tbt_s=0.1), 100)
PER_S = 10_000.0  # prompt tokens that the fast one computes


def fast(**changes: Any) -> BackendView:
    return backend_view("fast", **({"prefill_credit": 1024, "prefill_per_s": PER_S, "work_tokens": 9_000.0} | changes))


def slow(**changes: Any) -> BackendView:
    given = {"prefill_credit": 1024, "prefill_per_s": 1_000.0, "speed": 300, "token_us": 120_000}
    return backend_view("slow", **(given | changes))


def full(**changes: Any) -> BackendView:
    """The fast one, all of whose credit is taken."""
    return fast(running=1, prefill_used=1024, **changes)


def paced(number: int = 1, **changes: Any) -> QueuedRequest:
    given = {"pace_us": PACE_US, "arrival_s": NOW_S, "ttft_deadline_s": NOW_S + 1.0}
    return waiting(number, f"t{number}", **(given | changes))


def scheduler(*requests: QueuedRequest, rights: bool = False) -> Scheduler:
    made = Scheduler(make_named("fifo", {}), make_routing("least_work"), rights=rights)
    for request in requests:
        made.offer(request, NOW_S)
    return made


def test_a_replica_keeps_a_promised_time_between_tokens_whose_mean_leaves_some_of_it():
    assert pace_us(Slo(tbt_s=0.1), 2) == round(KEEPS * 100_000)
    assert slow(token_us=80_000).keeps(PACE_US), "tiers that it can serve in time would wait for nothing"
    assert not slow(token_us=90_000).keeps(PACE_US), "answers differ from the mean: some would be late"
    assert pace_us(Slo(ttft_s=1.0), 2) == 0
    assert pace_us(Slo(tbt_s=0.1), 1) == 0, "there is nothing between the tokens of an answer of one"
    assert slow(token_us=PACE_US).keeps(PACE_US)
    assert not slow(token_us=PACE_US + 1).keeps(PACE_US)
    assert slow().keeps(0), "nothing was promised"
    assert fast().keeps(1), "it is no slower than others"


def test_it_goes_where_its_time_between_tokens_is_kept_however_much_there_is_to_do():
    assert choose_backend([fast(), slow()], Need(100, 100, pace_us=PACE_US)) == "fast"
    assert choose_backend([fast(), slow()], Need(100, 100)) == "slow", "to others it is as good"
    assert choose_backend([full(), slow()], Need(100, 100, pace_us=PACE_US)) == "slow", "of those with room"
    assert choose_backend([slow()], Need(100, 100, pace_us=PACE_US)) == "slow"


def test_an_owner_goes_beside_others_prompts_on_a_fast_replica_rather_than_to_a_slow_one():
    assert choose_backend([full(), slow()], Need(100, 100, owner=True, pace_us=PACE_US)) == "fast"
    taken = full(prefill_owned=1024)
    assert choose_backend([taken, slow()], Need(100, 100, owner=True, pace_us=PACE_US)) == "slow"


def test_it_waits_for_the_fast_one_and_others_pass_it_on_the_slow_one():
    mine, other = paced(1), waiting(2, "t2")
    made, view = scheduler(mine, other), pool_view(full(), slow())
    before = remember(view, made)
    grants = made.step(view, NOW_S)
    assert [(g.request.id, g.backend) for g in grants] == [(other.id, "slow")]
    until_s = pace_wait_until_s(mine, PER_S)
    assert dict(made.waits_for_replica) == {mine.id: until_s}
    holds = {"credit_holds": made.credit_holds, "waits_for_replica": made.waits_for_replica}
    assert check_step(before, grants, made, NOW_S, **holds) == []
    assert stuck(made, view) == 0, "nobody who arrives takes its place"
    assert made.waits_for_any == [], "no preemptible request ends for it"


def test_the_fast_one_takes_nothing_before_it():
    mine, small = paced(1, input_tokens=500), waiting(20, "t2", input_tokens=50)
    made, view = scheduler(mine, small), pool_view(full(prefill_owned=0), slow(running=4))
    view.backends["fast"].prefill_used = 900
    assert made.step(view, NOW_S) == [], "50 tokens would have fitted beside what it works on"
    assert made.credit_holds == {"fast": mine.id}
    view.backends["fast"] = fast()
    assert made.step(view, NOW_S + 0.1)[0].request.id == mine.id


def test_it_goes_to_the_slow_one_when_its_first_token_would_be_late_on_the_fast_one_too():
    mine = paced(input_tokens=2_000)
    made, view = scheduler(mine), pool_view(full(), slow())
    until_s = NOW_S + 1.0 - 2_000 / PER_S - GRANT_S
    assert made.step(view, until_s - 0.001) == []
    assert [g.backend for g in made.step(view, until_s)] == ["slow"]
    assert not made.waits_for_replica


def test_without_a_promised_first_token_it_waits_for_ten_seconds():
    assert pace_wait_until_s(paced(ttft_deadline_s=None), PER_S) == NOW_S + LONGEST_S


@pytest.mark.parametrize("due_s", [None, NOW_S + 60.0], ids=["no first token promised", "a late one"])
def test_it_goes_to_the_slow_one_before_its_time_in_the_queue_is_over(due_s: float | None):
    mine = paced(ttft_deadline_s=due_s, expires_s=NOW_S + 5.0)
    made, view = scheduler(mine), pool_view(full(), slow())
    assert made.step(view, NOW_S + 5.0 - BEFORE_EXPIRY_S - 0.01) == []
    assert [g.backend for g in made.step(view, NOW_S + 5.0 - BEFORE_EXPIRY_S)] == ["slow"]


def test_who_was_granted_waits_no_longer():
    made, view = scheduler(paced(1)), pool_view(fast(), slow())
    assert [g.backend for g in made.step(view, NOW_S)] == ["fast"]
    assert not made.waits_for_replica


def test_to_be_asked_whether_there_is_room_is_not_to_wait():
    mine = paced()
    holds = Holds()
    step = SchedulerStep(
        pool_view(full(), slow()), NOW_S, holds, {mine.id: mine}, patience_s=2.0, headroom=0, unreserved=frozenset(),
        rights=False, warmth=lambda _: None,
    )  # fmt: skip
    assert not step.has_room(mine)
    assert not holds.for_pace
    assert not step.fits(mine)
    assert list(holds.for_pace) == [mine.id]


def test_who_lacked_credit_longest_has_the_fast_one_kept_although_the_slow_one_has_room():
    first, mine = waiting(1, "t1", input_tokens=50), paced(2, input_tokens=500, rank=2)
    made, view = scheduler(first, mine), pool_view(fast(prefill_used=900), slow(running=4))
    made._holds.credit = Hold(mine.id, NOW_S - 10.0)  # others came first
    assert made.step(view, NOW_S) == []
    assert made.credit_holds == {"fast": mine.id}


def test_no_replica_is_kept_free_for_who_passes_over_one():
    mine, small = paced(1, ttft_deadline_s=NOW_S + 60.0), waiting(20, "t2")
    made, view = scheduler(mine), pool_view(fast(running=4, slots=4), slow())
    assert made.step(view, NOW_S) == []
    assert made.step(view, NOW_S + 5.0) == []
    made.offer(small, NOW_S + 5.0)
    assert [g.request.id for g in made.step(view, NOW_S + 5.0)] == [small.id]
    assert made.kv_hold is None


def test_no_slow_one_is_kept_for_who_waits_for_a_fast_one():
    first, mine = waiting(1, "t1", input_tokens=50), paced(2, input_tokens=500, rank=2)
    made, view = scheduler(first, mine), pool_view(fast(running=4), slow(prefill_used=900, work_tokens=9e9))
    made._holds.credit = Hold(mine.id, NOW_S - 10.0)
    assert [g.backend for g in made.step(view, NOW_S)] == ["slow"]
    assert made.credit_holds == {}


@pytest.mark.parametrize(
    "other",
    [full(token_us=110_000, speed=320), full(ready=False), full(longest=150)],
    ids=["is slow too", "is away", "takes no request as long"],
)
def test_it_waits_for_nobody_where_the_other_one(other: BackendView):
    made = scheduler(paced())
    assert [g.backend for g in made.step(pool_view(other, slow()), NOW_S)] == ["slow"]


def test_a_prompt_that_was_interrupted_goes_on_where_it_was():
    made = scheduler(paced(resumes_at="slow"))
    assert [g.backend for g in made.step(pool_view(full(), slow(resumes=True)), NOW_S)] == ["slow"]


ASK = Ask(kv=200, charge=0, body_bytes=200, prefill=100, pace_us=PACE_US)
ACME = entitlement(concurrency=3, tier=tier(service_class=ServiceClass.ELASTIC, queue_limit=2))


def arrives(spec: object = ACME, ask: Ask = ASK, **changes: Any) -> tuple[AdmissionAnswer, str]:
    given: dict[str, Any] = {
        "rebuilding_ms": 0, "backends": (full(), slow()), "waiting": 0, "able": 0, "due": 0, "stuck": 0,
        "waiting_bytes": 0, "ent_running": 0, "ent_waiting": 0, "ent_kv": 0, "level": 500.0, "service_ms": 4000.0,
        "ent_service_ms": 6000.0, "ent_stay_ms": 6000.0, "weight": 30.0,
    }  # fmt: skip
    pool = pool_spec(queue_limit=10, queue_bytes=10_000, threshold=0.0)
    decided = decide_admission(spec, pool, ask, AdmissionView(**(given | changes)), 5000)  # type: ignore[arg-type]
    return decided.verdict, decided.backend


def test_who_arrives_waits_for_a_fast_one_too():
    assert arrives()[0] is AdmissionAnswer.QUEUE
    assert arrives(backends=(fast(), slow())) == (AdmissionAnswer.GRANT, "fast")
    assert arrives(ask=replace(ASK, pace_us=0)) == (AdmissionAnswer.GRANT, "slow")
    assert arrives(decides=False) == (AdmissionAnswer.GRANT, "slow"), "nobody leads"
    assert arrives(backends=(slow(),)) == (AdmissionAnswer.GRANT, "slow")
    assert arrives(ask=replace(ASK, exclude_backend="fast")) == (AdmissionAnswer.GRANT, "slow"), "it failed there"
    assert arrives(ent_waiting=2)[0] is AdmissionAnswer.GRANT, "it may not wait"


@pytest.mark.parametrize("there", [{}, {"prefill_used": 1024, "running": 1}, {"running": 64}])
def test_nor_does_it_wait_for_what_a_slow_one_has_cached(there: dict[str, Any]):
    warmth = Warmth(98_304.0, "seed", {"slow": 10**6}, {}, {"slow": 900})
    mine = paced(input_tokens=1_000, prefixes="p", ttft_deadline_s=NOW_S + 5.0)
    holds = Holds()
    step = SchedulerStep(
        pool_view(fast(), slow(cache_trust=1000, slots=64, **there)), NOW_S, holds, {mine.id: mine}, patience_s=2.0,
        headroom=0, unreserved=frozenset(), rights=False, warmth=lambda _: warmth,
    )  # fmt: skip
    assert step.fits(mine)
    assert not holds.for_cache
    assert [b.id for b in step.candidates(mine)] == ["fast"]


def test_no_cache_on_a_slow_one_is_worth_a_late_answer():
    warmth = Warmth(98_304.0, "seed", {"slow": 10**6}, {}, {"slow": 5_000})
    there = slow(cache_trust=1000)
    assert choose_backend([fast(), there], Need(6_000, 5_100, warmth=warmth, pace_us=PACE_US)) == "fast"
    ask = replace(ASK, kv=6_000, prefill=5_100)
    assert arrives(ask=ask, backends=(fast(), there), warmth=warmth) == (AdmissionAnswer.GRANT, "fast")
