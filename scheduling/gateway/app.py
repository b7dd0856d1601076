"""The ``/v1`` application: a plain ASGI app in front of everything else.

One coroutine per request from its head to its end; what a request is goes through :class:`Call`, what happens to it
through :class:`Lifecycle`. The shell calls ``start`` before serving, ``drain`` when it is told to stop, ``stop`` last;
a server that speaks ASGI lifespan does the same by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection
from typing import Any

from scheduling.catalog import CatalogCache
from scheduling.core.outcomes import Reason
from scheduling.core.tracing import trace_line
from scheduling.core.types import Catalog, PoolSpec
from scheduling.gateway.asgi import PEER
from scheduling.gateway.auth import Access, Keyring, OpensNothing, split_key
from scheduling.gateway.beside import Hold
from scheduling.gateway.conclusion import Conclusion, refused, send_answer
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.dialects import MESSAGES
from scheduling.gateway.endpoints import ENDPOINTS, MESSAGES_PATH, not_served
from scheduling.gateway.errors import Answer, Refusal
from scheduling.gateway.forecasts import Forecasts
from scheduling.gateway.grammar import check_grammar
from scheduling.gateway.guard import ClientGone, Head, Receive, Scope, Send, check_size, drain, read_body
from scheduling.gateway.headers import JSON
from scheduling.gateway.idempotency import Idempotency
from scheduling.gateway.in_flight import InFlight
from scheduling.gateway.input_tokens import InputCounter
from scheduling.gateway.lifecycle import Lifecycle, Services, check_entitled
from scheduling.gateway.model_list import MODELS, list_models, speaks_anthropic
from scheduling.gateway.open_requests import OpenRequests
from scheduling.gateway.outbox import Outbox
from scheduling.gateway.ports import GatewayMetrics, Places, Routes
from scheduling.gateway.prepare import check_choices, choose, parse_as
from scheduling.gateway.questions import QUESTIONS, Question, Questions
from scheduling.gateway.quotas import Quotas
from scheduling.gateway.relay import EngineTrouble
from scheduling.gateway.stages import Call, Identified
from scheduling.gateway.stored import ResponseStore, Stored
from scheduling.gateway.storms import HOLD_S, MAX_DRAINED, MAX_HELD, Storms
from scheduling.gateway.timeouts import Timeouts
from scheduling.gateway.upstream import Upstream
from scheduling.gateway.users import take_user
from scheduling.state.history import HistoryStream
from scheduling.state.resp import PROBE_S, SILENCE_S, RespConnection
from scheduling.state.skew import ClockSkew
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import CATALOG_CHANNEL, EJECTED_CHANNEL, gateway_channel

log = logging.getLogger(__name__)

NEW_KEY_WAIT_S = 0.5  # a key made a moment ago elsewhere: one look at the database before it is called unknown
DRAIN_STEP_S = 0.05
AFTER_DRAIN_S = 3.0  # for the last words to those that were cut off
_NO_EXTENSIONS: dict[str, Any] = {}


def new_request_id(now_s: float) -> str:
    """``req_`` and 24 hex digits: milliseconds first, so that ids sort by time."""
    return f"req_{int(now_s * 1000):012x}{random.getrandbits(48):012x}"


class GatewayApp:
    """The gateway of one process and one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        catalog: CatalogCache,
        redis_url: str,
        metrics: GatewayMetrics,
        places: Places | None = None,
        routes: Collection[Routes] = (),
        responses: ResponseStore | None = None,
    ) -> None:
        self.config = config
        self._catalog = catalog
        self._metrics = metrics
        self._started_s = int(time.time())
        self._resp = RespConnection(
            redis_url, name=config.gateway_id, silence=SILENCE_S, probe=PROBE_S, on_change=self._state_changed
        )
        self._subscriber = Subscriber(
            redis_url,
            [gateway_channel(config.gateway_id), CATALOG_CHANNEL, EJECTED_CHANNEL],
            self._heard,
            name=f"{config.gateway_id}-sub",
            on_ready=self._subscribed,
        )
        self._stores: dict[str, PoolStore] = {}
        self._keyring = Keyring(Catalog(0, {}, {}, {}))
        self._upstream = Upstream(config.connect_timeout_s)
        # counts of tokens name no request: on connections of their own a late one can only be taken for another count
        self._counting = Upstream(config.connect_timeout_s, named=False)
        self._questions = Questions(self._counting)
        self.skew = ClockSkew(self._resp.time_s)
        self._in_flight = InFlight(
            config.gateway_id, self._store, config.renew_every_s, self._in_service, self.skew.measure
        )
        self._outbox = Outbox(self._store, config.flush_every_s, config.backlog_limit)
        self._watch = Timeouts(self._every_second)
        self._forecasts = Forecasts(lambda pool: HistoryStream(self._resp, pool, config.history_secret))
        self._quotas = Quotas(self._resp)
        self._idempotency = Idempotency(config, self._resp)
        self._outbox.unstored.on_lost = self._idempotency.lost
        self._stored = Stored(responses, config.max_body_bytes)
        self._storms = Storms()
        self._conclusion = Conclusion(config, self._in_flight, self._outbox, metrics, self._quotas)
        self._lifecycle = Lifecycle(
            Services(
                config,
                catalog,
                lambda: self._keyring,
                self._store,
                self._in_flight,
                self._conclusion,
                self._upstream,
                self._forecasts,
                InputCounter(self._counting),
                metrics,
                lambda: self._resp.available,
                self._quotas,
                self._idempotency,
                self._storms,
                self._avoided,
            )
        )
        self._open = OpenRequests(config.max_open_per_key, places)
        self._routes = routes
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- for the shell

    async def start(self) -> None:
        """Connects and begins to follow the catalog. Never fails for Redis or the database: ``ready`` says."""
        self._loop = asyncio.get_running_loop()
        self._catalog.on_change(self._configured)
        await self._catalog.start()
        await self._subscriber.start()
        await self._resp.start()
        self._watch.start()
        self._in_flight.start()
        self._quotas.start()
        self._outbox.start()
        self._idempotency.start()
        self._forecasts.start()

    @property
    def ready(self) -> bool:
        """Whether a request would be served now."""
        return not self._draining and self._catalog.loaded and self._resp.available

    @property
    def open_requests(self) -> int:
        return len(self._watch.calls)

    async def drain(self, limit_s: float | None = None) -> None:
        """Refuses new requests, lets the open ones end for ``limit_s`` (``drain_s``), then ends the rest with an
        explicit error."""
        self._draining = True
        await self._empty(self.config.drain_s if limit_s is None else limit_s)
        for call in list(self._watch.calls):
            call.interrupt(Reason.SHUTTING_DOWN)
        await self._empty(AFTER_DRAIN_S)

    async def stop(self) -> None:
        """Writes the last records and closes everything. Call ``drain`` first."""
        self._draining = True
        await self._in_flight.stop()
        await self._quotas.stop()
        await self._idempotency.stop()
        await self._outbox.stop()
        await self._forecasts.stop()
        await self._watch.stop()
        self._upstream.close()
        self._counting.close()
        await self._subscriber.close()
        await self._resp.close()
        await self._catalog.close()

    async def _empty(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        # only while draining: an event would cost something on every request
        while self._watch.calls and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_STEP_S)

    # --- for requests that another gateway sends (beside.py)

    @property
    def gateway_id(self) -> str:
        return self.config.gateway_id

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._http(scope, receive, send)

    def hold_of(self, request_id: str) -> Hold | None:
        submitted = self._in_flight.calls.get(request_id)
        hold: Hold | None = submitted.call.hold if submitted is not None else None
        return hold

    async def tell(self, gateway_id: str, request_id: str, secret: str, completion: bytes) -> None:
        await self._store("").completed(gateway_id, request_id, secret, completion)

    # --- events

    def _store(self, pool: str) -> PoolStore:
        store = self._stores.get(pool)
        if store is None:
            store = self._stores[pool] = PoolStore(self._resp, pool)
        return store

    def _avoided(self, pool: PoolSpec) -> Collection[str]:
        """Replicas on which no request of this gateway begins: none."""
        return ()

    def _in_service(self, backend: str) -> bool:
        spec = self._keyring.backends.get(backend)
        return spec is not None and not spec.draining

    def _configured(self, catalog: Catalog) -> None:
        before, self._keyring = self._keyring, Keyring(catalog, self.config.tenant_secret)
        if self._keyring.without(before):
            self._end_revoked(time.time())
        self._quotas.configure(catalog)
        for upstream in (self._upstream, self._counting):
            upstream.keep_only(set(self._keyring.backends))
        self._lifecycle.attempts.keep_only(self._keyring.backends)
        self._forecasts.configure(catalog)

    def _end_revoked(self, now_s: float) -> None:
        """Ends what waits and runs under keys that are not valid any more."""
        holds = self._keyring.holds
        for call in self._watch.calls:
            if call.identified is not None and not holds(call.identified.access.key.id, now_s):
                call.interrupt(Reason.KEY_REVOKED)

    def _state_changed(self, available: bool) -> None:
        self._metrics.state_available(available)
        if available:
            self._in_flight.renew_now()
            self._outbox.available()
            self._idempotency.available()

    def _heard(self, channel: str, payload: bytes) -> None:
        if channel == CATALOG_CHANNEL:
            self._catalog.notify()
        elif channel == EJECTED_CHANNEL:
            self._in_flight.ejected(payload.decode())
        else:
            self._in_flight.heard(payload)

    def _subscribed(self) -> None:
        self._catalog.notify()
        self._in_flight.renew_now()

    def _every_second(self) -> None:
        self._metrics.gauge("open_requests", len(self._watch.calls))
        self._metrics.gauge("waiting_requests", self._in_flight.waiting)
        self._metrics.gauge("state_refuses_writes", float(bool(self._resp.refusing)))
        self._metrics.gauge("unstored_records", len(self._outbox.unstored))
        self._metrics.gauge("upstream_connections", self._upstream.connections + self._counting.connections)
        self._metrics.gauge("clock_skew_seconds", self.skew.seconds)
        for upstream in (self._upstream, self._counting):
            upstream.trim(asyncio.get_running_loop().time())
        for call in self._watch.calls:
            submitted = call.submitted
            if submitted is not None and (pieces := submitted.pieces()):
                self._lifecycle.attempts.moved(submitted.access.pool.id, submitted.backend, pieces)
        self._lifecycle.report()
        self._storms.forget(asyncio.get_running_loop().time())
        now_s = time.time()
        if now_s >= self._keyring.next_expiry_s:
            self._keyring.next_expiry_s = self._keyring.expiry_after(now_s)
            self._end_revoked(now_s)

    # --- requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.drain()
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send, request_id: str = "") -> None:
        loop = self._loop or asyncio.get_running_loop()
        call = Call(request_id or new_request_id(time.time()), scope, receive, send, loop)
        calls = self._watch.calls
        calls.add(call)
        try:
            await self._run(call)
            call.part()
        finally:
            calls.discard(call)
            if call.listener is not None:
                call.listener.cancel()

    async def _run(self, call: Call) -> None:
        """Serves a call; whatever stops it is one reason, told once."""
        refusal: Refusal | None = None
        try:
            await self._serve(call)
            return
        except Refusal as exc:
            refusal = exc.with_traceback(None)  # which holds this frame, and all of the request
            reason = exc.reason
        except EngineTrouble as exc:
            reason = exc.reason
        except ClientGone:
            reason = Reason.CLIENT_LEFT
        except asyncio.CancelledError:
            if call.why is None:  # the server gives up on us: it waits for nothing any more
                call.closed = True
                if call.identified is not None:
                    self._conclusion.abandon(call.identified, Reason.SHUTTING_DOWN)
                raise
            call.task.uncancel()
            reason = call.why
        except OSError:
            reason = Reason.CLIENT_LEFT  # some servers raise where a client has gone
        except Exception:
            log.exception("request %s failed", call.id)
            reason = Reason.INTERNAL
        await self._fail(call, reason, refusal)

    async def _serve(self, call: Call) -> None:
        scope = call.scope
        path, method = scope["path"], scope["method"]
        endpoint = ENDPOINTS.get(path)
        if endpoint is None and path in QUESTIONS and method == "POST":
            await self._question(call, QUESTIONS[path])
            return
        if endpoint is None:
            call.body_read = method in ("GET", "HEAD")
            await self._small(call, path, method)
            return
        call.dialect = endpoint.dialect
        if method != "POST":
            call.body_read = method in ("GET", "HEAD")
            raise Refusal(Reason.INVALID_REQUEST, status=405, allow=b"POST", detail=f"{path} takes POST.")
        config = self.config
        head = Head(scope["headers"], config.max_header_bytes)
        check_size(head, config.max_body_bytes)
        access = await self._access(head.authorization, call.received_s)
        trace = trace_line(endpoint.operation, head.traceparent) if config.traces else ""
        identified = call.identified = Identified(call, access, trace, endpoint)
        if self._draining:
            raise Refusal(Reason.SHUTTING_DOWN, close=True)
        key_id = access.key.id
        tenant = access.entitlement.tenant
        peer = (scope.get("extensions") or _NO_EXTENSIONS).get(PEER, "")
        self._open.add(key_id, tenant, peer)
        try:
            refusal = self._storms.answer(key_id, call.started_loop) if self._storms and access.one_model else None
            if refusal is not None:
                await self._turn_away(identified, head, refusal)
                return
            await self._ask(identified, head)
        except Refusal as refusal:
            self._storms.refused(identified.access, refusal, call.loop.time())
            raise
        finally:
            self._open.remove(key_id, tenant, peer)

    async def _turn_away(self, identified: Identified, head: Head, refusal: Refusal) -> None:
        """Refuses a request of a key that storms: no parsing, no question to shared state, no ledger row."""
        call, access = identified.call, identified.access
        call.limit(Reason.SLOW_REQUEST, call.started_loop + self.config.body_timeout_s)
        if not call.body_read and (head.content_length or 0) <= MAX_DRAINED:
            # read: a new connection would cost us more
            call.body_read = await drain(call.receive, MAX_DRAINED)
        call.closed = True
        if self._storms.held_back < MAX_HELD:
            self._storms.held_back += 1
            try:
                await asyncio.sleep(HOLD_S)
            finally:
                self._storms.held_back -= 1
        self._metrics.storm_refused(access.pool.id, access.entitlement.tenant, refusal.reason.value)
        refusal.close = not call.body_read
        await send_answer(call, refused(call, refusal))

    async def _ask(self, identified: Identified, head: Head) -> None:
        """A request of a known key, from its body on."""
        config, call = self.config, identified.call
        call.last_deadline = call.started_loop + config.request_timeout_s
        call.limit(Reason.SLOW_REQUEST, call.started_loop + config.body_timeout_s)
        data = await read_body(call.receive, config.max_body_bytes)
        call.limit(Reason.DEADLINE, call.last_deadline)
        call.body_read = True
        size = len(data)
        body = identified.endpoint.form.parse(data)
        access = identified.access = self._choose(body.model, identified.access)
        identified.user = take_user(body) or access.key.user
        if self._storms and not access.one_model:  # only now it is known which entitlement it is for
            refusal = self._storms.answer(access.door, call.started_loop)
            if refusal is not None:
                await self._turn_away(identified, head, refusal)
                return
        if identified.endpoint.keeps:
            identified.keeping = await self._stored.begin(body, access)
        prepared = identified.endpoint.fit(body, access.pool)
        check_choices(prepared, access.entitlement.concurrency)
        identified.streamed = prepared.stream
        check_grammar(prepared.body, access.entitlement.tier.max_grammar_bytes)
        if head.idempotency_key is not None:
            identified.idempotency = self._idempotency.pass_for(
                identified.id,
                access.entitlement.tenant,
                call.scope["path"],
                head.idempotency_key,
                data,
                access.key.project,
            )
        del data  # it may be large, and the call may wait
        await self._lifecycle.run(identified, prepared, size, head.hints)

    def _choose(self, model: str, access: Access) -> Access:
        return choose(model, access)

    async def _question(self, call: Call, question: Question) -> None:
        """What an engine is asked without a slot."""
        config = self.config
        call.dialect = question.dialect
        head = Head(call.scope["headers"], config.max_header_bytes)
        check_size(head, config.max_body_bytes)
        access = await self._access(head.authorization, call.received_s)
        if self._draining:
            raise Refusal(Reason.SHUTTING_DOWN, close=True)
        call.limit(Reason.SLOW_REQUEST, call.started_loop + config.body_timeout_s)
        data = await read_body(call.receive, config.max_body_bytes)
        call.body_read = True
        call.limit(Reason.DEADLINE, call.started_loop + config.first_token_timeout_s)
        asked = parse_as(data, question.form)
        access = self._choose(asked.model, access)
        check_entitled(access.entitlement, call.received_s)
        body = await self._questions.ask(question, access, asked)
        headers = [JSON, (b"content-length", b"%d" % len(body)), (b"x-request-id", call.id.encode("ascii"))]
        call.closed = True
        await send_answer(call, Answer(200, headers, body))

    async def _access(self, authorization: bytes | None, now_s: float) -> Access:
        parts = split_key(authorization)
        try:
            if parts is not None:
                access = self._keyring.find(*parts, now_s)
                if access is None:
                    await self._catalog.refreshed(NEW_KEY_WAIT_S)
                    access = self._keyring.find(*parts, now_s)
                if access is not None:
                    return access
        except OpensNothing:
            raise Refusal(Reason.NOT_ENTITLED, state="missing: its project has none") from None
        raise Refusal(Reason.NO_KEY)

    async def _small(self, call: Call, path: str, method: str) -> None:
        """``/v1/models``, what others serve, and everything that does not exist."""
        routes = next((one for one in self._routes if one.serves(path)), None)
        if routes is not None:
            head = Head(call.scope["headers"], self.config.max_header_bytes)
            access = await self._access(head.authorization, call.received_s)
            if self._draining:
                raise Refusal(Reason.SHUTTING_DOWN, close=True)
            await routes.serve(call, access, head)
            return
        if path in QUESTIONS:
            call.dialect = QUESTIONS[path].dialect
            raise Refusal(Reason.INVALID_REQUEST, status=405, allow=b"POST", detail=f"{path} takes POST.")
        headers = call.scope["headers"]
        anthropic = speaks_anthropic(headers)
        if anthropic or path.startswith(MESSAGES_PATH):
            call.dialect = MESSAGES
        if path != MODELS and not path.startswith(MODELS + "/"):
            raise Refusal(Reason.INVALID_REQUEST, status=404, detail=not_served(path))
        if method not in ("GET", "HEAD"):
            raise Refusal(Reason.INVALID_REQUEST, status=405, allow=b"GET, HEAD", detail=f"{MODELS} takes GET.")
        access = await self._access(Head(headers, self.config.max_header_bytes).authorization, call.received_s)
        query = call.scope.get("query_string", b"")
        body = list_models(path, query, access.cards(), self._started_s, anthropic)
        headers = [JSON, (b"content-length", b"%d" % len(body)), (b"x-request-id", call.id.encode("ascii"))]
        call.closed = True
        await send_answer(call, Answer(200, headers, body))

    async def _fail(self, call: Call, reason: Reason, refusal: Refusal | None) -> None:
        if call.identified is not None:
            await self._conclusion.conclude(call.identified, reason, refusal)
            return
        # nobody's request: no ledger, only metrics
        call.closed = True
        refusal = refusal or Refusal(reason)
        refusal.close = refusal.close or not call.body_read
        self._metrics.rejected(reason.value, refusal.status)
        if reason is not Reason.CLIENT_LEFT and not call.responding:
            await send_answer(call, refused(call, refusal))
