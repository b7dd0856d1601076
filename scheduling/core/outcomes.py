"""The closed list of ways a request can end, and what each tells the client.

Every request ends in exactly one :class:`Outcome` with one :class:`Reason`. Metrics, ledger, error bodies and the
``x-quartermaster-reason`` header all use these strings, so that they can be joined. HTTP status and retry advice live
here as well: 429 while capacity exists, 503 when it does not (``docs/errors.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """Why it ended so. A reason belongs to exactly one outcome."""

    # completed
    STOP = "stop"  # the model ended its answer, or a stop string did
    LENGTH = "length"  # the output bound was reached
    REPLAYED = "replayed"  # the kept answer of an earlier request with this Idempotency-Key
    # refused: nothing was consumed
    NO_KEY = "no_key"  # missing, unknown, expired or revoked: always the same answer
    NOT_ENTITLED = "not_entitled"  # entitlement pending or expired
    TENANT_PAUSED = "tenant_paused"  # an operator paused the tenant
    UNKNOWN_MODEL = "unknown_model"
    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"  # body or headers over the limit
    TOO_LONG = "too_long"  # prompt and output bound do not fit the model's context or a replica's KV
    SLOW_REQUEST = "slow_request"  # head or body did not arrive in time
    CONCURRENCY = "concurrency"  # the entitlement's requests in flight
    TOKEN_BUDGET = "token_budget"  # noqa: S105  the entitlement's token bucket
    KV_BUDGET = "kv_budget"  # the entitlement's KV share
    LOW_PRIORITY = "low_priority"  # the pool is contended and this weight is under its threshold
    QUOTA_EXCEEDED = "quota_exceeded"  # the tenant's tokens of the day or month are spent
    DUPLICATE = "duplicate"  # an earlier request with this Idempotency-Key still runs
    ALREADY_DONE = "already_done"  # one completed, and its answer is not kept
    KEY_REUSED = "key_reused"  # one had another body
    TENANT_CONNECTIONS = "tenant_connections"  # the tenant's share of a full gateway's open requests
    ADDRESS_CONNECTIONS = "address_connections"  # the connections of one address
    USER_CONNECTIONS = "user_connections"  # the WebSockets of one user
    SERVER_FULL = "server_full"  # the connections or WebSockets of one web process
    QUEUE_FULL = "queue_full"  # the pool's queue, or the entitlement's place in it
    QUEUE_TIMEOUT = "queue_timeout"  # waited as long as its tier allows
    NO_BACKEND = "no_backend"  # no healthy replica
    REBUILDING = "rebuilding"  # shared state was lost and is being announced again
    STATE_UNAVAILABLE = "state_unavailable"  # Redis does not answer
    SHUTTING_DOWN = "shutting_down"  # this gateway drains
    # failed: it ran, or should have
    BACKEND_ERROR = "backend_error"  # the engine answered with an error
    BACKEND_LOST = "backend_lost"  # connection refused, reset or cut
    BACKEND_STALLED = "backend_stalled"  # no token for too long
    GATEWAY_LOST = "gateway_lost"  # the gateway that held the client stopped renewing its lease
    EVICTED = "evicted"  # preemptible: its slot was taken back for others
    LEASE_LOST = "lease_lost"  # its lease had been taken back while it ran
    DEADLINE = "deadline"  # total time limit
    SLOW_READER = "slow_reader"  # the client did not read its stream
    INTERNAL = "internal"  # a fault of ours
    # cancelled
    CLIENT_LEFT = "client_left"
    OPERATOR = "operator"
    KEY_REVOKED = "key_revoked"  # while it waited or ran


@dataclass(frozen=True, slots=True)
class Ending:
    """What one reason means to a client."""

    outcome: Outcome
    status: int  # HTTP status where the response has not begun
    error_type: str  # OpenAI's ``error.type``
    retry: bool  # whether sending the same request again can help
    message: str  # template: never a host name, key, hash or table name


_R, _F = Outcome.REFUSED, Outcome.FAILED

ENDINGS: dict[Reason, Ending] = {
    Reason.STOP: Ending(Outcome.COMPLETED, 200, "", False, ""),
    Reason.LENGTH: Ending(Outcome.COMPLETED, 200, "", False, ""),
    Reason.REPLAYED: Ending(Outcome.COMPLETED, 200, "", False, ""),
    Reason.NO_KEY: Ending(
        _R,
        401,
        "authentication_error",
        False,
        "This API key is not valid. Send 'Authorization: Bearer qm-<id>.<secret>' with a key that is active.",
    ),
    Reason.NOT_ENTITLED: Ending(
        _R,
        403,
        "permission_error",
        False,
        "The entitlement behind this key is {state}. An administrator can bind or renew it.",
    ),
    Reason.TENANT_PAUSED: Ending(
        _R,
        403,
        "permission_error",
        False,
        "An operator has paused this tenant, so nothing new is admitted. What was admitted goes on.",
    ),
    Reason.UNKNOWN_MODEL: Ending(
        _R,
        404,
        "not_found_error",
        False,
        "The model {model!r} does not exist or this key has no access to it. GET /v1/models lists what it can use.",
    ),
    Reason.INVALID_REQUEST: Ending(_R, 400, "invalid_request_error", False, "{detail}"),
    Reason.TOO_LARGE: Ending(_R, 413, "invalid_request_error", False, "The {what} is larger than {limit} bytes."),
    Reason.TOO_LONG: Ending(
        _R,
        400,
        "invalid_request_error",
        False,
        "The prompt (about {input} tokens) and the output bound ({output} tokens) exceed {limit} tokens. "
        "Shorten the prompt or lower max_tokens.",
    ),
    Reason.SLOW_REQUEST: Ending(_R, 408, "invalid_request_error", True, "The request did not arrive in time."),
    Reason.CONCURRENCY: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "This entitlement already has {inflight} of {limit} requests in flight.",
    ),
    Reason.TOKEN_BUDGET: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "This entitlement's token budget does not cover the request's {need} tokens yet.",
    ),
    Reason.KV_BUDGET: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "This entitlement's KV-cache share is in use.",
    ),
    Reason.LOW_PRIORITY: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "The pool is contended and entitlements of higher weight go first.",
    ),
    Reason.QUOTA_EXCEEDED: Ending(
        _R,
        429,
        "insufficient_quota",
        False,
        "The quota of {limit} tokens a {period} is spent ({used} were used). The next {period} begins in {left}.",
    ),
    Reason.DUPLICATE: Ending(
        _R,
        409,
        "conflict_error",
        True,
        "The request {original} with this Idempotency-Key is still running.",
    ),
    Reason.ALREADY_DONE: Ending(
        _R,
        409,
        "conflict_error",
        False,
        "The request {original} with this Idempotency-Key completed ({how}); its answer is not kept here. Send a new "
        "key to run it again.",
    ),
    Reason.KEY_REUSED: Ending(
        _R,
        422,
        "invalid_request_error",
        False,
        "This Idempotency-Key was used with another path or body by the request {original}.",
    ),
    Reason.TENANT_CONNECTIONS: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "This server is nearly full, and this tenant has its share of it: {inflight} of {limit} open requests.",
    ),
    Reason.ADDRESS_CONNECTIONS: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "Your address has as many connections here as it may. Close some, or try again in a moment.",
    ),
    Reason.USER_CONNECTIONS: Ending(
        _R, 429, "rate_limit_error", True, "You have as many live views open here as one user may. Close some."
    ),
    Reason.SERVER_FULL: Ending(
        _R, 503, "service_unavailable_error", True, "This server has as many connections as it may."
    ),
    Reason.QUEUE_FULL: Ending(_R, 429, "rate_limit_error", True, "The queue this request would wait in is full."),
    Reason.QUEUE_TIMEOUT: Ending(
        _R,
        429,
        "rate_limit_error",
        True,
        "No slot became free within {waited_s:.0f} s, the longest this tier waits.",
    ),
    Reason.NO_BACKEND: Ending(_R, 503, "service_unavailable_error", True, "No replica of this model is available."),
    Reason.REBUILDING: Ending(
        _R,
        503,
        "service_unavailable_error",
        True,
        "The scheduler is rebuilding its state; new work starts shortly.",
    ),
    Reason.STATE_UNAVAILABLE: Ending(
        _R,
        503,
        "service_unavailable_error",
        True,
        "The scheduler cannot be reached, so nothing new is admitted.",
    ),
    Reason.SHUTTING_DOWN: Ending(_R, 503, "service_unavailable_error", True, "This gateway is shutting down."),
    Reason.BACKEND_ERROR: Ending(_F, 502, "api_error", True, "The engine could not process the request{detail}."),
    Reason.BACKEND_LOST: Ending(_F, 502, "api_error", True, "The engine or the connection to it was lost."),
    Reason.BACKEND_STALLED: Ending(_F, 504, "api_error", True, "The engine produced no token for too long."),
    Reason.GATEWAY_LOST: Ending(_F, 502, "api_error", True, "The gateway that held this request was lost."),
    Reason.EVICTED: Ending(
        _F,
        429,
        "rate_limit_error",
        True,
        "This preemptible request was ended because its slot was needed by others. What it produced is charged.",
    ),
    Reason.LEASE_LOST: Ending(_F, 503, "api_error", True, "The request lost its slot and was ended."),
    Reason.DEADLINE: Ending(_F, 504, "api_error", False, "The request took longer than its time limit."),
    Reason.SLOW_READER: Ending(_F, 408, "api_error", False, "The stream was not read in time."),
    Reason.INTERNAL: Ending(_F, 500, "api_error", True, "An internal error ended the request. It was recorded."),
    Reason.CLIENT_LEFT: Ending(Outcome.CANCELLED, 499, "api_error", False, "The client closed the connection."),
    Reason.OPERATOR: Ending(Outcome.CANCELLED, 503, "api_error", True, "An operator cancelled the request."),
    Reason.KEY_REVOKED: Ending(
        Outcome.CANCELLED, 401, "authentication_error", False, "The API key of this request was revoked or expired."
    ),
}


def outcome_of(reason: Reason) -> Outcome:
    """The one outcome a reason belongs to."""
    return ENDINGS[reason].outcome
