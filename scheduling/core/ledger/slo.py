"""Did a request keep its promise about time?

Deadlines are those of QoServe 3.2 (``core/deadline.py``): an interactive request is met when its first token came by
``arrival + TTFT`` and its last of ``n`` tokens by ``arrival + TTFT + (n-1) * TBT``; any other when it was done by
``arrival + TTLT``.

Attainment is what was kept of everything asked (:class:`Kept`): a request that was refused for want of capacity or by a
limit was asked for as well as one that came late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scheduling.core.deadline import first_token_deadline_s, token_deadline_s, total_deadline_s
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import Slo

# Refusals that the service answers for: by a limit (429) or for want of capacity (503). Others are the request's fault.
TURNED_AWAY = frozenset(
    r.value for r in Reason if r.ending.outcome == Outcome.REFUSED and r.ending.status in (429, 503)
)


MIN_JUDGED = 10  # requests of the last minute: a share of fewer may be chance
CHANCE = 0.05


def falls_short(attainment: float, asked: int, low: float) -> bool:
    """Whether a share [0..1] of ``asked`` requests is too low to be called well.

    Of fewer than :data:`MIN_JUDGED` it is where a tier that keeps ``low`` in the long run would fare as badly in one of
    twenty such minutes, or fewer (binomial): 2 of 2 missed, 2 of 3, 3 of 5 where 90 % are promised; not 1 of 2. The
    console has the same rule (``frontend/src/pages/overview/verdict.ts``).
    """
    if asked >= MIN_JUDGED:
        return attainment < low
    kept = round(attainment * asked)
    likely = sum(math.comb(asked, n) * low**n * (1 - low) ** (asked - n) for n in range(kept + 1))
    return asked > 0 and likely <= CHANCE


@dataclass(frozen=True, slots=True)
class Kept:
    """Requests with an SLO, by what became of it."""

    kept: int
    missed: int  # served late, or failed
    turned_away: int  # refused (:func:`turned_away`)
    left: int = 0  # given up before anything was due (:func:`left_unjudged`): in no share
    retries: int = 0  # of those asked, such that their clients say that they sent them before
    retries_kept: int = 0  # of those kept

    @property
    def served(self) -> int:
        """Requests that were taken on and judged."""
        return self.kept + self.missed

    @property
    def asked(self) -> int:
        return self.served + self.turned_away

    @property
    def attainment(self) -> float | None:
        """Kept / asked [0..1]; None: nothing was asked."""
        return self.kept / self.asked if self.asked else None

    @property
    def attainment_served(self) -> float | None:
        """Kept / served [0..1], which does not count refusals; None: nothing was served."""
        return self.kept / self.served if self.served else None

    @property
    def attainment_first(self) -> float | None:
        """Of those that are no retries, kept / asked [0..1]; None: nothing was asked. Who was refused at first waited,
        so a retry counts for nothing. What a client says of itself changes this figure alone."""
        asked = self.asked - self.retries
        return (self.kept - self.retries_kept) / asked if asked else None


def slo_met(record: LedgerRecord) -> bool | None:
    """True or False for a request that was taken on and had a target, None where the question does not arise.

    It does not arise where no target is set, for a refused request, and for one that was cancelled before the target
    that matters was due, waiting or running. A request that failed has missed its promise.
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
    if slo.ttft_s is None:
        if slo.ttlt_s is None:
            return None
        in_time = done_s <= total_deadline_s(received_s, slo)
        if cancelled:
            return None if in_time else False
        return in_time and outcome != Outcome.FAILED
    if outcome == Outcome.FAILED:
        return False
    if not streamed:  # it arrives whole: only the deadline of its last token can be seen, or of what there was of it
        if slo.tbt_s is None:
            return None
        in_time = done_s <= token_deadline_s(received_s, slo, max(1, output_tokens))
        return None if cancelled and in_time else in_time
    first_by = first_token_deadline_s(received_s, slo)
    if first_token_s is None:
        return None if cancelled and done_s <= first_by else False
    if first_token_s > first_by:
        return False
    if slo.tbt_s is None:
        return True
    return done_s <= token_deadline_s(received_s, slo, max(1, output_tokens))


def turned_away(record: LedgerRecord) -> bool:
    """Whether a request with an SLO was refused by a limit or for want of capacity.

    Only where its SLO could have been judged had it run: of an answer that arrives whole the first token is not seen.
    """
    if record.reason not in TURNED_AWAY or record.outcome != Outcome.REFUSED:
        return False
    if record.ttft_slo_s is None:
        return record.ttlt_slo_s is not None
    return record.streamed or record.tbt_slo_s is not None


def left_unjudged(record: LedgerRecord) -> bool:
    """Whether a request with an SLO cannot be judged because its client left before anything was due."""
    promised = record.ttft_slo_s is not None or record.ttlt_slo_s is not None
    return promised and record.slo_met is None and record.outcome == Outcome.CANCELLED


def judged(record: LedgerRecord) -> LedgerRecord:
    """The record with its ``slo_met`` filled in."""
    return replace(record, slo_met=slo_met(record))
