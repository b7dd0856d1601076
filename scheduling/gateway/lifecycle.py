"""A request's life after its body was read: estimate, admission, grant, engine, answer, end.

Whatever happens in between (an interruption, a failure, a cancelled task) arrives in :meth:`Conclusion.conclude`, which
tells the client and shared state exactly once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from scheduling.catalog import CatalogCache
from scheduling.core.admission import not_entitled, state_at
from scheduling.core.engine_digest import encode
from scheduling.core.estimate.chain import Outlook
from scheduling.core.estimate.tokens import TokenCalibration
from scheduling.core.limits import LIMITED, limit_of, read_limits
from scheduling.core.outcomes import Reason
from scheduling.core.prefill_preemption import interrupted
from scheduling.core.types import BackendSpec, EntitlementSpec, PoolSpec
from scheduling.engines.kinds import kind_of
from scheduling.gateway.bodies.grammar import check_grammar
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.conclusion import Conclusion
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.engine.attempts import AttemptCounts
from scheduling.gateway.engine.first_tokens import FirstTokens
from scheduling.gateway.engine.legs import prefill_elsewhere
from scheduling.gateway.engine.prefill_leg import needs_leg
from scheduling.gateway.engine.relay import EngineTrouble, Relay, answer_headers
from scheduling.gateway.engine.retries import RetryBudgets
from scheduling.gateway.engine.upstream import Upstream
from scheduling.gateway.entry.auth import Access, Keyring
from scheduling.gateway.entry.budgets import Asked
from scheduling.gateway.entry.idempotency import HEADER, REPLAYED, Idempotency
from scheduling.gateway.entry.quotas import Quotas
from scheduling.gateway.entry.storms import Storms
from scheduling.gateway.entry.users import limits_text
from scheduling.gateway.errors import Refusal, reason_header
from scheduling.gateway.estimate.cache_salt import salt_for
from scheduling.gateway.estimate.estimates import make_estimate, make_queued
from scheduling.gateway.estimate.forecasts import Forecasts
from scheduling.gateway.estimate.input_tokens import InputCounter
from scheduling.gateway.headers import JSON
from scheduling.gateway.in_flight import InFlight
from scheduling.gateway.ports import GatewayMetrics
from scheduling.gateway.stages import MENDED, NEVER, Estimated, Identified, Submitted
from scheduling.state.notices import PreemptionNotice
from scheduling.state.store import PoolStore
from scheduling.state.types import (
    Admission,
    AdmissionStatus,
    RequestFacts,
    StateError,
    StateUnavailable,
)

CALIBRATIONS_KEPT = 10_000  # of a tenant in a pool each; the oldest go first
MAX_ATTEMPTS = 4  # of a request that its replicas fail
MAX_REFUSED = 10  # of one that its replicas do not admit
REQUEUE_AGAIN_S = 0.25  # while shared state is away
CATALOG_WAIT_S = 1.0  # a grant may name a replica that was configured a moment ago


@dataclass(frozen=True, slots=True)
class Services:
    """What a gateway consists of, for those who move its calls."""

    config: GatewayConfig
    catalog: CatalogCache
    keyring: Callable[[], Keyring]
    stores: Callable[[str], PoolStore]
    in_flight: InFlight
    conclusion: Conclusion
    upstream: Upstream
    forecasts: Forecasts
    counter: InputCounter
    metrics: GatewayMetrics
    state_available: Callable[[], bool]
    quotas: Quotas
    idempotency: Idempotency
    storms: Storms
    avoided: Callable[[PoolSpec], Collection[str]]  # replicas that its requests leave to others


class Lifecycle:
    """Moves calls from their parsed body to their end. One per gateway."""

    def __init__(self, services: Services) -> None:
        self._config = services.config
        self._catalog = services.catalog
        self._keyring = services.keyring
        self._stores = services.stores
        self._in_flight = services.in_flight
        self._conclusion = services.conclusion
        self._forecasts = services.forecasts
        self._counter = services.counter
        self._state_available = services.state_available
        self._quotas = services.quotas
        self._idempotency = services.idempotency
        self._storms = services.storms
        self._avoided = services.avoided
        self._metrics = services.metrics
        self.attempts = AttemptCounts()
        self._relay = Relay(
            services.config, services.upstream, services.metrics, self.attempts, FirstTokens(services.stores)
        )
        self._budgets = RetryBudgets(services.config.retry_share, services.config.retry_floor)
        self._calibrations: dict[tuple[str, str], TokenCalibration] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def run(
        self, identified: Identified, prepared: Prepared, body_bytes: int, hints: dict[bytes, float] | None
    ) -> None:
        """From a parsed body to the end, if nothing goes wrong; what goes wrong is raised for ``conclude``."""
        call, access, idempotency = identified.call, identified.access, identified.idempotency
        check_entitled(access.entitlement, call.received_s)
        if idempotency is not None:
            answer = await self._idempotency.begin(idempotency)
            if answer is not None:
                if call.hold is not None:  # who asks passes no answer on, and a 200 would have it sent
                    how = Reason.REPLAYED.value
                    raise Refusal(Reason.ALREADY_DONE, param=HEADER, original=idempotency.original, how=how)
                await self._replay(identified, answer)
                return
        raw_input = prepared.raw_input
        try:
            submitted = await self._enter(identified, prepared, body_bytes, hints)
        except Refusal as refusal:
            other = access.instead(refusal.reason)
            if other is None or not self._take_over(identified, prepared, other, refusal.reason):
                raise
            prepared.raw_input = raw_input
            try:
                submitted = await self._enter(identified, prepared, body_bytes, hints)
            except Refusal:
                if call.submitted is not None and call.submitted.in_state:
                    raise  # it was taken, and ended there
                self._give_back(identified, access)
                raise refusal from None
        access, estimated = identified.access, submitted.estimated
        pool = access.pool
        calibration = self._calibration(pool.id, access.entitlement.tenant)
        self._budgets.of(access.entitlement.tenant, time.monotonic()).earn()
        salt = salt_for(pool.prefix_cache, access.salt_key, access.salt, prepared.body.cache_salt)
        kind = kind_of(pool.engine)
        priority = access.order.priority(estimated.request) if kind.takes_priority else None
        digest = ""
        if kind.takes_digest:
            digest = encode(estimated.request, access.entitlement.tier.slo, call.now_s(), prepared.choices)
        body = prepared.upstream(pool.upstream_model, priority, salt, call.id, digest)
        reason = await self._run_somewhere(submitted, body)
        call.closed = True
        self._conclusion.count_tokens(submitted, reason)
        if submitted.input_tokens and prepared.teaches and not prepared.exact_input:
            calibration.observe(prepared.raw_input, submitted.input_tokens)
        if estimated.outlook is not None and prepared.choices == 1:  # which of several was how long is not known
            forecasts = self._forecasts.of(pool)
            if forecasts is not None:
                forecasts.ended(estimated.outlook, submitted.output_tokens)
        if idempotency is not None:
            await idempotency.end(reason)
        await self._conclusion.end(identified, reason)

    async def _enter(
        self, identified: Identified, prepared: Prepared, body_bytes: int, hints: dict[bytes, float] | None
    ) -> Submitted:
        """Estimates the request and has it admitted under its entitlement."""
        call, access = identified.call, identified.access
        pool = access.pool
        calibration = self._calibration(pool.id, access.entitlement.tenant)
        if pool.tokenizer and not prepared.exact_input and prepared.prompts == 1:
            counted = await self._counter.count(pool, prepared)
            if counted is not None:
                prepared.raw_input = min(counted + prepared.media, prepared.kept)
        estimated = self._estimate(identified, prepared, body_bytes, hints, calibration)
        expected = estimated.estimate.cost_tokens  # the bound, not the prediction: a limit is not to be overshot
        if self._quotas.budgets:
            self._quotas.budgets.begin(
                Asked(
                    access.entitlement.tenant, access.key.project, identified.user, access.key.id, pool.id, pool.model,
                    estimated.estimate.input_tokens, estimated.estimate.output_bound,
                ),
                call.id,
                call.received_s,
            )  # fmt: skip
        self._quotas.begin(access.entitlement.tenant, access.key.id, call.id, expected, call.received_s)
        return await self._admit(estimated)

    def _take_over(self, identified: Identified, prepared: Prepared, other: Access, why: Reason) -> bool:
        """Makes ``other`` what the request runs under, where it may and can."""
        call, refused = identified.call, identified.access
        try:
            check_entitled(other.entitlement, call.received_s)
            check_grammar(prepared.body, other.entitlement.tier.max_grammar_bytes)
        except Refusal:
            return False
        if not prepared.refit(other.pool):
            return False
        identified.access, identified.instead_of, identified.instead_why = other, refused, why
        call.estimated = call.submitted = None
        return True

    def _give_back(self, identified: Identified, refused: Access) -> None:
        """The fallback refused it as well: it ends as what was asked for refused it."""
        call = identified.call
        identified.access, identified.instead_of, identified.instead_why = refused, None, None
        call.estimated = call.submitted = None

    def _estimate(
        self,
        identified: Identified,
        prepared: Prepared,
        body_bytes: int,
        hints: dict[bytes, float] | None,
        calibration: TokenCalibration,
    ) -> Estimated:
        """What the request is believed to need. Refuses what can fit nowhere."""
        call, access = identified.call, identified.access
        pool, outlook = access.pool, None
        cuts = identified.instead_of is not None or access.instead(Reason.TOO_LONG) is None
        forecasts = self._forecasts.of(pool)
        if forecasts is None:
            estimate = make_estimate(prepared, pool, calibration, cuts=cuts)
        else:

            def look(input_tokens: int, bound: int) -> Outlook:
                nonlocal outlook
                outlook = forecasts.look(access, prepared, input_tokens, bound)
                return outlook

            estimate = make_estimate(prepared, pool, calibration, look, cuts)
        request = make_queued(call.id, call.received_s, access, prepared, estimate, hints, self._config.gateway_id)
        facts = RequestFacts(
            pool.model, access.key.id, prepared.stream, access.entitlement.tier.slo, identified.trace, identified.user,
            limits_text(access, identified.user, estimate.cost_tokens), access.key.project,
        )  # fmt: skip
        estimated = call.estimated = Estimated(
            call,
            access,
            identified.endpoint,
            prepared,
            body_bytes,
            estimate,
            outlook,
            request,
            facts,
            identified.idempotency,
            identified.keeping,
        )
        return estimated

    async def _replay(self, identified: Identified, answer: bytes) -> None:
        """Gives a kept answer again: nothing runs, nothing is charged."""
        call, reason = identified.call, Reason.REPLAYED
        headers = [
            JSON, (b"content-length", b"%d" % len(answer)), reason_header(reason), REPLAYED, *answer_headers(call)
        ]  # fmt: skip
        call.responding = True
        call.status = 200
        await call.answer(200, headers, answer, self._config.send_timeout_s)
        call.closed = True
        await self._conclusion.end(identified, reason)

    def _calibration(self, pool: str, tenant: str) -> TokenCalibration:
        """What the tenant's own prompts taught of this pool's tokens: others' prompts do not move its estimates."""
        calibration = self._calibrations.get((pool, tenant))
        if calibration is None:
            while len(self._calibrations) >= CALIBRATIONS_KEPT:
                del self._calibrations[next(iter(self._calibrations))]
            calibration = self._calibrations[pool, tenant] = TokenCalibration()
        return calibration

    # --- admission

    async def _admit(self, estimated: Estimated) -> Submitted:
        """Asks shared state, and waits where it says so."""
        if not self._state_available():
            raise Refusal(Reason.STATE_UNAVAILABLE)
        call, access, estimate = estimated.call, estimated.access, estimated.estimate
        submitted = call.submitted = Submitted(call=call, access=access, estimated=estimated)
        self._in_flight.calls[call.id] = submitted  # before it is asked: a grant may overtake the answer
        try:
            admission = await self._stores(access.pool.id).admit(
                access.entitlement,
                access.pool,
                estimated.request,
                estimate,
                estimated.body_bytes,
                estimated.facts,
                sent_s=call.now_s(),
                avoid=self._avoided(access.pool),
            )
        except StateUnavailable:
            raise Refusal(Reason.STATE_UNAVAILABLE) from None
        submitted.admission = admission
        if admission.status is AdmissionStatus.REFUSED:
            submitted.in_state = False
            self._in_flight.calls.pop(call.id, None)
            if admission.over is not None:
                raise over_limit(admission, estimated)
            raise Refusal(
                admission.reason or Reason.INTERNAL,
                retry_s=admission.retry_s,
                inflight=admission.inflight,
                limit=access.entitlement.concurrency,
                need=estimate.cost_tokens,
            )
        if self._storms:
            self._storms.admitted(access.door)
        await self._placed(submitted, admission)
        return submitted

    async def _placed(self, submitted: Submitted, admission: Admission) -> None:
        """Takes an admission over; waits where it says so."""
        call = submitted.call
        submitted.attempt = admission.attempt
        submitted.seq = admission.seq
        submitted.prefill = admission.prefill
        if admission.status is AdmissionStatus.GRANTED:
            submitted.backend = admission.backend
            submitted.granted_s = call.now_s()
            submitted.admitted = True
        elif admission.status is AdmissionStatus.QUEUED:
            submitted.backend = ""
            submitted.granted_s = None  # of a replica that failed it
            submitted.admitted = True
            submitted.queued_s = submitted.queued_s or call.now_s()
            if admission.wakes_s is not None and admission.wakes_s > submitted.access.entitlement.tier.max_wait_s:
                # The leader has heard of it and wakes a replica; who would wait in vain is told when to come back.
                raise Refusal(Reason.WAKING, retry_s=admission.wakes_s, wakes_s=admission.wakes_s)
            await self._wait(submitted)
        else:
            reason = Reason.EVICTED if admission.reason is Reason.EVICTED else Reason.LEASE_LOST
            raise self._conclusion.plain_refusal(call, reason)

    async def _wait(self, submitted: Submitted) -> None:
        """Until the leader grants the attempt. The longest wait of the tier interrupts it."""
        call = submitted.call
        since = call.started_loop if submitted.waits_from is None else submitted.waits_from
        call.limit(Reason.QUEUE_TIMEOUT, since + submitted.access.entitlement.tier.max_wait_s)
        while (notice := submitted.notice) is None or notice.attempt != submitted.attempt:
            submitted.waiter = call.loop.create_future()
            try:
                await submitted.waiter
            finally:
                submitted.waiter = None
        if call.loop.time() >= call.deadline:  # granted in time, heard too late: it must not begin any more
            call.interrupt(Reason.QUEUE_TIMEOUT)
            await asyncio.sleep(0)
        call.limit(Reason.DEADLINE, NEVER)
        submitted.backend, submitted.policy, submitted.why_there = notice.backend, notice.policy, notice.why
        submitted.prefill = notice.prefill
        submitted.granted_s = call.now_s()

    # --- engines

    async def _run_somewhere(self, submitted: Submitted, body: bytes) -> Reason:
        """One attempt, and others while none has sent a byte (:meth:`_may_move`)."""
        call = submitted.call
        while True:
            try:
                spec, hold = await self._spec(submitted.backend), call.hold
                if hold is not None:
                    reason: Reason = await hold.run(submitted, spec)
                    return reason
                handed = body
                if needs_leg(submitted.estimated, spec):
                    store = self._stores(submitted.access.pool.id)
                    handed = await prefill_elsewhere(submitted, body, store, self._relay, self._spec)
                return await self._relay.run(submitted, spec, handed)
            except EngineTrouble as exc:
                trouble = exc
            except asyncio.CancelledError:
                why = call.why
                if why not in MENDED or call.responding:
                    raise
                call.forgive()
                if call.task.cancelling():  # the server has given up on it as well
                    raise
                if submitted.preemption is not None:
                    await self._give_way(submitted, submitted.preemption)
                    continue
                if why is Reason.BACKEND_STALLED:
                    trouble = EngineTrouble(why, "no first token in time", suspect=True)
                else:
                    trouble = EngineTrouble(why, "the replica was taken out of service", suspect=False)
            call.limit(Reason.DEADLINE, NEVER)
            submitted.hang_up()
            self._learn(submitted, trouble)
            if call.responding:
                raise trouble
            submitted.ran = False
            if not self._may_move(submitted, trouble):
                raise trouble.refusal or trouble
            await self._move(submitted, trouble)

    async def _spec(self, replica: str) -> BackendSpec:
        spec = self._keyring().backends.get(replica)
        if spec is None:
            await self._catalog.refreshed(CATALOG_WAIT_S)
            spec = self._keyring().backends.get(replica)
            if spec is None:
                raise EngineTrouble(Reason.BACKEND_LOST, "the replica is not configured", suspect=False)
        return spec

    async def _move(self, submitted: Submitted, trouble: EngineTrouble) -> None:
        access, at = submitted.access, submitted.at
        # with one replica only, the choice is between it and nothing
        exclude = submitted.backend if len(access.pool.backends) > 1 or trouble.lacks else ""
        if submitted.prefill_at:  # the replica that would have written the answer did not fail
            submitted.prefill_failed, submitted.prefill_at, exclude = submitted.prefill_at, "", ""
        try:
            if trouble.lacks:  # before the leader hears of a request that waits for it
                submitted.moving = True
                await self._stores(access.pool.id).suspect(at, trouble.why)
            admission = await self._requeue(submitted, exclude)
        except StateUnavailable:
            raise trouble.refusal or trouble from None
        finally:
            submitted.moving = False
        await self._placed(submitted, admission)

    async def _give_way(self, submitted: Submitted, notice: PreemptionNotice) -> None:
        """Its prefill is interrupted: its engine stops, and it waits again, for as long as one that comes now may."""
        call, access = submitted.call, submitted.access
        submitted.hang_up()
        self._metrics.prefill_preempted(access.pool.id, notice.backend)
        submitted.ran, submitted.preemption, submitted.waits_from = False, None, call.loop.time()
        waits = interrupted(submitted.queued_request(), notice.backend, notice.computed)
        submitted.computed = max(submitted.computed, waits.prefilled)
        submitted.resuming = replace(waits, expires_s=call.now_s() + access.entitlement.tier.max_wait_s)
        call.limit(Reason.STATE_UNAVAILABLE, submitted.waits_from + access.entitlement.tier.max_wait_s)
        while True:
            try:
                admission = await self._requeue(submitted, "", interrupted=True)
                break
            except StateUnavailable:  # it ran, so it waits for that as others wait; asked again it changes nothing
                submitted.moving = True
                await asyncio.sleep(REQUEUE_AGAIN_S)
        call.limit(Reason.DEADLINE, NEVER)
        await self._placed(submitted, admission)

    async def _requeue(self, submitted: Submitted, exclude: str, *, interrupted: bool = False) -> Admission:
        """The next attempt. Raises :class:`StateUnavailable`."""
        access, estimated = submitted.access, submitted.estimated
        submitted.moving = True
        try:
            return await self._stores(access.pool.id).requeue(
                submitted.queued_request(),
                estimated.body_bytes,
                estimated.facts,
                exclude,
                access.pool.headroom_slots,
                sent_s=submitted.call.now_s(),
                interrupted=interrupted,
            )
        finally:
            submitted.moving = False

    def _may_move(self, submitted: Submitted, trouble: EngineTrouble) -> bool:
        """Whether there is another attempt. Where the replica is at fault (it admitted nothing, or others do what it
        does not) it costs no budget: one sick replica must not fail requests that others would serve. Whose fault a
        refused input is, one other replica tells, where others serve."""
        if trouble.lacks or trouble.refused:
            return submitted.tries < MAX_REFUSED
        tenant, now_s = submitted.access.entitlement.tenant, time.monotonic()
        others_serve = submitted.tries < MAX_ATTEMPTS and self.attempts.contradicted(
            submitted.access.pool.id, submitted.at, tenant
        )
        budget = self._budgets.of(tenant, now_s)
        if trouble.refusal is not None:
            first, submitted.refused_at = not submitted.refused_at, submitted.at
            return first and others_serve and budget.spend(now_s)
        return others_serve or (submitted.tries == 1 and budget.spend(now_s))

    def _learn(self, submitted: Submitted, trouble: EngineTrouble) -> None:
        """What an attempt that failed says about its replica: counted, and told at once where that helps."""
        pool, backend, why = submitted.access.pool.id, submitted.at, trouble.why
        if trouble.refused:
            pause_s = self.attempts.refused(pool, backend, why, trouble.retry_after_s)
            if pause_s:
                self._errand(self._stores(pool).pause(backend, pause_s, why, refused=True))
        elif trouble.suspect:
            tenant = submitted.access.entitlement.tenant
            began = submitted.call.responding
            pause_s = self.attempts.failed(pool, backend, tenant, why, misconfigured=trouble.misconfigured, began=began)
            if pause_s and not began:
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

        self._started(run())

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that goes on whatever becomes of the call that began it."""
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task


def over_limit(admission: Admission, estimated: Estimated) -> Refusal:
    """What a request is told that a limit of its key or user refused."""
    assert admission.over is not None
    number, what = admission.over
    scope, need = read_limits(estimated.facts.limits).scopes[number], estimated.estimate.cost_tokens
    more = f": this request alone may use {need}. Shorten it or lower its output bound"
    return Refusal(
        admission.reason or Reason.INTERNAL,
        retry_s=admission.retry_s,
        limit=limit_of(scope.limits, what),
        what=LIMITED[what],
        of="project" if ":up:" in scope.name else "key",
        more=more if admission.retry_s is None else "",
    )


def check_entitled(entitlement: EntitlementSpec, now_s: float) -> None:
    reason = not_entitled(entitlement, now_s)
    if reason is Reason.NOT_ENTITLED:
        raise Refusal(reason, state=state_at(entitlement, now_s).value)
    if reason is not None:
        raise Refusal(reason)
