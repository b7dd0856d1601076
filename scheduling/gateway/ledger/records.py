"""From a call to its ledger record."""

from __future__ import annotations

import msgspec

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.ledger.slo import promise_kept
from scheduling.core.outcomes import Outcome, Reason, outcome_of
from scheduling.core.types import MAX_SEQUENCES, Estimate
from scheduling.gateway.stages import Identified, Progress
from scheduling.state.codec import DIRECT
from scheduling.state.types import Admission

_NOTHING = Estimate(0, 0, 0.0, 0, 0, source="")  # of a request that ends before it was estimated
_NOWHERE = Progress()  # ... or before shared state was asked


def record_of(identified: Identified, reason: Reason, gateway_id: str) -> LedgerRecord:
    """The record of a call with a valid key that ends now with ``reason``."""
    call, access = identified.call, identified.access
    estimated, run = call.estimated, call.submitted or _NOWHERE
    entitlement = access.entitlement
    estimate = _NOTHING if estimated is None else estimated.estimate
    slo = entitlement.tier.slo
    outcome = outcome_of(reason)
    done_s = call.now_s()
    rank = None
    outlook = None if estimated is None or estimated.prepared.choices > 1 else estimated.outlook
    if outlook is not None and outcome == Outcome.COMPLETED and run.output_tokens:
        rank = outlook.forecast.prediction.rank(run.output_tokens)
    sequences = 1 if estimated is None else min(estimated.prepared.choices, MAX_SEQUENCES)
    # In the order of its fields: naming them costs more than twice the time. Its test compares each with its name.
    return LedgerRecord(
        call.id, access.pool.id, access.pool.model, entitlement.tenant, entitlement.tier.name, entitlement.id,
        access.key.id, gateway_id,
        outcome, reason, call.status, identified.streamed, run.tries,
        run.backend, run.policy or (DIRECT if run.backend else ""), run.why_there,
        estimate.input_tokens, estimate.output_tokens, estimate.output_bound, run.input_tokens, run.output_tokens,
        call.received_s, run.queued_s, run.granted_s, run.first_token_s, done_s,
        slo.ttft_s, slo.tbt_s, slo.ttlt_s,
        promise_kept(
            outcome, identified.streamed, run.output_tokens, call.received_s, run.granted_s, run.first_token_s, done_s,
            slo,
        ),
        estimate.category, estimate.source, estimate.output_p90, rank,
        identified.trace, identified.user,
        "" if identified.instead_of is None else identified.instead_of.entitlement.id, identified.instead_why or "",
        "" if run.admission is None else _admission(run, run.admission, identified, estimate, sequences),
        run.cached_tokens, access.key.project, run.interruptions, sequences, run.ran_before_s, identified.client_retry,
    )  # fmt: skip


def _admission(run: Progress, admission: Admission, identified: Identified, estimate: Estimate, sequences: int) -> str:
    """What the rules of admission compared (``docs/reference/admission.md``), short: a figure that plays no part is
    left out."""
    entitlement = identified.access.entitlement
    figures: dict[str, str | int | float] = {
        "answer": admission.status,
        "inflight": admission.inflight,  # with this one, unless it was refused
        "concurrency": entitlement.concurrency,
        "kv": estimate.kv_tokens,
    }
    if sequences > 1:
        figures["sequences"] = sequences  # places that it takes while it runs
    if entitlement.tokens_per_s > 0:
        figures |= {"charge": estimate.cost_tokens, "depth": entitlement.burst_tokens}
        if admission.level_tokens is not None:
            figures["level"] = round(admission.level_tokens)  # what the bucket held after it
    if entitlement.kv_tokens:
        figures["kv_share"] = entitlement.kv_tokens
    if identified.instead_of is not None and identified.instead_why is not None:
        figures["instead_of"], figures["instead_why"] = identified.instead_of.entitlement.id, identified.instead_why
    if (retry_s := admission.retry_s or run.retry_s) is not None:
        figures["retry_ms"] = round(retry_s * 1000)  # the header is spread around it
    if admission.over is not None:
        figures["limit"] = f"{'user' if admission.reason is Reason.USER_LIMIT else 'key'} {admission.over[1]}"
    if admission.position:
        figures["position"] = admission.position
    return msgspec.json.encode(figures).decode()
