"""What a replay measured: one row per request, summed per tenant and tier. Pure arithmetic, no clock, no sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from scheduling.core.ledger.slo import promise_kept
from scheduling.core.percentiles import nearest_rank
from scheduling.core.types import Slo

WARM: Final = 0.1  # of the time in which requests are sent, until the engines are as full as they get


@dataclass(slots=True)
class Sent:
    """One HTTP request as its client saw it. Times are seconds since it was sent."""

    request_id: str  # x-request-id, empty where no answer came
    name: str  # the tenant (key) it was sent as
    tier: str
    planned_s: float  # when the trace wanted it, from the start of the replay
    late_s: float  # how much later it really was sent
    status: int = 0
    outcome: str = "failed"
    reason: str = "no_answer"
    ttft_s: float | None = None  # of an answer that arrives whole it is not seen
    ttlt_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)  # between chunks that carried text
    queue_s: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    wanted_input: int = 0
    wanted_output: int = 0
    streamed: bool = True


def slo_met(sent: Sent, slo: Slo) -> bool | None:
    """Whether the client saw what its tier promises, as the ledger judges; None where that cannot be asked (refused,
    cancelled, no SLO)."""
    if sent.outcome in ("refused", "cancelled") or slo == Slo():
        return None
    if sent.outcome != "completed" or sent.ttlt_s is None:
        return False
    return promise_kept(sent.outcome, sent.streamed, sent.output_tokens, 0.0, 0.0, sent.ttft_s, sent.ttlt_s, slo)


def summarise(rows: Iterable[Sent], targets: dict[str, Slo], duration_s: float) -> dict[str, Any]:
    """The report: ``total`` and one entry per tenant under ``tenants`` and per tier under ``tiers``."""
    rows = list(rows)
    by_tenant: dict[str, list[Sent]] = {}
    by_tier: dict[str, list[Sent]] = {}
    for row in rows:
        by_tenant.setdefault(row.name, []).append(row)
        by_tier.setdefault(row.tier, []).append(row)
    return {
        "duration_s": round(duration_s, 3),
        "total": _group(rows, targets, duration_s) | {"tokens_per_s_while_sending": work_while_sending(rows)},
        "tenants": {name: _group(group, targets, duration_s) for name, group in sorted(by_tenant.items())},
        "tiers": {name: _group(group, targets, duration_s) for name, group in sorted(by_tier.items())},
    }


def work_while_sending(rows: Iterable[Sent]) -> float | None:
    """Tokens per second [1/s] from a tenth of the time in which requests were sent to its end; None without a length.

    A prompt counts when its first token comes, an answer evenly from there to its last, and all of one that arrives
    whole when it does. ``tokens_per_s`` goes on to the last answer, so of an overload it says more about one long
    answer than about what the engines compute.
    """
    rows = list(rows)
    sent = [row.planned_s + row.late_s for row in rows]
    if not sent or (span := max(sent) - min(sent)) <= 0:
        return None
    begin, end = min(sent) + WARM * span, max(sent)
    done = 0.0
    for at, row in zip(sent, rows, strict=True):
        if row.ttlt_s is None:
            continue
        last = at + row.ttlt_s
        first = last if row.ttft_s is None else min(last, at + row.ttft_s)
        if begin <= first < end:
            done += row.input_tokens + (row.output_tokens if first == last else 0)
        if last > first:
            done += row.output_tokens * max(0.0, min(last, end) - max(first, begin)) / (last - first)
    return round(done / (end - begin), 1)


def _group(rows: list[Sent], targets: dict[str, Slo], duration_s: float) -> dict[str, Any]:
    completed = [row for row in rows if row.outcome == "completed"]
    judged = [met for row in rows if (met := slo_met(row, targets.get(row.tier, Slo()))) is not None]
    outcomes = Counter(row.outcome for row in rows)
    return {
        "sent": len(rows),
        "completed": outcomes["completed"],
        "refused": dict(sorted(Counter(row.reason for row in rows if row.outcome == "refused").items())),
        "failed": dict(sorted(Counter(row.reason for row in rows if row.outcome == "failed").items())),
        "cancelled": outcomes["cancelled"],
        "input_tokens": sum(row.input_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "tokens_per_s": round(sum(row.input_tokens + row.output_tokens for row in rows) / duration_s, 1)
        if duration_s
        else 0.0,
        "ttft_s": _spread(row.ttft_s for row in completed),
        "tbt_s": _spread(gap for row in completed for gap in row.gaps_s),
        "ttlt_s": _spread(row.ttlt_s for row in completed),
        "queue_s": _spread(row.queue_s for row in completed),
        "slo_attainment": round(sum(judged) / len(judged), 4) if judged else None,
        "slo_judged": len(judged),
        "late_s": _spread(row.late_s for row in rows),
    }


def _spread(values: Iterable[float | None]) -> dict[str, float | None]:
    present = [value for value in values if value is not None]
    result: dict[str, float | None] = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        value = nearest_rank(present, share)
        result[name] = None if value is None else round(value, 4)
    return result


def rows_as_json(rows: Iterable[Sent]) -> list[dict[str, Any]]:
    """Every request for ``--rows``: the gaps are left out, they are many."""
    result = []
    for row in rows:
        entry = asdict(row)
        del entry["gaps_s"]
        result.append(entry)
    return result
