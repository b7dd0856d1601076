"""The end of a call: client and shared state are told exactly once, whatever happened."""

from __future__ import annotations

import asyncio
from typing import Any

from scheduling.core.engine.unseen_answers import AnswerPace
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import ENDINGS, Outcome, Reason, outcome_of
from scheduling.gateway.answers.answer_headers import answer_headers
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.entry.guard import LINGER_S, linger
from scheduling.gateway.entry.quotas import Quotas
from scheduling.gateway.errors import Answer, Refusal, render
from scheduling.gateway.estimate.client_timeouts import ClientTimeouts
from scheduling.gateway.headers import NO_SNIFFING
from scheduling.gateway.in_flight import InFlight
from scheduling.gateway.ledger.outbox import Outbox
from scheduling.gateway.ledger.records import record_of
from scheduling.gateway.ledger.unstored import Ending
from scheduling.gateway.ports import GatewayMetrics
from scheduling.gateway.stages import Call, Identified, Submitted

# Ends caused by the client or its request: what an engine has generated of a whole answer until then is charged. Where
# the engine or the gateway is the cause, only known tokens are.
GENERATED_FOR = frozenset({Reason.CLIENT_LEFT, Reason.KEY_REVOKED, Reason.DEADLINE})
LAST_WORD_S = 2.0  # how long an error may take to be sent to a client that reads slowly


class Conclusion:
    """Ends calls. One per gateway."""

    def __init__(
        self,
        config: GatewayConfig,
        in_flight: InFlight,
        outbox: Outbox,
        metrics: GatewayMetrics,
        quotas: Quotas,
        client_timeouts: ClientTimeouts,
    ) -> None:
        self._config = config
        self._in_flight = in_flight
        self._outbox = outbox
        self._metrics = metrics
        self._quotas = quotas
        self._client_timeouts = client_timeouts
        self._paces: dict[str, AnswerPace] = {}  # by pool
        self._leaving: set[asyncio.Task[None]] = set()

    async def conclude(self, identified: Identified, reason: Reason, refusal: Refusal | None) -> None:
        """Ends a call that did not complete: engine, client, shared state, in this order. One that waited too long
        leaves the queue while its client is told, which may take as long as the client likes. Raises nothing but a
        cancellation from outside, and even then shared state is told of the end."""
        call, idempotency = identified.call, identified.idempotency
        call.closed = True
        if call.submitted is not None:
            call.submitted.hang_up()
            self.count_tokens(call.submitted, reason)
        if reason is Reason.CLIENT_LEFT:
            call.status = call.status or ENDINGS[reason].status
        elif not call.responding:
            refusal = refusal or self.plain_refusal(call, reason)
            refusal.close = refusal.close or not call.body_read
            call.status = refusal.status
            if call.submitted is not None and refusal.retry_s:
                call.submitted.retry_s = refusal.retry_s
        leaving = self._begin_end(identified, reason) if reason is Reason.QUEUE_TIMEOUT else None
        try:
            async with asyncio.timeout(LAST_WORD_S if call.body_read else LAST_WORD_S + LINGER_S):
                if idempotency is not None:
                    await idempotency.end(reason)  # first: the client may come back at once
                await self._tell(call, reason, refusal)
        except (TimeoutError, OSError):
            await call.abort_client()
        except asyncio.CancelledError:
            if leaving is None:
                self.abandon(identified, reason)
            raise
        await (self.end(identified, reason) if leaving is None else asyncio.shield(leaving))

    def _begin_end(self, identified: Identified, reason: Reason) -> asyncio.Task[None]:
        """Ends the call in a task of its own, whatever becomes of the call's task."""
        leaving = asyncio.create_task(self.end(identified, reason))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving

    async def _tell(self, call: Call, reason: Reason, refusal: Refusal | None) -> None:
        if reason is Reason.CLIENT_LEFT:
            return
        if reason is Reason.SLOW_READER:
            await call.abort_client()
            return
        if call.responding:
            if call.streaming:
                frames = call.submitted.frames if call.submitted is not None else None
                event = call.dialect.event(reason, call.id, 0 if frames is None else frames.seen)
                await call.send({"type": "http.response.body", "body": event})
            else:
                await call.abort_client()  # the announced content length cannot be kept
            return
        call.responding = True
        await send_answer(call, refused(call, refusal or self.plain_refusal(call, reason)))

    def plain_refusal(self, call: Call, reason: Reason) -> Refusal:
        fields: dict[str, Any] = {}
        if reason is Reason.SUPERSEDED and call.submitted is not None:
            fields["waited_s"] = call.loop.time() - call.started_loop
            fields["retry_s"] = call.submitted.retry_s or fields["waited_s"]
        elif reason is Reason.QUEUE_TIMEOUT:
            # all that is known of the queue: it is at least this long
            fields["waited_s"] = fields["retry_s"] = call.loop.time() - call.started_loop
        elif reason is Reason.EVICTED and call.identified is not None:
            fields["retry_s"] = self._in_flight.turn_s(call.identified.access.pool.id)
        elif reason is Reason.BACKEND_ERROR:
            fields["detail"] = ""
        return Refusal(reason, **fields)

    def count_tokens(self, submitted: Submitted, reason: Reason) -> None:
        """Settles the tokens used: the engine's own count if plausible, else ours (``relay.py``). Of a stream that
        broke off, the frames that were seen; of a whole answer that its client left, what the pool's answers have after
        so long (:mod:`scheduling.core.engine.unseen_answers`); of a preempted prefill that its client left, what was
        computed."""
        if not submitted.ran:
            if submitted.computed and reason in GENERATED_FOR:
                submitted.ran, submitted.input_tokens = True, submitted.computed
            return
        frames, estimated = submitted.frames, submitted.estimated
        taken_s = submitted.call.now_s() - (submitted.granted_s or submitted.call.received_s)
        pace = self._paces.get(submitted.access.pool.id)
        if pace is None:
            pace = self._paces[submitted.access.pool.id] = AnswerPace()
        if frames is not None and frames.usage is not None:
            submitted.input_tokens, submitted.output_tokens = frames.usage.prompt_tokens, frames.usage.completion_tokens
            submitted.cached_tokens = frames.usage.cached_tokens
        elif frames is not None:
            submitted.output_tokens = frames.tokens
        elif reason in GENERATED_FOR and not (
            estimated.prepared.stream or submitted.output_tokens or submitted.prefill_at
        ):
            bound = estimated.estimate.output_bound
            submitted.output_tokens = pace.tokens(estimated.prepared.choices, taken_s, bound)
        if not submitted.input_tokens:  # it broke off uncounted, but its prompt was read
            submitted.input_tokens = estimated.estimate.input_tokens
        if outcome_of(reason) is Outcome.COMPLETED:
            pace.add(submitted.output_tokens, estimated.prepared.choices, taken_s)

    def _ending(self, identified: Identified, reason: Reason) -> Ending | LedgerRecord:
        record = record_of(identified, reason, self._config.gateway_id)
        if identified.unrecorded:
            self._metrics.storm_refused(record.pool, record.tenant, record.reason)
        else:
            self._metrics.ended(record)
        self._quotas.end(record)
        self._client_timeouts.ended(identified, reason)
        submitted = identified.call.submitted
        if submitted is None or not submitted.in_state:
            return record
        used = submitted.input_tokens + submitted.output_tokens
        return Ending(record.pool, submitted.id, submitted.attempt, reason, used, submitted.ran, record)

    async def end(self, identified: Identified, reason: Reason) -> None:
        """Ends the request in shared state, writes its ledger record, and counts it in quotas and metrics."""
        self._in_flight.calls.pop(identified.id, None)
        ending = self._ending(identified, reason)
        if isinstance(ending, Ending):
            await self._outbox.finish(ending)
        elif reason not in self._config.unrecorded and not identified.unrecorded:
            self._outbox.refused(ending)

    def abandon(self, identified: Identified, reason: Reason) -> None:
        """Ends a call whose task must not wait any more."""
        if identified.call.submitted is not None:
            identified.call.submitted.hang_up()
        if identified.idempotency is not None:
            identified.idempotency.later(reason)
        self._in_flight.calls.pop(identified.id, None)
        ending = self._ending(identified, reason)
        if isinstance(ending, Ending):
            self._outbox.keep(ending)
        elif reason not in self._config.unrecorded and not identified.unrecorded:
            self._outbox.refused(ending)


def refused(call: Call, refusal: Refusal) -> Answer:
    """A refusal in the format of the call's API."""
    headers = answer_headers(call, full=refusal.reason is Reason.SUPERSEDED)
    return render(refusal, headers, call.dialect.body(refusal, call.id))


async def send_answer(call: Call, answer: Answer) -> None:
    """Sends a complete answer. If the client is still sending its body, that is read first, within bounds, unless the
    client has stopped sending it (408)."""
    headers = [*answer.headers, NO_SNIFFING]
    await call.send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if call.body_read or answer.status == 408:
        await call.send({"type": "http.response.body", "body": answer.body})
        return
    await call.send({"type": "http.response.body", "body": answer.body, "more_body": True})
    await linger(call.receive)
    await call.send({"type": "http.response.body", "body": b""})
