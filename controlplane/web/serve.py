"""``python -m controlplane.web.serve [FD]``: the web process, on a listening socket that it inherits or on its own.

uvicorn, with the limits and the orderly end it does not have.

* connections have a limit, in all and per address, WebSockets among them (``controlplane/web/connections.py``), and
  each is bounded (``controlplane/web/protocol.py``);
* at SIGTERM: not ready at once; for a while requests are answered as ever, each with ``connection: close``, so that
  clients and load balancers go elsewhere and no request fails; then nothing new is admitted, running streams drain, the
  rest gets an error event, and the process ends, at the latest five seconds after the drain even if a client never
  reads (uvicorn alone waits for ever). SIGINT leaves out the first part.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane import env_loading, garbage_collection
from controlplane.env import SettingsError
from controlplane.web.connections import ConnectionLimits, affordable
from controlplane.web.protocol import protocol
from controlplane.web.websockets import MESSAGE_BYTES, BoundedSocket

LEAVING_STEP_S = 0.05
LAST_S = 0.3  # for a request that was sent before its sender could find the port closed
GRACE_S = 4.8  # after the drain: last words of up to 3 s, sockets closed, records written


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application when the end begins and does not wait for ever."""

    def __init__(self, config: uvicorn.Config, drain_s: float, leave_s: float, connections: ConnectionLimits) -> None:
        super().__init__(config)
        self.drain_s = drain_s
        self.leave_s = min(leave_s, drain_s)
        self.connections = connections
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            end = threading.Timer(self.drain_s + GRACE_S, os._exit, (0,))
            end.daemon = True
            end.start()
        if sig == signal.SIGINT and not self._hurried:  # for uvicorn the second signal ends everything at once
            self._hurried = self.should_exit = True
            return
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        from controlplane.asgi import application

        application.connections = self.connections  # before its lifespan begins
        await super().startup(sockets)
        garbage_collection.look_rarely()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        from controlplane.asgi import application

        began = time.monotonic()
        application.leave()
        await self._leave(self.servers if sockets else [])
        # Still listening, as no other process does: clients are told "not ready" and "try again elsewhere" instead of
        # finding a closed port.
        await application.drain(max(0.0, self.drain_s - (time.monotonic() - began)))
        await self._refuse_the_last()
        await super().shutdown(sockets)

    async def _refuse_the_last(self) -> None:
        """Closes the listeners, then refuses for a moment what was already connecting: a proxy may repeat a refused
        request elsewhere, but not one that was lost with its connection."""
        for server in self.servers:
            server.close()
        end = time.monotonic() + LAST_S
        while time.monotonic() < end and not self._hurried:
            if not self.server_state.connections:
                break
            await asyncio.sleep(LEAVING_STEP_S)

    async def _leave(self, shared: list[asyncio.base_events.Server]) -> None:
        """Requests are still taken and answered, each with ``connection: close``, until ``leave_s`` are over, or until
        nobody can come any more. ``shared``: others listen on the same sockets, and take the connections from now on.
        """
        self.connections.leaving = True
        for server in shared:
            server.close()
        self._tell("last_answer")
        end = time.monotonic() + self.leave_s
        while time.monotonic() < end and not self._hurried:  # a signal ends it
            await asyncio.sleep(LEAVING_STEP_S)
            if shared and not self.server_state.connections:
                break
        self._tell("close_idle")

    def _tell(self, what: str) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpToolsProtocol):  # no WebSocket
                getattr(connection, what)()


def inherited(fd: int) -> socket.socket:
    """The listening socket that other web processes listen on as well. What waits in it for one that ends, or hangs, is
    taken by another; with one socket for each (``SO_REUSEPORT``) the kernel would reset it."""
    return socket.socket(fileno=fd)


def main() -> int:
    try:
        env = env_loading.load()
        env_loading.needs_redis(env)
        places = affordable(env.max_connections)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    if not env.embedded:
        from controlplane import database  # and psycopg

        database.waits(env.database_timeout_s)
    connections = ConnectionLimits(places, env.max_connections_per_address, env.max_websockets, env.proxies)
    config = uvicorn.Config(
        "controlplane.asgi:application",
        host=env.host,
        port=env.port,
        loop="uvloop",
        http=protocol(env.max_header_bytes, env.header_timeout_s, connections, env.send_timeout_s),
        ws=BoundedSocket,
        ws_per_message_deflate=False,  # three times the CPU for a dashboard's frames
        ws_max_size=MESSAGE_BYTES,
        lifespan="on",
        access_log=False,
        log_config=None,  # Django's
        # At its own DEBUG it writes each WebSocket's handshake, with the session's cookie, and its frames.
        log_level="info" if env.log_level == "DEBUG" else env.log_level.lower(),
        proxy_headers=False,  # of pages and WebSockets only, and of trusted proxies only: controlplane/asgi.py
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,  # after the drain only pages are left
    )
    server = Server(config, env.drain_s, env.leave_s, connections)
    server.run(sockets=[inherited(int(given[0]))] if (given := sys.argv[1:]) else None)
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
