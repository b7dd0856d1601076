"""A request's life after its body was read: estimate, admission, grant, engine, answer, end.

Whatever ends it early (an interruption, a failure, a cancelled task) is raised and reaches :meth:`Conclusion.conclude`,
which tells the client and shared state exactly once.
"""

from __future__ import annotations

from scheduling.core.admission.key_limits import LIMITED, limit_of, read_limits
from scheduling.core.admission.rule import not_entitled, state_at
from scheduling.core.estimate.chain import Outlook
from scheduling.core.estimate.tokens import TokenCalibration
from scheduling.core.inside_engine.digest import encode
from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementSpec
from scheduling.engines.kinds import kind_of
from scheduling.gateway.answers.answer_headers import answer_headers
from scheduling.gateway.bodies.grammar import check_grammar
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.budgets import Asked
from scheduling.gateway.entry.idempotency import HEADER, REPLAYED
from scheduling.gateway.entry.users import limits_text
from scheduling.gateway.errors import Refusal, reason_header
from scheduling.gateway.estimate.cache_salt import salt_for
from scheduling.gateway.estimate.estimates import make_estimate, make_queued
from scheduling.gateway.failover import Failover
from scheduling.gateway.headers import JSON
from scheduling.gateway.queueing import GrantWaiter
from scheduling.gateway.services import Services
from scheduling.gateway.stages import Estimated, Identified, Submitted
from scheduling.state.types import (
    Admission,
    AdmissionStatus,
    RequestFacts,
    StateUnavailable,
)

CALIBRATIONS_KEPT = 10_000  # of a tenant in a pool each; the oldest go first


class Lifecycle:
    """Moves calls from their parsed body to their end. One per gateway."""

    def __init__(self, services: Services, waiter: GrantWaiter, failover: Failover) -> None:
        self._waiter = waiter
        self._failover = failover
        self._config = services.config
        self._stores = services.stores
        self._in_flight = services.in_flight
        self._conclusion = services.conclusion
        self._forecasts = services.forecasts
        self._counter = services.counter
        self._state_available = services.state_available
        self._quotas = services.quotas
        self._idempotency = services.idempotency
        self._storms = services.storms
        self._client_timeouts = services.client_timeouts
        self._avoided = services.avoided
        self._calibrations: dict[tuple[str, str], TokenCalibration] = {}

    async def run(self, identified: Identified, prepared: Prepared) -> None:
        """From a parsed body to the end, if nothing goes wrong; what goes wrong is raised for ``conclude``."""
        call, idempotency = identified.call, identified.idempotency
        check_entitled(identified.access.entitlement, call.received_s)
        if idempotency is not None:
            answer = await self._idempotency.begin(idempotency)
            if answer is not None:
                if call.hold is not None:  # the proxy passes no answer on, and would send the request after a 200
                    how = Reason.REPLAYED.value
                    raise Refusal(Reason.ALREADY_DONE, param=HEADER, original=idempotency.original, how=how)
                await self._replay(identified, answer)
                return
        submitted = await self._enter_or_fall_back(identified, prepared)
        body = _upstream_body(submitted)
        reason = await self._failover.run(submitted, body)
        call.closed = True
        self._conclusion.count_tokens(submitted, reason)
        self._learn(submitted)
        if idempotency is not None:
            await idempotency.end(reason)
        await self._conclusion.end(identified, reason)

    async def _enter_or_fall_back(self, identified: Identified, prepared: Prepared) -> Submitted:
        """Has the request admitted under its entitlement or, where that refuses it, under the fallback; returns once it
        is granted."""
        call, access, raw_input = identified.call, identified.access, prepared.raw_input
        try:
            return await self._enter(identified, prepared)
        except Refusal as refusal:
            other = access.instead(refusal.reason)
            if other is None or not self._take_over(identified, prepared, other, refusal.reason):
                raise
            prepared.raw_input = raw_input
            try:
                return await self._enter(identified, prepared)
            except Refusal:
                if call.submitted is not None and call.submitted.in_state:
                    raise  # it was admitted, and ended there
                self._give_back(identified, access)
                raise refusal from None

    async def _enter(self, identified: Identified, prepared: Prepared) -> Submitted:
        """Estimates the request and has it admitted under its entitlement; returns once it is granted."""
        call, access = identified.call, identified.access
        pool = access.pool
        calibration = self._calibration(pool.id, access.entitlement.tenant)
        if pool.tokenizer and not prepared.exact_input and prepared.prompts == 1:
            counted = await self._counter.count(pool, prepared, access.entitlement.tenant)
            if counted is not None:
                prepared.raw_input = min(counted + prepared.media, prepared.kept)
        estimated = self._estimate(identified, prepared, calibration)
        expected = estimated.estimate.cost_tokens  # the bound, not the prediction: no limit may be exceeded
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
        """Lets the request run under ``other``, its fallback. False where the fallback is not entitled, or the request
        does not fit its model."""
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
        """The fallback refused the request as well: it ends under its own entitlement, for the first reason."""
        call = identified.call
        identified.access, identified.instead_of, identified.instead_why = refused, None, None
        call.estimated = call.submitted = None

    def _estimate(self, identified: Identified, prepared: Prepared, calibration: TokenCalibration) -> Estimated:
        """What the request is expected to need. Refuses what no replica could hold."""
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
        hints = self._client_timeouts.hints(identified, prepared.stream)
        request = make_queued(call.id, call.received_s, access, prepared, estimate, hints, self._config.gateway_id)
        facts = RequestFacts(
            pool.model, access.key.id, prepared.stream, access.entitlement.tier.slo, identified.trace, identified.user,
            limits_text(access, identified.user, estimate.cost_tokens), access.key.project,
            call.hold is not None,
        )  # fmt: skip
        call.estimated = Estimated(identified, access, prepared, estimate, outlook, request, facts)
        return call.estimated

    def _learn(self, submitted: Submitted) -> None:
        """Corrects the estimates to come by what the answer took."""
        access, estimated, prepared = submitted.access, submitted.estimated, submitted.estimated.prepared
        if submitted.input_tokens and prepared.teaches and not prepared.exact_input:
            calibration = self._calibration(access.pool.id, access.entitlement.tenant)
            calibration.observe(prepared.raw_input, submitted.input_tokens)
        if estimated.outlook is not None and prepared.choices == 1:  # the lengths of several are not known apart
            forecasts = self._forecasts.of(access.pool)
            if forecasts is not None:
                forecasts.ended(estimated.outlook, submitted.output_tokens)

    async def _replay(self, identified: Identified, answer: bytes) -> None:
        """Sends the stored answer of an Idempotency-Key: nothing runs, nothing is charged."""
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
        """The token calibration of a tenant in a pool, learned from its own prompts, so that no tenant moves another's
        estimates."""
        calibration = self._calibrations.get((pool, tenant))
        if calibration is None:
            while len(self._calibrations) >= CALIBRATIONS_KEPT:
                del self._calibrations[next(iter(self._calibrations))]
            calibration = self._calibrations[pool, tenant] = TokenCalibration()
        return calibration

    # --- admission

    async def _admit(self, estimated: Estimated) -> Submitted:
        """Asks shared state for admission; returns once the request is granted. Raises :class:`Refusal`."""
        if not self._state_available():
            raise Refusal(Reason.STATE_UNAVAILABLE)
        call, access, estimate = estimated.identified.call, estimated.access, estimated.estimate
        submitted = call.submitted = Submitted(call=call, access=access, estimated=estimated)
        self._in_flight.calls[call.id] = submitted  # first: a grant may overtake the answer
        try:
            admission = await self._stores(access.pool.id).admit(
                access.entitlement,
                access.pool,
                estimated.request,
                estimate,
                estimated.identified.body_bytes,
                estimated.facts,
                sent_s=call.now_s(),
                avoid=self._avoided(access.pool),
                supersedes=access.supersedes,
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
            self._storms.admitted(access)
        await self._waiter.granted(submitted, admission)
        return submitted


def _upstream_body(submitted: Submitted) -> bytes:
    """The body of the request to an engine of its pool."""
    call, access, estimated, prepared = (
        submitted.call,
        submitted.access,
        submitted.estimated,
        submitted.estimated.prepared,
    )
    pool, kind = access.pool, kind_of(access.pool.engine)
    salt = salt_for(pool.prefix_cache, access.salt_key, access.salt, prepared.body.cache_salt)
    priority = access.order.priority(estimated.request) if kind.takes_priority else None
    digest = ""
    if kind.takes_digest:
        digest = encode(estimated.request, access.entitlement.tier.slo, call.now_s(), prepared.choices)
    return prepared.upstream(pool.upstream_model, priority, salt, call.id, digest)


def over_limit(admission: Admission, estimated: Estimated) -> Refusal:
    """The refusal for a limit of the request's key or user."""
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
