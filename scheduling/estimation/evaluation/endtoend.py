"""What is a prediction worth to those who wait? The same prompts through a simulated engine, with each predictor.

Predictors begin cold and learn from what ends, as they would live. The engine is slower than the prompts come for as
long as they come, so that a queue forms; then it works it off.

The policy decides in front of the engine, as the product serves (:mod:`scheduling.simulator.replay`): automatic prefill
credit, an engine that is told the order. ``inside`` it orders the engine's own queue, as policies in papers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from scheduling.core.engine.step_time import load_preset
from scheduling.core.estimate.contracts import Prediction
from scheduling.core.percentiles import interpolated
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import QueuedRequest
from scheduling.estimation.evaluation.ceiling import Ceiling
from scheduling.estimation.evaluation.methods import (
    WITHOUT,
    Case,
    Crude,
    Method,
    Oracle,
    PerModel,
    Product,
    application_history,
    similar,
)
from scheduling.simulator.batches import make_engine
from scheduling.simulator.compare import FRONT as FRONT
from scheduling.simulator.compare import GRANT_DELAY_S
from scheduling.simulator.compare import PLACES as PLACES
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.kernel import rng
from scheduling.simulator.measures import measure
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import mean, outcomes_of
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request, poisson

PRESET = "llama-3-8b-a100"
SLOTS = 32
BOUND = 4096
STEP_TOKENS = 2048
LOAD = 1.5  # of what the engine can do: requests come this much faster
REQUESTS = 2_000
CONSTANT = "application history"  # the same for each prompt of an application
OTHERS = "ceiling: other models' answers to the same prompt"
POLICIES = ("fifo", "gittins", "mean_cost", "unified")

Progress = Callable[[str, int, int], None]


class Learning:
    """A method as the simulator's estimator."""

    def __init__(self, method: Method, cases: Sequence[Case]) -> None:
        self._method = method
        self._cases = cases

    def estimate(self, request: SimRequest) -> QueuedRequest:
        prediction = self._method.expect(self._cases[request.index])
        assert prediction is not None
        prediction = prediction.truncated(BOUND)
        return replace(
            request.queued,
            output_tokens=prediction.mean,
            output_lengths=prediction.lengths,
            output_probabilities=prediction.probabilities,
        )

    def observe(self, request: SimRequest) -> None:
        self._method.learn(self._cases[request.index])


class Truth:
    """Knows every length."""

    name = "oracle lengths"

    def expect(self, case: Case) -> Prediction:
        length = float(case.example.output_tokens)
        return Prediction((length,), (1.0,), self.name, length)

    def say(self, case: Case) -> tuple[float, tuple[float, ...]]:
        length = float(case.example.output_tokens)
        return length, (length, length, length)

    def learn(self, case: Case) -> None:
        return None


class BoundOnly(Truth):
    """Knows nothing: every answer is expected to reach its bound."""

    name = "no prediction"

    def expect(self, case: Case) -> Prediction:
        return Prediction((float(BOUND),), (1.0,), self.name, float(BOUND))


def contestants() -> list[Method]:
    """Each anew: they learn."""
    return [
        BoundOnly(),
        PerModel("tokens", lambda name: Crude(name, words=False, ema=False)),
        PerModel("words + EMA", lambda name: Crude(name, words=True, ema=True)),
        PerModel("tokens + EMA", lambda name: Crude(name, words=False, ema=True)),
        application_history(),
        PerModel("semantic history 1k", similar(1_000)),
        PerModel("semantic history 10k", similar(10_000)),
        PerModel(WITHOUT, partial(Product, regression=False)),
        PerModel("product", Product),
        Truth(),
    ]


def ceilings(cases: Sequence[Case]) -> list[Method]:
    """What no pool can know of these prompts; the second only where each of them has several models' answers."""
    others = Oracle(OTHERS, [case.example for case in cases])
    methods: list[Method] = [Ceiling(cases)]
    return [*methods, others] if all(others.expect(case) for case in cases) else methods


def compare(
    cases: Sequence[Case],
    seed: int,
    progress: Progress,
    where: str = FRONT,
    policies: Sequence[str] = POLICIES,
    ceiling: bool = False,
) -> dict[str, Any]:
    """Mean and 99th percentile of the time to the last token [s] by policy and predictor, relative to the oracle's and
    to those with the application's history; with ``ceiling`` those of :func:`ceilings` too. Raises ValueError for a
    place that is none of :data:`PLACES`."""
    if where not in PLACES:
        raise ValueError(f"{where!r} is none of {', '.join(PLACES)}")
    chosen = list(cases)
    Random(seed).shuffle(chosen)
    chosen = [case for case in chosen if case.example.output_tokens <= BOUND][:REQUESTS]
    preset = load_preset(PRESET)
    config = EngineConfig(
        truth=preset.step_time, mode="continuous", max_seqs=SLOTS, kv_tokens=preset.kv_tokens, token_budget=STEP_TOKENS
    )
    at_once = make_engine(config, make_ordering("fifo", {}))
    busy = measure(at_once.run(_requests(chosen, [0.0] * len(chosen))), [at_once])
    rate = LOAD * busy["requests_per_s"]
    times = list(islice(poisson(rng(seed, "arrivals"), rate), len(chosen)))
    runs: list[dict[str, Any]] = []
    above = ceilings(chosen) if ceiling else []
    total, done = len(policies) * (len(contestants()) + len(above)), 0
    for policy in policies:
        for method in (*contestants(), *above):
            done += 1
            if policy == "fifo" and not isinstance(method, BoundOnly):
                continue  # it does not look at what is expected
            progress(f"{policy}, {method.name}", done, total)
            learning, requests = Learning(method, chosen), _requests(chosen, times)
            if where == FRONT:
                replica = Replica(preset.step_time, SLOTS, preset.kv_tokens, STEP_TOKENS, None, "priority")
                routing = make_routing("least_work", {})
                replay = Replay(
                    [replica], make_ordering(policy, {}), routing, signal_s=GRANT_DELAY_S, estimator=learning
                )
                took_s = [outcome.ttlt_s for outcome in replay.run(requests)]
            else:
                engine = make_engine(config, make_ordering(policy, {}), estimator=learning)
                took_s = [outcome.ttlt_s for outcome in outcomes_of(engine.run(requests))]
            figures = {"mean_ttlt_s": mean(took_s), "p99_s": interpolated(took_s, 0.99)}
            runs.append({"policy": policy, "predictor": method.name, **figures})
    for run in runs:
        best = next((r for r in runs if r["policy"] == run["policy"] and r["predictor"] == Truth.name), None)
        constant = next((r for r in runs if r["policy"] == run["policy"] and r["predictor"] == CONSTANT), None)
        run["to_oracle"] = None if best is None else run["mean_ttlt_s"] / best["mean_ttlt_s"]
        run["to_constant"] = None if constant is None else run["mean_ttlt_s"] / constant["mean_ttlt_s"]
    shape = {"preset": PRESET, "slots": SLOTS, "load": LOAD, "where": where}
    return {"requests": len(chosen), "rate": rate, **shape, "runs": runs}


def _requests(cases: Sequence[Case], times: Sequence[float]) -> list[SimRequest]:
    tier = Tier("all")
    return [
        make_request(
            index, at, max(1, round(case.facts.input_tokens)), case.example.output_tokens, tier,
            Belief(float(BOUND), BOUND),
        )
        for index, (case, at) in enumerate(zip(cases, times, strict=True))
    ]  # fmt: skip
