"""Each law is able to fail: a checker that never complains proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.scheduler.invariants import LAWS, check_step, remember
from scheduling.core.types import BackendView, Grant, PoolView, QueuedRequest, ServiceClass
from tests.support.scheduling_world import backend_view, pool_view, waiting

ONE = waiting(1)


def broken(view: PoolView, before: list[QueuedRequest], grants: list[Grant], after: list[QueuedRequest], **more) -> set:
    return {v.law for v in check_step(remember(view, before), grants, after, 2000.0, **more)}


def test_a_right_step_breaks_no_law():
    assert broken(pool_view(backend_view()), [ONE], [Grant(ONE, "b1", "")], []) == set()


@pytest.mark.parametrize(
    ("law", "view", "grants", "after"),
    [
        (1, pool_view(backend_view(slots=1, running=1)), [Grant(ONE, "b1", "")], []),
        (1, pool_view(backend_view(ready=False)), [Grant(ONE, "b1", "")], []),
        (1, pool_view(backend_view()), [Grant(ONE, "nowhere", "")], []),
        (2, pool_view(backend_view(kv_tokens=199)), [Grant(ONE, "b1", "")], []),
        (3, pool_view(backend_view(), running={"acme": 1000}), [Grant(ONE, "b1", "")], []),
        (4, pool_view(backend_view()), [], [ONE]),
        (5, pool_view(backend_view()), [Grant(waiting(1, expires_s=1999.0), "b1", "")], []),
        (6, pool_view(backend_view()), [Grant(ONE, "b1", ""), Grant(ONE, "b1", "")], []),
        (6, pool_view(backend_view()), [Grant(ONE, "b1", ""), Grant(waiting(2), "b1", "")], []),
        (7, pool_view(backend_view()), [], []),
        (8, pool_view(backend_view(prefill_credit=500, prefill_used=401)), [Grant(ONE, "b1", "")], []),
    ],
)
def test_a_wrong_step_breaks_its_law(law: int, view: PoolView, grants: list[Grant], after: list[QueuedRequest]):
    assert broken(view, [ONE], grants, after) == {law}


def test_who_was_promised_a_pace_gets_no_slow_replica_while_it_may_wait_for_a_fast_one():
    slow, fast = backend_view("slow", token_us=120_000), backend_view("fast", running=4)
    mine = waiting(1, pace_us=85_000, ttft_deadline_s=2010.0)

    def laws(request: QueuedRequest, *backends: BackendView) -> set:
        return broken(pool_view(*backends), [request], [Grant(request, "slow", "")], [])

    assert laws(mine, slow, fast) == {11}
    assert laws(replace(mine, exclude_backend="slow"), slow, fast) == {11}
    assert laws(replace(mine, ttft_deadline_s=2000.0), slow, fast) == set(), "it would be late there, too"
    assert laws(replace(mine, ttft_deadline_s=None, arrival_s=1980.0), slow, fast) == set(), "it has waited for long"
    assert laws(replace(mine, expires_s=2000.1), slow, fast) == set(), "it would be refused"
    assert laws(replace(mine, pace_us=0), slow, fast) == set(), "nothing was promised"
    assert laws(replace(mine, pace_us=120_000), slow, fast) == set(), "it keeps that"
    assert laws(replace(mine, exclude_backend="fast"), slow, fast) == set(), "it failed there"
    assert laws(replace(mine, resumes_at="slow"), replace(slow, resumes=True), fast) == set(), "it goes on there"
    for other in (replace(fast, ready=False), replace(fast, longest=100), replace(fast, token_us=110_000)):
        assert laws(mine, slow, other) == set(), "no other one is of use"


def test_the_headroom_is_granted_only_within_a_baseline():
    spot = replace(ONE, service_class=ServiceClass.SPOT)
    beyond = replace(ONE, concurrency=1)
    full = pool_view(backend_view(slots=2), running={ONE.entitlement: 1})

    def laws(request: QueuedRequest, headroom: int) -> set:
        return broken(full, [request], [Grant(request, "b1", "")], [], rights=True, headroom=headroom)

    assert laws(spot, 2) == laws(beyond, 2) == {12}
    assert laws(spot, 1) == laws(beyond, 1) == laws(replace(ONE, concurrency=2), 2) == set()


def test_work_conservation_rests_while_the_bound_is_reached_or_a_replica_is_kept_free():
    view = pool_view(backend_view())
    assert broken(view, [ONE, waiting(2)], [Grant(ONE, "b1", "")], [waiting(2)], max_grants=1) == set()
    assert broken(view, [ONE], [], [ONE], kv_hold=True) == set()


def test_a_replica_is_kept_for_a_prompt_only_while_that_lacks_nothing_but_credit():
    lacking = pool_view(backend_view(prefill_credit=500, prefill_used=450))
    assert broken(lacking, [ONE], [], [ONE], credit_holds={"b1": ONE.id}) == set()
    assert broken(pool_view(backend_view()), [ONE], [], [ONE], credit_holds={"b1": ONE.id}) == {9}
    assert broken(lacking, [ONE], [], [ONE], credit_holds={"b1": "req_000007"}) == {9}
    full = pool_view(backend_view(slots=1, running=1, prefill_credit=500, prefill_used=450))
    assert broken(full, [ONE], [], [ONE], credit_holds={"b1": ONE.id}) == {9}


def test_a_violation_reads_as_a_sentence():
    (found,) = check_step(remember(pool_view(backend_view()), [ONE]), [], [ONE], 2000.0)
    assert str(found) == f"law 4 ({LAWS[4]}): req_000001 waits while b1 has room"
