"""Speed of the simulator on one core: `python -m tests.bench.bench_simulator [REQUESTS]`.

Azure-Code lengths at chunk 256, 2.4 requests/s, process time without generating the requests.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering
from scheduling.core.types import Slo
from scheduling.simulator.batches import make_engine
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.kernel import rng
from scheduling.simulator.workload import Belief, SimRequest, Tier, independent_lengths, open_loop, poisson

TIERS = (Tier("Q1", Slo(ttft_s=6.0, tbt_s=0.05)), Tier("Q2", Slo(ttlt_s=600.0)), Tier("Q3", Slo(ttlt_s=1800.0)))
DYNAMIC = {"preempt_prefills": True, "dynamic_chunks": True, "relegate": True}
FIXED = {"alpha_ms": 8.0, "alpha_low_ms": 8.0}
CASES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("fifo, step by step", "fifo", {}, {"jumps": False}),
    ("fifo, jumps", "fifo", {}, {}),
    ("edf, step by step", "edf", {}, {"jumps": False, "preempt_prefills": True}),
    ("edf, jumps", "edf", {}, {"preempt_prefills": True}),
    ("srpf, jumps", "srpf", {}, {"preempt_prefills": True}),
    ("hybrid, jumps", "hybrid", FIXED, {"preempt_prefills": True}),
    ("hybrid, alpha by load, jumps", "hybrid", {}, {"preempt_prefills": True}),
    ("hybrid, dynamic chunks, relegation", "hybrid", FIXED, DYNAMIC),
)


def workload(count: int) -> list[SimRequest]:
    return open_loop(
        poisson(rng(1, "arrivals"), 2.4),
        count,
        independent_lengths("azure-code"),
        TIERS,
        Belief(15.0, 1024),
        length_stream=rng(1, "lengths"),
        tier_stream=rng(1, "tiers"),
    )


def main(count: int) -> None:
    preset = load_preset("llama-3-8b-a100")
    work = workload(count)
    print(f"{count} requests, {'case':36}{'requests/s':>12}{'steps/s':>12}{'computed':>10}")
    for name, policy, params, settings in CASES:
        config = EngineConfig(preset.step_time, kv_tokens=preset.kv_tokens, **settings)
        engine = make_engine(config, make_ordering(policy, params))
        start = time.process_time()
        engine.run(work)
        spent = time.process_time() - start
        steps, stretches = engine.counters.steps, engine.counters.stretches
        print(f"{'':16}{name:36}{count / spent:12.0f}{steps / spent:12.0f}{stretches / steps:10.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
