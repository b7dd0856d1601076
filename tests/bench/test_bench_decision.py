"""How long one scheduling decision takes with 64,000 requests waiting, per policy and number of tenants.

``pytest -m bench -s tests/bench/test_bench_decision.py`` prints a table; how to read it: ``docs/benchmarks.md``.
A decision is one ``Scheduler.step`` that grants one request; two thirds of the tenants are at their concurrency, and in
every other step only requests with a small KV need fit. Times are CPU time of the thread, so that a busy machine does
not show as a slow decision.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import pytest

from scheduling.core.registry import make_ordering, make_routing, orderings
from scheduling.core.scheduler import Scheduler
from scheduling.core.types import PoolView
from tests.scheduling_world import backend_view, pool_view, waiting

pytestmark = pytest.mark.bench

WAITING = 64_000
STEPS = 3_000


def loaded(policy: str, tenants: int) -> tuple[Scheduler, float]:
    rng = random.Random(1)
    scheduler = Scheduler(make_ordering(policy), make_routing("least_work"))
    requests = [
        waiting(
            n, f"t{rng.randrange(tenants)}", rng.randrange(3), concurrency=40, kv_tokens=rng.choice((100, 700, 5000)),
            client_priority=rng.choice((0, 0, 0, -1, 2)), expires_s=1e9,
        )
        for n in range(WAITING)
    ]  # fmt: skip
    started = time.thread_time()
    for request in requests:
        scheduler.offer(request, request.arrival_s)
    return scheduler, (time.thread_time() - started) / WAITING


def one_slot(tenants: int, tight: bool) -> PoolView:
    free = backend_view("b0", slots=64, kv_tokens=300_000, running=63, kv_used=299_800 if tight else 200_000)
    others = [backend_view(f"b{n}", slots=64, running=64) for n in range(1, 8)]
    return pool_view(free, *others, running={f"t{n}": 40 for n in range(tenants) if n % 3})


@pytest.mark.parametrize("tenants", [20, 1000])
@pytest.mark.parametrize("policy", sorted(orderings()))
def test_a_decision_among_64000(policy: str, tenants: int, capsys: Any):
    scheduler, offer_s = loaded(policy, tenants)
    took: list[float] = []
    for n in range(STEPS):
        view = one_slot(tenants, tight=bool(n % 2))
        started = time.thread_time()
        scheduler.step(view, 100_000.0 + n * 0.01)
        took.append(time.thread_time() - started)
    cuts = statistics.quantiles(took, n=100)
    with capsys.disabled():
        print(
            f"\n{policy:>10} {tenants:>5} tenants: offer {offer_s * 1e6:5.1f} us, decision p50 "
            f"{cuts[49] * 1e6:6.0f} us, p99 {cuts[98] * 1e6:6.0f} us, worst {max(took) * 1e6:6.0f} us"
        )
    assert len(scheduler) < WAITING
