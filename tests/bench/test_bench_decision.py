"""How long one scheduling decision takes with 64,000 requests waiting, and what one that waits weighs, for every
ordering policy that is registered.

``pytest -m bench -s tests/bench/test_bench_decision.py`` prints two tables; how to read them:
``docs/results/benchmarks.md``. A decision is one ``Scheduler.step`` that grants one request; two thirds of the tenants
are at their concurrency, and in every other step only requests with a small KV need fit. Requests have predicted
distributions and the deadlines of their tiers, entitlements have debts that change every 500 steps. Times are CPU time
of the thread, so that a busy machine does not show as a slow decision.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from typing import Any

import pytest

from scheduling.core.policies.registry import make_ordering, make_routing, orderings
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import PoolView, QueuedRequest, Standing
from tests.support.scheduling_world import TIERS, backend_view, pool_view, waiting

pytestmark = pytest.mark.bench

WAITING = 64_000
STEPS = 3_000
LIMIT_S = 1e-3  # of the 99th percentile
LENGTHS = [tuple(float(16 * (k + 1) * (n + 1)) for k in range(16)) for n in range(24)]
EVEN = (1 / 16,) * 16


def requests(tenants: int, count: int = WAITING) -> list[QueuedRequest]:
    rng = random.Random(1)
    made = []
    for n in range(count):
        tenant = rng.randrange(tenants)
        rank, lengths = tenant % len(TIERS), rng.choice(LENGTHS)
        given = rng.choice((20, 200, 900, 2000))
        made.append(
            waiting(
                n, f"t{tenant}", rank, concurrency=40, kv_tokens=rng.choice((100, 700, 5000)), input_tokens=given,
                output_tokens=sum(lengths) / 16, output_lengths=lengths, output_probabilities=EVEN,
                ttft_deadline_s=None if rank == 2 else 1000.0 + n + (1, 5)[rank],
                ttlt_deadline_s=1600.0 + n if rank == 2 else None,
                client_priority=rng.choice((0, 0, 0, -1, 2)), expires_s=1e9,
            )
        )  # fmt: skip
    return made


def standings(tenants: int, seed: int) -> dict[str, Standing]:
    rng = random.Random(seed)
    return {f"t{n}": Standing(TIERS[n % 3][2], rng.uniform(-1, 1), rng.uniform(0, 1)) for n in range(tenants)}


def one_slot(tenants: int, tight: bool, debts: dict[str, Standing]) -> PoolView:
    free = backend_view("b0", slots=64, kv_tokens=300_000, running=63, kv_used=299_800 if tight else 200_000)
    others = [backend_view(f"b{n}", slots=64, running=64) for n in range(1, 8)]
    view = pool_view(free, *others, running={f"t{n}": 40 for n in range(tenants) if n % 3})
    view.standings = debts
    return view


def decide_among_64000(scheduler: Scheduler, tenants: int, capsys: Any, *, changing: bool = True) -> None:
    """Prints what an offer and a decision cost, and fails where a decision costs too much. ``changing``: debts do."""
    arrivals = requests(tenants)
    started = time.thread_time()
    for request in arrivals:
        scheduler.offer(request, request.arrival_s)
    offer_s = (time.thread_time() - started) / WAITING
    took: list[float] = []
    debts = standings(tenants, 0)
    for n in range(STEPS):
        if changing and n % 500 == 0:
            debts = standings(tenants, n)
        view = one_slot(tenants, bool(n % 2), debts)
        started = time.thread_time()
        scheduler.step(view, 100_000.0 + n * 0.01)
        took.append(time.thread_time() - started)
    cuts = statistics.quantiles(took, n=100)
    # Neighbours empty the caches, which makes decisions slower and never faster: the calmest third is judged.
    thirds = [statistics.quantiles(took[n::3], n=100)[98] for n in range(3)]
    with capsys.disabled():
        print(
            f"\n{scheduler.policy.name:>28} {tenants:>5} tenants: offer {offer_s * 1e6:5.1f} us, decision p50 "
            f"{cuts[49] * 1e6:6.0f} us, p99 {cuts[98] * 1e6:6.0f} us, worst {max(took) * 1e6:6.0f} us"
        )
    assert len(scheduler) < WAITING
    assert min(thirds) <= LIMIT_S


@pytest.mark.parametrize("tenants", [20, 1000])
@pytest.mark.parametrize("policy", sorted(orderings()))
def test_a_decision_among_64000(policy: str, tenants: int, capsys: Any):
    decide_among_64000(Scheduler(make_ordering(policy), make_routing("least_work")), tenants, capsys)


@pytest.mark.parametrize("policy", sorted(orderings()))
def test_what_a_waiting_request_weighs(policy: str, capsys: Any):
    """Allocated by the scheduler for each request that waits, the request itself not counted."""
    arrivals = requests(20, 16_000)
    scheduler = Scheduler(make_ordering(policy), make_routing("least_work"))
    gc.collect()
    tracemalloc.start()
    try:
        for request in arrivals:
            scheduler.offer(request, request.arrival_s)
        held, _ = tracemalloc.get_traced_memory()
        again = requests(20, 2_000)
        alone = (tracemalloc.get_traced_memory()[0] - held) / len(again)
    finally:
        tracemalloc.stop()
    with capsys.disabled():
        print(f"\n{policy:>14}: {held / len(arrivals):6.0f} bytes in the queue, {alone:6.0f} the request itself")
    assert held / len(arrivals) < 8192
