"""One tree's side of the decision benchmark of :mod:`tests.bench.turns`: started with a checkout on its path, it
answers a line on stdin (ordering, modifiers or ``-``, tenants, requests that wait, steps) with a line of JSON: the CPU
us of a step. It uses nothing of that checkout that an older one may lack."""

from __future__ import annotations

import json
import statistics
import sys
import time
from contextlib import suppress

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing
from scheduling.core.scheduler.loop import Scheduler
from tests.bench.test_bench_decision import one_slot, requests, standings


def measure(ordering: str, modifiers: list[str], tenants: int, waiting: int, steps: int) -> dict[str, float]:
    scheduler = Scheduler(make_policy(ordering, None, {name: {} for name in modifiers}), make_routing("least_work"))
    for request in requests(tenants, waiting):
        scheduler.offer(request, request.arrival_s)
    took: list[float] = []
    debts = standings(tenants, 0)
    for n in range(steps):
        if n % 500 == 0:
            debts = standings(tenants, n)
        view = one_slot(tenants, bool(n % 2), debts)
        started = time.thread_time()
        scheduler.step(view, 100_000.0 + n * 0.01)
        took.append(time.thread_time() - started)
    cuts = statistics.quantiles(took, n=100)
    return {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6}


def main() -> None:
    with suppress(ImportError):  # as the tree's worker does, if it does
        from controlplane.garbage_collection import look_rarely

        look_rarely()
    for line in sys.stdin:
        ordering, around, *numbers = line.split()
        modifiers = [] if around == "-" else around.split("+")
        tenants, waiting, steps = map(int, numbers)
        print(json.dumps(measure(ordering, modifiers, tenants, waiting, steps)), flush=True)


if __name__ == "__main__":
    main()
