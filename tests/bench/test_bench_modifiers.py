"""How long one decision takes with 64,000 requests waiting inside modifiers; set up as ``test_bench_decision.py``.

``pytest -m bench -s tests/bench/test_bench_modifiers.py`` prints a table. Everything waits far beyond its deadline, so
that in every step as many requests are relegated as one step may relegate.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing, modifiers
from scheduling.core.scheduler.loop import Scheduler
from tests.bench.test_bench_decision import LIMIT_S, STEPS, WAITING, one_slot, requests, standings

pytestmark = pytest.mark.bench

AROUND = [*((name,) for name in modifiers()), tuple(modifiers())]


@pytest.mark.parametrize("tenants", [20, 1000])
@pytest.mark.parametrize("around", AROUND, ids="+".join)
@pytest.mark.parametrize("policy", ["fifo", "hybrid", "unified"])
def test_a_decision_among_64000_inside_modifiers(policy: str, around: tuple[str, ...], tenants: int, capsys: Any):
    scheduler = Scheduler(make_policy(policy, None, {name: {} for name in around}), make_routing("prefix_affinity"))
    arrivals = requests(tenants)
    started = time.thread_time()
    for request in arrivals:
        scheduler.offer(request, request.arrival_s)
    offer_s = (time.thread_time() - started) / WAITING
    took: list[float] = []
    debts = standings(tenants, 0)
    for n in range(STEPS):
        view = one_slot(tenants, bool(n % 2), debts)
        started = time.thread_time()
        scheduler.step(view, 100_000.0 + n * 0.01)
        took.append(time.thread_time() - started)
    cuts = statistics.quantiles(took, n=100)
    thirds = [statistics.quantiles(took[n::3], n=100)[98] for n in range(3)]
    with capsys.disabled():
        print(
            f"\n{scheduler.policy.name:>28} {tenants:>5} tenants: offer {offer_s * 1e6:5.1f} us, decision p50 "
            f"{cuts[49] * 1e6:6.0f} us, p99 {cuts[98] * 1e6:6.0f} us, worst {max(took) * 1e6:6.0f} us"
        )
    assert len(scheduler) < WAITING
    assert min(thirds) <= LIMIT_S
