"""Did a request keep its promise about time?

Deadlines are those of QoServe 3.2: an interactive request is met when its first token came by ``arrival + TTFT`` and
its last of ``n`` tokens by ``arrival + TTFT + (n-1) * TBT``; any other when it was done by ``arrival + TTLT``.
"""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.ledger import LedgerRecord
from scheduling.core.outcomes import Outcome


def slo_met(record: LedgerRecord) -> bool | None:
    """True or False for a request that was taken on and had a target, None where the question does not arise.

    It does not arise where no target is set, for a refused request, and for one that was cancelled before it ran or
    before the target that matters was due. A request that failed has missed its promise.
    """
    if record.outcome == Outcome.REFUSED:
        return None
    cancelled = record.outcome == Outcome.CANCELLED
    if cancelled and record.granted_s is None:
        return None
    if record.ttft_slo_s is None:
        if record.ttlt_slo_s is None:
            return None
        in_time = record.done_s <= record.received_s + record.ttlt_slo_s
        if cancelled:
            return None if in_time else False
        return in_time and record.outcome != Outcome.FAILED
    if record.outcome == Outcome.FAILED:
        return False
    first_by = record.received_s + record.ttft_slo_s
    if not record.streamed and not cancelled:  # it arrives whole: only its last token's deadline can be seen
        if record.tbt_slo_s is None:
            return None
        return record.done_s <= first_by + max(0, record.output_tokens - 1) * record.tbt_slo_s
    if record.first_token_s is None:
        return None if cancelled and record.done_s <= first_by else False
    if record.first_token_s > first_by:
        return False
    if record.tbt_slo_s is None:
        return True
    return record.done_s <= first_by + max(0, record.output_tokens - 1) * record.tbt_slo_s


def judged(record: LedgerRecord) -> LedgerRecord:
    """The record with its ``slo_met`` filled in."""
    return replace(record, slo_met=slo_met(record))
