"""Did a request keep its promise about time?

Deadlines are those of QoServe 3.2 (``core/deadline.py``): an interactive request is met when its first token came by
``arrival + TTFT`` and its last of ``n`` tokens by ``arrival + TTFT + (n-1) * TBT``; any other when it was done by
``arrival + TTLT``.
"""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.deadline import first_token_deadline_s, token_deadline_s, total_deadline_s
from scheduling.core.ledger import LedgerRecord
from scheduling.core.outcomes import Outcome
from scheduling.core.types import Slo


def slo_met(record: LedgerRecord) -> bool | None:
    """True or False for a request that was taken on and had a target, None where the question does not arise.

    It does not arise where no target is set, for a refused request, and for one that was cancelled before it ran or
    before the target that matters was due. A request that failed has missed its promise.
    """
    return promise_kept(
        record.outcome, record.streamed, record.output_tokens, record.received_s, record.granted_s,
        record.first_token_s, record.done_s, Slo(record.ttft_slo_s, record.tbt_slo_s, record.ttlt_slo_s),
    )  # fmt: skip


def promise_kept(
    outcome: str,
    streamed: bool,
    output_tokens: int,
    received_s: float,
    granted_s: float | None,
    first_token_s: float | None,
    done_s: float,
    slo: Slo,
) -> bool | None:
    """:func:`slo_met` of a record that is still being written: its fields."""
    if outcome == Outcome.REFUSED or (outcome == Outcome.COMPLETED and granted_s is None):
        return None  # it never ran; completed so: an earlier answer was given again
    cancelled = outcome == Outcome.CANCELLED
    if cancelled and granted_s is None:
        return None
    if slo.ttft_s is None:
        if slo.ttlt_s is None:
            return None
        in_time = done_s <= total_deadline_s(received_s, slo)
        if cancelled:
            return None if in_time else False
        return in_time and outcome != Outcome.FAILED
    if outcome == Outcome.FAILED:
        return False
    if not streamed and not cancelled:  # it arrives whole: only its last token's deadline can be seen
        if slo.tbt_s is None:
            return None
        return done_s <= token_deadline_s(received_s, slo, max(1, output_tokens))
    first_by = first_token_deadline_s(received_s, slo)
    if first_token_s is None:
        return None if cancelled and done_s <= first_by else False
    if first_token_s > first_by:
        return False
    if slo.tbt_s is None:
        return True
    return done_s <= token_deadline_s(received_s, slo, max(1, output_tokens))


def judged(record: LedgerRecord) -> LedgerRecord:
    """The record with its ``slo_met`` filled in."""
    return replace(record, slo_met=slo_met(record))
