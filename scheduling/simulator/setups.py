"""From a scenario's words to engines and requests, and one run of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from scheduling.core.engine.step_time import StepTime, load_preset
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.types import Slo
from scheduling.simulator import driftsched, pool_lab
from scheduling.simulator.batches import make_engine
from scheduling.simulator.cluster import deal, deal_silos
from scheduling.simulator.engine import Engine, EngineConfig
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import rng
from scheduling.simulator.measures import measure
from scheduling.simulator.result import goodput, late_share, outcome_of
from scheduling.simulator.workload import (
    Belief,
    SimRequest,
    Tier,
    from_families,
    independent_lengths,
    make_families,
    mixed_prompts,
    open_loop,
    poisson,
    square_wave,
)


class SetupError(ValueError):
    """A setting of a scenario that cannot be used."""


def execute(
    ordering: OrderingPolicy,
    engine: Mapping[str, Any],
    workload: Mapping[str, Any],
    replicas: Mapping[str, int],
    search: Sequence[float] | None,
    seed: int,
) -> dict[str, float]:
    """One run's figures. With ``search`` (lowest rate, highest rate, step) the figure is ``goodput`` [requests/s]."""
    config = engine_config(engine)
    if search is None:
        return _figures(config, ordering, workload, replicas, seed)
    low, high, step = search

    def late_at(rate: float) -> float:
        engine = make_engine(config, ordering)
        return late_share([outcome_of(life) for life in engine.run(requests_of({**workload, "rate": rate}, seed))])

    return {"goodput": goodput(late_at, low, high, step=step)}


def _figures(
    config: EngineConfig, ordering: OrderingPolicy, workload: Mapping[str, Any], replicas: Mapping[str, int], seed: int
) -> dict[str, float]:
    if workload.get("kind") == "driftsched":
        return _driftsched(config, ordering, workload, seed)
    if workload.get("kind") == "weights":
        return pool_lab.weights()
    if workload.get("kind") == "pool":
        return _pool(config, ordering, workload, seed)
    engines: list[Engine] = []
    lives: list[Life] = []

    def run(requests: Sequence[SimRequest], config: EngineConfig = config) -> None:
        engines.append(make_engine(config, ordering))
        lives.extend(engines[-1].run(requests))

    requests = requests_of(workload, seed)
    if not replicas:
        run(requests)
    elif set(replicas) == {"all"}:
        for hand in deal(requests, replicas["all"]):
            run(hand)
    else:
        _silos(config, requests, replicas, run)
    return measure(lives, engines)


def _pool(config: EngineConfig, ordering: OrderingPolicy, workload: Mapping[str, Any], seed: int) -> dict[str, float]:
    try:
        return pool_lab.run_pool(config, ordering, workload, seed)
    except (KeyError, TypeError, ValueError) as problem:
        raise SetupError(f"pool: {type(problem).__name__}: {problem}") from problem


def _silos(
    config: EngineConfig,
    requests: Sequence[SimRequest],
    replicas: Mapping[str, int],
    run: Callable[[Sequence[SimRequest], EngineConfig], None],
) -> None:
    """Replicas per tier: those without a pace to keep use the large chunk, which gives them most throughput."""
    chunks = EngineConfig(**{f.name: getattr(config, f.name) for f in fields(config)} | {"token_budget": 2048})
    for hands in deal_silos(requests, replicas).values():
        for hand in hands:
            paced = any(request.slo.tbt_s is not None for request in hand)
            run(hand, config if paced else chunks)


def _driftsched(
    config: EngineConfig, ordering: OrderingPolicy, workload: Mapping[str, Any], seed: int
) -> dict[str, float]:
    estimator = driftsched.DriftEstimator(words=bool(workload.get("words", True)))
    engine = make_engine(config, ordering, estimator=estimator)
    figures = measure(driftsched.run_phases(engine, seed, (driftsched.CALIBRATION, driftsched.STRESS)), [engine])
    figures["bias.low"], figures["bias.high"] = min(estimator.bias.values()), max(estimator.bias.values())
    figures["bias"] = sum(estimator.bias.values()) / len(estimator.bias)
    return figures


def engine_config(settings: Mapping[str, Any]) -> EngineConfig:
    """An engine from ``preset`` and what differs from it. ``slow``: how many times longer the truth takes than the
    planner believes; ``step_time``: coefficients [s] in place of the preset's; ``kv_tokens`` defaults to the preset's.
    """
    values = dict(settings)
    name = values.pop("preset", None)
    if name is None:
        raise SetupError("engine needs a preset")
    try:
        preset = load_preset(name)
        planner = StepTime(**values.pop("step_time")) if "step_time" in values else preset.step_time
        values.setdefault("kv_tokens", preset.kv_tokens)
        return EngineConfig(truth=planner.slowed(float(values.pop("slow", 1.0))), planner=planner, **values)
    except (TypeError, ValueError) as problem:
        raise SetupError(f"engine: {problem}") from problem


def requests_of(settings: Mapping[str, Any], seed: int) -> list[SimRequest]:
    """The requests of an open-loop workload. ``kind``: poisson, square, mix, families."""
    values = dict(settings)
    kind = values.pop("kind", "")
    tiers = [_tier(raw) for raw in values.pop("tiers", ())] or [Tier("all")]
    arrivals, lengths = rng(seed, "arrivals"), rng(seed, "lengths")
    count = int(values.pop("count", 0))
    try:
        if kind == "families":
            families = make_families(rng(int(values.pop("family_seed", seed)), "families"), int(values.pop("families")))
            requests = from_families(poisson(arrivals, values.pop("rate")), count, families, tiers[0], lengths)
            _nothing_left(values)
            return requests
        times = (
            square_wave(arrivals, values.pop("rates"), values.pop("period_s"))
            if kind == "square"
            else poisson(arrivals, values.pop("rate"))
        )
        if kind == "mix":
            draw = mixed_prompts(values.pop("prompts"), int(values.pop("output_tokens")))
        elif kind in ("poisson", "square"):
            draw = independent_lengths(values.pop("lengths"))
        else:
            raise SetupError(f"workload kind {kind!r}: there are poisson, square, mix, families, driftsched")
        expected = float(values.pop("expected_output", 15.0))
        requests = open_loop(
            times,
            count,
            draw,
            tiers,
            Belief(expected, 1024),
            length_stream=lengths,
            tier_stream=rng(seed, "tiers"),
            low_share=float(values.pop("low_share", 0.0)),
        )
    except KeyError as problem:
        raise SetupError(f"workload {kind!r} needs {problem}") from problem
    _nothing_left(values)
    return requests


def _nothing_left(values: Mapping[str, Any]) -> None:
    if values:
        raise SetupError(f"workload has unknown entries: {', '.join(sorted(values))}")


def _tier(raw: Mapping[str, Any]) -> Tier:
    values = dict(raw)
    slo = Slo(values.pop("ttft_s", None), values.pop("tbt_s", None), values.pop("ttlt_s", None))
    try:
        return Tier(slo=slo, **values)
    except TypeError as problem:
        raise SetupError(f"tier {raw.get('name')!r}: {problem}") from problem
