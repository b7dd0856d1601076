"""Admission: the rules of token pools 4.3, in their order, and how long each refusal says to wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.admission.rule import (
    AdmissionAnswer,
    AdmissionView,
    Ask,
    MissedDeadline,
    PreemptibleLease,
    choose_victims,
    decide_admission,
    first_weight,
    missed_deadline,
    refill,
)
from scheduling.core.outcomes import Reason
from scheduling.core.placement.room import Need, choose_backend
from scheduling.core.rights import RIGHTS, able_to_run, cap_of
from scheduling.core.types import (
    BackendView,
    EntitlementSpec,
    EntitlementState,
    OverLimit,
    PoolSpec,
    ServiceClass,
    Slo,
)
from tests.support.state_world import entitlement, pool_spec, tier

B1 = BackendView("b1", slots=4, kv_tokens=1000)
ASK = Ask(kv=100, charge=150, body_bytes=200)
POOL = pool_spec(queue_limit=10, queue_bytes=10_000, threshold=0.0)
ACME = entitlement(
    concurrency=3,
    tokens_per_s=50.0,
    burst_tokens=500.0,
    kv_tokens=400,
    tier=tier(service_class=ServiceClass.SPOT, queue_limit=2),
)


def view(**changes: Any) -> AdmissionView:
    given: dict[str, Any] = {
        "rebuilding_ms": 0, "backends": (B1,), "waiting": 0, "able": changes.get("waiting", 0), "due": 0, "stuck": 0,
        "waiting_bytes": 0, "ent_running": 0, "ent_waiting": 0, "ent_kv": 0, "level": 500.0, "service_ms": 4000.0,
        "ent_service_ms": 6000.0, "ent_stay_ms": 6000.0, "weight": 30.0,
    }  # fmt: skip
    return AdmissionView(**(given | changes))


def of_class(service_class: ServiceClass, spec: EntitlementSpec | None = None, **changes: Any) -> EntitlementSpec:
    """ACME with another service class."""
    spec = spec or ACME
    return dataclasses.replace(spec, tier=dataclasses.replace(spec.tier, service_class=service_class, **changes))


def decide(
    v: AdmissionView, ask: Ask = ASK, spec: EntitlementSpec = ACME, pool: PoolSpec = POOL
) -> tuple[AdmissionAnswer, Reason | None, int | None]:
    d = decide_admission(spec, pool, ask, v, 5000)
    return d.verdict, d.reason, d.retry_ms


FULL = dataclasses.replace(B1, running=4)


def test_a_request_that_leaves_replicas_to_others_goes_to_the_rest_however_busy_or_is_refused():
    idle, busy = B1, dataclasses.replace(B1, id="b2", running=3, work_tokens=900)
    ask = dataclasses.replace(ASK, avoid=frozenset({"b1"}))
    assert decide_admission(ACME, POOL, ASK, view(backends=(idle, busy)), 5000).backend == "b1"
    assert decide_admission(ACME, POOL, ask, view(backends=(idle, busy)), 5000).backend == "b2"
    line = of_class(ServiceClass.PREEMPTIBLE, over_limit=OverLimit.REFUSE, queue_limit=0)
    full = dataclasses.replace(busy, running=4)
    assert decide(view(backends=(idle, full)), ask, line)[:2] == (AdmissionAnswer.REFUSE, Reason.QUEUE_FULL)


def test_a_free_slot_and_nobody_waiting_is_granted_on_that_replica():
    decision = decide_admission(ACME, POOL, ASK, view(), 5000)
    assert (decision.verdict, decision.backend) == (AdmissionAnswer.GRANT, "b1")


@pytest.mark.parametrize(
    ("trouble", "reason", "retry_ms"),
    [
        ({"rebuilding_ms": 3100}, Reason.REBUILDING, 3100),
        ({"backends": ()}, Reason.NO_BACKEND, 5000),
        (
            {"ent_running": 2, "ent_waiting": 1, "waiting": 4},
            Reason.CONCURRENCY,
            2000,
        ),  # one of three slots each third of 6 s
        ({"level": 149.0}, Reason.TOKEN_BUDGET, 1000),  # 1 token at 50 tokens/s: but nobody is told less than a second
        ({"level": -850.0}, Reason.TOKEN_BUDGET, 20_000),
        ({"ent_kv": 301, "ent_running": 2, "waiting": 4}, Reason.KV_BUDGET, 3000),
        ({"ent_waiting": 2, "waiting": 5}, Reason.QUEUE_FULL, 4000),  # two before it through three lanes of 6 s
        ({"waiting": 10}, Reason.QUEUE_FULL, 10_000),  # ten before it through four slots of 4 s
        ({"waiting": 1, "able": 4, "waiting_bytes": 9801}, Reason.QUEUE_FULL, 1000),
        ({"waiting": 10, "told_ms": 7000}, Reason.QUEUE_FULL, 17_000),  # after those who were told before it
    ],
)
def test_each_rule_refuses_with_its_reason_and_a_computed_time(trouble: dict[str, Any], reason: Reason, retry_ms: int):
    assert decide(view(**trouble)) == (AdmissionAnswer.REFUSE, reason, retry_ms)


def test_the_first_rule_that_fails_names_the_reason():
    """Each rule of the paper's order, with everything after it failing too."""
    all_wrong: dict[str, Any] = {
        "rebuilding_ms": 1, "backends": (), "ent_running": 3, "level": 0.0, "ent_kv": 400, "waiting": 10,
        "ent_waiting": 2,
    }  # fmt: skip
    mends = [
        ({}, Reason.REBUILDING),
        ({"rebuilding_ms": 0}, Reason.NO_BACKEND),
        ({"backends": (FULL,)}, Reason.CONCURRENCY),
        ({"ent_running": 0}, Reason.TOKEN_BUDGET),
        ({"level": 500.0}, Reason.KV_BUDGET),
        ({"ent_kv": 0}, Reason.LOW_PRIORITY),
    ]
    spec = dataclasses.replace(ACME, concurrency=3)
    pool = dataclasses.replace(POOL, threshold=31.0)
    state = dict(all_wrong)
    for mend, reason in mends:
        state |= mend
        if reason is not Reason.CONCURRENCY:
            state["ent_waiting"] = 2
        assert decide(view(**state), spec=spec, pool=pool)[1] is reason
    assert decide(view(**state), spec=spec)[1] is Reason.QUEUE_FULL


def test_waiting_cannot_help_a_request_that_is_larger_than_its_bucket_or_its_share():
    assert decide(view(), dataclasses.replace(ASK, charge=501)) == (AdmissionAnswer.REFUSE, Reason.TOKEN_BUDGET, None)
    assert decide(view(waiting=4), dataclasses.replace(ASK, kv=401)) == (AdmissionAnswer.REFUSE, Reason.KV_BUDGET, None)


def test_zero_means_that_no_budget_and_no_share_is_enforced():
    free = dataclasses.replace(ACME, tokens_per_s=0.0, burst_tokens=0.0, kv_tokens=0)
    ask = dataclasses.replace(ASK, charge=0, kv=900)
    assert decide(view(level=0.0, ent_kv=10**9), ask, free)[0] is AdmissionAnswer.GRANT


def test_no_arrival_overtakes_requests_that_wait_for_the_free_slots():
    assert decide(view(waiting=4))[0] is AdmissionAnswer.QUEUE
    assert (
        decide(view(waiting=4, able=3))[0] is AdmissionAnswer.GRANT
    )  # three of them, or who could use it, have theirs


def test_a_free_slot_is_not_withheld_for_requests_that_may_not_use_it():
    """A batch tenant that waits at its own limit does not make an idle pool contended."""
    assert decide(view(waiting=500, able=0))[0] is AdmissionAnswer.GRANT


def test_a_free_slot_is_not_withheld_for_requests_that_lack_only_kv_cache():
    assert decide(view(waiting=6, stuck=3))[0] is AdmissionAnswer.GRANT
    assert decide(view(waiting=6, stuck=2))[0] is AdmissionAnswer.QUEUE
    assert decide(view(waiting=1, stuck=9, backends=(dataclasses.replace(B1, running=4),)))[0] is AdmissionAnswer.QUEUE


CREDIT_SHORT = {"waiting": 9, "able": 9, "ent_running": 3}  # nine wait for prefill credit beside four free slots


@pytest.mark.parametrize(
    ("service_class", "state", "answer"),
    [
        (ServiceClass.ELASTIC, {}, AdmissionAnswer.QUEUE),
        (ServiceClass.DEDICATED, {}, AdmissionAnswer.QUEUE),
        (ServiceClass.GUARANTEED, {}, Reason.CONCURRENCY),
        (ServiceClass.SPOT, {}, Reason.CONCURRENCY),
        (ServiceClass.ELASTIC, {"due": 3}, AdmissionAnswer.QUEUE),
        (ServiceClass.ELASTIC, {"due": 4}, Reason.CONCURRENCY),
        (ServiceClass.ELASTIC, {"kept": 4}, Reason.CONCURRENCY),
        (ServiceClass.ELASTIC, {"able": 0, "waiting": 0}, AdmissionAnswer.GRANT),
    ],
)
def test_who_may_burst_is_not_refused_for_what_waits_for_prefill_credit(
    service_class: ServiceClass, state: dict[str, Any], answer: AdmissionAnswer | Reason
):
    """Where slots are left when everyone within its baseline has one, it waits its turn, and overtakes nobody."""
    verdict, reason, _ = decide(view(**CREDIT_SHORT | state), spec=of_class(service_class))
    assert (reason or verdict) == answer


def test_nothing_beyond_a_bucket_is_free_while_others_wait_for_prefill_credit():
    own = of_class(ServiceClass.DEDICATED)
    assert decide(view(**CREDIT_SHORT, level=100.0), spec=own)[1] is Reason.TOKEN_BUDGET


def test_a_pool_is_contended_when_nothing_is_left_for_this_request_and_only_then_weighs():
    pool = dataclasses.replace(POOL, threshold=31.0)
    assert decide(view(), pool=pool)[0] is AdmissionAnswer.GRANT
    assert decide(view(backends=(FULL,)), pool=pool)[1] is Reason.LOW_PRIORITY
    assert decide(view(waiting=4), pool=pool)[1] is Reason.LOW_PRIORITY
    assert decide(view(waiting=4, weight=31.0), pool=pool)[1] is Reason.LOW_PRIORITY  # it must exceed the threshold
    assert decide(view(waiting=4, weight=31.1), pool=pool)[0] is AdmissionAnswer.QUEUE


@pytest.mark.parametrize(
    ("weight", "lightest", "heaviest", "reason"),
    [
        (30.0, None, None, None),  # nobody else: the pool's own load is in its way
        (30.0, 30.0, 30.0, None),  # alone, or among equals: they wait for each other
        (30.0, 30.0, 80.0, Reason.LOW_PRIORITY),  # the lightest of several
        (20.0, 30.0, 30.0, Reason.LOW_PRIORITY),  # lighter than all
        (31.0, 30.0, 80.0, None),
        (90.0, 30.0, 80.0, None),
        (40.0, 30.0, 30.0, None),
    ],
)
def test_under_contention_the_lightest_is_refused_where_another_is_heavier(
    weight: float, lightest: float | None, heaviest: float | None, reason: Reason | None
):
    full = view(backends=(FULL,), weight=weight, lightest=lightest, heaviest=heaviest)
    assert decide(full)[1] is reason
    assert decide(view(weight=weight, lightest=lightest, heaviest=heaviest))[0] is AdmissionAnswer.GRANT
    patient = of_class(ServiceClass.SPOT, over_limit=OverLimit.WAIT)
    assert decide(full, spec=patient)[0] is AdmissionAnswer.QUEUE


D, G, E, S, P = ServiceClass
GRANT, QUEUE = AdmissionAnswer.GRANT, AdmissionAnswer.QUEUE
OVER = {"ent_running": 3}  # as many as r_e
POOR = {"level": 100.0}  # the bucket does not cover it
WIDE = {"ent_kv": 301}  # the KV share does not
BUSY = {"backends": (FULL,), "waiting": 12, "able": 12, "ent_waiting": 2, "lightest": 30.0, "heaviest": 900.0}


@pytest.mark.parametrize(
    ("what", "state", "answers"),
    [  #                           dedicated             guaranteed            elastic               spot, preemptible
        ("idle", {}, (GRANT, GRANT, GRANT, GRANT)),
        ("idle, over r_e", OVER, (GRANT, Reason.CONCURRENCY, GRANT, GRANT)),
        ("idle, over its bucket", POOR, (GRANT, Reason.TOKEN_BUDGET, Reason.TOKEN_BUDGET, Reason.TOKEN_BUDGET)),
        ("idle, over its KV share", WIDE, (GRANT, Reason.KV_BUDGET, GRANT, GRANT)),
        ("busy", BUSY, (QUEUE, QUEUE, Reason.LOW_PRIORITY, Reason.LOW_PRIORITY)),
        ("busy, heavier", BUSY | {"weight": 31.0}, (QUEUE, QUEUE, Reason.QUEUE_FULL, Reason.QUEUE_FULL)),
        (
            "busy, room in its queue",
            BUSY | {"weight": 31.0, "ent_waiting": 0, "waiting": 9, "able": 9},
            (QUEUE, QUEUE, QUEUE, QUEUE),
        ),
        ("busy, over r_e", BUSY | OVER, (Reason.CONCURRENCY,) * 4),
        ("busy, over its bucket", BUSY | POOR, (Reason.TOKEN_BUDGET,) * 4),
        ("busy, over its KV share", BUSY | WIDE, (Reason.KV_BUDGET,) * 4),
    ],
)
def test_what_each_class_may(what: str, state: dict[str, Any], answers: tuple[AdmissionAnswer | Reason, ...]):
    for service_class, expected in zip((D, G, E, S, P), (*answers, answers[3]), strict=True):
        verdict, reason, _ = decide(view(**state), spec=of_class(service_class))
        assert (reason or verdict) == expected, f"{service_class.value}, {what}"


def test_tokens_beyond_the_bucket_of_a_dedicated_owner_come_from_idle_capacity_and_are_not_charged():
    own = of_class(ServiceClass.DEDICATED)
    assert decide_admission(own, POOL, ASK, view(level=100.0), 5000).charge == 0
    assert decide_admission(own, POOL, ASK, view(level=150.0), 5000).charge == 150


@pytest.mark.parametrize("service_class", [D, G])
def test_reserved_capacity_is_never_refused_for_contention_whatever_queue_there_is(service_class: ServiceClass):
    no_queue = of_class(service_class, queue_limit=0)
    pool = dataclasses.replace(POOL, queue_limit=0, queue_bytes=0, threshold=1e9)
    assert decide(view(**(BUSY | {"ent_waiting": 0})), spec=no_queue, pool=pool)[0] is AdmissionAnswer.QUEUE


CHEAP = (PreemptibleLease("new", "b1", 100), PreemptibleLease("old", "b1", 400))


@pytest.mark.parametrize(
    ("service_class", "state", "evicted"),
    [
        (D, {}, ("new",)),
        (G, {}, ("new",)),
        (E, {}, ("new",)),
        (S, {}, ()),
        (P, {}, ()),
        (G, {"waiting": 2}, ("new",)),  # ahead of all that is not reserved
        (E, {"waiting": 2}, ()),  # others asked before; the leader decides who gets it
        (G, {"ent_running": 3}, ()),  # over its r_e it takes nobody's place
        (E, {"ent_running": 3}, ()),
    ],
)
def test_who_is_within_its_baseline_takes_the_slot_of_the_newest_preemptible_request(
    service_class: ServiceClass, state: dict[str, Any], evicted: tuple[str, ...]
):
    full = view(backends=(FULL,), preemptible=CHEAP, weight=40.0, lightest=0.1, heaviest=900.0, **state)
    decision = decide_admission(of_class(service_class), POOL, ASK, full, 5000)
    assert decision.evict == evicted
    assert (decision.verdict is AdmissionAnswer.GRANT) == bool(evicted)
    assert decision.backend == ("b1" if evicted else "")


def test_nobody_is_evicted_while_a_slot_is_free():
    assert decide_admission(of_class(G), POOL, ASK, view(preemptible=CHEAP), 5000).evict == ()


def test_as_many_are_evicted_on_one_replica_as_the_request_needs_kv_and_none_in_vain():
    tight = BackendView("b1", 4, 1000, running=3, kv_used=1000)
    other = BackendView("b2", 4, 1000, running=4, kv_used=1000)
    assert choose_victims(CHEAP, [tight], Need(100)) == ("b1", ("new",))
    assert choose_victims(CHEAP, [tight], Need(450)) == ("b1", ("new", "old"))
    assert choose_victims(CHEAP, [tight], Need(501)) is None
    assert choose_victims(CHEAP, [tight], Need(100, exclude="b1")) is None
    assert choose_victims(CHEAP, [other], Need(100)) is None
    mixed = (PreemptibleLease("x", "b2", 10), PreemptibleLease("y", "b1", 50), PreemptibleLease("z", "b2", 90))
    assert choose_victims(mixed, [tight, other], Need(100)) == ("b2", ("x", "z"))


def test_waiting_requests_count_as_able_up_to_what_their_entitlement_may_run():
    assert [able_to_run(5, run, 3) for run in (0, 2, 3, 4)] == [3, 1, 0, 0]
    assert able_to_run(5, 7, cap_of(ServiceClass.ELASTIC, 3)) == 5
    assert able_to_run(5, 2, cap_of(ServiceClass.GUARANTEED, 3)) == 1
    assert set(RIGHTS) == set(ServiceClass)


SPARING = dataclasses.replace(POOL, headroom_slots=2)
NO_KV = dataclasses.replace(ACME, kv_tokens=0, tokens_per_s=0.0)


@pytest.mark.parametrize("service_class", ServiceClass)
def test_headroom_is_for_those_within_a_baseline(service_class: ServiceClass):
    spec = of_class(service_class, NO_KV)
    two_free, three_free = (dataclasses.replace(B1, running=n) for n in (2, 1))
    based = RIGHTS[service_class].baseline
    for state in ({"ent_running": 2}, {"ent_running": 0, "able": 9}):
        found = decide(view(backends=(two_free,), **state), spec=spec, pool=SPARING)[0]
        assert (found is AdmissionAnswer.GRANT) == based, state
    assert decide(view(backends=(three_free,), ent_running=2), spec=spec, pool=SPARING)[0] is AdmissionAnswer.GRANT
    beyond = {"ent_running": spec.concurrency}
    for free, granted in ((two_free, False), (three_free, RIGHTS[service_class].bursts)):
        found = decide(view(backends=(free,), **beyond), spec=spec, pool=SPARING)[0]
        assert (found is AdmissionAnswer.GRANT) == granted, free


@pytest.mark.parametrize("service_class", [ServiceClass.GUARANTEED, ServiceClass.ELASTIC])
def test_headroom_goes_to_those_within_a_baseline_who_wait_already(service_class: ServiceClass):
    spec = of_class(service_class, NO_KV)
    two_free = view(backends=(dataclasses.replace(B1, running=2),), able=9, due=2)
    assert decide(two_free, spec=spec, pool=SPARING)[0] is AdmissionAnswer.QUEUE


def test_an_owner_of_reserved_capacity_goes_before_all_who_wait_for_the_surplus():
    three_wait = view(waiting=3, backends=(dataclasses.replace(B1, running=2),))
    assert decide(three_wait, spec=of_class(ServiceClass.GUARANTEED, NO_KV))[0] is AdmissionAnswer.GRANT
    assert decide(three_wait, spec=of_class(ServiceClass.ELASTIC, NO_KV))[0] is AdmissionAnswer.QUEUE
    owners_wait = dataclasses.replace(three_wait, due=2)
    assert decide(owners_wait, spec=of_class(ServiceClass.GUARANTEED, NO_KV))[0] is AdmissionAnswer.QUEUE


@pytest.mark.parametrize("service_class", [ServiceClass.DEDICATED, ServiceClass.GUARANTEED])
def test_a_promise_that_the_pool_cannot_keep_reserves_nothing(service_class: ServiceClass):
    bound = of_class(service_class, NO_KV)
    degraded = dataclasses.replace(bound, state=EntitlementState.DEGRADED)
    full = view(backends=(dataclasses.replace(B1, running=4),), lightest=1.0, heaviest=40.0, weight=1.0)
    assert decide(full, spec=bound)[0] is AdmissionAnswer.QUEUE
    assert decide(full, spec=degraded)[1] is Reason.LOW_PRIORITY
    assert decide(dataclasses.replace(full, weight=2.0), spec=degraded)[0] is AdmissionAnswer.QUEUE


def test_before_the_first_tick_a_weight_is_the_class_and_the_slo_where_a_mean_is_set():
    spec = entitlement(tier=tier(slo=Slo(ttft_s=0.5)))
    assert first_weight(spec, pool_spec(slo_mean_s=15.25)) == pytest.approx(93.85, abs=0.01)  # token pools 5.3
    assert first_weight(spec, pool_spec()) == pytest.approx(100 / 3)


def test_a_tier_that_waits_queues_over_its_concurrency_until_its_queue_is_full():
    batch = of_class(ServiceClass.SPOT, over_limit=OverLimit.WAIT)
    assert decide(view(ent_running=3, waiting=4), spec=batch)[0] is AdmissionAnswer.QUEUE
    assert decide(view(ent_running=3, ent_waiting=2, waiting=4), spec=batch)[1] is Reason.QUEUE_FULL


def test_a_tier_with_no_queue_is_refused_instead_of_waiting():
    impatient = of_class(ServiceClass.SPOT, queue_limit=0)
    assert decide(view(), spec=impatient)[0] is AdmissionAnswer.GRANT
    assert decide(view(backends=(FULL,)), spec=impatient) == (AdmissionAnswer.REFUSE, Reason.QUEUE_FULL, 2000)


def test_the_replica_with_least_work_is_chosen_then_fewest_running_then_by_name():
    backends = [
        BackendView("a", 4, 1000, running=2, kv_used=0, work_tokens=50),
        BackendView("c", 4, 1000, running=1, kv_used=0, work_tokens=50),
        BackendView("b", 4, 1000, running=1, kv_used=0, work_tokens=50),
        BackendView("busy", 4, 1000, running=0, kv_used=0, work_tokens=51),
        BackendView("full", 4, 1000, running=4, kv_used=0, work_tokens=0),
        BackendView("no kv", 4, 1000, running=0, kv_used=950, work_tokens=0),
    ]
    assert choose_backend(backends, Need(100)) == "b"
    assert choose_backend(backends, Need(100, exclude="b")) == "c"
    assert choose_backend(backends[4:], Need(100)) is None


@given(
    level=st.floats(-1e6, 1e6),
    rate=st.floats(0, 1e5),
    depth=st.floats(0, 1e6),
    at=st.integers(0, 10**9),
    passed=st.integers(-10_000, 10**7),
)
def test_a_bucket_never_holds_more_than_its_depth_nor_loses_by_time(
    level: float, rate: float, depth: float, at: int, passed: int
):
    level = min(level, depth)
    now = refill(level, at, rate, depth, at + passed)
    assert level <= now <= depth


def test_a_client_that_obeys_a_token_refusal_is_not_refused_again():
    for level in (0.0, 13.7, 149.999):
        _, reason, retry_ms = decide(view(level=level))
        assert reason is Reason.TOKEN_BUDGET
        assert retry_ms is not None
        later = refill(level, 0, ACME.tokens_per_s, ACME.burst_tokens, retry_ms)
        assert decide(view(level=later))[0] is AdmissionAnswer.GRANT


def test_an_owner_that_must_go_beside_others_prompts_goes_where_the_fewest_of_their_tokens_are_left():
    """What is before it in the engine decides when its own prompt begins; how much the replica has to do does not."""
    busy = BackendView(
        "a", slots=8, kv_tokens=90_000, work_tokens=40_000, prefill_credit=2048, prefill_used=600, running=5
    )
    idler = BackendView(
        "b", slots=8, kv_tokens=90_000, work_tokens=7_000, prefill_credit=2048, prefill_used=7_000, running=1
    )
    assert choose_backend((busy, idler), Need(100, 1_900, owner=True)) == "a"
    assert choose_backend((busy, idler), Need(100, 1_900)) is None
    free = dataclasses.replace(idler, prefill_used=0)
    assert choose_backend((busy, free), Need(100, 1_900, owner=True)) == "b", (
        "where nothing is before it, it does not wait"
    )
    held = dataclasses.replace(busy, prefill_owned=600)
    assert choose_backend((held, idler), Need(100, 1_900, owner=True)) == "b", "owners wait for each other"


def test_owners_are_let_in_beside_more_than_is_offered_and_nobody_else():
    """KV overcommit was taken back from a replica; what fits beside less than is offered is everybody's."""
    over = BackendView("b1", slots=4, kv_tokens=1_000, kv_used=1_001)
    assert (over.has_slot_and_kv(100), over.has_slot_and_kv(100, owner=True)) == (False, True)
    assert choose_backend((over,), Need(100, owner=True)) == "b1"
    free = dataclasses.replace(over, id="b2", kv_used=900)
    assert choose_backend((over, free), Need(100, owner=True)) == "b2"
    tight = dataclasses.replace(over, kv_used=950)
    assert tight.has_slot_and_kv(50)
    assert not tight.has_slot_and_kv(51)
    assert not tight.has_slot_and_kv(51, owner=True)
    assert not dataclasses.replace(over, running=over.slots).has_slot_and_kv(100, owner=True)


LATE = MissedDeadline("late", kv=100, body_bytes=200)
UNMETERED = dataclasses.replace(ACME, kv_tokens=0, tokens_per_s=0.0)


def test_who_is_over_its_limit_takes_the_place_of_a_request_whose_first_token_is_late():
    elastic = of_class(ServiceClass.ELASTIC, UNMETERED)
    full = view(backends=(FULL,), ent_running=2, ent_waiting=1, waiting=1)
    assert decide(full, spec=elastic)[:2] == (AdmissionAnswer.REFUSE, Reason.CONCURRENCY)
    refusal = decide_admission(elastic, POOL, ASK, full, 5000)
    taken = decide_admission(elastic, POOL, ASK, dataclasses.replace(full, missed=LATE), 5000)
    assert (taken.verdict, taken.supersedes, taken.reason) == (AdmissionAnswer.QUEUE, "late", Reason.SUPERSEDED)
    assert (taken.retry_ms, taken.told_ms) == (refusal.retry_ms, refusal.told_ms), "it is told what this one would be"


def test_who_may_burst_keeps_no_more_waiting_than_can_be_in_time():
    elastic = of_class(ServiceClass.ELASTIC, UNMETERED)
    waits = view(**CREDIT_SHORT, missed=LATE)
    taken = decide_admission(elastic, POOL, ASK, waits, 5000)
    assert (taken.verdict, taken.supersedes, taken.reason) == (AdmissionAnswer.QUEUE, "late", Reason.SUPERSEDED)
    idle = decide_admission(elastic, POOL, ASK, dataclasses.replace(waits, able=0), 5000)
    assert (idle.verdict, idle.supersedes) == (AdmissionAnswer.GRANT, "")
    patient = of_class(ServiceClass.ELASTIC, UNMETERED, over_limit=OverLimit.WAIT)
    assert decide_admission(patient, POOL, ASK, waits, 5000).supersedes == ""


@pytest.mark.parametrize(
    ("service_class", "state", "answer"),
    [
        (ServiceClass.ELASTIC, {"waiting": 16}, AdmissionAnswer.QUEUE),
        (ServiceClass.ELASTIC, {"waiting": 18}, Reason.QUEUE_FULL),
        (ServiceClass.ELASTIC, {"waiting": 16, "ent_running": 3}, Reason.CONCURRENCY),
        (ServiceClass.SPOT, {"waiting": 16}, Reason.QUEUE_FULL),
        (ServiceClass.ELASTIC, {"waiting": 1, "waiting_bytes": 11_050}, AdmissionAnswer.QUEUE),
        (ServiceClass.ELASTIC, {"waiting": 1, "waiting_bytes": 11_051}, Reason.QUEUE_FULL),
        (ServiceClass.SPOT, {"waiting": 1, "waiting_bytes": 11_050}, Reason.QUEUE_FULL),
    ],
)
def test_a_queue_that_others_have_filled_has_places_for_who_is_within_its_baseline(
    service_class: ServiceClass, state: dict[str, Any], answer: AdmissionAnswer | Reason
):
    """An eighth of its requests and of its bytes."""
    pool = dataclasses.replace(POOL, queue_limit=16)
    verdict, reason, _ = decide(view(backends=(FULL,), **state), spec=of_class(service_class, UNMETERED), pool=pool)
    assert (reason or verdict) == answer


def test_who_is_within_its_limit_supersedes_nobody():
    elastic = of_class(ServiceClass.ELASTIC, UNMETERED)
    waits = view(backends=(FULL,), ent_running=1, ent_waiting=1, waiting=1, missed=LATE)
    taken = decide_admission(elastic, POOL, ASK, waits, 5000)
    assert (taken.verdict, taken.supersedes) == (AdmissionAnswer.QUEUE, "")


def test_a_place_in_a_full_queue_of_its_own_is_taken_likewise():
    waiting = of_class(ServiceClass.ELASTIC, UNMETERED, over_limit=OverLimit.WAIT)
    full = view(backends=(FULL,), ent_running=3, ent_waiting=2, waiting=2)
    assert decide(full, spec=waiting)[:2] == (AdmissionAnswer.REFUSE, Reason.QUEUE_FULL)
    taken = decide_admission(waiting, POOL, ASK, dataclasses.replace(full, missed=LATE), 5000)
    assert (taken.verdict, taken.supersedes) == (AdmissionAnswer.QUEUE, "late")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"level": 0.0}, Reason.TOKEN_BUDGET),
        ({"ent_kv": 450}, Reason.KV_BUDGET),
        ({"weight": 1.0, "lightest": 1.0, "heaviest": 9.0}, Reason.LOW_PRIORITY),
        ({"waiting": 11}, Reason.QUEUE_FULL),
    ],
)
def test_its_other_limits_hold_for_who_would_take_a_place(state: dict[str, Any], reason: Reason):
    spec = of_class(ServiceClass.ELASTIC)
    given: dict[str, Any] = {"backends": (FULL,), "ent_running": 2, "ent_waiting": 1, "waiting": 1, "ent_kv": 300}
    assert decide_admission(spec, POOL, ASK, view(missed=LATE, **given), 5000).supersedes == "late"
    refused = decide_admission(spec, POOL, ASK, view(missed=LATE, **(given | state)), 5000)
    assert (refused.verdict, refused.reason, refused.supersedes) == (AdmissionAnswer.REFUSE, reason, "")


def test_only_requests_with_a_promise_that_is_broken_give_their_places_away():
    assert missed_deadline(9.999, 10_000)
    assert not missed_deadline(10.0, 10_000)
    assert not missed_deadline(None, 10_000)
