"""The ``/v1`` application: a plain ASGI app in front of everything else.

It starts and stops the parts of a gateway and receives their events; :class:`RequestHandler` serves the requests. The
web process calls ``start`` before serving, ``drain`` when it is told to stop, and ``stop`` last; a server that speaks
ASGI lifespan does so by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from scheduling.catalog import CatalogCache
from scheduling.core.outcomes import Reason
from scheduling.core.types import Catalog, PoolSpec
from scheduling.gateway.answers.long_answers import LongAnswers
from scheduling.gateway.answers.stored import ResponseStore, Stored
from scheduling.gateway.asgi import Receive, Scope, Send
from scheduling.gateway.beside import Hold
from scheduling.gateway.conclusion import Conclusion
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.engine.upstream import Upstream
from scheduling.gateway.entry.auth import Keyring
from scheduling.gateway.entry.authenticator import Authenticator
from scheduling.gateway.entry.idempotency import Idempotency
from scheduling.gateway.entry.open_requests import OpenRequests
from scheduling.gateway.entry.quotas import Quotas
from scheduling.gateway.entry.storms import Storms
from scheduling.gateway.estimate.client_timeouts import ClientTimeouts
from scheduling.gateway.estimate.forecasts import Forecasts
from scheduling.gateway.estimate.input_tokens import InputCounter
from scheduling.gateway.estimate.questions import Questions
from scheduling.gateway.failover import Failover
from scheduling.gateway.in_flight import InFlight
from scheduling.gateway.ledger.outbox import Outbox
from scheduling.gateway.lifecycle import Lifecycle
from scheduling.gateway.ports import GatewayMetrics, Places, Routes
from scheduling.gateway.queueing import GrantWaiter
from scheduling.gateway.request_handler import RequestHandler
from scheduling.gateway.services import Services
from scheduling.gateway.timeouts import Timeouts
from scheduling.state.history import HistoryStream
from scheduling.state.resp import PROBE_S, SILENCE_S, RespConnection
from scheduling.state.skew import ClockSkew
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import CATALOG_CHANNEL, EJECTED_CHANNEL, gateway_channel

log = logging.getLogger(__name__)

DRAIN_STEP_S = 0.05
AFTER_DRAIN_S = 3.0  # for telling clients that were cut off


class GatewayApp:
    """The gateway of one process and one event loop."""

    AUTHENTICATOR: type[Authenticator] = Authenticator

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
        self._metrics = metrics

        # what is configured
        self._catalog = catalog
        self._keyring = Keyring(Catalog(0, {}, {}, {}))

        # shared state
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
        self.skew = ClockSkew(self._resp.time_s)

        # engines
        self._upstream = Upstream(config.connect_timeout_s)
        # Token counts name no request: on connections of their own, a late one can only be mistaken for another count.
        # Clients' questions to a tokenizer use it as well, each on a new connection.
        self._counting = Upstream(config.connect_timeout_s, named=False)
        self._long_answers = LongAnswers()

        # what is kept of requests, while they run and beyond
        self._in_flight = InFlight(
            config.gateway_id, self._store, config.renew_every_s, self._in_service, self.skew.measure
        )
        self._outbox = Outbox(self._store, config.flush_every_s, config.backlog_limit)
        self._quotas = Quotas(self._resp)
        self._idempotency = Idempotency(config, self._resp)
        self._outbox.unstored.on_lost = self._idempotency.lost
        self._forecasts = Forecasts(lambda pool: HistoryStream(self._resp, pool, config.history_secret))
        self._storms = Storms()
        self._client_timeouts = ClientTimeouts()

        # a request's way
        conclusion = Conclusion(config, self._in_flight, self._outbox, metrics, self._quotas, self._client_timeouts)
        services = Services(
            config=config,
            catalog=catalog,
            keyring=lambda: self._keyring,
            stores=self._store,
            in_flight=self._in_flight,
            conclusion=conclusion,
            upstream=self._upstream,
            long_answers=self._long_answers,
            forecasts=self._forecasts,
            counter=InputCounter(self._counting, self._in_flight.works),
            metrics=metrics,
            state_available=lambda: self._resp.available,
            quotas=self._quotas,
            idempotency=self._idempotency,
            storms=self._storms,
            client_timeouts=self._client_timeouts,
            avoided=self._avoided,
        )
        waiter = GrantWaiter(conclusion)
        self._failover = Failover(services, waiter)
        self._authenticator = self.AUTHENTICATOR(catalog, lambda: self._keyring)
        self._watch = Timeouts(self._every_second)
        self._requests = RequestHandler(
            services,
            Lifecycle(services, waiter, self._failover),
            self._authenticator,
            self._watch,
            OpenRequests(config.max_open_per_key, places),
            Questions(self._counting, self._in_flight.works),
            Stored(responses, config.max_body_bytes),
            routes,
        )
        self.serve = self._requests.handle  # a scope of kind http; a method would be a call more at each step of it

    # --- for the web process

    async def start(self) -> None:
        """Connects and begins to follow the catalog. Does not fail without Redis or the database: see ``ready``."""
        self._requests.loop = asyncio.get_running_loop()
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
        return not self._requests.draining and self._catalog.loaded and self._resp.available

    @property
    def open_requests(self) -> int:
        return len(self._watch.calls)

    async def drain(self, limit_s: float | None = None) -> None:
        """Refuses new requests, lets the open ones end for ``limit_s`` (``drain_s``), then ends the rest with an
        explicit error."""
        self._requests.draining = True
        await self._empty(self.config.drain_s if limit_s is None else limit_s)
        for call in list(self._watch.calls):
            call.interrupt(Reason.SHUTTING_DOWN)
        await self._empty(AFTER_DRAIN_S)

    async def stop(self) -> None:
        """Writes the last records and closes everything. Call ``drain`` first."""
        self._requests.draining = True
        await self._in_flight.stop()
        await self._quotas.stop()
        await self._idempotency.stop()
        await self._outbox.stop()
        await self._forecasts.stop()
        await self._watch.stop()
        self._upstream.close()
        self._counting.close()
        await self._long_answers.stop()
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
        self._authenticator.configured()
        if self._keyring.without(before):
            self._end_revoked(time.time())
        self._quotas.configure(catalog)
        for upstream in (self._upstream, self._counting):
            upstream.keep_only(set(self._keyring.backends))
        self._failover.attempts.keep_only(self._keyring.backends)
        self._forecasts.configure(catalog)

    def _end_revoked(self, now_s: float) -> None:
        """Ends requests whose keys are not valid any more."""
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
                self._failover.attempts.moved(submitted.access.pool.id, submitted.backend, pieces)
        self._client_timeouts.look(self._in_flight.calls.values())
        self._failover.report()
        self._storms.forget(asyncio.get_running_loop().time())
        now_s = time.time()
        if now_s >= self._keyring.next_expiry_s:
            self._keyring.next_expiry_s = self._keyring.expiry_after(now_s)
            self._end_revoked(now_s)

    # --- requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self.serve(scope, receive, send)
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
