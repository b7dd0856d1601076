"""The figures that a lab scenario may ask of a run, by name.

* ``late`` and ``late.<tier>``, ``late.important``, ``late.long``, ``late.short`` [%];
* ``p50 p95 p99 mean`` of the time to the last token [s], also per tier (``p99.<tier>``);
* ``ttft.p50 ttft.p99 ttft.mean`` [s], ``ttft.p99.<tier>``, ``ttft.brief`` (mean over prompts of at most 256 tokens);
* ``wait`` [s] until a request is first worked on, ``wait.<class>`` by estimated budget (DriftSched's classes);
* ``makespan`` [s], ``tokens_per_s`` and ``requests_per_s`` over it, ``output_tokens``;
* ``relegated`` [%], ``preemptions``;
* the run by the clock, see :mod:`scheduling.simulator.timeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduling.core.percentiles import interpolated
from scheduling.simulator.engine import Engine
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.result import (
    Outcome,
    by_tier,
    late_share,
    makespan_s,
    mean,
    outcome_of,
    outcomes_of,
)
from scheduling.simulator.timeline import timeline

BRIEF = 256  # tokens: the short prompts of EWSJF's mixes
CLASSES = (("short", 0, 128), ("medium", 128, 512), ("long", 512, 1 << 60))


def measure(lives: Sequence[Life], engines: Iterable[Engine] = ()) -> dict[str, float]:
    """All figures of a run."""
    outcomes = outcomes_of(lives)
    figures = {"late": 100 * late_share(outcomes), **_latencies(outcomes)}
    for tier, rows in by_tier(outcomes).items():
        figures[f"late.{tier}"] = 100 * late_share(rows)
        figures.update({f"{name}.{tier}": value for name, value in _latencies(rows).items()})
        figures[f"ttft.p99.{tier}"] = interpolated([o.ttft_s for o in rows], 0.99)
    figures["late.important"] = 100 * late_share([o for o in outcomes if o.important])
    edge = interpolated([o.input_tokens for o in outcomes], 0.9)
    figures["late.long"] = 100 * late_share([o for o in outcomes if o.input_tokens >= edge])
    figures["late.short"] = 100 * late_share([o for o in outcomes if o.input_tokens < edge])
    first = [o.ttft_s for o in outcomes]
    figures["ttft.p50"], figures["ttft.p99"] = interpolated(first, 0.5), interpolated(first, 0.99)
    figures["ttft.mean"] = mean(first)
    figures["ttft.brief"] = mean([o.ttft_s for o in outcomes if o.input_tokens <= BRIEF])
    figures["wait"] = mean([o.wait_s for o in outcomes])
    figures.update(_waits_by_class(lives))
    figures["makespan"] = makespan_s(outcomes)
    tokens = sum(o.input_tokens + o.output_tokens for o in outcomes)
    figures["tokens_per_s"] = tokens / figures["makespan"]
    figures["requests_per_s"] = len(outcomes) / figures["makespan"]
    figures["output_tokens"] = float(sum(o.output_tokens for o in outcomes))
    figures["relegated"] = 100 * sum(o.relegated for o in outcomes) / len(outcomes)
    figures["preemptions"] = float(sum(engine.counters.preemptions for engine in engines))
    figures.update(timeline(outcomes))
    return figures


def _latencies(outcomes: Sequence[Outcome]) -> dict[str, float]:
    whole = [o.ttlt_s for o in outcomes]
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {"mean": mean(whole), **{name: interpolated(whole, share) for name, share in shares.items()}}


def _waits_by_class(lives: Sequence[Life]) -> dict[str, float]:
    waits: dict[str, list[float]] = {name: [] for name, _, _ in CLASSES}
    for life in lives:
        budget = life.queued.input_tokens + life.queued.output_tokens
        for name, low, high in CLASSES:
            if low < budget <= high:
                waits[name].append(outcome_of(life).wait_s)
    return {f"wait.{name}": mean(values) for name, values in waits.items() if values}
