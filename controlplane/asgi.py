"""One ASGI application for everything a web process serves.

``/v1`` goes to the gateway, ``/ws`` to Channels, health and metrics to plain handlers, the rest to Django. Its handler
costs ten times what the gateway does: nothing of ``/v1`` comes near it.
"""

from __future__ import annotations

import asyncio
import json
import os
from hmac import compare_digest
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django

django.setup(set_prefix=False)  # loads the models the imports below need

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from controlplane.loopback import is_address, is_loopback
from controlplane.signin.recheck import make_recheck
from controlplane.web import hashing
from controlplane.web.api_clients import is_clients, is_gateways
from controlplane.web.body_limits import BodyLimits
from controlplane.web.connections import ALWAYS_OPEN, ConnectionLimits
from controlplane.web.health import Readiness
from controlplane.web.pages import Pages
from controlplane.web.request_heads import PlainHeads
from controlplane.web.websockets import Handshakes
from controlplane.wiring import make_catalog, make_gateway, make_source_watch
from scheduling.gateway.app import GatewayApp
from scheduling.gateway.asgi import Receive, Scope, Send
from scheduling.gateway.beside import Beside
from telemetry.feed.routing import websocket_urlpatterns
from telemetry.metrics import CONTENT_TYPE, make_metrics

FORWARDED = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
FOR_MACHINES = {path.decode() for path in ALWAYS_OPEN}  # which are read, and take nothing
ONE_PROCESS = b"of=process"  # the question of /readyz that leaves out what no process could help
NOT_STARTED = (
    503,
    {"error": {"message": "Starting.", "type": "service_unavailable_error", "param": None, "code": None}},
)


class Application:
    """Routes by path; starts and stops the gateway with the server's lifespan."""

    def __init__(self) -> None:
        env = settings.ENV
        self.connections: ConnectionLimits | None = (
            None  # set by a server that counts connections, before the lifespan begins
        )
        self._sockets = _behind_proxies(
            Handshakes(
                PlainHeads(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
                [f"/{route.pattern}" for route in websocket_urlpatterns],
            ),
            env.proxies,
        )
        self._pages = _behind_proxies(
            BodyLimits(
                PlainHeads(cast(Any, Pages())),
                settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
                env.body_timeout_s,
                env.send_timeout_s,
            ),
            env.proxies,
        )
        self._metrics = make_metrics()
        self._gateway: GatewayApp | None = None
        self._beside: Beside | None = None
        self._readiness: Readiness | None = None
        self._drained: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            path = scope["path"]
            if is_gateways(path) and self._gateway is not None:
                await self._gateway.serve(scope, receive, send)
            elif self._beside is not None and self._beside.serves(path):
                await self._beside(scope, receive, send)
            elif path in FOR_MACHINES and scope["method"] not in ("GET", "HEAD"):
                await _answer(send, 405, b'{"detail": "This is read with GET or HEAD."}', allow=b"GET, HEAD")
            elif path == "/healthz":
                await _answer(send, 200, b'{"alive": true}')
            elif path in ("/readyz", "/health"):  # the latter is vLLM's
                await self._readyz(scope, send)
            elif path == "/metrics":
                if not _may_look_inside(scope):
                    await _answer(send, 401, b'{"detail": "This page needs its token: QUARTERMASTER_METRICS_TOKEN."}')
                    return
                self._metrics.gauge("tasks", len(asyncio.all_tasks()))
                if self.connections is not None:
                    connections = self.connections
                    self._metrics.connections(
                        connections.inside,
                        connections.most,
                        connections.sockets,
                        connections.most_sockets,
                        connections.refused,
                    )
                page = await asyncio.to_thread(self._metrics.render)
                await _answer(send, 200, page, CONTENT_TYPE)
            elif is_gateways(path) or is_clients(scope):
                await self._client(scope, receive, send)
            else:
                await self._pages(scope, receive, send)
        elif kind == "websocket":
            await self._sockets(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)

    async def _client(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._gateway is None:
            await _answer(send, NOT_STARTED[0], json.dumps(NOT_STARTED[1]).encode())
        else:
            await self._gateway.serve(scope, receive, send)

    def leave(self) -> None:
        """Not ready any more. Requests are still served."""
        if self._readiness is not None:
            self._readiness.draining = True

    async def drain(self, limit_s: float | None = None) -> None:
        """Nothing new on ``/v1``; open requests end within ``limit_s`` (the drain time), the rest with an error."""
        self.leave()
        if self._gateway is not None:
            if self._drained is None:
                self._drained = asyncio.create_task(self._gateway.drain(limit_s), name="drain")
            await self._drained

    async def _readyz(self, scope: Scope, send: Send) -> None:
        report: dict[str, Any]
        if scope.get("query_string", b"") == ONE_PROCESS:
            ready = self._readiness is not None and await self._readiness.takes_requests()
            report = {"ready": ready}
        elif self._readiness is None:
            ready, report = False, {"ready": False, "waiting_for": ["this process: it is starting"]}
        else:
            ready, report = await self._readiness.look()
        if not _may_look_inside(scope):
            report = {"ready": ready}
        await _answer(send, 200 if ready else 503, json.dumps(report).encode())

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        hashing.give_way()
        catalog = make_catalog()
        gateway, readiness = (
            make_gateway(catalog, self._metrics, self.connections),
            Readiness(catalog, settings.ENV.redis_url),
        )
        await gateway.start()
        await readiness.start()
        self._gateway, self._readiness = gateway, readiness
        if settings.ENV.ext_authz_s > 0:
            self._beside = Beside(gateway, settings.ENV.ext_authz_s, settings.ENV.ext_authz_token)
        watch = make_source_watch(catalog)
        watch.start()
        people = make_recheck()
        if people is not None:
            people.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.drain()
        await asyncio.to_thread(watch.stop)
        if people is not None:
            await asyncio.to_thread(people.stop)
        await readiness.stop()
        await gateway.stop()
        self._metrics.close()
        hashing.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _behind_proxies(app: Any, proxies: list[str]) -> Any:
    """Takes the client's address and scheme from the headers of these proxies. ``/v1`` needs neither and is spared."""
    return ProxyHeadersMiddleware(app, proxies) if proxies else app


def _may_look_inside(scope: Scope) -> bool:
    """Whether this request may see metrics and the names of pools: it has the token, or, where none is set, it comes
    from this machine, not through a proxy, and not from a page in a browser here whose name leads to this server by
    now (DNS rebinding)."""
    headers = dict(scope["headers"])
    wanted = settings.ENV.metrics_token
    if wanted:
        return compare_digest(headers.get(b"authorization", b""), b"Bearer " + wanted.encode())
    peer, own = ((scope.get(end) or ("",))[0] for end in ("client", "server"))
    if not (is_loopback(peer) or peer == own != "") or headers.keys() & FORWARDED:
        return False
    host = headers.get(b"host", b"").decode("latin-1")
    name, _ = split_domain_port(host)  # without one where it is none
    if not name:
        return not host
    return "." not in name or is_address(name) or validate_host(name, settings.ALLOWED_HOSTS)


async def _answer(
    send: Send, status: int, body: bytes, content_type: str = "application/json", allow: bytes = b""
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if allow:
        headers.append((b"allow", allow))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


application = Application()
