"""What the queue's page promises of every policy: its order is the one that comes, and looking changes nothing."""

from __future__ import annotations

import random

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing, modifiers, orderings
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.preview import copy_of, preview
from scheduling.core.types import PREFILL_PER_S, PoolView
from tests.support.scheduling_world import backend_view, crowd, pool_view, waiting

EVERY = [(name, {}) for name in sorted(orderings())] + [
    (name, {m: {} for m in modifiers()}) for name in ("edf", "ewsjf", "fifo", "mean_cost")
]
every_policy = pytest.mark.parametrize(
    ("name", "around"), EVERY, ids=lambda v: v if isinstance(v, str) else "+".join(v)
)
NOW = 5000.0


def scheduler_of(name: str, around: dict[str, dict[str, float]], seed: int = 4, count: int = 60) -> Scheduler:
    params = {"partition": "1-100,101-400"} if name == "ewsjf" else None
    scheduler = Scheduler(make_policy(name, params, around), make_routing("least_work"), max_grants=1, rights=True)
    for request in crowd(seed)[:count]:
        scheduler.offer(request, request.arrival_s)
    return scheduler


def one_slot() -> PoolView:
    return pool_view(backend_view(slots=1, kv_tokens=10**9))


def drain(scheduler: Scheduler, now_s: float = NOW, each_s: float = 1.0) -> list[str]:
    """One slot, always free again after ``each_s``."""
    out = []
    while len(scheduler) and (grants := scheduler.step(one_slot(), now_s)):
        out += [grant.request.id for grant in grants]
        now_s += each_s
    return out


@every_policy
def test_the_order_shown_is_the_order_that_comes(name: str, around: dict[str, dict[str, float]]) -> None:
    scheduler = scheduler_of(name, around)
    shown = preview(copy_of(scheduler, NOW), one_slot(), NOW, 200, 1.0)
    assert shown.exact
    assert [p.request.id for p in shown.planned if p.start_s is not None] == drain(scheduler)


@every_policy
def test_looking_changes_nothing(name: str, around: dict[str, dict[str, float]]) -> None:
    looked_at, left_alone = scheduler_of(name, around), scheduler_of(name, around)
    rnd = random.Random(9)
    for second in range(20):
        now_s = NOW + second
        if rnd.random() < 0.7:
            preview(copy_of(looked_at, now_s), one_slot(), now_s, 50, 1.0)
        first, second_ = (s.step(one_slot(), now_s) for s in (looked_at, left_alone))
        assert [(g.request.id, g.reason) for g in first] == [(g.request.id, g.reason) for g in second_]
    assert drain(looked_at, NOW + 20) == drain(left_alone, NOW + 20)


@every_policy
def test_a_long_queue_is_shown_from_a_fresh_one(name: str, around: dict[str, dict[str, float]]) -> None:
    scheduler = scheduler_of(name, around)
    shown = preview(copy_of(scheduler, NOW, exact_up_to=10), one_slot(), NOW, 5, 1.0)
    assert not shown.exact
    assert len(shown.planned) == 5
    assert len(scheduler) == 60


def test_starts_follow_from_the_mean_occupation_of_a_slot() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("least_work"), max_grants=100, rights=True)
    for i in range(4):
        scheduler.offer(waiting(i, arrival_s=NOW + i / 10), NOW)
    view = pool_view(backend_view(slots=2, running=2, kv_tokens=10**9))
    starts = [p.start_s for p in preview(copy_of(scheduler, NOW), view, NOW, 10, 8.0).planned]
    assert starts == [NOW + 4, NOW + 8, NOW + 12, NOW + 16]
    assert view.backends[next(iter(view.backends))].running == 2


def test_who_is_at_its_limit_starts_when_its_own_end() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("least_work"), max_grants=100, rights=True)
    scheduler.offer(waiting(1, "full", 0, concurrency=1), NOW)
    view = pool_view(backend_view(slots=8, running=1, kv_tokens=10**9))
    view.running_by_entitlement["full"] = 1
    (planned,) = preview(copy_of(scheduler, NOW), view, NOW, 10, 3.0).planned
    assert planned.start_s == NOW + 3


def test_what_cannot_start_is_shown_last_and_without_a_time() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("least_work"), max_grants=100, rights=True)
    scheduler.offer(waiting(1, kv_tokens=900), NOW)
    scheduler.offer(waiting(2, kv_tokens=10), NOW)
    view = pool_view(backend_view(slots=4, kv_tokens=100))
    shown = preview(copy_of(scheduler, NOW), view, NOW, 10, 1.0).planned
    assert [(p.request.id, p.start_s is None) for p in shown] == [("req_000002", False), ("req_000001", True)]


def test_the_queues_of_similar_prompts_are_shown_with_borders_bubbles_and_scores() -> None:
    policy = make_policy("ewsjf", {"partition": "1-100,1000-2000"}, {"relegate": {}, "bands": {}})
    scheduler = Scheduler(policy, make_routing("least_work"), rights=True)
    for i, tokens in enumerate((50, 60, 400, 1500)):
        scheduler.offer(waiting(i, input_tokens=tokens, arrival_s=NOW - 10), NOW)
    shown = preview(copy_of(scheduler, NOW), one_slot(), NOW, 10, 1.0)
    parts = [(p.kind, p.low, p.high, p.waiting) for p in shown.parts if p.waiting and p.low is not None]
    assert ("queue", 1, 100, 2) in parts
    assert ("queue", 1000, 2000, 1) in parts
    assert any(kind == "bubble" and waits == 1 for kind, _, _, waits in parts)
    assert all(p.score is not None for p in shown.parts if p.waiting and p.low is not None)


def test_prompts_wait_for_credit_as_long_as_their_replica_was_measured_to_prefill() -> None:
    def starts(prefill_per_s: float) -> list[float | None]:
        scheduler = Scheduler(make_policy("fifo"), make_routing("least_work"), max_grants=100, rights=True)
        for i in range(3):
            scheduler.offer(waiting(i, input_tokens=2000), NOW)
        view = pool_view(backend_view(slots=8, kv_tokens=10**9))
        for backend in view.backends.values():
            backend.prefill_credit, backend.prefill_per_s = 2000, prefill_per_s
        return [p.start_s for p in preview(copy_of(scheduler, NOW), view, NOW, 10, 60.0).planned]

    assert starts(10_000.0) == pytest.approx([NOW, NOW + 0.2, NOW + 0.4])
    assert starts(0.0) == starts(PREFILL_PER_S), "not measured yet"
