"""Prefill credit in the core: one rule for room, kept by every policy; who waits for it is neither passed nor lost."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.admission.rule import (
    AdmissionAnswer,
    AdmissionDecision,
    AdmissionView,
    Ask,
    PreemptibleLease,
    decide_admission,
)
from scheduling.core.placement.room import Need, choose_backend, with_room
from scheduling.core.policies.registry import make_ordering, make_routing, orderings
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.preview import copy_of, preview
from scheduling.core.scheduler.stuck import stuck
from scheduling.core.types import BackendView, EntitlementSpec, PoolView, QueuedRequest, ServiceClass, prefill_fits
from scheduling.simulator.room import first_token, take
from tests.support.scheduling_world import backend_view, crowd, ids, pool_view, waiting
from tests.support.state_world import entitlement, pool_spec, tier

every_policy = pytest.mark.parametrize("name", sorted(orderings()))


def make(name: str = "fifo", **changes: Any) -> Scheduler:
    return Scheduler(make_ordering(name), make_routing("least_work"), max_grants=8, **changes)


def prompt(number: int, tokens: int, entitlement: str = "acme", rank: int = 1, **changes: object) -> QueuedRequest:
    return waiting(number, entitlement, rank, input_tokens=tokens, kv_tokens=tokens + 100, **changes)


def granted(scheduler: Scheduler, view: PoolView, now_s: float = 2000.0) -> list[tuple[str, str]]:
    before = remember(view, scheduler)
    grants = scheduler.step(view, now_s)
    holds = {"kv_hold": scheduler.kv_hold is not None, "credit_holds": scheduler.credit_holds}
    assert check_step(before, grants, scheduler, now_s, max_grants=8, **holds) == []
    return [(g.request.id[-1], g.backend) for g in grants]


@pytest.mark.parametrize(
    ("credit", "used", "need", "fits"),
    [
        (0, 10**9, 10**9, True),  # no bound
        (2048, 0, 2048, True),
        (2048, 0, 9000, True),  # above the credit: alone
        (2048, 1, 9000, False),
        (2048, 1024, 1024, True),
        (2048, 1025, 1024, False),
        (2048, 9000, 0, False),
    ],
)
def test_there_is_one_rule_for_prefill_room(credit: int, used: int, need: int, fits: bool):
    assert prefill_fits(credit, used, need) is fits
    backend = backend_view(prefill_credit=credit, prefill_used=used)
    assert backend.room_for(0, need) is fits
    router = make_routing("least_work").router()
    assert (router.choose(waiting(1, input_tokens=need, kv_tokens=0), [backend]) is backend) is fits


def test_what_is_granted_takes_credit_until_it_is_given_back():
    scheduler = make()
    for n in (1, 2, 3):
        scheduler.offer(prompt(n, 900), 2000.0)
    view = pool_view(backend_view(prefill_credit=2048))
    assert granted(scheduler, view) == [("1", "b1"), ("2", "b1")]
    assert view.backends["b1"].prefill_used == 1800
    assert granted(scheduler, view) == []
    view.backends["b1"].prefill_used -= 900
    assert granted(scheduler, view) == [("3", "b1")]


def test_a_small_prompt_does_not_pass_one_that_lacks_only_credit():
    scheduler = make()
    scheduler.offer(prompt(1, 1500), 2000.0)
    scheduler.offer(prompt(2, 100), 2000.0)
    view = pool_view(backend_view(prefill_credit=2048, prefill_used=1000, running=1))
    assert granted(scheduler, view) == []
    assert scheduler.credit_holds == {"b1": "req_000001"}
    assert stuck(scheduler, view) == 0  # arrivals do not pass it either
    view.backends["b1"].prefill_used = 0
    assert granted(scheduler, view) == [("1", "b1"), ("2", "b1")]
    assert scheduler.credit_holds == {}


def test_other_replicas_serve_on_while_one_is_kept_for_a_prompt():
    scheduler = make()
    scheduler.offer(prompt(1, 1500), 2000.0)
    scheduler.offer(prompt(2, 100), 2000.0)
    scheduler.offer(prompt(3, 2000), 2000.0)
    scheduler.offer(prompt(4, 10), 2000.0)
    near = backend_view("b1", prefill_credit=2048, prefill_used=900, running=1)
    far = backend_view("b2", prefill_credit=2048, prefill_used=1900, running=1)
    assert granted(scheduler, pool_view(near, far)) == [("2", "b2")]
    assert scheduler.credit_holds == {"b1": "req_000001", "b2": "req_000003"}


def test_who_lacks_kv_cache_as_well_keeps_no_replica_from_others():
    scheduler = make()
    scheduler.offer(prompt(1, 1500), 2000.0)
    scheduler.offer(prompt(2, 100), 2000.0)
    view = pool_view(backend_view(kv_tokens=3000, kv_used=2000, prefill_credit=2048, prefill_used=1000, running=1))
    assert granted(scheduler, view) == [("2", "b1")]
    assert scheduler.credit_holds == {}


def test_the_policys_first_takes_the_credit_that_another_waits_for():
    scheduler = make("priority")
    scheduler.offer(prompt(1, 1500, "batch", 2), 2000.0)
    view = pool_view(backend_view(prefill_credit=2048, prefill_used=1000, running=1))
    assert granted(scheduler, view) == []
    scheduler.offer(prompt(2, 500, "vip", 0), 2000.0)
    assert granted(scheduler, view) == [("2", "b1")]


@every_policy
@pytest.mark.parametrize("seed", range(3))
def test_laws_hold_with_credit_and_everything_runs_in_the_end(name: str, seed: int):
    rng = random.Random(seed)
    scheduler = make(name, patience_s=3.0)
    view = pool_view(
        *(backend_view(f"b{n}", slots=8, kv_tokens=9000, prefill_credit=(1024, 400, 0)[n]) for n in range(3))
    )
    arrivals = [replace(r, concurrency=5, exclude_backend=rng.choice(("", "", "b1"))) for r in crowd(seed, 150)]
    count = len(arrivals)
    prefilling: list[tuple[QueuedRequest, str]] = []
    running: list[tuple[QueuedRequest, str]] = []
    done, now_s = 0, 1000.0
    while arrivals or len(scheduler) or running or prefilling:
        now_s += rng.uniform(0.1, 2.0)
        assert now_s < 20_000, f"{len(scheduler)} wait for ever"
        while arrivals and arrivals[0].arrival_s <= now_s:
            scheduler.offer(arrivals.pop(0), now_s)
        rng.shuffle(running)
        for request, where in [running.pop() for _ in range(min(len(running), rng.randrange(4)))]:
            backend = view.backends[where]
            backend.running -= 1
            backend.kv_used -= request.kv_tokens
            view.running_by_entitlement[request.entitlement] -= 1
            done += 1
        for request, where in [prefilling.pop(0) for _ in range(min(len(prefilling), rng.randrange(3)))]:
            first_token(view, request, where)
            running.append((request, where))
        view.backends["b2"].ready = rng.random() < 0.5
        before = remember(view, scheduler)
        grants = scheduler.step(view, now_s)
        holds = {"kv_hold": scheduler.kv_hold is not None, "credit_holds": scheduler.credit_holds}
        assert check_step(before, grants, scheduler, now_s, max_grants=8, **holds) == []
        prefilling += [(g.request, g.backend) for g in grants]
    assert done == count
    assert all((b.prefill_used, b.prefill_owned) == (0, 0) for b in view.backends.values())


def large_ran_after(name: str, credits: tuple[int, ...], large: int, scheduler: Scheduler) -> int | None:
    """After how many steps a large prompt runs beside an endless flood of small ones that came later."""
    view = pool_view(*(backend_view(f"b{n}", 64, 10**6, prefill_credit=c) for n, c in enumerate(credits)))
    small: list[tuple[QueuedRequest, BackendView]] = []
    number = 100

    def flood(now_s: float) -> None:
        nonlocal number
        while len(scheduler) < 20:
            number += 1
            scheduler.offer(prompt(number, 150 + number % 7 * 40, "small", arrival_s=now_s), now_s)

    for step in range(200):
        now_s = 2000.0 + step * 0.1
        flood(now_s)
        if step == 3:
            scheduler.offer(prompt(1, large, "large", arrival_s=now_s - 0.2), now_s)
        for grant in scheduler.step(view, now_s):
            if grant.request.entitlement == "large":
                return step
            small.append((grant.request, view.backends[grant.backend]))
        if small:  # one first token a step
            request, backend = small.pop(0)
            backend.prefill_used -= request.prefill_tokens
            backend.running -= 1
            backend.kv_used -= request.kv_tokens
            view.running_by_entitlement["small"] -= 1
    return None


@pytest.mark.parametrize("credits", [(1024,), (1024, 600), (1024, 1024, 1024)])
@pytest.mark.parametrize("large", [900, 5000])
@pytest.mark.parametrize("name", ["fifo", "priority", "edf", "weighted"])
def test_a_large_prompt_outlives_a_flood_of_small_ones(name: str, credits: tuple[int, ...], large: int):
    assert large_ran_after(name, credits, large, make(name)) is not None


def test_without_keeping_a_replica_the_large_prompt_would_starve(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "scheduling.core.scheduler.loop.SchedulerStep._wants_credit_only", lambda self, request, able: True
    )
    assert large_ran_after("fifo", (1024,), 5000, make()) is None


def test_a_preview_waits_for_credit_as_decisions_do():
    scheduler = make()
    for n in (1, 2, 3):
        scheduler.offer(prompt(n, 2000), 2000.0)
    view = pool_view(backend_view(slots=10, prefill_credit=2048, prefill_per_s=1000.0))
    shown = preview(copy_of(scheduler, 2000.0), view, 2000.0, 10, 60.0)
    assert [(p.request.id[-1], p.start_s) for p in shown.planned] == [("1", 2000.0), ("2", 2002.0), ("3", 2004.0)]
    assert ids(scheduler) == ["req_000001", "req_000002", "req_000003"]


STANDARD, GOLD = entitlement("standard", concurrency=4), entitlement(
    "gold", concurrency=4, tier=tier(service_class=ServiceClass.GUARANTEED)
)  # fmt: skip
BUSY = backend_view("b1", prefill_credit=1000, prefill_used=900, running=1)
PREEMPTIBLE = [PreemptibleLease("cheap", "b1", 100, prefill=900)]


def admitted(backend: BackendView, need: int, spec: EntitlementSpec = STANDARD, **facts: object) -> AdmissionDecision:
    known: dict[str, object] = {
        "rebuilding_ms": 0, "backends": (backend,), "waiting": 0, "able": 0, "due": 0, "stuck": 0, "waiting_bytes": 0,
        "ent_running": 0, "ent_waiting": 0, "ent_kv": 0, "level": 0.0, "service_ms": 1.0, "ent_service_ms": 1.0,
        "ent_stay_ms": 1.0, "weight": 1.0, "lightest": 1.0, "heaviest": 9.0, "preemptible": PREEMPTIBLE,
    }  # fmt: skip
    ask = Ask(kv=need, charge=0, body_bytes=10, prefill=need)
    return decide_admission(spec, pool_spec(backends=()), ask, AdmissionView(**(known | facts)), 1000)  # type: ignore[arg-type]


def test_an_arrival_is_granted_within_the_credit_and_waits_beyond_it():
    assert admitted(BUSY, 100) == AdmissionDecision(AdmissionAnswer.GRANT, backend="b1")
    assert admitted(BUSY, 101) == AdmissionDecision(
        AdmissionAnswer.QUEUE
    )  # the lightest of several: yet it is not refused


def test_an_arrival_takes_no_credit_before_waiting_requests():
    assert admitted(BUSY, 100, able=1, waiting=1).verdict is AdmissionAnswer.QUEUE
    assert admitted(BUSY, 100, able=1, waiting=1, stuck=1).verdict is AdmissionAnswer.GRANT
    assert admitted(replace(BUSY, prefill_credit=0), 100, able=1, waiting=1).verdict is AdmissionAnswer.GRANT


def test_nobody_is_evicted_for_want_of_credit_alone():
    owned = replace(BUSY, prefill_owned=900)
    assert admitted(owned, 1200, GOLD) == AdmissionDecision(AdmissionAnswer.QUEUE)
    full = replace(owned, slots=1)
    assert admitted(full, 1200, GOLD) == AdmissionDecision(AdmissionAnswer.GRANT, backend="b1", evict=("cheap",))
    begun = PreemptibleLease("cheap", "b1", 100)  # it has had its first token
    assert admitted(full, 1200, GOLD, preemptible=[begun]).evict == ()


def test_owners_within_what_is_theirs_have_a_credit_that_others_do_not_fill():
    assert BUSY.room_for(0, 5000, owner=True)  # alone among owners' prompts, so it may be longer than the credit
    assert not BUSY.room_for(0, 101)
    owned = replace(BUSY, prefill_used=1500, prefill_owned=600)
    assert owned.room_for(0, 400, owner=True)
    assert not owned.room_for(0, 401, owner=True)
    assert admitted(BUSY, 5000, GOLD) == AdmissionDecision(AdmissionAnswer.GRANT, backend="b1")
    assert admitted(owned, 401, GOLD).verdict is AdmissionAnswer.QUEUE
    assert admitted(BUSY, 5000, GOLD, ent_running=3, ent_waiting=1, due=1, able=1).verdict is not AdmissionAnswer.GRANT


def test_an_owner_goes_beside_others_prompts_only_where_no_replica_has_room_without_that():
    busy = replace(BUSY, work_tokens=10.0)
    idle = replace(BUSY, id="b2", prefill_used=0, work_tokens=9_000.0)
    assert [b.id for b in with_room([busy, idle], Need(0, 500, owner=True))] == ["b2"]
    assert [b.id for b in with_room([busy, replace(idle, running=idle.slots)], Need(0, 500, owner=True))] == ["b1"]
    assert choose_backend([busy, idle], Need(0, 500, owner=True)) == "b2"
    scheduler = make("fifo", rights=True)
    scheduler.offer(prompt(1, 500, "gold", service_class=ServiceClass.GUARANTEED, concurrency=2), 2000.0)
    assert [g.backend for g in scheduler.step(pool_view(busy, idle), 2000.0)] == ["b2"]


def test_what_owners_hold_of_a_credit_is_booked_and_given_back():
    view = pool_view(replace(BUSY, slots=9, prefill_owned=300))
    gold = prompt(1, 500, "gold", service_class=ServiceClass.GUARANTEED, concurrency=2)
    spot = prompt(2, 500, "spot", service_class=ServiceClass.SPOT, concurrency=2)
    for request in (gold, spot):
        take(view, request, "b1")
    held = view.backends["b1"]
    assert (held.prefill_used, held.prefill_owned) == (1900, 800)
    for request in (gold, spot):
        first_token(view, request, "b1")
    assert (held.prefill_used, held.prefill_owned) == (900, 300)


@every_policy
def test_an_owners_prompt_that_waits_is_granted_beside_a_neighbours(name: str):
    scheduler = make(name, rights=True)
    scheduler.offer(prompt(1, 200, "noisy", service_class=ServiceClass.SPOT, concurrency=9), 2000.0)
    scheduler.offer(prompt(2, 1100, "gold", service_class=ServiceClass.GUARANTEED, concurrency=2), 2000.0)
    view = pool_view(replace(BUSY, slots=9))
    before = remember(view, scheduler)
    grants = scheduler.step(view, 2000.0)
    assert [g.request.entitlement for g in grants] == ["gold"]
    assert check_step(before, grants, scheduler, 2000.0, credit_holds=scheduler.credit_holds, rights=True) == []
    degraded = check_step(
        before, grants, scheduler, 2000.0, credit_holds=scheduler.credit_holds, rights=True, unreserved={"gold"}
    )
    assert [v.law for v in degraded] == [8]
