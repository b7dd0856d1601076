"""One request on ``/v1``, from its head to its end, in one coroutine.

:class:`Call` holds what is known of a request; :class:`Lifecycle` does what happens to it after its body was read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from scheduling.core.ledger.tracing import trace_line
from scheduling.core.outcomes import Reason
from scheduling.gateway.answers.dialects import MESSAGES
from scheduling.gateway.answers.model_list import MODELS, list_models, speaks_anthropic
from scheduling.gateway.answers.stored import NOTHING_STORED, Stored
from scheduling.gateway.asgi import PEER, Receive, Scope, Send
from scheduling.gateway.bodies.grammar import check_grammar
from scheduling.gateway.bodies.prepare import check_choices, model_named, parse_as
from scheduling.gateway.conclusion import refused, send_answer
from scheduling.gateway.endpoints import ENDPOINTS, MESSAGES_PATH, not_served
from scheduling.gateway.engine.failures import AttemptFailed
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.authenticator import Authenticator
from scheduling.gateway.entry.guard import ClientGone, Head, check_size, drain, read_body
from scheduling.gateway.entry.open_requests import OpenRequests
from scheduling.gateway.entry.request_ids import new_request_id
from scheduling.gateway.entry.storms import HOLD_S, MAX_DRAINED, MAX_HELD
from scheduling.gateway.entry.users import take_user
from scheduling.gateway.errors import Answer, Refusal
from scheduling.gateway.estimate.questions import QUESTIONS, Question, Questions
from scheduling.gateway.headers import JSON
from scheduling.gateway.lifecycle import Lifecycle, check_entitled
from scheduling.gateway.ports import Routes
from scheduling.gateway.services import Services
from scheduling.gateway.stages import Call, Identified
from scheduling.gateway.timeouts import Timeouts

log = logging.getLogger(__name__)

_NO_EXTENSIONS: dict[str, Any] = {}


class RequestHandler:
    """Serves the requests of one gateway. The open ones are the calls of its ``timeouts``."""

    def __init__(
        self,
        services: Services,
        lifecycle: Lifecycle,
        authenticator: Authenticator,
        timeouts: Timeouts,
        open_requests: OpenRequests,
        questions: Questions,
        stored: Stored,
        routes: Collection[Routes],
    ) -> None:
        self._config = services.config
        self._conclusion = services.conclusion
        self._metrics = services.metrics
        self._idempotency = services.idempotency
        self._storms = services.storms
        self._lifecycle = lifecycle
        self._authenticator = authenticator
        self._timeouts = timeouts
        self._open = open_requests
        self._questions = questions
        self._stored = stored
        self._routes = routes
        self._started_s = int(time.time())
        self.draining = False  # new requests are refused
        self.loop: asyncio.AbstractEventLoop | None = None  # once it runs

    async def handle(self, scope: Scope, receive: Receive, send: Send, request_id: str = "") -> None:
        """Serves one request."""
        loop = self.loop or asyncio.get_running_loop()
        now_s = time.time()
        call = Call.of(request_id or new_request_id(now_s), scope, receive, send, loop, now_s)
        calls = self._timeouts.calls
        calls.add(call)
        try:
            await self._run(call)
            call.release_stages()
        finally:
            calls.discard(call)
            if call.listener is not None:
                call.listener.cancel()

    async def _run(self, call: Call) -> None:
        """Serves a call. Whatever ends it becomes one reason, which is told once."""
        refusal: Refusal | None = None
        try:
            await self._serve(call)
            return
        except Refusal as exc:
            refusal = exc.with_traceback(None)  # the traceback holds this frame, and with it the whole request
            reason = exc.reason
        except AttemptFailed as exc:
            reason = exc.reason
        except ClientGone:
            reason = Reason.CLIENT_LEFT
        except asyncio.CancelledError:
            if call.why is None:  # the server is stopping and waits no longer
                call.closed = True
                if call.identified is not None:
                    self._conclusion.abandon(call.identified, Reason.SHUTTING_DOWN)
                raise
            call.task.uncancel()
            reason = call.why
        except OSError:
            reason = Reason.CLIENT_LEFT  # some servers raise when the client has left
        except Exception:
            log.exception("request %s failed", call.id, extra=_known(call))
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
            await self._elsewhere(call, path, method)
            return
        call.dialect = endpoint.dialect
        if method != "POST":
            call.body_read = method in ("GET", "HEAD")
            raise Refusal(Reason.INVALID_REQUEST, status=405, allow=b"POST", detail=f"{path} takes POST.")
        config = self._config
        head = Head(scope["headers"], config.max_header_bytes)
        check_size(head, config.max_body_bytes)
        access = await self._authenticator.access(head.authorization, call.received_s)
        trace = trace_line(endpoint.operation, head.traceparent) if config.traces else ""
        identified = call.identified = Identified(call, access, trace, endpoint, client_retry=head.client_retry)
        if self.draining:
            raise Refusal(Reason.SHUTTING_DOWN, close=True)
        whose = _whose(call, access)
        self._open.add(*whose)
        try:
            storms = self._storms and access.one_model
            refusal = self._storms.answer(access, call.started_loop) if storms else None
            if refusal is not None:
                await self._turn_away(identified, head, refusal)
                return
            await self._ask(identified, head)
        except Refusal as refusal:
            self._storms.refused(identified.access, refusal, call.loop.time())
            raise
        finally:
            self._open.remove(*whose)

    async def _turn_away(self, identified: Identified, head: Head, refusal: Refusal) -> None:
        """Refuses a request of a key that storms: no parsing, no question to shared state, no ledger row."""
        call, access = identified.call, identified.access
        call.limit(Reason.SLOW_REQUEST, call.started_loop + self._config.body_timeout_s)
        if not call.body_read and (head.content_length or 0) <= MAX_DRAINED:
            # read: a new connection would cost us more
            call.body_read = await drain(call.receive, MAX_DRAINED)
        call.closed = True
        await self._hold_back()
        self._metrics.storm_refused(access.pool.id, access.entitlement.tenant, refusal.reason.value)
        refusal.close = not call.body_read
        await send_answer(call, refused(call, refusal))

    async def _hold_back(self) -> None:
        """Delays the answer, so that a client that sends again as soon as it is answered sends less."""
        if self._storms.held_back < MAX_HELD:
            self._storms.held_back += 1
            try:
                await asyncio.sleep(HOLD_S)
            finally:
                self._storms.held_back -= 1

    async def _ask(self, identified: Identified, head: Head) -> None:
        """Serves a request with a valid key, from its body on."""
        config, call = self._config, identified.call
        call.last_deadline = call.started_loop + config.request_timeout_s
        call.limit(Reason.SLOW_REQUEST, call.started_loop + config.body_timeout_s)
        data = await read_body(call.receive, config.max_body_bytes)
        call.limit(Reason.DEADLINE, call.last_deadline)
        call.arrived()
        identified.body_bytes, identified.hints = len(data), head.hints
        try:
            body = identified.endpoint.form.parse(data)
        except Refusal:
            with suppress(Refusal):  # so that it is refused under the model that it names
                identified.access = self._authenticator.choose(model_named(data), identified.access)
            raise
        access = identified.access = self._authenticator.choose(body.model, identified.access)
        identified.user = take_user(body) or access.key.user
        if self._storms and not access.one_model:  # only now is its entitlement known
            refusal = self._storms.answer(access, call.started_loop)
            if refusal is not None:
                await self._turn_away(identified, head, refusal)
                return
        if identified.endpoint.keeps:
            stored = self._stored if call.hold is None else NOTHING_STORED  # its proxy has the original body
            identified.keeping = await stored.begin(body, access)
        prepared = identified.endpoint.fit(body, access.pool)
        if call.hold is not None and prepared.client_priority:
            detail = "priority cannot be set here: the engine gets the body as it came, and would go by it."
            raise Refusal(Reason.INVALID_REQUEST, param="priority", detail=detail)
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
        await self._lifecycle.run(identified, prepared)

    async def _question(self, call: Call, question: Question) -> None:
        """A question to an engine that needs no slot (tokenize, detokenize)."""
        config = self._config
        call.dialect = question.dialect
        head = Head(call.scope["headers"], config.max_header_bytes)
        check_size(head, config.max_body_bytes)
        access = await self._authenticator.access(head.authorization, call.received_s)
        if self.draining:
            raise Refusal(Reason.SHUTTING_DOWN, close=True)
        if call.hold is not None:
            await self._allow(call)
            return
        whose = _whose(call, access)
        self._open.add(*whose)
        try:
            call.limit(Reason.SLOW_REQUEST, call.started_loop + config.body_timeout_s)
            data = await read_body(call.receive, config.max_body_bytes)
            call.body_read = True
            call.limit(Reason.DEADLINE, call.started_loop + config.first_token_timeout_s)
            asked = parse_as(data, question.form)
            access = self._authenticator.choose(asked.model, access)
            check_entitled(access.entitlement, call.received_s)
            async with self._questions.ask(question, access, asked) as body:
                headers = [JSON, (b"content-length", b"%d" % len(body)), *call.dialect.names(call.id)]
                call.responding, call.status = True, 200
                await call.answer(200, headers, body, config.send_timeout_s)
                call.closed = True
        finally:
            self._open.remove(*whose)

    async def _elsewhere(self, call: Call, path: str, method: str) -> None:
        """Paths that ask no engine: those that other parts serve, ``/v1/models``, and those that do not exist."""
        routes = next((one for one in self._routes if one.serves(path)), None)
        if routes is not None:
            await self._route(call, routes)
            return
        if path in QUESTIONS:
            call.dialect = QUESTIONS[path].dialect
            raise Refusal(Reason.INVALID_REQUEST, status=405, allow=b"POST", detail=f"{path} takes POST.")
        anthropic = speaks_anthropic(call.scope["headers"])
        if anthropic or path.startswith(MESSAGES_PATH):
            call.dialect = MESSAGES
        if path != MODELS and not path.startswith(MODELS + "/"):
            raise Refusal(Reason.INVALID_REQUEST, status=404, detail=not_served(path))
        if method not in ("GET", "HEAD"):
            raise Refusal(Reason.INVALID_REQUEST, status=405, allow=b"GET, HEAD", detail=f"{MODELS} takes GET.")
        await self._models(call, path, anthropic)

    async def _route(self, call: Call, routes: Routes) -> None:
        """Leaves a request with a valid key to the part that serves its path (files, batches, stored responses)."""
        head = Head(call.scope["headers"], self._config.max_header_bytes)
        access = await self._authenticator.access(head.authorization, call.received_s)
        if self.draining:
            raise Refusal(Reason.SHUTTING_DOWN, close=True)
        if call.hold is not None:
            await self._allow(call)
        else:
            await routes.serve(call, access, head)

    async def _models(self, call: Call, path: str, anthropic: bool) -> None:
        """The models that the key opens, or one of them, in OpenAI's format or in Anthropic's."""
        head = Head(call.scope["headers"], self._config.max_header_bytes)
        access = await self._authenticator.access(head.authorization, call.received_s)
        query = call.scope.get("query_string", b"")
        body = list_models(path, query, access.cards(), self._started_s, anthropic)
        headers = [JSON, (b"content-length", b"%d" % len(body)), *call.dialect.names(call.id)]
        call.closed = True
        await send_answer(call, Answer(200, headers, body))

    async def _allow(self, call: Call) -> None:
        """Answers a check of a request that takes no slot: the key is valid, and whoever receives the request serves
        it."""
        call.closed = True
        await send_answer(call, Answer(200, [JSON, (b"content-length", b"2")], b"{}"))

    async def _fail(self, call: Call, reason: Reason, refusal: Refusal | None) -> None:
        identified, submitted = call.identified, call.submitted
        if identified is not None:
            taken = submitted is not None and submitted.in_state
            if refusal is not None and not (taken or self._config.records_mistakes):
                identified.unrecorded = self._storms.mistaken(identified.access, refusal, call.loop.time())
            if identified.unrecorded:
                call.closed = True
                await self._hold_back()
            await self._conclusion.conclude(identified, reason, refusal)
            return
        # without a valid key: no ledger row, only metrics
        call.closed = True
        refusal = refusal or Refusal(reason)
        refusal.close = refusal.close or not call.body_read
        self._metrics.rejected(reason.value, refusal.status)
        if call.responding:
            await call.abort_client()  # the rest of the answer does not come
        elif reason is not Reason.CLIENT_LEFT:
            await send_answer(call, refused(call, refusal))


def _whose(call: Call, access: Access) -> tuple[str, str, str]:
    """The key, tenant and address for which the open request counts."""
    peer = (call.scope.get("extensions") or _NO_EXTENSIONS).get(PEER, "")
    return access.key.id, access.entitlement.tenant, peer


def _known(call: Call) -> dict[str, str]:
    """Whose a request is, for the log, once that is known."""
    if call.identified is None:
        return {}
    access = call.identified.access
    return {"pool": access.pool.id, "tenant": access.entitlement.tenant, "entitlement": access.entitlement.id}
