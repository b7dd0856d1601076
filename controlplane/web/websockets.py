"""WebSockets within limits: before their handshake, while it lasts, and as long as they are open.

The only one is the console's live feed. Who has no session is refused before the database is asked, few handshakes run
at once, and an open socket may say little (``docs/reference/limits.md``).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from scheduling.core.outcomes import ENDINGS, Reason
from scheduling.gateway.asgi import App, Message, Receive, Scope, Send
from scheduling.gateway.errors import error_bytes, reason_header
from scheduling.gateway.headers import NO_RETRY, retry_after

HANDSHAKE_S = 10.0  # from the request to its answer: a session is looked up
HANDSHAKES = 8  # at once, in a thread and the database each
HANDSHAKES_WAITING = 64
CLOSING_S = 5.0  # what is still to be sent to a socket that is closed
MESSAGE_BYTES = 4 * 1024  # the feed is told the name of a pool
FRAGMENTS = 16  # of one message
BURST_BYTES, BYTES_PER_S = 32 * 1024, 1024.0  # what a client may send, its pongs included
RETRY_S = 10.0
DEFAULT_PORTS = {"http": 80, "https": 443}
_SESSION_KEY = re.compile(rb"[0-9a-z]{8,64}")  # what Django's sessions are called
_POLICY_VIOLATION = 1008
USER_HAS_ENOUGH = 4429  # a consumer's refusal before it accepts, which is answered with HTTP 429


class BoundedSocket(WebSocketsSansIOProtocol):
    """An open WebSocket: its handshake ends in time, it sends little, and it is gone soon after it was closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HANDSHAKE_S, self._late)
        self._allowance = float(BURST_BYTES)
        self._at_s = self.loop.time()

    def leaves(self, left: Callable[[], None]) -> None:
        """``left`` is called once, when the connection is gone."""
        self._left = left

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._left is not None:
            self._left()
            self._left = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:  # before it there is the request, which the server has measured
            now_s = self.loop.time()
            self._allowance = min(float(BURST_BYTES), self._allowance + (now_s - self._at_s) * BYTES_PER_S)
            self._at_s = now_s
            self._allowance -= len(data)
            if self._allowance < 0 or not self.handshake_complete:
                self._end()
                return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))  # what is wrong with the request
            self.transport.close()
            self._soon()
        elif len(self.frames) > FRAGMENTS:
            self._end()

    async def send(self, message: Any) -> None:
        """Raises OSError once either side has closed, as ASGI has it: who was about to send has made no mistake."""
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # uvicorn would log an error: it takes a refusal for a forgotten handshake

    def _end(self) -> None:
        """Closes for what the client sent. The application hears of it when the connection is gone."""
        if self.transport.is_closing():
            return
        if self.handshake_complete and not self.close_sent:
            self.conn.fail(_POLICY_VIOLATION, "too much was sent")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()
        self._soon()

    def _late(self) -> None:
        self._timer = None
        if not self.handshake_complete:
            self.transport.abort()

    def _soon(self) -> None:
        """A client that reads nothing would keep a closed connection open."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(CLOSING_S, self.transport.abort)

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            if not self.disconnected:
                self._soon()


class Handshakes:
    """An ASGI application for WebSockets behind what a handshake costs nothing to check, few at a time."""

    def __init__(self, app: App, paths: Collection[str]) -> None:
        self._app = app
        self._paths = paths
        self._running = asyncio.Semaphore(HANDSHAKES)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._paths:
            await refuse(scope, receive, send, 404, Reason.INVALID_REQUEST, detail="There is no WebSocket here.")
            return
        headers = dict(scope["headers"])
        if not _same_origin(headers.get(b"origin", b""), headers.get(b"host", b"")):
            await refuse(scope, receive, send, 403, Reason.INVALID_REQUEST, detail="The origin is not this console.")
            return
        if not _has_session(headers.get(b"cookie", b"")):
            await refuse(scope, receive, send, 403, Reason.NO_KEY, "Log in first.")
            return
        if self._waiting >= HANDSHAKES_WAITING:
            await refuse(scope, receive, send, 503, Reason.SERVER_FULL)
            return
        self._waiting += 1
        try:
            await self._running.acquire()
        finally:
            self._waiting -= 1
        holds = True

        def over() -> None:
            nonlocal holds
            if holds:
                holds = False
                self._running.release()

        async def answer(message: Message) -> None:
            first = holds
            over()  # whatever the answer is
            if first and message["type"] == "websocket.close" and message.get("code") == USER_HAS_ENOUGH:
                for part in refusal(429, Reason.USER_CONNECTIONS):
                    await send(part)
                return
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            over()


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, reason: Reason, message: str = "", **fields: Any
) -> None:
    """Answers a handshake with an HTTP status and the body that every error has."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 4403})
        return
    for part in refusal(status, reason, message, **fields):
        await send(part)


def refusal(status: int, reason: Reason, message: str = "", **fields: Any) -> list[dict[str, Any]]:
    """The messages that answer a handshake so."""
    body = error_bytes(reason, **fields)
    if message:
        body = json.dumps({"error": json.loads(body)["error"] | {"message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), reason_header(reason)]
    headers += retry_after(RETRY_S) if ENDINGS[reason].retry else [NO_RETRY]
    return [
        {"type": "websocket.http.response.start", "status": status, "headers": headers},
        {"type": "websocket.http.response.body", "body": body},
    ]


def _has_session(cookies: bytes) -> bool:
    wanted = settings.SESSION_COOKIE_NAME.encode()
    for cookie in cookies.split(b";"):
        name, _, value = cookie.strip().partition(b"=")
        if name == wanted and _SESSION_KEY.fullmatch(value) is not None:
            return True
    return False


def _same_origin(origin: bytes, host: bytes) -> bool:
    """Whether a page of this console asks: scheme, host and port of its origin are those of the address it asked, or
    of one in ``QUARTERMASTER_TRUSTED_ORIGINS``. A browser sends its cookies to every port of a host."""
    asks = _parts(origin.decode("latin-1"))
    if asks is None:
        return False
    for trusted in settings.CSRF_TRUSTED_ORIGINS:
        allowed = _parts(trusted.replace("//*.", "//."))
        if allowed is not None and asks[::2] == allowed[::2] and is_same_domain(asks[1], allowed[1]):
            return True
    name = host.decode("latin-1")
    if not validate_host(split_domain_port(name)[0], settings.ALLOWED_HOSTS):
        return False
    scheme = "https" if settings.ENV.https else "http"
    return asks == _parts(f"{scheme}://{name}")


def _parts(origin: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(origin.lower())
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and parts.path in ("", "/") else None
