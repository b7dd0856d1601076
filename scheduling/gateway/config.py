"""What a gateway may be told. Built by the shell from its settings; the gateway reads no environment."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from scheduling.core.outcomes import Reason


def new_gateway_id() -> str:
    """An id for one process start: grants are published to it, leases carry it."""
    return f"gw-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Limits and time limits of one gateway process. Sizes are bytes, times are seconds."""

    gateway_id: str = field(default_factory=new_gateway_id)
    max_body_bytes: int = 4 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    max_open_per_key: int = 2_000  # requests of one key in this process, from their head to their end
    max_answer_bytes: int = 64 * 1024 * 1024  # a longer non-streamed answer is an engine's fault, not kept in memory
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 30.0  # one send to a client that does not read
    connect_timeout_s: float = 2.0
    first_token_timeout_s: float = 120.0  # streams: from the grant to the first byte of the answer
    idle_token_timeout_s: float = 20.0  # streams: between two reads (engine/silence.py)
    request_timeout_s: float = 600.0  # everything, waiting included
    drain_s: float = 30.0
    renew_every_s: float = 3.0  # a third of the lease (docs/internals/state.md)
    flush_every_s: float = 0.2  # ledger records of refusals
    backlog_limit: int = 20_000  # endings and refusals kept while Redis is away; the oldest refusals go first
    idempotency_keep_s: float = 86_400.0  # an Idempotency-Key whose request completed is remembered for so long
    idempotency_keys: int = 10_000  # of them, per tenant; the oldest go first
    idempotency_answers: bool = False  # whether their answers are kept (encrypted) and given again
    idempotency_bytes: int = 16 * 1024 * 1024  # of kept answers, per tenant; the oldest go first
    idempotency_largest: int = 1024 * 1024  # a larger answer is not kept
    idempotency_secret: bytes = b""  # the deployment's: keys and bodies are only known as digests under it
    history_secret: bytes = b""  # the deployment's: what predictors learn from is sealed with it in shared state
    tenant_secret: bytes = b""  # the deployment's: salts of engines' prefix caches and routing's prefixes come from it
    traces: bool = False  # whether records carry what a trace needs, and engines are told of it
    retry_share: float = 0.2  # retries at another replica, as a share of requests
    retry_floor: int = 3  # always allowed, however few requests there are
    records_mistakes: bool = False  # a ledger row for each wrong request, however many one key sends
    unrecorded: frozenset[Reason] = frozenset()  # refusals with these reasons leave no ledger row: whose caller waits
