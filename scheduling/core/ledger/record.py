"""One record per request: what was believed, what happened, and why.

Written once, at the request's terminal state, on the pool's ledger stream (``docs/internals/state.md``), and moved to
the database in bulk. Lengths, times and names only: no prompt, no answer, no secret.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduling.core.frozen import quickly_made

MAX_TOKENS = 100_000_000  # of one request, in or out: ten times the longest context there is


@quickly_made
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
    policy: str  # "priority@1", "direct" where nobody waited, or "leaderless"
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
    trace: str = ""  # operation and the client's traceparent (core/ledger/tracing.py); empty: traces are off
    user: str = ""  # of the client's application, as it was named, or of the key; empty: nobody was named
    instead_of: str = ""  # the entitlement that refused it, where a fallback took it over
    instead_why: str = ""  # and with which reason
    admission: str = ""  # JSON: the figures that it was admitted or refused by; empty: it did not come to that
    cached_tokens: int = 0  # of the input, what the engine's prefix cache held; 0: none, or it does not say
    project: str = ""  # of the key; empty: it opens one entitlement
    interruptions: int = 0  # of its prefill, for others that would have been late; no attempts
    sequences: int = 1  # places that it takes while it runs: its answers, or prompts, up to MAX_SEQUENCES
    ran_before_s: float = 0.0  # from queued_s on, how long attempts before the last one ran on their replicas
    client_retry: int = 0  # how often its client sent it before, by its own word; no attempts of ours

    @property
    def waited_s(self) -> float | None:
        """How long it waited for a slot, in vain as well, without the time in which an attempt ran that was taken back
        or failed; 0 if it was granted at once, None if it came to neither."""
        if self.queued_s is None:
            return None if self.granted_s is None else 0.0
        until_s = self.done_s if self.granted_s is None else self.granted_s
        return max(0.0, until_s - self.queued_s - self.ran_before_s)


def sane(record: LedgerRecord) -> LedgerRecord:
    """The record, with figures that no request can have replaced by what was expected and asked of it.

    Gateways bound what engines report; this is for what got in elsewhere, or before they did.
    """
    input_tokens, output_tokens = record.input_tokens, record.output_tokens
    possible = 0 <= input_tokens <= MAX_TOKENS and 0 <= output_tokens <= MAX_TOKENS
    if possible and 0 <= record.cached_tokens <= input_tokens:
        return record
    input_tokens = _possible(input_tokens, record.input_tokens_est)
    return replace(
        record,
        input_tokens=input_tokens,
        output_tokens=_possible(output_tokens, record.output_bound),
        cached_tokens=record.cached_tokens if 0 <= record.cached_tokens <= input_tokens else 0,
    )


def _possible(tokens: int, else_: int) -> int:
    return tokens if 0 <= tokens <= MAX_TOKENS else min(max(else_, 0), MAX_TOKENS)
