"""From a call to its ledger record."""

from __future__ import annotations

import msgspec

from scheduling.core.ledger import LedgerRecord
from scheduling.core.outcomes import Outcome, Reason, outcome_of
from scheduling.core.slo import promise_kept
from scheduling.core.types import EntitlementSpec, Estimate
from scheduling.gateway.call import Call
from scheduling.state.codec import DIRECT


def record_of(call: Call, reason: Reason, gateway_id: str) -> LedgerRecord:
    """The record of a call with a valid key that ends now with ``reason``."""
    access = call.access
    assert access is not None
    entitlement, prepared, estimate = access.entitlement, call.prepared, call.estimate
    slo = entitlement.tier.slo
    streamed = prepared is not None and prepared.stream
    outcome = outcome_of(reason).value
    done_s = call.now_s()
    outlook = call.outlook
    answered = outcome == Outcome.COMPLETED and call.output_tokens > 0
    return LedgerRecord(
        request_id=call.id,
        pool=access.pool.id,
        model=access.pool.model,
        tenant=entitlement.tenant,
        tier=entitlement.tier.name,
        entitlement=entitlement.id,
        key_id=access.key.id,
        gateway=gateway_id,
        outcome=outcome,
        reason=reason.value,
        status=call.status,
        streamed=streamed,
        attempts=call.attempt,
        backend=call.backend,
        policy=call.policy or (DIRECT if call.backend else ""),
        why=call.why_there,
        input_tokens_est=estimate.input_tokens if estimate is not None else 0,
        output_tokens_est=estimate.output_tokens if estimate is not None else 0.0,
        output_bound=estimate.output_bound if estimate is not None else 0,
        input_tokens=call.input_tokens,
        output_tokens=call.output_tokens,
        received_s=call.received_s,
        queued_s=call.queued_s,
        granted_s=call.granted_s,
        first_token_s=call.first_token_s,
        done_s=done_s,
        ttft_slo_s=slo.ttft_s,
        tbt_slo_s=slo.tbt_s,
        ttlt_slo_s=slo.ttlt_s,
        slo_met=promise_kept(
            outcome, streamed, call.output_tokens, call.received_s, call.granted_s, call.first_token_s, done_s, slo,
        ),
        category=estimate.category if estimate is not None else "",
        estimate_source=estimate.source if estimate is not None else "",
        output_tokens_p90=estimate.output_p90 if estimate is not None else 0.0,
        output_rank=outlook.forecast.prediction.rank(call.output_tokens) if outlook is not None and answered else None,
        trace=call.trace,
        admission=_admission(call, entitlement, estimate),
    )  # fmt: skip


def _admission(call: Call, entitlement: EntitlementSpec, estimate: Estimate | None) -> str:
    """What the rules of admission compared (``docs/reference/admission.md``), short: a figure that plays no part is
    left out."""
    admission = call.admission
    if admission is None or estimate is None:
        return ""
    figures: dict[str, str | int | float] = {
        "answer": admission.status.value,
        "inflight": admission.inflight,  # with this one, unless it was refused
        "concurrency": entitlement.concurrency,
        "kv": estimate.kv_tokens,
    }
    if entitlement.tokens_per_s > 0:
        figures |= {"charge": estimate.cost_tokens, "depth": entitlement.burst_tokens}
        if admission.level_tokens is not None:
            figures["level"] = round(admission.level_tokens)  # what the bucket held after it
    if entitlement.kv_tokens:
        figures["kv_share"] = entitlement.kv_tokens
    if admission.position:
        figures["position"] = admission.position
    return msgspec.json.encode(figures).decode()
