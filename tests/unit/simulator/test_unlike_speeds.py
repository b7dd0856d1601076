"""A pool of a fast and a slow replica, simulated with placement as live."""

from __future__ import annotations

import random
from dataclasses import replace

from scheduling.core.engine.step_time import load_preset
from scheduling.core.percentiles import nearest_rank
from scheduling.core.placement.rule import relative_speed
from scheduling.core.types import Slo
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replica import Replica
from scheduling.simulator.workload import Tier
from scheduling.tuning.traffic import Serving, Traffic


def pool() -> Traffic:
    """Of an A100 and a replica five times as slow, at half of what the two can do."""
    draw, at, rows = random.Random(3), 0.0, []
    for _ in range(900):
        at += draw.expovariate(16.0)
        rows.append(Recorded(at, draw.randint(50, 400), draw.randint(50, 200), "acme", "chat", wait_s=0.0, ttft_s=0.0))
    step = load_preset("llama-3-8b-a100").step_time
    both = (step, step.slowed(5))
    replicas = tuple(Replica(one, 128, 400_000, prefill_tokens=None, order="priority") for one in both)
    return Traffic(tuple(rows), (Tier("chat", Slo(ttft_s=1.0, tbt_s=0.1)),), replicas)


def test_what_was_measured_keeps_work_off_the_slow_replica_while_the_fast_one_is_sooner():
    unknown, serving = pool(), Serving("unified")
    speeds = [relative_speed(rate, [5000.0, 1000.0]) for rate in (5000.0, 1000.0)]
    known = replace(unknown, replicas=tuple(replace(r, speed=s) for r, s in zip(unknown.replicas, speeds, strict=True)))
    p95, late = {}, {}
    for name, traffic in (("unknown", unknown), ("known", known)):
        outcomes = traffic.serve(serving)
        p95[name] = nearest_rank([outcome.ttlt_s for outcome in outcomes], 0.95)
        late[name] = sum(outcome.late for outcome in outcomes) / len(outcomes)
    assert p95["known"] < 0.6 * p95["unknown"]
    assert late["unknown"] > 0.1
    assert late["known"] < 0.02
