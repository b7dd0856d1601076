"""One sentence that says how a request went and what its time was spent on."""

from __future__ import annotations

from scheduling.core.outcomes import Outcome, Reason
from telemetry.ledger.prefill import Ahead, prompt_of, split
from telemetry.models import LedgerEntry

_MOST = 3  # tenants named


def verdict(
    row: LedgerEntry, engine: Ahead | None, granted_before: int | None, predicted_s: float | None = None
) -> str:
    """``engine``, ``granted_before``: what was ahead of it, where the reader may know of others. ``predicted_s``: what
    its own prompt needs in its engine, where that is known."""
    whole_s = (row.done_at - row.received_at).total_seconds()
    because = row.reason.replace("_", " ")
    if row.outcome == Outcome.REFUSED:
        after = f" after waiting {_s(whole_s)}" if row.queued_at is not None else ""
        return f"Refused{after} with HTTP {row.status}: {because}."
    spent = _spent(row, engine, granted_before, predicted_s)
    if row.outcome == Outcome.FAILED:
        where = f" on {row.backend}" if row.backend and engine is not None else ""
        return f"Failed{where} after {_s(whole_s)}: {because}{spent}."
    if row.outcome == Outcome.CANCELLED:
        return f"Cancelled after {_s(whole_s)}: {because}{spent}."
    if row.reason == Reason.REPLAYED:
        return "Answered with the kept answer of an earlier request."
    kept = {True: "Kept its SLO", False: "Missed its SLO", None: "Completed"}[row.slo_met]
    return f"{kept}: {_came(row, whole_s)}{spent}."


def _came(row: LedgerEntry, whole_s: float) -> str:
    if row.first_token_at is not None and row.ttft_slo_s is not None:
        first_s = (row.first_token_at - row.received_at).total_seconds()
        if row.slo_met is False and first_s <= row.ttft_slo_s:
            return f"first token after {_s(first_s)}, but the tokens after it came too slowly"
        return f"first token after {_s(first_s)} ({_s(row.ttft_slo_s)} at most)"
    if row.ttlt_slo_s is not None:
        return f"done after {_s(whole_s)} ({_s(row.ttlt_slo_s)} at most)"
    return f"done after {_s(whole_s)}"


def _spent(row: LedgerEntry, engine: Ahead | None, granted_before: int | None, predicted_s: float | None) -> str:
    """The largest part of the time before the first token, where there is one worth naming."""
    own = prompt_of(row)
    queued_s = row.wait_s or 0.0
    inside_s = split(own, engine, predicted_s)[0] if own is not None and engine is not None and engine.tokens else 0.0
    if max(queued_s, inside_s) < 0.05:
        return ""
    if queued_s >= inside_s:
        went = f" while {granted_before:,} requests were granted before it" if granted_before else ""
        return f"; it waited {_s(queued_s)} in the queue{went}{_interrupted(row) if engine is not None else ''}"
    assert engine is not None
    names = list(engine.ranked())
    whose = ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
    plural = "request" if engine.requests == 1 else "requests"
    return (
        f"; about {_s(inside_s)} of it inside {row.backend}, behind {engine.tokens:,} prompt tokens of "
        f"{engine.requests} {plural} granted there before it ({whose})"
    )


def _interrupted(row: LedgerEntry) -> str:
    """What came beside its wait before it was granted for the last time."""
    times = row.interruptions
    if not times:
        return ""
    how_often = "once" if times == 1 else f"{times} times"
    return f", beside {_s(row.ran_before_s)} of its prefill, which was interrupted {how_often}"


def _s(s: float) -> str:
    """As the console writes it: 640 ms, 4.10 s, 12.3 s, 2 min 05 s, 10 min."""
    if s < 0.9995:
        return f"{s * 1000:.0f} ms"
    if s < 99.95:
        return f"{s:.2f} s" if s < 9.995 else f"{s:.1f} s"
    minutes, rest = divmod(round(s), 60)
    return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
