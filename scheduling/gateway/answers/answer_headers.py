"""The headers of an answer to a request with a valid key: what its limits leave, how long it waited, who served it."""

from __future__ import annotations

import math

from scheduling.core.admission.key_limits import read_limits
from scheduling.gateway.headers import Header
from scheduling.gateway.stages import Call


def answer_headers(call: Call, full: bool = False) -> list[Header]:
    """The headers of every answer to a valid key. ``full``: its entitlement has no place left, whatever it had when
    the call was admitted."""
    headers = call.dialect.names(call.id)
    identified, submitted = call.identified, call.submitted
    if identified is None:
        return headers
    if call.estimated is not None:
        headers.append((b"x-quartermaster-estimate-tokens", b"%d" % call.estimated.estimate.cost_tokens))
    if identified.instead_of is not None and identified.instead_why is not None:
        asked, why = identified.instead_of.pool.model, identified.instead_why
        headers.append((b"x-quartermaster-fallback", f"{asked}; {why}".encode("latin-1", "replace")))
        headers.append((b"x-quartermaster-model", identified.access.pool.model.encode("latin-1", "replace")))
    queued = 0.0
    if submitted is not None:
        admission = submitted.admission
        if admission is not None and (admission.inflight or admission.limits or admission.level_tokens is not None):
            limits, inflight = identified.access.limits, admission.inflight
            if full:
                inflight = max(inflight, identified.access.entitlement.concurrency)
            if admission.limits:
                scopes = read_limits(submitted.estimated.facts.limits).scopes
                limited = list(zip(scopes, admission.limits, strict=False))
                headers += limits.narrower(inflight, admission.level_tokens, limited)
            else:
                headers += limits.render(inflight, admission.level_tokens)
        if submitted.queued_s is not None:
            queued = max(0.0, (submitted.granted_s or call.now_s()) - submitted.queued_s - submitted.ran_before_s)
    headers.append((b"x-quartermaster-queue-ms", b"%d" % (queued * 1000)))
    if submitted is not None and submitted.admission is not None and submitted.admission.wakes_s is not None:
        headers.append((b"x-quartermaster-wakes-s", b"%d" % math.ceil(submitted.admission.wakes_s)))
    if identified.idempotency is not None and identified.idempotency.original:
        headers.append((b"x-quartermaster-original-request", identified.idempotency.original.encode("ascii")))
    return headers
