"""Figures of requests over a time, in equal steps of it: what the line charts of an object's page draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, Case, Value, When

from scheduling.core.percentiles import nearest_rank
from telemetry.ledger import rollup
from telemetry.ledger.sampling import PARTS, Span

STEPS = PARTS  # a sample has its share of each
# What is read of each request beside its durations, moment and outcome.
COLUMNS: dict[str, Any] = {
    "tokens_in": rollup.INPUT,
    "tokens_out": rollup.OUTPUT,
    "met": "slo_met",
    "turned_away": Case(When(rollup.TURNED_AWAY, then=Value(True)), default=Value(False), output_field=BooleanField()),
}
COUNTS = ("requests", "refused", "failed", "input_tokens", "output_tokens")
LEVELS = (("waited_p50", "waited", 0.5), ("waited_p95", "waited", 0.95), ("ttft_p50", "ttft", 0.5),
          ("ttft_p95", "ttft", 0.95))  # fmt: skip
FIGURES = (*COUNTS, "attainment", *(name for name, _, _ in LEVELS))


def over_time(
    column: Mapping[str, Sequence[Any]], time: Span, since: datetime, share: float, oldest_s: float
) -> dict[str, Any]:
    """Each figure by step, null where it is unknown.

    Args:
        column: of each request that was read its ``received_s``, ``outcome``, durations and :data:`COLUMNS`.
        since: from when on requests were read; what lies before is unknown.
        share: of the requests, how many were read; counts are divided by it.
        oldest_s: when the ledger begins. Steps that ended by then are unknown.
    """
    begin_s, since_s, until_s = time.begin.timestamp(), since.timestamp(), time.until.timestamp()
    step_s = (time.end.timestamp() - begin_s) / STEPS
    parts: list[dict[str, Any]] = [
        dict.fromkeys((*COUNTS, "met", "asked"), 0) | {"waited": [], "ttft": []} for _ in range(STEPS)
    ]
    rows = zip(*(column[name] for name in ("received_s", "outcome", "waited", "ttft", *COLUMNS)), strict=True)
    for at_s, outcome, waited, ttft, tokens_in, tokens_out, met, turned_away in rows:
        part = parts[min(STEPS - 1, max(0, int((at_s - begin_s) / step_s)))]
        part["requests"] += 1
        if outcome == "refused":
            part["refused"] += 1
        else:
            part["input_tokens"] += tokens_in
            part["output_tokens"] += tokens_out
            part["failed"] += outcome == "failed"
        if met is not None or turned_away:
            part["asked"] += 1
            part["met"] += bool(met)
        if waited is not None:
            part["waited"].append(waited)
        if ttft is not None:
            part["ttft"].append(ttft)
    figures: dict[str, list[float | None]] = {name: [] for name in FIGURES}
    lengths = []
    for i, part in enumerate(parts):
        first, last = max(since_s, begin_s + i * step_s), min(until_s, begin_s + (i + 1) * step_s)
        span_s = max(0.0, last - first)
        if span_s < step_s * (1e-6 if share == 1.0 else 1 - 1e-6):
            span_s = 0.0  # a sample is of the middle of a step: of half a step it says nothing
        if begin_s + (i + 1) * step_s <= oldest_s:
            span_s = 0.0
        lengths.append(round(span_s, 3))
        for name in COUNTS:
            figures[name].append(round(part[name] / share, 1) if span_s else None)
        figures["attainment"].append(round(part["met"] / part["asked"], 4) if span_s and part["asked"] else None)
        for name, of, level in LEVELS:
            value = nearest_rank(part[of], level) if span_s else None
            figures[name].append(None if value is None else round(value, 3))
    return {"from": round(begin_s, 3), "step_s": round(step_s, 3), "known_s": lengths, "figures": figures}
