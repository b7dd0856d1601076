"""One record per request: what was believed, what happened, and why.

Written once, at the request's terminal state, on the pool's ledger stream (``docs/state.md``), and moved to the
database in bulk. Lengths, times and names only: no prompt, no answer, no secret.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """Times are epoch seconds, sizes are tokens. Empty strings and None mean "did not come to that"."""

    request_id: str
    pool: str
    model: str
    tenant: str
    tier: str
    entitlement: str
    key_id: str
    gateway: str
    outcome: str
    reason: str
    status: int  # HTTP status the client saw; 0 where there was none
    streamed: bool
    attempts: int
    backend: str
    policy: str  # "priority@1", or "direct" where nobody waited
    why: str  # one line: why now and why there
    input_tokens_est: int
    output_tokens_est: float
    output_bound: int
    input_tokens: int
    output_tokens: int
    received_s: float
    queued_s: float | None
    granted_s: float | None
    first_token_s: float | None
    done_s: float
    ttft_slo_s: float | None
    tbt_slo_s: float | None
    ttlt_slo_s: float | None
    slo_met: bool | None
    category: str = ""  # what the prompt is about; empty: not looked at
    estimate_source: str = ""  # which predictor spoke; empty: none was asked
    output_tokens_p90: float = 0.0  # 90 of 100 such answers were expected not to be longer; 0: not predicted
    output_rank: float | None = None  # share of such answers expected to be shorter than this one was; None: no answer
    trace: str = ""  # operation and the client's traceparent (core/tracing.py); empty: traces are off
    admission: str = ""  # JSON: the figures that it was admitted or refused by; empty: it did not come to that
