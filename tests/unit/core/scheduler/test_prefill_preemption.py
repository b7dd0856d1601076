"""Who may interrupt the prefill of a long prompt, and where that goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.placement.rule import read_points, write_points
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.prefill_preemption import (
    MAX_PREEMPTIONS,
    MIN_RUN_S,
    Claim,
    GrantedBeside,
    LongPrompt,
    Preemption,
    again_in_s,
    interrupted,
    preemptions,
)
from scheduling.core.types import LEAST_CREDITS, BackendView, Grant, PoolView, QueuedRequest, ServiceClass
from tests.support.scheduling_world import backend_view, ids, pool_view, waiting

NOW_S, CREDIT, TOKENS = 2000.0, 1024, 40_000


def replica(name: str = "b1", **changes: Any) -> BackendView:
    given = {"kv_tokens": 10**6, "prefill_credit": CREDIT, "prefill_used": TOKENS, "running": 1, "resumes": True}
    return backend_view(name, **(given | changes))


def urgent(number: int = 1, **changes: Any) -> QueuedRequest:
    return replace(waiting(number, "urgent", rank=0, input_tokens=300), **({"ttft_deadline_s": NOW_S + 1.0} | changes))


def long(number: int = 9, backend: str = "b1", ran_s: float = 2.0, **changes: Any) -> LongPrompt:
    request = replace(waiting(number, "batch", rank=2, input_tokens=TOKENS), **changes)
    return LongPrompt(request, backend, request.input_tokens, NOW_S - ran_s)


def by_rank(request: QueuedRequest, other: QueuedRequest) -> bool:
    return request.rank < other.rank


def found(claim: Claim, *prompts: LongPrompt, view: PoolView | None = None) -> list[Preemption]:
    return preemptions([claim], prompts, view or pool_view(replica()), NOW_S, by_rank)


def test_an_interactive_request_interrupts_a_long_prompt_of_a_worse_tier():
    view = pool_view(replica(prefill_used=30_000))
    (one,) = found(Claim(urgent()), long(), view=view)
    assert (one.prompt.request.id, one.computed, one.claimed_by) == (long().request.id, 10_000, urgent().id)


@pytest.mark.parametrize(
    ("claim", "prompt"),
    [
        (urgent(ttft_deadline_s=None), long()),
        (urgent(ttft_deadline_s=NOW_S - 0.1), long()),
        (urgent(rank=2), long()),
        (urgent(rank=3), long()),
        (urgent(input_tokens=TOKENS + 1), long()),
        (urgent(exclude_backend="b1"), long()),
        (urgent(resumes_at="b2"), long()),
        (urgent(kv_tokens=10**7), long()),
        (urgent(adapter="sql"), long()),
        (urgent(), long(ran_s=MIN_RUN_S - 0.1, preempted=1)),
        (urgent(), long(preempted=MAX_PREEMPTIONS)),
        (urgent(service_class=ServiceClass.ELASTIC), long(service_class=ServiceClass.GUARANTEED)),
        (urgent(), long(output_bound=0)),
        (urgent(), long(sequences=2)),
    ],
    ids=[
        "without a TTFT deadline", "that is late already", "of the same tier", "of a worse tier",
        "longer than what is left", "that failed there", "that resumes elsewhere", "without KV cache",
        "without its adapter",
        "a prompt that has just gone on", "a prompt that was interrupted often", "an owner's prompt, as no owner",
        "what only reads, and has vectors already", "one of several answers, which may have begun",
    ],
)  # fmt: skip
def test_nobody_interrupts(claim: QueuedRequest, prompt: LongPrompt):
    assert not found(Claim(claim), prompt)


@pytest.mark.parametrize(
    ("due_in_s", "interrupts"),
    [(None, False), (5.0, False), (4.1, False), (3.9, True), (-1.0, True)],
    ids=["promised nothing", "in time", "just in time", "too long for its promise", "late already"],
)
def test_a_prompt_of_the_same_tier_gives_way_only_if_its_first_token_is_late_in_any_case(
    due_in_s: float | None, interrupts: bool
):
    """What is left of it, 40,000 tokens, takes 4 s."""
    due_s = None if due_in_s is None else NOW_S + due_in_s
    view = pool_view(replica(prefill_per_s=10_000.0))
    same = long(rank=0, ttft_deadline_s=due_s)
    assert bool(preemptions([Claim(urgent())], [same], view, NOW_S, lambda mine, other: True)) is interrupts
    assert not found(Claim(urgent()), same, view=view), "the policy puts it first"


def test_a_prompt_of_a_better_tier_never_gives_way():
    late = long(rank=0, ttft_deadline_s=NOW_S - 1.0)
    assert not preemptions([Claim(urgent(rank=1))], [late], pool_view(replica()), NOW_S, lambda mine, other: True)


@pytest.mark.parametrize(
    "changes",
    [{"resumes": False}, {"prefill_credit": 0}, {"prefill_used": LEAST_CREDITS * CREDIT - 1}, {"running": 64}],
    ids=["an engine that forgets", "without credit", "little left", "no slot"],
)
def test_nobody_interrupts_on(changes: dict[str, Any]):
    assert not found(Claim(urgent()), long(), view=pool_view(replica(slots=64, **changes)))


def test_an_owner_interrupts_an_owner_of_a_worse_tier():
    claim = urgent(service_class=ServiceClass.GUARANTEED)
    assert found(Claim(claim), long(service_class=ServiceClass.GUARANTEED))
    assert found(Claim(claim), long())


@pytest.mark.parametrize(("per_s", "interrupts"), [(0.0, True), (10_000.0, True), (60_000.0, False)])
def test_who_is_in_time_behind_it_waits(per_s: float, interrupts: bool):
    """40,000 tokens take 4 or 0.67 s; how fast an engine is may not be known."""
    assert bool(found(Claim(urgent()), long(), view=pool_view(replica(prefill_per_s=per_s)))) is interrupts


def test_the_worst_tier_gives_way_first_then_the_prompt_of_which_most_is_left():
    view = pool_view(replica("b1", prefill_used=39_000), replica("b2", prefill_used=30_000), replica("b3"))
    standard, short, longest = long(1, "b3", rank=1), long(2, "b2"), long(3, "b1")
    assert found(Claim(urgent()), standard, short, longest, view=view)[0].prompt is longest
    assert found(Claim(urgent()), standard, short, view=view)[0].prompt is short
    assert found(Claim(urgent()), standard, view=view)[0].prompt is standard


def test_who_was_granted_beside_a_prompt_interrupts_that_one_only():
    view = pool_view(replica("b1"), replica("b2"))
    beside = Claim(urgent(), "b2")
    assert [one.prompt.backend for one in found(beside, long(1, "b1"), long(2, "b2"), view=view)] == ["b2"]
    assert not found(beside, long(1, "b1"), view=view)


def test_a_prompt_that_has_begun_this_moment_is_interrupted_as_nothing_is_lost():
    assert found(Claim(urgent()), long(ran_s=0.0))


def test_when_a_prompt_may_be_interrupted_again_is_known():
    gone_on = long(1, ran_s=0.2, preempted=1)
    assert again_in_s([long(2, ran_s=0.0), gone_on, long(3, preempted=2)], NOW_S) == pytest.approx(MIN_RUN_S - 0.2)
    assert again_in_s([long(2, ran_s=0.0), long(3, preempted=2)], NOW_S) == 0.0


def test_who_was_granted_beside_a_long_prompt_claims_its_place_until_its_first_token_or_its_deadline():
    owner = urgent(service_class=ServiceClass.GUARANTEED)

    def view(**changes: Any) -> PoolView:
        return pool_view(replica(prefill_owned=300, **changes), replica("b2", prefill_used=100))

    def claims(at: PoolView, now_s: float = NOW_S) -> list[Claim]:
        beside = GrantedBeside()
        beside.granted([Grant(owner, "b1", "owner"), Grant(urgent(2), "b2", "room")], view())
        assert beside
        found = beside.waiting(at, now_s)
        assert bool(beside) is bool(found), "what is over is forgotten"
        return found

    assert claims(view()) == claims(view(), NOW_S + 1.0) == [Claim(owner, "b1")]
    assert claims(view(), NOW_S + 1.1) == []
    assert claims(pool_view(replica(prefill_owned=0))) == []
    assert claims(view(prefill_used=1000)) == []
    assert claims(pool_view(replica("b2"))) == []


def test_a_prompt_gives_way_to_one_request_at_a_time():
    view = pool_view(replica("b1"), replica("b2"))
    claims = [Claim(urgent(1)), Claim(urgent(2)), Claim(urgent(3))]
    first, second = preemptions(claims, [long(8, "b1"), long(9, "b2")], view, NOW_S, by_rank)
    assert {first.prompt.backend, second.prompt.backend} == {"b1", "b2"}
    assert {first.claimed_by, second.claimed_by} == {urgent(1).id, urgent(2).id}


@pytest.mark.parametrize(("policy", "interrupts"), [("unified", True), ("priority", True), ("fifo", False)])
def test_nobody_interrupts_what_the_policy_has_first(policy: str, interrupts: bool):
    """By fifo the long prompt, which came before, goes first whatever its tier."""
    claims = [Claim(replace(urgent(), arrival_s=NOW_S - 0.1))]
    prompt = long(ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 600)
    goes_before = Scheduler(make_ordering(policy), make_routing("least_work")).goes_before
    assert bool(preemptions(claims, [prompt], pool_view(replica()), NOW_S, goes_before)) is interrupts


def test_an_interrupted_request_knows_where_it_resumes_and_how_far_it_is():
    points = [("0" * 12, 10_000), ("1" * 12, 20_000), ("2" * 12, 40_000)]
    request = replace(long().request, prefixes=write_points(500, points, goes_on=False), uncounted_tokens=5)
    again = interrupted(request, "b1", 25_000)
    assert (again.resumes_at, again.prefilled, again.preempted, again.uncounted_tokens) == ("b1", 25_000, 1, 0)
    skew, kept = read_points(again.prefixes)
    assert kept == points[:2], "of the rest nothing is computed"
    assert skew & 1, "it is worth as much as before"
    assert interrupted(again, "b1", TOKENS).prefilled == TOKENS - 1
    assert interrupted(again, "b1", 0).prefixes == ""


# --- where it resumes


def scheduler(*requests: QueuedRequest) -> Scheduler:
    made = Scheduler(make_ordering("priority"), make_routing("least_work"))
    for request in requests:
        made.offer(request, request.arrival_s)
    return made


def resumed(**changes: Any) -> QueuedRequest:
    return replace(interrupted(long().request, "b1", 25_000), **changes)


def idle(name: str, **changes: Any) -> BackendView:
    return replica(name, **({"prefill_used": 0, "running": 0} | changes))


def test_it_resumes_on_the_replica_that_has_begun_it_although_another_is_idle():
    made = scheduler(resumed())
    assert not made.step(pool_view(replica("b1", prefill_used=500, work_tokens=10**6), idle("b2")), NOW_S)
    (grant,) = made.step(pool_view(idle("b1", work_tokens=10**6), idle("b2")), NOW_S)
    assert grant.backend == "b1"


def test_another_request_may_have_the_idle_replica_meanwhile():
    made = scheduler(resumed(rank=0), urgent(1, rank=1))
    grants = made.step(pool_view(replica("b1", prefill_used=500), idle("b2")), NOW_S)
    assert [(ids([g.request]), g.backend) for g in grants] == [([urgent(1).id], "b2")]
    assert dict(made.credit_holds) == {"b1": resumed().id}, "its own is kept for it"


@pytest.mark.parametrize(
    "first",
    [[], [idle("b1", ready=False)], [idle("b1", slots=0)], [idle("b1", kv_tokens=100)], [idle("b1", longest=100)]],
    ids=["gone", "ill", "paused", "with less KV cache than it needs", "with a bound below it"],
)
def test_it_starts_again_anywhere_if_that_replica_cannot_go_on_with_it(first: list[BackendView]):
    (grant,) = scheduler(resumed()).step(pool_view(*first, idle("b2")), NOW_S)
    assert grant.backend == "b2"


def test_it_starts_again_anywhere_if_that_replica_has_lost_its_adapter():
    (grant,) = scheduler(resumed(adapter="sql")).step(pool_view(idle("b1"), idle("b2", adapters={"sql"})), NOW_S)
    assert grant.backend == "b2"


def test_who_comes_behind_others_of_its_entitlement_is_not_held_up() -> None:
    """To keep its place within its entitlement's concurrency those would be passed one by one, up to a bound."""
    again = resumed(concurrency=2, service_class=ServiceClass.GUARANTEED)
    behind = [waiting(n, "batch", rank=2, concurrency=2) for n in range(20, 120)]
    made = scheduler(again, *behind, waiting(200, "another", rank=2))
    view = pool_view(replica("b1", prefill_used=500), idle("b2", prefill_credit=0), running={"batch": 1})
    assert [g.request.id for g in made.step(view, NOW_S)] == [behind[0].id, waiting(200).id]


def test_no_law_is_broken_while_it_waits_for_its_replica():
    made = scheduler(resumed())
    view = pool_view(replica("b1", prefill_used=500), idle("b2"))
    before = remember(view, made)
    assert not made.step(view, NOW_S)
    assert check_step(before, [], made, NOW_S, credit_holds=made.credit_holds) == []
    assert check_step(remember(pool_view(idle("b1"), idle("b2")), made), [], made, NOW_S), "it has room there"


def test_it_starts_again_anywhere_if_that_replica_failed_it():
    (grant,) = scheduler(resumed(exclude_backend="b1")).step(pool_view(idle("b1"), idle("b2")), NOW_S)
    assert grant.backend == "b2"


def test_kv_cache_is_kept_for_it_on_that_replica_only():
    made = scheduler(resumed())
    full = {"kv_used": 10**6, "kv_tokens": 10**6}
    for at_s in (0.0, 3.0):
        made.offer(urgent(4, kv_tokens=10), NOW_S)
        grants = made.step(pool_view(idle("b1", **full), idle("b2")), NOW_S + at_s)
        assert [(ids([g.request]), g.backend) for g in grants] == [([urgent(4).id], "b2")]
    assert made.kv_hold == resumed().id
