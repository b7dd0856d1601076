"""A request and its answer on a connection of the web server: uvicorn's, made in fewer steps.

What is the same for every request is the class's or the connection's, and an event is made only where somebody waits:
nearly all bodies have come before their application asks for them. ``docs/results/benchmarks.md`` has the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from scheduling.gateway.asgi import Message, Scope


class Arrival:
    """An ``asyncio.Event`` that is one only while somebody waits for it."""

    __slots__ = ("_event", "came")

    def __init__(self) -> None:
        self.came = False
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        self.came = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        self.came = False
        if self._event is not None:
            self._event.clear()

    async def wait(self) -> None:
        if not self.came:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()


class Cycle(RequestResponseCycle):
    """One request and its answer. ``transport``: what the answer is written to."""

    disconnected = False
    waiting_for_100_continue = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    on_response: Callable[..., None]

    def __init__(
        self, connection: HttpToolsProtocol, scope: Scope, transport: Any, *, keep_alive: bool, expects: bool
    ) -> None:
        self.scope = scope  # type: ignore[assignment]
        self.transport = transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.access_logger = connection.access_logger
        self.access_log = connection.access_log
        self.default_headers = connection.server_state.default_headers
        self.message_event: Any = Arrival()
        self.on_response = connection.on_response_complete
        self.keep_alive = keep_alive
        self.body: Any = b""
        if expects:
            self.waiting_for_100_continue = True

    def add(self, body: bytes) -> int:
        """A piece of its body came; the bytes that wait to be received."""
        if not self.body:
            self.body = body
        else:
            if type(self.body) is bytes:
                self.body = bytearray(self.body)
            self.body += body
        self.message_event.set()
        return len(self.body)

    async def receive(self) -> Message:  # type: ignore[override]
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not (self.disconnected or self.response_complete):
            self.flow.resume_reading()
            if not self.message_event.came:
                await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}
