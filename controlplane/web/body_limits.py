"""What a page may cost before Django sees its request, and after it has answered.

Django's handler writes a body of any size to disk before any code of ours runs, and no server of ours ends a client
that does not read. So a body is taken here first, whole, within a size and a time, in memory; and each send has a time.
Who sends it is not known yet, so what all bodies hold together has a bound as well, and what those of one address do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from controlplane.web.login_attempts import network_of
from scheduling.core.outcomes import Reason
from scheduling.gateway.asgi import ABORT, App, Message, Receive, Scope, Send
from scheduling.gateway.entry.guard import ClientGone, linger, read_body
from scheduling.gateway.errors import Refusal
from scheduling.gateway.headers import retry_after

FREE_BYTES = 64 * 1024  # of each body, which are not counted: small ones always have room
ROOM_BYTES = 64 * 1024 * 1024  # of all that are here at once, beyond these
OF_ADDRESS = 4  # an address has this part of the room
RETRY_S = 5.0


class NoRoom(Exception):
    """The bodies in memory have reached their bound, of all or of this address."""


class Room:
    """The bytes that request bodies hold in this process until their requests are answered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all = 0
        self._of: dict[str, int] = {}

    def take(self, address: str, size: int) -> None:
        """Raises :class:`NoRoom`."""
        of_address = self._of.get(address, 0) + size
        if self._all + size > self._most or of_address > self._most // OF_ADDRESS:
            raise NoRoom
        self._all += size
        self._of[address] = of_address

    def give(self, address: str, size: int) -> None:
        self._all -= size
        if left := self._of[address] - size:
            self._of[address] = left
        else:
            del self._of[address]


class BodyLimits:
    """An ASGI application behind these limits. Sizes are bytes, times are seconds."""

    def __init__(self, app: App, max_body_bytes: int, body_timeout_s: float, send_timeout_s: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._send_timeout_s = send_timeout_s
        self._room = Room(ROOM_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = network_of((scope.get("client") or ("",))[0])
        came = held = 0

        async def counted() -> Message:
            nonlocal came, held
            message = await receive()
            came += len(message.get("body", b""))
            if (more := came - FREE_BYTES - held) > 0:
                self._room.take(address, more)
                held += more
            return message

        try:
            await self._serve(scope, receive, counted, send)
        finally:
            if held:
                self._room.give(address, held)

    async def _serve(self, scope: Scope, receive: Receive, counted: Receive, send: Send) -> None:
        """``counted``: ``receive`` for the body, in which what it holds is counted."""
        limit = self._max_body_bytes
        try:
            if _declared(scope) > limit:
                raise Refusal(Reason.TOO_LARGE)
            async with asyncio.timeout(self._body_timeout_s):
                body = await read_body(counted, limit)
        except NoRoom:
            text = "Too many large request bodies are arriving at this server. Try again in a moment."
            await self._refuse(receive, send, 503, text, retry_after(RETRY_S))
            return
        except Refusal:
            await self._refuse(receive, send, 413, f"The request body is larger than {limit} bytes.")
            return
        except TimeoutError:
            await self._refuse(receive, send, 408, f"The body did not arrive within {self._body_timeout_s:g} s.")
            return
        except ClientGone:
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(self._send_timeout_s):
                    await send(message)
            except TimeoutError:
                abort = scope.get("extensions", {}).get(ABORT)
                if abort is not None:
                    abort()  # what is sent from now on goes nowhere, and the handler ends

        await self._app(scope, replay, bounded)

    async def _refuse(
        self, receive: Receive, send: Send, status: int, text: str, more: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        body = json.dumps({"detail": text}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *more,
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
