"""What a page may cost before Django sees its request, and after it has answered.

Django's handler writes a body of any size to disk before any code of ours runs, and no server of ours ends a client
that does not read. So a body is taken here first, whole, within a size and a time, in memory; and each send has a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from scheduling.core.outcomes import Reason
from scheduling.gateway.asgi import ABORT
from scheduling.gateway.entry.guard import ClientGone, linger, read_body
from scheduling.gateway.errors import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyLimits:
    """An ASGI application behind these limits. Sizes are bytes, times are seconds."""

    def __init__(self, app: App, max_body_bytes: int, body_timeout_s: float, send_timeout_s: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._max_body_bytes
        try:
            if _declared(scope) > limit:
                raise Refusal(Reason.TOO_LARGE)
            async with asyncio.timeout(self._body_timeout_s):
                body = await read_body(receive, limit)
        except Refusal:
            await self._refuse(receive, send, 413, f"The request body is larger than {limit} bytes.")
            return
        except TimeoutError:
            await self._refuse(receive, send, 408, f"The body did not arrive within {self._body_timeout_s:g} s.")
            return
        except ClientGone:
            return
        given = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def bounded(message: MutableMapping[str, Any]) -> None:
            try:
                async with asyncio.timeout(self._send_timeout_s):
                    await send(message)
            except TimeoutError:
                abort = scope.get("extensions", {}).get(ABORT)
                if abort is not None:
                    abort()  # what is sent from now on goes nowhere, and the handler ends

        await self._app(scope, replay, bounded)

    async def _refuse(self, receive: Receive, send: Send, status: int, text: str) -> None:
        body = json.dumps({"detail": text}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await linger(receive)
        await send({"type": "http.response.body", "body": b""})


def _declared(scope: Scope) -> int:
    """The length its head declares; 0 where it declares none that could be one, which the server has refused."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:18])
    return 0
