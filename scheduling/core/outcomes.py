"""The closed list of ways a request can end, and what each tells the client.

Every request ends in exactly one :class:`Outcome` with one :class:`Reason`. Metrics, ledger, error bodies and the
``x-quartermaster-reason`` header all use these strings, so that they can be joined. HTTP status and retry advice live
here as well: 429 while capacity exists, 503 when it does not (``docs/reference/errors.md``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Ending:
    """What one reason means to a client, and to those who count endings."""

    outcome: Outcome
    status: int = 200  # HTTP status where the response has not begun
    error_type: str = ""  # OpenAI's ``error.type``
    message: str = ""  # template: never a host name, key, hash or table name
    retry: bool = False  # whether sending the same request again can help
    no_room: bool = False  # the pool lacked capacity; the entitlement was within its own limits
    recorded: bool = True  # False: it ends before the request has a tenant, so the ledger has no row of it


def _ends(outcome: Outcome) -> Callable[..., tuple[str, Ending]]:
    """Declares a reason of this outcome: its string, then :class:`Ending`'s fields."""
    return lambda value, *args, **fields: (value, Ending(outcome, *args, **fields))


_completed = _ends(Outcome.COMPLETED)
_refused = _ends(Outcome.REFUSED)
_failed = _ends(Outcome.FAILED)
_cancelled = _ends(Outcome.CANCELLED)


class Reason(StrEnum):
    """Why it ended so, with what follows from that. A reason belongs to exactly one outcome.

    A new one is an entry here, then ``make generated``.
    """

    ending: Ending

    # The default is for type checkers: ``Reason("stop")`` looks an entry up and makes none.
    def __new__(cls, value: str, ending: Ending = Ending(Outcome.FAILED)) -> Reason:
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.ending = ending
        return reason

    # --- completed
    # The model ended its answer, or a stop string did.
    STOP = _completed("stop")
    # The output bound was reached.
    LENGTH = _completed("length")
    # The kept answer of an earlier request with this Idempotency-Key.
    REPLAYED = _completed("replayed")
    # --- refused: nothing was consumed
    # Missing, unknown, expired or revoked: always the same answer.
    NO_KEY = _refused(
        "no_key",
        401,
        "authentication_error",
        "This API key is not valid. Send 'Authorization: Bearer qm-<id>.<secret>' with a key that is active.",
        recorded=False,
    )
    # Entitlement pending or expired.
    NOT_ENTITLED = _refused(
        "not_entitled",
        403,
        "permission_error",
        "The entitlement behind this key is {state}. An administrator can bind or renew it.",
    )
    # An operator paused the tenant.
    TENANT_PAUSED = _refused(
        "tenant_paused",
        403,
        "permission_error",
        "An operator has paused this tenant, so no new requests are admitted. Admitted requests continue.",
    )
    UNKNOWN_MODEL = _refused(
        "unknown_model",
        404,
        "not_found_error",
        "The model {model!r} does not exist or this key has no access to it. GET /v1/models lists what it can use.",
    )
    INVALID_REQUEST = _refused("invalid_request", 400, "invalid_request_error", "{detail}")
    # Body or headers over the limit.
    TOO_LARGE = _refused("too_large", 413, "invalid_request_error", "The {what} is larger than {limit} bytes.")
    # Prompt and output bound do not fit the model's context or a replica's KV.
    TOO_LONG = _refused(
        "too_long",
        400,
        "invalid_request_error",
        # By "prompt is too long" and "This model's maximum context length is" clients know that they have to shorten a
        # conversation, or to take a model with a longer context.
        "The prompt is too long for the output bound: about {input} and {output} tokens. {most} is {limit} tokens. "
        "Shorten the prompt or lower max_tokens.",
    )
    # Head or body did not arrive in time.
    SLOW_REQUEST = _refused(
        "slow_request", 408, "invalid_request_error", "The request did not arrive in time.", retry=True
    )
    # The entitlement's requests in flight.
    CONCURRENCY = _refused(
        "concurrency",
        429,
        "rate_limit_error",
        "This entitlement already has {inflight} requests or answers in flight; it is entitled to {limit}.",
        retry=True,
    )
    # What the key may take of the entitlement.
    KEY_LIMIT = _refused(
        "key_limit", 429, "rate_limit_error", "This key's limit of {limit} {what} is reached{more}.", retry=True
    )
    # What one user of the key or project may.
    USER_LIMIT = _refused(
        "user_limit",
        429,
        "rate_limit_error",
        "The limit of {limit} {what} for each user of this {of} is reached{more}. Its other users are not affected.",
        retry=True,
    )
    # The entitlement's token bucket.
    TOKEN_BUDGET = _refused(
        "token_budget",
        429,
        "rate_limit_error",
        "This entitlement's token budget does not cover the request's {need} tokens yet.",
        retry=True,
    )
    # The entitlement's KV share.
    KV_BUDGET = _refused(
        "kv_budget", 429, "rate_limit_error", "This entitlement's KV-cache share is in use.", retry=True
    )
    # The pool is contended and this weight is under its threshold.
    LOW_PRIORITY = _refused(
        "low_priority",
        429,
        "rate_limit_error",
        "The pool is contended and entitlements of higher weight go first.",
        retry=True,
        no_room=True,
    )
    # The tokens of the day or month are spent: of the tenant, or of the key.
    QUOTA_EXCEEDED = _refused(
        "quota_exceeded",
        429,
        "insufficient_quota",
        "The quota of this {of}, {limit} tokens a {period}, is spent ({used} were used). "
        "The next {period} begins in {left}.",
    )
    # What the tenant, or the project, user or key, may spend in the month is spent.
    BUDGET_EXCEEDED = _refused(
        "budget_exceeded",
        429,
        "insufficient_quota",
        "The budget of {limit} {currency} a month of this {of} is spent. The next month begins in {left}.",
    )
    # An earlier request with this Idempotency-Key still runs.
    DUPLICATE = _refused(
        "duplicate",
        409,
        "conflict_error",
        "The request {original} with this Idempotency-Key is still running.",
        retry=True,
    )
    # One completed, and its answer is not kept.
    ALREADY_DONE = _refused(
        "already_done",
        409,
        "conflict_error",
        "The request {original} with this Idempotency-Key completed ({how}); its answer is not kept here. "
        "Send a new key to run it again.",
    )
    # One had another body.
    KEY_REUSED = _refused(
        "key_reused",
        422,
        "invalid_request_error",
        "This Idempotency-Key was used with another path or body by the request {original}.",
    )
    # The tenant's share of a full gateway's open requests.
    TENANT_CONNECTIONS = _refused(
        "tenant_connections",
        429,
        "rate_limit_error",
        "This server has no room for more now: {inflight} of {limit} {what}.",
        retry=True,
    )
    # The connections of one address.
    ADDRESS_CONNECTIONS = _refused(
        "address_connections",
        429,
        "rate_limit_error",
        "Your address has reached its limit of connections. Close some, or try again in a moment.",
        retry=True,
        recorded=False,
    )
    # The WebSockets of one user.
    USER_CONNECTIONS = _refused(
        "user_connections",
        429,
        "rate_limit_error",
        "You have reached the limit of open live views. Close some of them.",
        retry=True,
        recorded=False,
    )
    # The connections or WebSockets of one web process.
    SERVER_FULL = _refused(
        "server_full",
        503,
        "service_unavailable_error",
        "This server has reached its limit of connections.",
        retry=True,
        recorded=False,
    )
    # The pool's queue, or the entitlement's place in it.
    QUEUE_FULL = _refused(
        "queue_full", 429, "rate_limit_error", "The queue this request would wait in is full.", retry=True, no_room=True
    )
    # Waited as long as its tier allows.
    QUEUE_TIMEOUT = _refused(
        "queue_timeout",
        429,
        "rate_limit_error",
        "No slot became free within {waited_s:.0f} s, the longest this tier waits.",
        retry=True,
        no_room=True,
    )
    # It waited past its deadline, and a newer one of its entitlement has its place.
    SUPERSEDED = _refused(
        "superseded",
        429,
        "rate_limit_error",
        "After {waited_s:.0f} s this request was too late for its SLO, and a newer one of the same entitlement took "
        "its place.",
        retry=True,
        no_room=True,
    )
    # No healthy replica.
    NO_BACKEND = _refused(
        "no_backend",
        503,
        "service_unavailable_error",
        "No replica of this model is available.",
        retry=True,
        no_room=True,
    )
    # All replicas sleep, and one is being woken.
    WAKING = _refused(
        "waking",
        503,
        "service_unavailable_error",
        "This model is asleep and is being woken; it serves in about {wakes_s:.0f} s, which is longer than this tier "
        "waits.",
        retry=True,
        no_room=True,
    )
    # No replica has the adapter, and none may load it or could.
    NO_ADAPTER = _refused(
        "no_adapter",
        503,
        "service_unavailable_error",
        "No replica has this adapter loaded now, and none can load it. Its base model may be available.",
        retry=True,
    )
    # Shared state was lost and is being announced again.
    REBUILDING = _refused(
        "rebuilding",
        503,
        "service_unavailable_error",
        "The scheduler is rebuilding its state; new work starts shortly.",
        retry=True,
    )
    # Redis does not answer.
    STATE_UNAVAILABLE = _refused(
        "state_unavailable",
        503,
        "service_unavailable_error",
        "The scheduler cannot be reached, so no new requests are admitted.",
        retry=True,
    )
    # This gateway drains.
    SHUTTING_DOWN = _refused(
        "shutting_down", 503, "service_unavailable_error", "This gateway is shutting down.", retry=True
    )
    # --- failed: it ran, or should have
    # The engine answered with an error.
    BACKEND_ERROR = _failed(
        "backend_error", 502, "api_error", "The engine could not process the request{detail}.", retry=True
    )
    # Connection refused, reset or cut.
    BACKEND_LOST = _failed("backend_lost", 502, "api_error", "The engine or the connection to it was lost.", retry=True)
    # No token for too long.
    BACKEND_STALLED = _failed(
        "backend_stalled", 504, "api_error", "The engine produced no token for too long.", retry=True
    )
    # The gateway that held the client stopped renewing its lease.
    GATEWAY_LOST = _failed("gateway_lost", 502, "api_error", "The gateway that held this request was lost.", retry=True)
    # Preemptible: its slot was taken back for others.
    EVICTED = _failed(
        "evicted",
        429,
        "rate_limit_error",
        "This preemptible request was ended because its slot was needed by others. The tokens it produced are charged.",
        retry=True,
    )
    # Its lease had been taken back while it ran.
    LEASE_LOST = _failed("lease_lost", 503, "api_error", "The request lost its slot and was ended.", retry=True)
    # Total time limit.
    DEADLINE = _failed("deadline", 504, "api_error", "The request took longer than the server allows, with its wait.")
    # The client did not read its stream.
    SLOW_READER = _failed("slow_reader", 408, "api_error", "The stream was not read in time.")
    # A fault of ours.
    INTERNAL = _failed(
        "internal", 500, "api_error", "An internal error ended the request. It was recorded.", retry=True
    )
    # --- cancelled
    CLIENT_LEFT = _cancelled("client_left", 499, "api_error", "The client closed the connection.")
    OPERATOR = _cancelled("operator", 503, "api_error", "An operator cancelled the request.", retry=True)
    # While it waited or ran.
    KEY_REVOKED = _cancelled(
        "key_revoked", 401, "authentication_error", "The API key of this request was revoked or expired."
    )


ENDINGS: dict[Reason, Ending] = {reason: reason.ending for reason in Reason}

# Refused for want of room. Not among them: ``rebuilding`` and ``state_unavailable``, where nobody knows whether the
# pool has room.
NO_ROOM: frozenset[str] = frozenset(reason for reason in Reason if reason.ending.no_room)


def outcome_of(reason: Reason) -> Outcome:
    """The one outcome a reason belongs to."""
    return reason.ending.outcome


def unmet(reason: str, waited: bool) -> bool:
    """Whether a refusal left demand unmet that nothing else counted: what waits is counted while it waits."""
    return reason in NO_ROOM and not waited
