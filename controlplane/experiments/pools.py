"""The two experiments of the token-pools paper (section 5), on a live instance.

A simulated replica set with 16 slots and the paper's speed (Qwen3-8B on GB10: 64 output tokens take 4.27 s at 16
sequences), clients over HTTP. Experiment 1: guaranteed tenants are protected from a spot tenant. Experiment 2: elastic
tenants with different SLOs share what is left of the pool when a node fails, and debt makes up for it afterwards.

Experiment 2's entitlements, demands and lengths are those of the lab's scenario (``token-pools-2.toml``, TP-3), which
were fitted to the paper's counts. Experiment 1's clients want all they are entitled to, so that the pool is full.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

from controlplane.experiments.clients import Crowd
from controlplane.experiments.plan import SERVICE_S, Experiment, Member, Outage, Phase
from scheduling.simulator.lab import SCENARIOS_DIR


def _paced(name: str, service_class: str, concurrency: int, target_s: float, starts_s: float, ends_s: float) -> Member:
    """As many clients as it has slots, each with its next request as soon as the last is answered."""
    crowd = Crowd(name, concurrency, SERVICE_S, starts_s, ends_s, 64, (64, 64))
    return Member(name, service_class, concurrency, crowd, ttft_s=target_s)


POOLS_1: Final = Experiment(
    "pools-1",
    "Cross-class protection (5.2): two guaranteed tenants and a spot tenant on 16 slots",
    replicas=1,
    members=(
        _paced("guaranteed-a", "guaranteed", 6, 1.2, 0, 90),
        _paced("guaranteed-c", "guaranteed", 6, 1.2, 30, 60),
        _paced("spot-b", "spot", 10, 30.0, 0, 90),
    ),
    phases=(Phase("1", 0, 30), Phase("2 overload", 30, 60), Phase("3", 60, 90)),
    policy="priority",
)


def _of_scenario(raw: dict[str, Any], step_time: dict[str, float], ends_s: float) -> Member:
    """A client of the lab. Whole clients ask for its ``demand`` [slots] together, each at its own pace."""
    name = f"{raw['class']}-{raw['entitlement']}"
    low, high = raw["output"]
    service_s = step_time["a"] * raw["input"] + step_time["t0"] * (low + high) / 2
    clients = round(raw["demand"])
    crowd = Crowd(
        name, clients, service_s * clients / raw["demand"], raw.get("begin_s", 0.0), raw.get("end_s", ends_s),
        raw["input"], (low, high),
    )  # fmt: skip
    return Member(name, raw["class"], raw["slots"], crowd, ttft_s=raw.get("ttft_s", 0.0), ttlt_s=raw.get("ttlt_s", 0.0))


def _pools_2() -> Experiment:
    scenario = tomllib.loads((SCENARIOS_DIR / "token-pools-2.toml").read_text(encoding="utf-8"))
    work = scenario["workload"]
    ends_s = float(work["end_s"])
    (fails_s, _), (returns_s, _) = work["capacity"]
    joins_s = dict(work["phases"])["newcomer"]
    return Experiment(
        "pools-2",
        "SLO-aware fair share (5.3): elastic tenants when a node fails that has half of 16 slots, and a newcomer",
        replicas=work["replicas"],
        members=tuple(_of_scenario(raw, scenario["engine"]["step_time"], ends_s) for raw in work["clients"]),
        phases=(
            Phase("1", 0, fails_s),
            Phase("2 outage", fails_s, returns_s),
            Phase("3 recovery", returns_s, joins_s),
            Phase("4 newcomer", joins_s, ends_s),
        ),
        slo_mean_s=work["slo_mean_s"],  # the paper's: fixed, not taken anew when a tenant joins
        coefficients=tuple(work["coefficients"].items()),  # the weights it prints contain no burst factor
        outage=Outage(("engine-1",), fails_s, returns_s),
        policy="priority",
    )


POOLS_2: Final = _pools_2()
