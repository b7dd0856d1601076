"""Admission: the rules of token pools 4.3, in their order, and how long each refusal says to wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.admission import AdmissionView, Ask, Verdict, choose_backend, decide_admission, refill
from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendView, EntitlementSpec, OverLimit, PoolSpec
from tests.state_world import entitlement, pool_spec, tier

B1 = BackendView("b1", slots=4, kv_tokens=1000)
ASK = Ask(kv=100, charge=150, body_bytes=200, weight=30.0)
POOL = pool_spec(queue_limit=10, queue_bytes=10_000, threshold=0.0)
ACME = entitlement(concurrency=3, tokens_per_s=50.0, burst_tokens=500.0, kv_tokens=400, tier=tier(queue_limit=2))


def view(**changes: Any) -> AdmissionView:
    given: dict[str, Any] = {
        "rebuilding_ms": 0, "backends": (B1,), "waiting": 0, "waiting_bytes": 0, "ent_running": 0, "ent_waiting": 0,
        "ent_kv": 0, "level": 500.0, "service_ms": 4000.0, "ent_service_ms": 6000.0,
    }  # fmt: skip
    return AdmissionView(**(given | changes))


def decide(
    v: AdmissionView, ask: Ask = ASK, spec: EntitlementSpec = ACME, pool: PoolSpec = POOL
) -> tuple[Verdict, Reason | None, int | None]:
    d = decide_admission(spec, pool, ask, v, 5000)
    return d.verdict, d.reason, d.retry_ms


FULL = dataclasses.replace(B1, running=4)


def test_a_free_slot_and_nobody_waiting_is_granted_on_that_replica():
    decision = decide_admission(ACME, POOL, ASK, view(), 5000)
    assert (decision.verdict, decision.backend) == (Verdict.GRANT, "b1")


@pytest.mark.parametrize(
    ("trouble", "reason", "retry_ms"),
    [
        ({"rebuilding_ms": 3100}, Reason.REBUILDING, 3100),
        ({"backends": ()}, Reason.NO_BACKEND, 5000),
        ({"ent_running": 2, "ent_waiting": 1}, Reason.CONCURRENCY, 2000),  # one of three slots each third of 6 s
        ({"level": 149.0}, Reason.TOKEN_BUDGET, 20),  # 1 token at 50 tokens/s
        ({"level": -850.0}, Reason.TOKEN_BUDGET, 20_000),
        ({"ent_kv": 301, "ent_running": 2}, Reason.KV_BUDGET, 3000),
        ({"ent_waiting": 2, "waiting": 2}, Reason.QUEUE_FULL, 4000),  # two before it through three lanes of 6 s
        ({"waiting": 10}, Reason.QUEUE_FULL, 10_000),  # ten before it through four slots of 4 s
        ({"waiting": 1, "waiting_bytes": 9801}, Reason.QUEUE_FULL, 1000),
    ],
)
def test_each_rule_refuses_with_its_reason_and_a_computed_time(trouble: dict[str, Any], reason: Reason, retry_ms: int):
    assert decide(view(**trouble)) == (Verdict.REFUSE, reason, retry_ms)


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
    assert decide(view(), dataclasses.replace(ASK, charge=501)) == (Verdict.REFUSE, Reason.TOKEN_BUDGET, None)
    assert decide(view(), dataclasses.replace(ASK, kv=401)) == (Verdict.REFUSE, Reason.KV_BUDGET, None)


def test_zero_means_that_no_budget_and_no_share_is_enforced():
    free = dataclasses.replace(ACME, tokens_per_s=0.0, burst_tokens=0.0, kv_tokens=0)
    ask = dataclasses.replace(ASK, charge=0, kv=900)
    assert decide(view(level=0.0, ent_kv=10**9), ask, free)[0] is Verdict.GRANT


def test_nobody_overtakes_those_who_wait_even_when_a_slot_is_free():
    assert decide(view(waiting=1))[0] is Verdict.QUEUE


def test_a_pool_is_contended_when_it_is_full_or_somebody_waits_and_only_then_weighs():
    pool = dataclasses.replace(POOL, threshold=31.0)
    assert decide(view(), pool=pool)[0] is Verdict.GRANT
    assert decide(view(backends=(FULL,)), pool=pool)[1] is Reason.LOW_PRIORITY
    assert decide(view(waiting=1), pool=pool)[1] is Reason.LOW_PRIORITY
    heavy = dataclasses.replace(ASK, weight=31.0)
    assert decide(view(waiting=1), heavy, pool=pool)[0] is Verdict.QUEUE


def test_a_tier_that_waits_queues_over_its_concurrency_until_its_queue_is_full():
    batch = dataclasses.replace(ACME, tier=tier(over_limit=OverLimit.WAIT, queue_limit=2))
    assert decide(view(ent_running=3), spec=batch)[0] is Verdict.QUEUE
    assert decide(view(ent_running=3, ent_waiting=2, waiting=2), spec=batch)[1] is Reason.QUEUE_FULL


def test_a_tier_with_no_queue_is_refused_instead_of_waiting():
    impatient = dataclasses.replace(ACME, tier=tier(queue_limit=0))
    assert decide(view(), spec=impatient)[0] is Verdict.GRANT
    assert decide(view(backends=(FULL,)), spec=impatient) == (Verdict.REFUSE, Reason.QUEUE_FULL, 2000)


def test_the_replica_with_least_work_is_chosen_then_fewest_running_then_by_name():
    backends = [
        BackendView("a", 4, 1000, running=2, kv_used=0, work_tokens=50),
        BackendView("c", 4, 1000, running=1, kv_used=0, work_tokens=50),
        BackendView("b", 4, 1000, running=1, kv_used=0, work_tokens=50),
        BackendView("busy", 4, 1000, running=0, kv_used=0, work_tokens=51),
        BackendView("full", 4, 1000, running=4, kv_used=0, work_tokens=0),
        BackendView("no kv", 4, 1000, running=0, kv_used=950, work_tokens=0),
    ]
    assert choose_backend(backends, 100, "") == "b"
    assert choose_backend(backends, 100, "b") == "c"
    assert choose_backend(backends[4:], 100, "") is None


@given(
    level=st.floats(-1e6, 1e6), rate=st.floats(0, 1e5), depth=st.floats(0, 1e6), at=st.integers(0, 10**9),
    passed=st.integers(-10_000, 10**7),
)  # fmt: skip
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
        assert decide(view(level=later))[0] is Verdict.GRANT
