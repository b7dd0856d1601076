"""``python -m controlplane.serve``: the web process. uvicorn, with the limits and the orderly end it does not have.

* connections have a limit, in all and per address (``controlplane/doors.py``);
* a request head has a size and a time limit, refused before anything of ours runs (uvicorn has neither);
* a head leaves together with the first bytes of its body, in one system call;
* at SIGTERM: not ready, nothing new admitted, running streams drain, the rest gets an error event, then the process
  ends, at the latest five seconds after the drain even if a client never reads (uvicorn alone waits for ever).
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from controlplane import env as environment
from controlplane.doors import ALWAYS_OPEN, RETRY_S, Doors, Place, affordable
from scheduling.core.outcomes import ENDINGS, Reason
from scheduling.gateway.app import new_request_id
from scheduling.gateway.call import ABORT
from scheduling.gateway.errors import reason_header
from scheduling.gateway.headers import NO_RETRY, retry_after

log = logging.getLogger("controlplane.serve")
GRACE_S = 4.8  # after the drain: last words of up to 3 s, sockets closed, records written
FULL = "This server has as many connections as it may. Try again in a moment."
TOO_MANY = "Your address has as many connections here as it may. Close some, or try again in a moment."
YOUNG_OBJECTS = 20_000  # allocations between two looks for cycles; the default of 700 costs a tenth of each request


class HeadWithBody:
    """What a response writes to: its head waits for the first bytes of the body, until the loop's next turn at most."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.write(self._head + data)
            self._head = b""
            self.write = self._transport.write  # type: ignore[method-assign]
        else:
            self._head = data
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


def protocol(head_bytes: int, head_timeout_s: float, doors: Doors) -> type[HttpToolsProtocol]:
    """A connection that ``doors`` lets in, and whose request heads must come within a size and a time."""

    class BoundedHead(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _head_open = True  # between two requests, or inside a head
        _head_size = 0
        _place = Place.FREE
        _address: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            self._place = doors.enter(self._address)
            if self._place is Place.NONE:
                self._refuse(503, FULL)
            else:
                self._head_timer = self.loop.call_later(head_timeout_s, self._head_late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._leave()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self) -> None:
            self._leave()  # another protocol takes the connection over; behind its login it is one of few
            super().handle_websocket_upgrade()

        def _leave(self) -> None:
            if self._address is not None:
                doors.leave(self._address)
                self._address = None

        def data_received(self, data: bytes) -> None:
            if self._head_open:
                self._head_size += len(data)
            super().data_received(data)
            if self._head_open and self._head_size > head_bytes and not self.transport.is_closing():
                self._refuse(431, f"The request head is larger than {head_bytes} bytes.", Reason.TOO_LARGE)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[typeddict-item]
            if self._head_timer is None:  # a further request on a kept connection
                self._head_timer = self.loop.call_later(head_timeout_s, self._head_late)

        def on_headers_complete(self) -> None:
            self._stop_timer()
            self._head_open = False
            # The last read may hold a body as well: count what really was head.
            if self._head_size > head_bytes and (
                len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > head_bytes
            ):
                self._refuse(431, f"The request head is larger than {head_bytes} bytes.", Reason.TOO_LARGE)
                return
            self._head_size = 0
            if self._place is not Place.FREE and self.url.partition(b"?")[0] not in ALWAYS_OPEN:
                mine = self._place is Place.ADDRESS
                self._refuse(429 if mine else 503, TOO_MANY if mine else FULL)
                return
            before = self.cycle
            super().on_headers_complete()
            if self.cycle is not before:
                self.cycle.transport = HeadWithBody(self.transport, self.loop)  # type: ignore[assignment]

        def on_body(self, body: bytes) -> None:
            if not self.transport.is_closing():
                super().on_body(body)

        def on_message_complete(self) -> None:
            # A head that begins in the read that ended this message counts from the next read on.
            self._head_open, self._head_size = True, 0
            if not self.transport.is_closing():
                super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, "This is not a valid HTTP request.", Reason.INVALID_REQUEST)

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_late(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self._refuse(408, f"The request head did not arrive within {head_timeout_s:g} s.", Reason.SLOW_REQUEST)

        def _refuse(self, status: int, message: str, reason: Reason | None = None) -> None:
            """``reason``: what it is called everywhere else; None where it is about connections, and will pass."""
            if self.transport.is_closing():
                return
            if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
                self.transport.abort()  # no second answer inside a first one
                return
            kind = {429: "rate_limit_error", 503: "service_unavailable_error"}.get(status, "invalid_request_error")
            error = {"message": message, "type": kind, "param": None, "code": reason and reason.value}
            body = json.dumps({"error": error}).encode()
            headers = [(b"x-request-id", new_request_id(time.time()).encode())]
            if reason is not None:
                headers.append(reason_header(reason))
            headers += retry_after(RETRY_S) if reason is None or ENDINGS[reason].retry else [NO_RETRY]
            self.transport.write(
                STATUS_LINE[status]
                + b"content-type: application/json\r\nconnection: close\r\n%scontent-length: %d\r\n\r\n"
                % (b"".join(b"%s: %s\r\n" % header for header in headers), len(body))
                + body
            )
            self.transport.close()

    return BoundedHead


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application when the end begins and does not wait for ever."""

    def __init__(self, config: uvicorn.Config, drain_s: float) -> None:
        super().__init__(config)
        self.drain_s = drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            end = threading.Timer(self.drain_s + GRACE_S, os._exit, (0,))
            end.daemon = True
            end.start()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What was imported stays: the collector need not walk through it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        from controlplane.asgi import application

        # Still listening: whoever asks is told "not ready" and "try again elsewhere" instead of finding a closed port.
        # Unless other processes listen on the same port, who can do better.
        for server in self.servers if sockets else ():
            server.close()
        await application.drain()
        await super().shutdown(sockets)


def shared_port(host: str, port: int) -> socket.socket:
    """A listening address that other web processes listen on as well: the kernel deals out the connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    return listener


def main() -> int:
    try:
        env = environment.load()
    except environment.SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    config = uvicorn.Config(
        "controlplane.asgi:application",
        host=env.host,
        port=env.port,
        loop="uvloop",
        http=protocol(
            env.max_header_bytes,
            env.header_timeout_s,
            Doors(affordable(env.max_connections), env.max_connections_per_address),
        ),
        ws="websockets-sansio",
        ws_per_message_deflate=False,  # three times the CPU for a dashboard's frames
        ws_max_size=64 * 1024,  # a dashboard says little
        lifespan="on",
        access_log=False,
        log_config=None,  # Django's
        log_level=env.log_level.lower(),
        proxy_headers=env.https,
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,  # after the drain only pages are left
    )
    server = Server(config, env.drain_s)
    server.run(sockets=[shared_port(env.host, env.port)] if env.web_processes > 1 else None)
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
