"""Requests for LoRA adapters in the decision loop: they run where the adapter is, and stand in nobody's way."""

from __future__ import annotations

import random

from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import QueuedRequest
from tests.support.scheduling_world import backend_view, pool_view, waiting

HAS = frozenset({"sql"})


def make(*requests: QueuedRequest, patience_s: float = 2.0) -> Scheduler:
    scheduler = Scheduler(make_ordering("fifo"), make_routing("least_work"), patience_s=patience_s)
    for request in requests:
        scheduler.offer(request, request.arrival_s)
    return scheduler


def test_a_request_runs_where_its_adapter_is_though_another_replica_has_less_to_do():
    view = pool_view(backend_view("b1"), backend_view("b2", running=3, work_tokens=9000.0, adapters=HAS))
    scheduler = make(waiting(1, adapter="sql"), waiting(2))
    assert [(g.request.id, g.backend) for g in scheduler.step(view, 2000.0)] == [
        ("req_000001", "b2"),
        ("req_000002", "b1"),
    ]


def test_who_waits_for_an_adapter_that_is_nowhere_holds_up_nobody_and_no_replica():
    scheduler = make(waiting(1, adapter="law"), waiting(2), waiting(3))
    for now_s in (2000.0, 2100.0):
        view = pool_view(backend_view("b1", slots=1), backend_view("b2", slots=1, adapters=HAS))
        assert len(scheduler.step(view, now_s)) == (2 if now_s == 2000.0 else 0)
        assert scheduler.kv_hold is None
    assert [r.id for r in scheduler] == ["req_000001"]


def test_a_replica_that_has_the_adapter_is_kept_for_a_request_that_was_overtaken_for_long():
    first = waiting(1, adapter="sql", kv_tokens=900)
    scheduler = make(first)
    full = {"slots": 4, "kv_tokens": 1000, "running": 1, "kv_used": 500}
    for now_s in (2000.0, 2003.0):
        scheduler.offer(waiting(int(now_s), kv_tokens=100), now_s)
        view = pool_view(backend_view("b1", slots=0), backend_view("b2", adapters=HAS, **full))
        granted = scheduler.step(view, now_s)
        assert len(granted) == (1 if now_s == 2000.0 else 0), "from then on nobody passes it there"
    assert scheduler.kv_hold == first.id


def test_where_it_failed_before_is_tried_again_if_no_other_replica_has_the_adapter():
    request = waiting(1, adapter="sql", exclude_backend="b2")
    view = pool_view(backend_view("b1"), backend_view("b2", adapters=HAS))
    assert [g.backend for g in make(request).step(view, 2000.0)] == ["b2"]
    both = pool_view(backend_view("b1", adapters=HAS), backend_view("b2", adapters=HAS))
    assert [g.backend for g in make(request).step(both, 2000.0)] == ["b1"]


def test_no_law_is_broken_by_random_requests_for_adapters():
    rng = random.Random(7)
    for _ in range(200):
        names = ("", "sql", "law")
        requests = [
            waiting(n, f"t{n % 3}", adapter=rng.choice(names), kv_tokens=rng.choice((50, 400)), concurrency=3)
            for n in range(rng.randint(1, 12))
        ]
        scheduler = make(*requests)
        view = pool_view(
            *(
                backend_view(
                    f"b{i}", slots=rng.randint(1, 3), kv_tokens=1000,
                    adapters=frozenset(a for a in ("sql", "law") if rng.random() < 0.5),
                )
                for i in range(rng.randint(1, 3))
            )
        )  # fmt: skip
        before = remember(view, scheduler)
        grants = scheduler.step(view, 2000.0)
        hold = scheduler.kv_hold is not None
        assert check_step(before, grants, scheduler, 2000.0, kv_hold=hold) == []


def test_the_laws_notice_a_grant_where_the_adapter_is_not():
    scheduler = make(waiting(1, adapter="sql"))
    view = pool_view(backend_view("b1", adapters=HAS))
    before = remember(view, scheduler)
    before.backends["b1"].adapters = frozenset()
    grants = scheduler.step(view, 2000.0)
    assert [v.law for v in check_step(before, grants, scheduler, 2000.0)] == [10]
