"""A pool of a fast and a slow replica, simulated with placement as live."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduling.core.engine.step_time import load_preset
from scheduling.core.percentiles import nearest_rank
from scheduling.core.placement.rule import relative_speed
from scheduling.core.types import Slo
from scheduling.simulator import engine_watch, workload
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


def served(traffic: Traffic) -> tuple[float, float]:
    """The 95th percentile of the time to the last token [s], and the share that is late."""
    outcomes = traffic.serve(Serving("unified"))
    p95 = nearest_rank([outcome.ttlt_s for outcome in outcomes], 0.95)
    assert p95 is not None
    return p95, sum(outcome.late for outcome in outcomes) / len(outcomes)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found while they serve."""
    monkeypatch.setattr(engine_watch, "compare", lambda at_s, replicas: None)


@pytest.mark.usefixtures("unseen")
def test_what_was_typed_in_keeps_work_off_the_slow_replica_while_the_fast_one_is_sooner():
    unknown = pool()
    speeds = [relative_speed(rate, [5000.0, 1000.0]) for rate in (5000.0, 1000.0)]
    known = replace(unknown, replicas=tuple(replace(r, speed=s) for r, s in zip(unknown.replicas, speeds, strict=True)))
    (unknown_p95, unknown_late), (known_p95, known_late) = served(unknown), served(known)
    assert known_p95 < 0.6 * unknown_p95
    assert unknown_late > 0.1
    assert known_late < 0.02


def test_so_does_what_is_found_while_they_serve(monkeypatch: pytest.MonkeyPatch):
    found_p95, found_late = served(pool())
    monkeypatch.setattr(engine_watch, "compare", lambda at_s, replicas: None)
    unseen_p95, unseen_late = served(pool())
    assert found_p95 < 0.7 * unseen_p95
    assert found_late < 0.2 * unseen_late


def test_who_was_promised_a_pace_waits_for_the_fast_replica_in_overload(monkeypatch: pytest.MonkeyPatch):
    """30 % of the requests, the others have ten minutes; once it is known how fast each is."""
    chat, batch = Tier("chat", Slo(ttft_s=1.0, tbt_s=0.1)), Tier("batch", Slo(ttlt_s=600.0), rank=1)
    rows = [replace(row, arrival_s=0.5 * row.arrival_s, tier="batch" if n % 10 > 2 else "chat")
            for n, row in enumerate(pool().rows)]  # fmt: skip
    traffic = replace(pool(), rows=tuple(rows), tiers=(chat, batch))

    def late() -> float:
        outcomes = [o for o in traffic.serve(Serving("unified"))[300:] if o.tier == "chat"]
        return sum(outcome.late for outcome in outcomes) / len(outcomes)

    waits = late()
    monkeypatch.setattr(workload, "pace_us", lambda slo, longest: 0)
    assert waits < 0.3 * late()
