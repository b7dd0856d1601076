"""The only place that turns a reason into what the client sees.

Messages are the templates of ``core/outcomes.py``: they never contain host names, keys, hashes or table names. The
table for people is ``docs/reference/errors.md``, written by ``python -m scheduling.gateway.errors`` and compared by a
test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduling.core.outcomes import ENDINGS, Outcome, Reason
from scheduling.gateway.headers import CLOSE, JSON, NO_RETRY, Header, after_period, retry_after


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    headers: list[Header]
    body: bytes


class Refusal(Exception):
    """Ends a request before its response began. ``fields`` fill the reason's template; ``status`` overrides its status.
    ``retry_s`` is the expected wait; 0 where nobody computed one, None where waiting will not help."""

    def __init__(
        self,
        reason: Reason,
        *,
        param: str | None = None,
        status: int = 0,
        retry_s: float | None = 0.0,
        close: bool = False,
        allow: bytes = b"",
        **fields: Any,
    ) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.param = param
        self.status = status or ENDINGS[reason].status
        self.retry_s = retry_s
        self.close = close
        self.allow = allow  # with a 405: the methods that the path takes
        self.fields = fields


_encode = msgspec.json.Encoder().encode
_REASON_HEADER: dict[Reason, Header] = {r: (b"x-quartermaster-reason", r.value.encode()) for r in Reason}
DEFAULT_RETRY_S = 1.0  # where nobody computed a wait


def reason_header(reason: Reason) -> Header:
    return _REASON_HEADER[reason]


def message_of(reason: Reason, **fields: Any) -> str:
    """The sentence that people read."""
    message = ENDINGS[reason].message
    if reason is Reason.BACKEND_ERROR:
        fields.setdefault("detail", "")  # a stream's last event tells what happened and no more
    return message.format_map(fields) if fields else message


def error_bytes(reason: Reason, param: str | None = None, **fields: Any) -> bytes:
    """The body ``{"error": {...}}``; ``code`` is the reason, so that programs need not read messages."""
    kind = ENDINGS[reason].error_type
    return _encode(ErrorAnswer(ErrorBody(message_of(reason, **fields), kind, param, reason.value)))


def render(refusal: Refusal, extra: Sequence[Header] = (), body: bytes | None = None) -> Answer:
    """The whole answer for a request that ends before its response began. ``body``: in another dialect."""
    reason = refusal.reason
    if body is None:
        body = error_bytes(reason, refusal.param, **refusal.fields)
    headers: list[Header] = [JSON, (b"content-length", b"%d" % len(body)), _REASON_HEADER[reason], *extra]
    if reason in (Reason.QUOTA_EXCEEDED, Reason.BUDGET_EXCEEDED) and refusal.retry_s:
        headers += after_period(refusal.retry_s)
    elif not ENDINGS[reason].retry or refusal.retry_s is None:
        headers.append(NO_RETRY)
    elif refusal.status in (408, 409, 429) or refusal.status >= 500:
        headers += retry_after(refusal.retry_s or DEFAULT_RETRY_S)
    if refusal.allow:
        headers.append((b"allow", refusal.allow))
    if refusal.close:
        headers.append(CLOSE)
    return Answer(refusal.status, headers, body)


def error_event(reason: Reason, **fields: Any) -> bytes:
    """The frame that ends a stream which cannot be completed. It is last: no ``[DONE]`` follows."""
    return b"data: " + error_bytes(reason, **fields) + b"\n\n"


def table() -> str:
    """``docs/reference/errors.md``."""
    lines = [
        "# How a request can end",
        "",
        "For developers of clients and for operators. Every request ends in exactly one outcome with one reason. The",
        "reason is the same string in the error's `code`, in the header `x-quartermaster-reason`, in the ledger and in",
        "the metrics. This page is generated from `scheduling/core/outcomes.py` by",
        "`python -m scheduling.gateway.errors > docs/reference/errors.md`.",
        "",
        "Before a response has begun, the status shows the kind of refusal: **429** while capacity exists, **503** if",
        "it does not or a dependency is down. A stream that has begun has the status 200; a failure is its last frame,",
        '`data: {"error": {...}}`, and no `[DONE]` follows.',
        "",
        "Errors that a retry can resolve carry `retry-after-ms` and `retry-after` (computed, +-25 % jitter, at most",
        "120 s), which the OpenAI SDK follows. The others carry `x-should-retry: false`, and so do those whose wait is",
        "longer than 120 s ([how it is computed](../internals/state.md#how-long-to-wait-retry_ms-of-a-refusal)).",
        "",
        "| reason | outcome | status | `error.type` | retry? | message |",
        "|---|---|---|---|---|---|",
    ]
    for reason, ending in ENDINGS.items():
        if ending.outcome is Outcome.COMPLETED:
            continue
        message = ending.message.replace("|", "\\|")
        again = "yes" if ending.retry else "no"
        cells = (
            f"`{reason.value}`", ending.outcome.value, str(ending.status), f"`{ending.error_type}`", again, message
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Notes",
        "",
        "- `client_left` has no answer: ledger and metrics record 499.",
        "- `/v1/messages` tells the same in Anthropic's form, and streams with named events end with an `error` event",
        "  ([v1.md](v1.md#other-apis-clients)); status and headers are those of the table everywhere.",
        "- A head over its limit is `too_large` with status 431; an unknown path is `invalid_request` with 404, and a",
        "  method that a path does not support is `invalid_request` with 405.",
        "- `quota_exceeded` and `budget_exceeded` carry the time to the end of the day or month (UTC) in",
        "  `retry-after`, and `x-should-retry: false`, so that the SDK does not wait for it.",
        "- `replayed` is a completed request that did not run: it got the kept answer of an earlier one",
        "  ([Idempotency-Key](v1.md#idempotency-key)).",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), end="")
