"""A request's life after its body was read: estimate, admission, grant, engine, answer, end.

Whatever happens in between (an interruption, a failure, a cancelled task) arrives in :meth:`Lifecycle.conclude`, which
tells the client and shared state exactly once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from scheduling.catalog import CatalogCache
from scheduling.core.estimate.tokens import TokenCalibration
from scheduling.core.ledger import LedgerRecord
from scheduling.core.outcomes import ENDINGS, Reason
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState
from scheduling.gateway.attempts import AttemptCounts
from scheduling.gateway.auth import Keyring
from scheduling.gateway.cache_salt import salt_for
from scheduling.gateway.call import NEVER, Call
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.errors import Answer, Refusal, error_event, reason_header, render
from scheduling.gateway.estimates import make_estimate, make_queued
from scheduling.gateway.first_tokens import FirstTokens
from scheduling.gateway.forecasts import Forecasts
from scheduling.gateway.guard import LINGER_S, linger
from scheduling.gateway.headers import JSON, Header
from scheduling.gateway.idempotency import REPLAYED, Idempotency
from scheduling.gateway.in_flight import InFlight
from scheduling.gateway.input_tokens import InputCounter
from scheduling.gateway.outbox import Ending, Outbox
from scheduling.gateway.ports import GatewayMetrics
from scheduling.gateway.quotas import Quotas
from scheduling.gateway.records import record_of
from scheduling.gateway.relay import EngineTrouble, Relay
from scheduling.gateway.retries import RetryBudget
from scheduling.gateway.storms import Storms
from scheduling.gateway.upstream import Upstream
from scheduling.state.store import PoolStore
from scheduling.state.types import Admission, AdmissionStatus, RequestFacts, StateError, StateUnavailable

LAST_WORD_S = 2.0  # how long an error may take to be sent to a client that reads slowly
CALIBRATIONS_KEPT = 10_000  # of a tenant in a pool each; the oldest go first
MAX_ATTEMPTS = 4  # of a request that its replicas fail
MAX_REFUSED = 10  # of one that its replicas do not admit
CATALOG_WAIT_S = 1.0  # a grant may name a replica that was configured a moment ago


class Lifecycle:
    """Moves calls from their parsed body to their end. One per gateway."""

    def __init__(
        self,
        config: GatewayConfig,
        catalog: CatalogCache,
        keyring: Callable[[], Keyring],
        stores: Callable[[str], PoolStore],
        in_flight: InFlight,
        outbox: Outbox,
        upstream: Upstream,
        forecasts: Forecasts,
        counter: InputCounter,
        metrics: GatewayMetrics,
        state_available: Callable[[], bool],
        quotas: Quotas,
        idempotency: Idempotency,
        storms: Storms,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._keyring = keyring
        self._stores = stores
        self._in_flight = in_flight
        self._outbox = outbox
        self._forecasts = forecasts
        self._counter = counter
        self._metrics = metrics
        self._state_available = state_available
        self._quotas = quotas
        self._idempotency = idempotency
        self._storms = storms
        self.attempts = AttemptCounts()
        self._relay = Relay(config, upstream, answer_headers, metrics, self.attempts, FirstTokens(stores))
        self._budget = RetryBudget(config.retry_share, config.retry_floor, time.monotonic())
        self._calibrations: dict[tuple[str, str], TokenCalibration] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def run(self, call: Call, hints: dict[bytes, float] | None) -> None:
        """From a prepared call to its end, if nothing goes wrong; what goes wrong is raised for ``conclude``."""
        access, prepared = call.access, call.prepared
        assert access is not None
        assert prepared is not None
        _check_entitled(access.entitlement, call.received_s)
        if call.idempotency is not None:
            answer = await self._idempotency.begin(call.idempotency)
            if answer is not None:
                await self._replay(call, answer)
                return
        pool = access.pool
        calibration = self._calibration(pool.id, access.entitlement.tenant)
        if pool.tokenizer and not prepared.exact_input:
            counted = await self._counter.count(pool, prepared)
            if counted is not None:
                prepared.raw_input = counted
        forecasts = self._forecasts.of(pool)
        if forecasts is None:
            call.estimate = make_estimate(prepared, pool, calibration)
        else:
            call.estimate = make_estimate(prepared, pool, calibration, partial(forecasts.look, call))
        call.request = make_queued(
            call.id, call.received_s, access, prepared, call.estimate, hints, self._config.gateway_id
        )
        call.facts = RequestFacts(pool.model, access.key.id, prepared.stream, access.entitlement.tier.slo, call.trace)
        expected = call.estimate.cost_tokens  # the bound, not the prediction: a limit is not to be overshot
        self._quotas.begin(access.entitlement.tenant, call.id, expected, call.received_s)
        await self._admit(call)
        self._budget.earn()
        salt = salt_for(pool.prefix_cache, access.salt_key, access.salt, prepared.body.cache_salt)
        body = prepared.upstream(pool.upstream_model, access.order.priority(call.request), salt)
        reason = await self._run_somewhere(call, body)
        call.closed = True
        self._account(call)
        if call.input_tokens and prepared.teaches and not prepared.exact_input:
            calibration.observe(prepared.raw_input, call.input_tokens)
        if forecasts is not None and call.outlook is not None:
            forecasts.ended(call.outlook, call.output_tokens)
        if call.idempotency is not None:
            await call.idempotency.end(reason)
        await self._end(call, reason)

    async def _replay(self, call: Call, answer: bytes) -> None:
        """Gives a kept answer again: nothing runs, nothing is charged."""
        reason = Reason.REPLAYED
        headers = [
            JSON, (b"content-length", b"%d" % len(answer)), reason_header(reason), REPLAYED, *answer_headers(call)
        ]  # fmt: skip
        call.responding = True
        call.status = 200
        call.limit(Reason.SLOW_READER, call.loop.time() + self._config.send_timeout_s)
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await call.send({"type": "http.response.body", "body": answer})
        call.closed = True
        await self._end(call, reason)

    def _calibration(self, pool: str, tenant: str) -> TokenCalibration:
        """What the tenant's own prompts taught of this pool's tokens: others' prompts do not move its estimates."""
        found = self._calibrations.get((pool, tenant))
        if found is None:
            while len(self._calibrations) >= CALIBRATIONS_KEPT:
                del self._calibrations[next(iter(self._calibrations))]
            found = self._calibrations[pool, tenant] = TokenCalibration()
        return found

    # --- admission

    async def _admit(self, call: Call) -> None:
        access = call.access
        assert access is not None
        assert call.request is not None
        assert call.estimate is not None
        assert call.facts is not None
        if not self._state_available():
            raise Refusal(Reason.STATE_UNAVAILABLE)
        self._in_flight.calls[call.id] = call
        call.known = True
        try:
            admission = await self._stores(access.pool.id).admit(
                access.entitlement,
                access.pool,
                call.request,
                call.estimate,
                call.body_bytes,
                call.facts,
                sent_s=call.now_s(),
            )
        except StateUnavailable:
            raise Refusal(Reason.STATE_UNAVAILABLE) from None
        call.admission = admission
        call.inflight = admission.inflight
        call.level_tokens = admission.level_tokens
        if admission.status is AdmissionStatus.REFUSED:
            call.known = False
            self._in_flight.calls.pop(call.id, None)
            assert admission.reason is not None
            raise Refusal(
                admission.reason,
                retry_s=admission.retry_s,
                inflight=admission.inflight,
                limit=access.entitlement.concurrency,
                need=call.estimate.cost_tokens,
            )
        if self._storms:
            self._storms.admitted(access.key.id)
        await self._placed(call, admission)

    async def _placed(self, call: Call, admission: Admission) -> None:
        """Takes an admission over into the call; waits where it says so."""
        call.attempt = admission.attempt
        call.seq = admission.seq
        call.prefill = admission.prefill
        if admission.status is AdmissionStatus.GRANTED:
            call.backend = admission.backend
            call.granted_s = call.now_s()
            call.admitted = True
        elif admission.status is AdmissionStatus.QUEUED:
            call.backend = ""
            call.granted_s = None  # of a replica that failed it
            call.admitted = True
            call.queued_s = call.queued_s or call.now_s()
            await self._wait(call)
        else:
            reason = Reason.EVICTED if admission.reason is Reason.EVICTED else Reason.LEASE_LOST
            raise self._plain_refusal(call, reason)

    async def _wait(self, call: Call) -> None:
        """Until the leader grants the attempt. The longest wait of the tier interrupts it."""
        access, loop = call.access, call.loop
        assert access is not None
        call.limit(Reason.QUEUE_TIMEOUT, call.started_loop + access.entitlement.tier.max_wait_s)
        while (notice := call.notice) is None or notice.attempt != call.attempt:
            call.waiter = loop.create_future()
            try:
                await call.waiter
            finally:
                call.waiter = None
        call.limit(Reason.DEADLINE, NEVER)
        call.backend, call.policy, call.why_there = notice.backend, notice.policy, notice.why
        call.prefill = notice.prefill
        call.granted_s = call.now_s()

    # --- engines

    async def _run_somewhere(self, call: Call, body: bytes) -> Reason:
        """One attempt, and others while none has sent a byte (:meth:`_may_move`)."""
        while True:
            try:
                return await self._relay.run(call, await self._spec(call), body)
            except EngineTrouble as exc:
                trouble = exc
            except asyncio.CancelledError:
                why = call.why
                if why not in (Reason.BACKEND_STALLED, Reason.BACKEND_LOST) or call.responding:
                    raise
                call.forgive()
                if why is Reason.BACKEND_STALLED:
                    trouble = EngineTrouble(why, "no first token in time", suspect=True)
                else:
                    trouble = EngineTrouble(why, "the replica was taken out of service", suspect=False)
            call.limit(Reason.DEADLINE, NEVER)
            if call.connection is not None:
                call.connection.abort()
                call.connection = None
            self._learn(call, trouble)
            if call.responding:
                raise trouble
            call.ran = False
            if not self._may_move(call, trouble):
                raise trouble
            await self._move(call, trouble)

    async def _spec(self, call: Call) -> BackendSpec:
        spec = self._keyring().backends.get(call.backend)
        if spec is None:
            await self._catalog.refreshed(CATALOG_WAIT_S)
            spec = self._keyring().backends.get(call.backend)
            if spec is None:
                raise EngineTrouble(Reason.BACKEND_LOST, "the replica is not configured", suspect=False)
        return spec

    async def _move(self, call: Call, trouble: EngineTrouble) -> None:
        access, facts = call.access, call.facts
        assert access is not None
        assert facts is not None
        # with one replica only, the choice is between it and nothing
        exclude = call.backend if len(access.pool.backends) > 1 else ""
        call.moving = True
        try:
            admission = await self._stores(access.pool.id).requeue(
                call.queued_request(),
                call.body_bytes,
                facts,
                exclude,
                access.pool.headroom_slots,
                sent_s=call.now_s(),
            )
        except StateUnavailable:
            raise trouble from None
        finally:
            call.moving = False
        await self._placed(call, admission)

    def _may_move(self, call: Call, trouble: EngineTrouble) -> bool:
        """Whether there is another attempt. Where the replica is at fault (it admitted nothing, or others do what it
        does not) it costs no budget: one sick replica must not fail requests that others would serve."""
        assert call.access is not None
        if trouble.refused:
            return call.attempt < MAX_REFUSED
        if call.attempt < MAX_ATTEMPTS and self.attempts.contradicted(call.access.pool.id, call.backend):
            return True
        return call.attempt == 1 and self._budget.spend(time.monotonic())

    def _learn(self, call: Call, trouble: EngineTrouble) -> None:
        """What an attempt that failed says about its replica: counted, and told at once where that helps."""
        assert call.access is not None
        pool, backend, why = call.access.pool.id, call.backend, trouble.why
        if trouble.refused:
            pause_s = self.attempts.refused(pool, backend, why, trouble.retry_after_s)
            if pause_s:
                self._errand(self._stores(pool).pause(backend, pause_s, why, refused=True))
        elif trouble.suspect:
            pause_s = self.attempts.failed(pool, backend, why, misconfigured=trouble.misconfigured)
            if pause_s and not call.responding:
                self._errand(self._stores(pool).pause(backend, pause_s, why, refused=False))
            self._errand(self._stores(pool).suspect(backend, why))

    def report(self) -> None:
        """Once a second: what attempts came to since the last time goes to the leaders."""
        for pool, attempts in self.attempts.take().items():
            self._errand(self._stores(pool).report(attempts))

    def _errand(self, telling: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await telling
            except (StateUnavailable, StateError):
                return  # the leader's own look at the replica finds it a second later

        task = asyncio.create_task(run())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # --- the end

    async def conclude(self, call: Call, reason: Reason, refusal: Refusal | None) -> None:
        """Ends a call that did not complete: engine, client, shared state, in this order. Never raises but for a
        cancellation from outside, and even then shared state will hear of the end."""
        call.closed = True
        if call.connection is not None:
            call.connection.abort()
            call.connection = None
        self._account(call)
        if reason is Reason.CLIENT_LEFT:
            call.status = call.status or ENDINGS[reason].status
        elif not call.responding:
            refusal = refusal or self._plain_refusal(call, reason)
            refusal.close = refusal.close or not call.body_read
            call.status = refusal.status
        try:
            async with asyncio.timeout(LAST_WORD_S if call.body_read else LAST_WORD_S + LINGER_S):
                if call.idempotency is not None:
                    await call.idempotency.end(reason)  # first: the client may come back at once
                await self._tell(call, reason, refusal)
        except (TimeoutError, OSError):
            await call.abort_client()
        except asyncio.CancelledError:
            self.abandon(call, reason)
            raise
        await self._end(call, reason)

    async def _tell(self, call: Call, reason: Reason, refusal: Refusal | None) -> None:
        if reason is Reason.CLIENT_LEFT:
            return
        if reason is Reason.SLOW_READER:
            await call.abort_client()
            return
        if call.responding:
            if call.streaming:
                await call.send({"type": "http.response.body", "body": error_event(reason)})
            else:
                await call.abort_client()  # a length was promised that cannot be kept
            return
        assert refusal is not None
        call.responding = True
        await send_answer(call, render(refusal, answer_headers(call)))

    def _plain_refusal(self, call: Call, reason: Reason) -> Refusal:
        fields: dict[str, Any] = {}
        if reason is Reason.QUEUE_TIMEOUT:
            # nothing is known of the queue but that it is at least this long
            fields["waited_s"] = fields["retry_s"] = call.loop.time() - call.started_loop
        elif reason is Reason.EVICTED and call.access is not None:
            fields["retry_s"] = self._in_flight.turn_s(call.access.pool.id)
        elif reason is Reason.BACKEND_ERROR:
            fields["detail"] = ""
        return Refusal(reason, **fields)

    def _account(self, call: Call) -> None:
        """Tokens as used: the engine's own count where it can be true, else ours (``relay.py``); of an answer that
        broke off, the frames that were seen."""
        frames = call.frames
        if not call.ran:
            return
        if frames is not None and frames.usage is not None:
            call.input_tokens, call.output_tokens = frames.usage.prompt_tokens, frames.usage.completion_tokens
            return
        if frames is not None:
            call.output_tokens = frames.tokens
        if not call.input_tokens and call.estimate is not None:
            call.input_tokens = call.estimate.input_tokens  # it broke off uncounted, but its prompt was read

    def _ending(self, call: Call, reason: Reason) -> Ending | LedgerRecord:
        record = record_of(call, reason, self._config.gateway_id)
        self._metrics.ended(record)
        self._quotas.end(record)
        if not call.known:
            return record
        used = call.input_tokens + call.output_tokens
        return Ending(record.pool, call.id, call.attempt, reason, used, call.ran, record)

    async def _end(self, call: Call, reason: Reason) -> None:
        self._in_flight.calls.pop(call.id, None)
        ending = self._ending(call, reason)
        if isinstance(ending, Ending):
            await self._outbox.finish(ending)
        else:
            self._outbox.refused(ending)

    def abandon(self, call: Call, reason: Reason) -> None:
        """Ends a call whose task may not wait for anything any more."""
        if call.connection is not None:
            call.connection.abort()
            call.connection = None
        if call.access is None:
            return
        if call.idempotency is not None:
            call.idempotency.later(reason)
        self._in_flight.calls.pop(call.id, None)
        ending = self._ending(call, reason)
        if isinstance(ending, Ending):
            self._outbox.keep(ending)
        else:
            self._outbox.refused(ending)


def answer_headers(call: Call) -> list[Header]:
    """What every answer to a valid key carries."""
    headers: list[Header] = [(b"x-request-id", call.id.encode("ascii"))]
    access, estimate = call.access, call.estimate
    if access is None:
        return headers
    if estimate is not None:
        headers.append((b"x-quartermaster-estimate-tokens", b"%d" % estimate.cost_tokens))
    if call.inflight or call.level_tokens is not None:
        headers += access.limits.render(call.inflight, call.level_tokens)
    queued = 0 if call.queued_s is None else (call.granted_s or call.now_s()) - call.queued_s
    headers.append((b"x-quartermaster-queue-ms", b"%d" % (queued * 1000)))
    if call.idempotency is not None and call.idempotency.original:
        headers.append((b"x-quartermaster-original-request", call.idempotency.original.encode("ascii")))
    return headers


async def send_answer(call: Call, answer: Answer) -> None:
    """A complete answer. A client that is still sending its body is heard out first, within bounds; one that has
    stopped sending it (408) is not waited for again."""
    await call.send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    if call.body_read or answer.status == 408:
        await call.send({"type": "http.response.body", "body": answer.body})
        return
    await call.send({"type": "http.response.body", "body": answer.body, "more_body": True})
    await linger(call.receive)
    await call.send({"type": "http.response.body", "body": b""})


def _check_entitled(entitlement: EntitlementSpec, now_s: float) -> None:
    state = entitlement.state
    if entitlement.valid_until_s is not None and entitlement.valid_until_s <= now_s:
        state = EntitlementState.EXPIRED
    if state in (EntitlementState.PENDING, EntitlementState.EXPIRED):
        raise Refusal(Reason.NOT_ENTITLED, state=state.value)
    if entitlement.paused:
        raise Refusal(Reason.TENANT_PAUSED)
