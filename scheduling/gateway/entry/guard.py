"""What a request may cost before we know whose it is: head and body limits, with deadlines.

Order (cheapest refusal first): head -> declared size -> key -> body -> parse. Nothing is ever written to disk and at
most ``max_body_bytes`` and one read are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from scheduling.core.outcomes import Reason
from scheduling.gateway.asgi import Receive
from scheduling.gateway.errors import Refusal

LINGER_BYTES = 16 * 1024 * 1024
LINGER_S = 5.0
TTFT_HINT = b"x-quartermaster-slo-ttft-ms"
TBT_HINT = b"x-quartermaster-slo-tbt-ms"
TTLT_HINT = b"x-quartermaster-slo-ttlt-ms"
CLIENT_RETRY = b"x-stainless-retry-count"  # as the SDKs of OpenAI and Anthropic say which attempt this is
MOST_RETRIES = 100  # that are believed: more are none
# after how many seconds without a byte of its answer the client leaves, as the SDKs of OpenAI and Anthropic say
CLIENT_TIMEOUT = b"x-stainless-read-timeout"  # in Python
CLIENT_TIMEOUTS = (CLIENT_TIMEOUT, b"x-stainless-timeout")  # and in JavaScript
LONGEST_TIMEOUT_S = 600.0  # that matters: the SDKs' default
# after how many milliseconds an Envoy in front of us ends the request, even in the midst of a stream
ROUTE_TIMEOUT = b"x-envoy-expected-rq-timeout-ms"


class ClientGone(Exception):
    """The client closed its connection."""


_HINTS = (TTFT_HINT, TBT_HINT, TTLT_HINT)
_READ = frozenset({
    b"authorization",
    b"content-length",
    b"idempotency-key",
    b"traceparent",
    b"x-api-key",
    CLIENT_RETRY,
    *CLIENT_TIMEOUTS,
    ROUTE_TIMEOUT,
    *_HINTS,
})  # fmt: skip


class Head:
    """The few request headers that matter here."""

    authorization: bytes | None = None
    content_length: int | None = None
    hints: dict[bytes, float] | None = None
    idempotency_key: bytes | None = None
    traceparent: bytes | None = None
    client_retry = 0

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], max_bytes: int) -> None:
        api_key: bytes | None = None
        for name, value in headers:
            if name not in _READ:
                continue
            if name == b"authorization":
                self.authorization = _once(name, value, self.authorization)
            elif name == b"content-length":
                self.content_length = _length(value)
            elif name == b"idempotency-key":
                self.idempotency_key = value if self.idempotency_key is None else b""  # two are none that can be used
            elif name == b"traceparent":
                self.traceparent = value
            elif name == CLIENT_RETRY:
                self.client_retry = _retries(value)
            elif name in CLIENT_TIMEOUTS:
                self._timeout(CLIENT_TIMEOUT, value, 1.0)
            elif name == ROUTE_TIMEOUT:
                self._timeout(ROUTE_TIMEOUT, value, 1000.0)
            elif name == b"x-api-key":  # as Anthropic's clients send it
                api_key = _once(name, value, api_key)
            elif name in _HINTS:
                self._hint(name, value)
        if api_key is not None and self.authorization is None:
            self.authorization = b"Bearer " + api_key
        if sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) > max_bytes:
            raise Refusal(Reason.TOO_LARGE, status=431, close=True, what="request head", limit=max_bytes)

    def _hint(self, name: bytes, value: bytes) -> None:
        try:
            ms = float(value)
        except ValueError:
            ms = 0.0
        if not 1.0 <= ms <= 86_400_000.0:
            text = name.decode("ascii")
            raise Refusal(
                Reason.INVALID_REQUEST, close=True, param=text, detail=f"{text} must be milliseconds, 1 to 86400000."
            )
        self._wish(name, ms / 1000.0)

    def _timeout(self, name: bytes, value: bytes, per_s: float) -> None:
        """A value that is not a time is ignored: an SDK or a proxy sent it, not its user."""
        try:
            timeout_s = float(value) / per_s if len(value) <= 20 else 0.0
        except ValueError:
            return
        if 0.0 < timeout_s < LONGEST_TIMEOUT_S:
            self._wish(name, timeout_s)

    def _wish(self, name: bytes, seconds: float) -> None:
        if self.hints is None:
            self.hints = {}
        self.hints[name] = seconds


def _once(name: bytes, value: bytes, before: bytes | None) -> bytes:
    """Refuses a second key: a proxy in front of us may have checked the other one."""
    if before is not None:
        detail = f"The header {name.decode('ascii')} is there more than once. Send one key."
        raise Refusal(Reason.INVALID_REQUEST, close=True, detail=detail)
    return value


def _retries(value: bytes) -> int:
    """How often the client says that it has sent this before; 0 if the value makes no sense."""
    said = int(value) if value.isdigit() and len(value) <= 3 else 0
    return said if said <= MOST_RETRIES else 0


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise Refusal(Reason.INVALID_REQUEST, close=True, detail="Content-Length is not a number.")
    return int(value)


def check_size(head: Head, limit: int) -> None:
    """Refuses a body by what its head declares."""
    if head.content_length is not None and head.content_length > limit:
        raise Refusal(Reason.TOO_LARGE, close=True, what="request body", limit=limit)


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body; :class:`Refusal` (413) as soon as it exceeds ``limit``, :class:`ClientGone` when it breaks off.
    The deadline is the caller's: it interrupts this coroutine."""
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if len(body) > limit:
        raise Refusal(Reason.TOO_LARGE, close=True, what="request body", limit=limit)
    if not message.get("more_body", False):
        return body
    parts = [body]
    size = len(body)
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise Refusal(Reason.TOO_LARGE, close=True, what="request body", limit=limit)
        parts.append(piece)
        if not message.get("more_body", False):
            return b"".join(parts)


async def drain(receive: Receive, limit: int) -> bool:
    """Reads and drops a body; whether that was all of it. The deadline is the caller's."""
    size = 0
    while size <= limit:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        if not message.get("more_body", False):
            return True
        size += len(message.get("body", b""))
    return False


async def linger(receive: Receive) -> None:
    """Reads and drops what a refused client is still sending, within bounds: closing at once would reset the connection
    and take the answer away before the client has read it."""
    left = LINGER_BYTES
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
