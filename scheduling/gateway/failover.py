"""Runs an admitted request: one attempt at a replica, and further ones while its client has received nothing.

An attempt fails, is interrupted because its replica was ejected, or is taken back for a request that would be late
(prefill preemption). In each case the request returns to shared state, which grants it again or queues it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from scheduling.core.outcomes import Reason
from scheduling.core.scheduler.prefill_preemption import interrupted
from scheduling.core.types import BackendSpec
from scheduling.gateway.engine.attempts import AttemptCounts
from scheduling.gateway.engine.failures import AttemptFailed
from scheduling.gateway.engine.first_tokens import FirstTokens
from scheduling.gateway.engine.legs import prefill_elsewhere
from scheduling.gateway.engine.prefill_leg import needs_leg
from scheduling.gateway.engine.relay import Relay
from scheduling.gateway.engine.retries import RetryBudgets
from scheduling.gateway.queueing import GrantWaiter
from scheduling.gateway.services import Services
from scheduling.gateway.stages import NEVER, RETRYABLE, Submitted
from scheduling.state.notices import PreemptionNotice
from scheduling.state.types import Admission, StateError, StateUnavailable

MAX_ATTEMPTS = 4  # of a request that its replicas fail
MAX_REFUSED = 10  # of one that its replicas do not admit
REQUEUE_AGAIN_S = 0.25  # while shared state is away
CATALOG_WAIT_S = 1.0  # a grant may name a replica that was configured a moment ago


class Failover:
    """The attempts of one gateway's requests."""

    def __init__(self, services: Services, waiter: GrantWaiter) -> None:
        self._catalog = services.catalog
        self._keyring = services.keyring
        self._stores = services.stores
        self._metrics = services.metrics
        self._waiter = waiter
        self.attempts = AttemptCounts()
        first_tokens, works = FirstTokens(services.stores), services.in_flight.works
        self._relay = Relay(
            services.config,
            services.upstream,
            services.metrics,
            self.attempts,
            first_tokens,
            works,
            services.long_answers,
        )
        self._budgets = RetryBudgets(services.config.retry_share, services.config.retry_floor)
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, submitted: Submitted, body: bytes) -> Reason:
        """Runs attempts until one has answered, or none may follow (:meth:`_may_retry`). Returns how the answer ended;
        raises :class:`AttemptFailed` or :class:`Refusal` where there is none."""
        call = submitted.call
        self._budgets.of(submitted.access.entitlement.tenant, time.monotonic()).earn()
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
            except AttemptFailed as exc:
                failure = exc
            except asyncio.CancelledError:
                why = call.why
                if why not in RETRYABLE or call.responding:
                    raise
                call.clear_interruption()
                if call.task.cancelling():  # the server has given up on it as well
                    raise
                if submitted.preemption is not None:
                    await self._wait_again(submitted, submitted.preemption)
                    continue
                if why is Reason.BACKEND_STALLED:
                    failure = AttemptFailed(why, "no first token in time", suspect=True)
                else:
                    failure = AttemptFailed(why, "the replica was taken out of service", suspect=False)
            call.limit(Reason.DEADLINE, NEVER)
            submitted.hang_up()
            self._report_failure(submitted, failure)
            if call.responding:
                raise failure
            submitted.ran = False
            if not self._may_retry(submitted, failure):
                raise failure.refusal or failure
            await self._retry(submitted, failure)

    async def _spec(self, replica: str) -> BackendSpec:
        spec = self._keyring().backends.get(replica)
        if spec is None:
            await self._catalog.refreshed(CATALOG_WAIT_S)
            spec = self._keyring().backends.get(replica)
            if spec is None:
                raise AttemptFailed(Reason.BACKEND_LOST, "the replica is not configured", suspect=False)
        return spec

    async def _retry(self, submitted: Submitted, failure: AttemptFailed) -> None:
        access, at, left_s = submitted.access, submitted.at, submitted.call.now_s()
        # with one replica only, the choice is between it and nothing
        exclude = submitted.backend if len(access.pool.backends) > 1 or failure.lacks else ""
        if submitted.prefill_at:  # the replica that would have written the answer did not fail
            submitted.prefill_failed, submitted.prefill_at, exclude = submitted.prefill_at, "", ""
        try:
            if failure.lacks:  # before the leader hears of a request that waits for it
                submitted.moving = True
                await self._stores(access.pool.id).suspect(at, failure.why)
            admission = await self._requeue(submitted, exclude)
        except StateUnavailable:
            raise failure.refusal or failure from None
        finally:
            submitted.moving = False
        await self._waiter.granted(submitted, admission, left_s)

    async def _wait_again(self, submitted: Submitted, notice: PreemptionNotice) -> None:
        """The request's prefill is preempted: it leaves its engine and waits again, for up to its tier's longest wait
        from now."""
        call, access = submitted.call, submitted.access
        submitted.hang_up()
        left_s = call.now_s()
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
        await self._waiter.granted(submitted, admission, left_s)

    async def _requeue(self, submitted: Submitted, exclude: str, *, interrupted: bool = False) -> Admission:
        """Asks shared state for the next attempt. Raises :class:`StateUnavailable`."""
        access, estimated = submitted.access, submitted.estimated
        submitted.moving = True
        try:
            return await self._stores(access.pool.id).requeue(
                submitted.queued_request(),
                submitted.identified.body_bytes,
                estimated.facts,
                exclude,
                access.pool.headroom_slots,
                sent_s=submitted.call.now_s(),
                interrupted=interrupted,
            )
        finally:
            submitted.moving = False

    def _may_retry(self, submitted: Submitted, failure: AttemptFailed) -> bool:
        """Whether there is another attempt. It costs no retry budget where the replica is at fault (it admitted
        nothing, or others serve what it fails): one sick replica must not fail requests that others would serve. A
        refused input is sent to one other replica, where others serve."""
        if failure.lacks or failure.refused:
            return submitted.tries < MAX_REFUSED
        tenant, now_s = submitted.access.entitlement.tenant, time.monotonic()
        others_serve = submitted.tries < MAX_ATTEMPTS and self.attempts.contradicted(
            submitted.access.pool.id, submitted.at, tenant
        )
        budget = self._budgets.of(tenant, now_s)
        if failure.refusal is not None:
            first, submitted.refused_at = not submitted.refused_at, submitted.at
            return first and others_serve and budget.spend(now_s)
        return others_serve or (submitted.tries == 1 and budget.spend(now_s))

    def _report_failure(self, submitted: Submitted, failure: AttemptFailed) -> None:
        """Counts a failed attempt, and reports it to the leader at once where that helps."""
        pool, backend, why = submitted.access.pool.id, submitted.at, failure.why
        if failure.refused:
            pause_s = self.attempts.refused(pool, backend, why, failure.retry_after_s)
            if pause_s:
                self._in_background(self._stores(pool).pause(backend, pause_s, why, refused=True))
        elif failure.suspect:
            tenant = submitted.access.entitlement.tenant
            began = submitted.call.responding
            pause_s = self.attempts.failed(pool, backend, tenant, why, misconfigured=failure.misconfigured, began=began)
            if pause_s and not began:
                self._in_background(self._stores(pool).pause(backend, pause_s, why, refused=False))
            self._in_background(self._stores(pool).suspect(backend, why))

    def report(self) -> None:
        """Once a second: reports the attempts since the last time to the leaders."""
        for pool, attempts in self.attempts.take().items():
            self._in_background(self._stores(pool).report(attempts))

    def _in_background(self, telling: Coroutine[Any, Any, None]) -> None:
        """Tells shared state, whatever becomes of the call."""

        async def tell() -> None:
            try:
                await telling
            except (StateUnavailable, StateError):
                return  # the leader's own probe finds it a second later

        task = asyncio.create_task(tell())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
