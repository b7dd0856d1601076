"""The simulator, given the step times of a GPU run, has as many requests in time as the GPU had.

The runs are those of ``docs/results/gpu-*.json``: vLLM alone, so that nothing but the engine model is compared, and the
product in front as it is. A run's requests follow from its seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.experiments import gpu
from controlplane.experiments.gpu_load import Answered, Promises, plan
from scheduling.core.engine.calibration import StepFit
from scheduling.core.engine.step_time import StepTime
from tests.bench import bench_gpu_step_times as bench

RESULTS = Path(__file__).parents[3] / "docs" / "results"
MODES = {mode.name: mode for mode in gpu.MODES if mode.lab and not mode.kind}
WITHIN = 4.1  # points of a tier's share in time: two of the 50 requests that the smallest tier has


def runs() -> Iterator[Any]:
    for name in ("gpu-h100", "gpu-h200"):
        for run in json.loads((RESULTS / f"{name}.json").read_text())["runs"]:
            for key, part in run["parts"].items():
                mode, workload, rate = key.rsplit(" ", 2)
                if mode in MODES:
                    asked = workload, float(rate.removesuffix("/s"))
                    yield pytest.param(run["setup"], MODES[mode], *asked, part, id=f"{name} {key}")


def times_of(fit: dict[str, float]) -> StepTime:
    return StepTime(**{name: value for name, value in fit.items() if name not in ("error", "steps")})


def simulated(setup: dict[str, Any], mode: gpu.Mode, workload: str, rate: float, fit: dict[str, float]) -> Any:
    """What was asked for, and what the lab says of it with the step times of ``fit``."""
    kept = gpu.Setup(**setup | {"promises": Promises(**setup["promises"])})
    asked = plan(workload, rate, kept.seconds, kept.promises, kept.max_model_len, kept.seed)
    step = StepFit(times_of(fit), fit["error"], int(fit["steps"]))
    return asked, gpu.lab(kept, mode, [Answered(one) for one in asked], step)


@pytest.mark.parametrize(("setup", "mode", "workload", "rate", "part"), list(runs()))
def test_each_tier_is_in_time_as_on_the_gpu(
    setup: dict[str, Any], mode: gpu.Mode, workload: str, rate: float, part: dict[str, Any]
) -> None:
    asked, lab = simulated(setup, mode, workload, rate, part["fit"])
    assert len(asked) == part["asked"], "the requests of the run"
    gaps = {name: 100.0 * (lab["tiers"][name] - tier["in_time"]) for name, tier in part["tiers"].items()}
    assert all(abs(gap) <= WITHIN for gap in gaps.values()), gaps


def test_an_engine_that_is_a_fifth_slower_is_told_apart() -> None:
    setup, mode, workload, rate, part = next(
        run.values for run in runs() if run.id == "gpu-h200 fcfs azure-code 15.2/s"
    )
    slower = part["fit"] | {name: 1.2 * part["fit"][name] for name in ("t0", "a", "b", "c", "e")}
    _, lab = simulated(setup, mode, workload, rate, slower)
    assert max(abs(100.0 * (lab["tiers"][name] - part["tiers"][name]["in_time"])) for name in lab["tiers"]) > WITHIN


def test_the_product_in_front_of_a_gpu_is_as_in_the_lab_with_the_gpus_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 took 55 ms from a first token to the next prompt; the step times are those of vLLM alone on it."""
    runs_ = {run["name"]: run for run in json.loads((RESULTS / "gpu-h200-front.json").read_text())["runs"]}
    live = runs_["front, after 7 s of load"]
    monkeypatch.setattr(bench, "STEP", times_of(runs_["priority"]["fit"]))
    asked = plan("azure-code", 25.5, bench.SECONDS, bench.PROMISES, bench.LONGEST, 0)
    assert len(asked) == live["asked"]
    lab = bench.front(asked)
    gaps = {name: 100.0 * (lab.tiers[name] - tier["in_time"]) for name, tier in live["tiers"].items()}
    assert all(abs(gap) <= WITHIN for gap in gaps.values()), gaps
    assert lab.tokens_per_s == pytest.approx(live["tokens_per_s"], rel=0.03)
    monkeypatch.setattr(bench, "SIGNAL_S", 0.005)
    assert bench.front(asked).tokens_per_s > 1.04 * live["tokens_per_s"], "without that delay it computes too much"
