"""What Django parses of a request head, before anybody is known: taken out or refused where parsing it is expensive.

Python's and Django's parsers of quoted cookies and of header parameters take time with the square of what they are
given: 32 KiB of a head, which anybody may send, are seconds. ``/v1`` does not come by here: it parses neither.
"""

from __future__ import annotations

import json

from scheduling.gateway.asgi import App, Receive, Scope, Send

FIELD_BYTES = 1024  # of a header with parameters; a browser's Accept has 150
WITH_PARAMETERS = frozenset({b"accept", b"content-type"})


class PlainHeads:
    """An ASGI application behind these limits, for pages and WebSockets."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        costly = False
        for name, value in headers:
            if name == b"cookie":
                costly |= b"\\" in value
            elif name in WITH_PARAMETERS and len(value) > FIELD_BYTES and scope["type"] == "http":
                await _refuse(send, name.decode())
                return
        if costly:
            plain = [(name, _plain(value) if name == b"cookie" else value) for name, value in headers]
            scope = {**scope, "headers": plain}
        await self._app(scope, receive, send)


def _plain(cookies: bytes) -> bytes:
    """Without those that have escapes in them: none of ours has, and RFC 6265 knows none."""
    return b";".join(cookie for cookie in cookies.split(b";") if b"\\" not in cookie)


async def _refuse(send: Send, name: str) -> None:
    body = json.dumps({"detail": f"The header {name} is longer than {FIELD_BYTES} bytes."}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": body})
