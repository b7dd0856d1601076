"""One attempt at one engine: sends the request, passes the answer on, notes what accounting needs.

Everything that is passed on was checked: it has the API's format (``answer_types.py``, ``sse.py``) and answers the
request sent on this connection (``upstream.py``). Until the first byte is sent to the client, another attempt is
possible (:class:`AttemptFailed` with ``call.responding`` False); after that a stream can only end with an error frame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from scheduling.core.engine.status import INPUT_REFUSED
from scheduling.core.ledger.tracing import engine_traceparent
from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec
from scheduling.gateway.answers.answer_headers import answer_headers
from scheduling.gateway.answers.answer_types import Asked, Broken, Usage
from scheduling.gateway.answers.long_answers import LONG, LongAnswers
from scheduling.gateway.answers.named_events import ResponseFrames
from scheduling.gateway.answers.sse import Frames
from scheduling.gateway.asgi import WRITE
from scheduling.gateway.bodies.prepare import Prepared, renamed
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.engine.attempts import AttemptCounts
from scheduling.gateway.engine.engine_connection import TOO_LARGE, Connection, UpstreamError
from scheduling.gateway.engine.failures import (
    AttemptFailed,
    Unnamed,
    failure_in_stream,
    failure_of_status,
    read_error_body,
)
from scheduling.gateway.engine.first_tokens import FirstTokens
from scheduling.gateway.engine.prefill_leg import (
    MAX_PREFILL_BYTES,
    prefill_body,
    read_prefilled,
    with_bound,
    with_transfer,
)
from scheduling.gateway.engine.silence import Silence
from scheduling.gateway.engine.upstream import Upstream
from scheduling.gateway.entry.flow import flow_lines
from scheduling.gateway.errors import Refusal, reason_header
from scheduling.gateway.headers import JSON, NO_BUFFERING, NO_CACHE, SSE
from scheduling.gateway.ports import GatewayMetrics
from scheduling.gateway.stages import NEVER, Call, Estimated, Submitted

log = logging.getLogger(__name__)

READ_BYTES = 128 * 1024  # of a stream: 4 KiB/s are a line that works, however slow
BROKEN, FOREIGN = "broken", "foreign"  # why an answer was not passed on


def ending_of(finish_reason: str) -> Reason:
    """The reason of a complete answer."""
    return Reason.LENGTH if finish_reason == "length" else Reason.STOP


class Relay:
    """Runs attempts."""

    def __init__(
        self,
        config: GatewayConfig,
        upstream: Upstream,
        metrics: GatewayMetrics,
        attempts: AttemptCounts,
        first_tokens: FirstTokens,
        works: Callable[[str, str], bool],
        long_answers: LongAnswers,
    ) -> None:
        """``works``: whether a pool's replica is ready, as far as is known."""
        self._config = config
        self._upstream = upstream
        self._metrics = metrics
        self._attempts = attempts
        self._first_tokens = first_tokens
        self._works = works
        self._long_answers = long_answers
        self._disbelieved: set[str] = set()  # replicas whose last usage was not believed

    async def run(self, submitted: Submitted, spec: BackendSpec, body: bytes) -> Reason:
        """One attempt, from the request to the client's last byte; how the answer ended. Raises :class:`AttemptFailed`,
        or :class:`Refusal` where no engine would serve the request."""
        call, prepared = submitted.call, submitted.estimated.prepared
        # an engine takes an id once only, and names its answer by it
        name = call.id if submitted.attempt == 1 else f"{call.id}-{submitted.attempt}"
        if prepared.named and submitted.attempt > 1:
            body = renamed(body, call.id, name)
        whole = not prepared.stream
        limit = self._config.max_answer_bytes if whole else 0
        try:
            if not whole:
                call.limit(Reason.BACKEND_STALLED, call.loop.time() + self._config.first_token_timeout_s)
            left = prepared.surely_left
            connection = await self._ask(submitted, spec, body, name, whole, limit, left=left)
            if whole:
                return await self._whole(submitted, connection)
            try:
                return await self._stream(submitted, connection)
            except Unnamed:
                connection = await self._ask(submitted, spec, body, name, whole, limit, left=left, fresh=True)
                return await self._stream(submitted, connection)
        except UpstreamError as exc:
            if exc.why == TOO_LARGE and not prepared.output_bound:  # vectors: the client chose how many
                submitted.ran = False
                raise Refusal(Reason.TOO_LARGE, what="answer", limit=limit) from None
            raise AttemptFailed(Reason.BACKEND_LOST, exc.why, suspect=True) from None

    async def prefill(self, submitted: Submitted, spec: BackendSpec, body: bytes) -> bytes:
        """Has a prefill replica compute the prompt of ``body``, and returns the body for the decode replica, which says
        where its KV cache is. Raises as :meth:`run` does."""
        call, pool, prepared = submitted.call, submitted.access.pool.id, submitted.estimated.prepared
        name = f"{call.id}-p{submitted.attempt}"
        leg = prefill_body(body, prepared.bound_field)
        if prepared.named:
            leg = renamed(leg, call.id, name)
        call.limit(Reason.BACKEND_STALLED, call.loop.time() + self._config.first_token_timeout_s)
        try:
            connection = await self._ask(submitted, spec, leg, name, True, MAX_PREFILL_BYTES)
        except UpstreamError as exc:
            raise AttemptFailed(Reason.BACKEND_LOST, exc.why, suspect=True) from None
        try:
            answer_id, params = read_prefilled(connection.whole_body())
        except Broken as exc:
            self._metrics.answer_rejected(pool, spec.id, BROKEN)
            raise AttemptFailed(Reason.BACKEND_ERROR, exc.why, suspect=True) from None
        self._check_own(submitted, connection, answer_id)
        self._attempts.succeeded(pool, spec.id, submitted.access.entitlement.tenant)
        connection.release()
        submitted.connection = None
        submitted.ran = False  # what the client sees of it has not begun
        call.limit(Reason.DEADLINE, NEVER)
        if submitted.prefill:
            submitted.prefill = 0
            self._first_tokens.came(pool, call.id, submitted.attempt)
        return with_transfer(body, params)

    async def _ask(
        self,
        submitted: Submitted,
        spec: BackendSpec,
        body: bytes,
        name: str,
        whole: bool,
        limit: int,
        *,
        left: int = 0,
        fresh: bool = False,
    ) -> Connection:
        """Sends one request to an engine, and waits for the head of its answer (``whole``: for all of it), which is not
        an error. ``left``: the output bound of a second try, where the input is refused. ``fresh``: on a new
        connection."""
        call, endpoint, trace = submitted.call, submitted.identified.endpoint, submitted.estimated.facts.trace
        try:
            backend = self._upstream.backend(spec)
        except ValueError as exc:
            raise AttemptFailed(Reason.BACKEND_LOST, str(exc), suspect=False) from None
        submitted.ran = True
        entitlement = submitted.access.entitlement
        more = flow_lines(entitlement.tenant, entitlement.tier.name)
        if trace:
            more += b"traceparent: %b\r\n" % engine_traceparent(call.id, trace).encode()
        exchange = partial(
            backend.exchange, endpoint.upstream, name=name, more=more, whole=whole, limit=limit,
            content_type=endpoint.content_type,
        )  # fmt: skip
        connection = await exchange(body, fresh=fresh)
        if connection.status in INPUT_REFUSED and connection.reused:
            # it names no request, so it may be late and another's: on a new connection it cannot be
            connection.abort()
            connection = await exchange(body, fresh=True)
        if connection.status in INPUT_REFUSED and left:
            # Older vLLM takes no bound that passes the context's end, which our default may do.
            connection.abort()
            shorter = with_bound(body, submitted.estimated.prepared.bound_field, left)
            connection = await exchange(shorter, fresh=True)
        submitted.connection = connection
        if connection.status != 200:
            answer = connection.whole_body() if whole else await read_error_body(connection)
            raise failure_of_status(submitted, connection, answer)
        return connection

    def _broken(self, submitted: Submitted, why: str, *, suspect: bool = True) -> AttemptFailed:
        self._metrics.answer_rejected(submitted.access.pool.id, submitted.backend, BROKEN)
        return AttemptFailed(Reason.BACKEND_ERROR, why, suspect=suspect)

    def _check_own(self, submitted: Submitted, connection: Connection, answer_id: str) -> None:
        """Raises :class:`AttemptFailed` unless the answer is the one to this request."""
        if connection.proves(answer_id):
            return
        self._metrics.answer_rejected(submitted.access.pool.id, submitted.at, FOREIGN)
        log.error(
            "request %s: replica %s gave the answer to another request; it was not passed on",
            submitted.id,
            submitted.at,
        )
        raise AttemptFailed(Reason.BACKEND_ERROR, "the answer to another request", suspect=True)

    def _count(self, submitted: Submitted, usage: Usage, believed: bool) -> None:
        """Notes the tokens that the request is charged: the engine's figures if they are plausible (``believed``), else
        our own count."""
        submitted.input_tokens, submitted.output_tokens = usage.prompt_tokens, usage.completion_tokens
        submitted.cached_tokens = usage.cached_tokens
        if believed:
            if self._disbelieved and submitted.backend in self._disbelieved:
                self._disbelieved.discard(submitted.backend)
                log.warning("replica %s: its usage figures can be true again", submitted.backend)
            return
        self._metrics.usage_rejected(submitted.access.pool.id, submitted.backend)
        if submitted.backend not in self._disbelieved:
            self._disbelieved.add(submitted.backend)
            log.warning(
                "replica %s: its usage cannot be true or is missing, first in request %s; our own count is charged",
                submitted.backend,
                submitted.id,
            )

    def _served(self, submitted: Submitted) -> None:
        """Counts a success. If another replica had refused the input, the refusal counts as that one's failure."""
        pool, tenant = submitted.access.pool.id, submitted.access.entitlement.tenant
        self._attempts.succeeded(pool, submitted.backend, tenant)
        if submitted.refused_at not in ("", submitted.backend):
            self._attempts.failed(pool, submitted.refused_at, tenant, "refuses inputs that another replica serves")

    def _said_nothing(self, submitted: Submitted) -> None:
        """Counts an answer without content. It may be right, or its replica answers everybody so."""
        self._attempts.empty(submitted.access.pool.id, submitted.backend, submitted.access.entitlement.tenant)

    async def _whole(self, submitted: Submitted, connection: Connection) -> Reason:
        call, access, identified = submitted.call, submitted.access, submitted.identified
        endpoint, idempotency, keeping = identified.endpoint, identified.idempotency, identified.keeping
        data, asked = connection.whole_body(), _asked(submitted.estimated)
        model = None if access.rename is None else access.pool.model
        try:
            if len(data) > LONG:
                tenant = access.entitlement.tenant
                answer = await self._long_answers.read(tenant, endpoint.upstream, data, asked, model)
            else:
                answer = endpoint.read(data, asked, model)
        except Broken as exc:
            if exc.ours:  # which says nothing of the replica
                raise AttemptFailed(Reason.BACKEND_ERROR, exc.why, suspect=False) from None
            raise self._broken(submitted, exc.why) from None
        self._check_own(submitted, connection, answer.id)
        self._served(submitted)
        if answer.empty:
            self._said_nothing(submitted)
        connection.release()
        submitted.connection = None
        self._count(submitted, answer.usage, answer.believed)
        reason, body = ending_of(answer.finish), answer.body
        if keeping is not None:
            body = await keeping.settle(body)
        if idempotency is not None:
            await idempotency.settle(reason, body)
        headers = [JSON, (b"content-length", b"%d" % len(body)), reason_header(reason), *answer_headers(call)]
        call.responding = True
        call.status = 200
        await call.answer(200, headers, body, self._config.send_timeout_s)
        return reason

    async def _first_output(self, submitted: Submitted, connection: Connection, frames: Frames) -> bytes:
        """Reads a stream until there is something to pass on, and checks that it answers this request. Another attempt
        is possible until this has returned."""
        out = b""
        while not out and not frames.done:
            data = await connection.read()
            if not data:
                raise AttemptFailed(Reason.BACKEND_LOST, "the stream ended before it began", suspect=True)
            out = frames.feed(data)
            if frames.refused:
                raise failure_in_stream(submitted, connection, frames.refused)
            if frames.failed:
                raise self._broken(submitted, frames.failed, suspect=frames.suspect)
        self._check_own(submitted, connection, frames.id)
        self._served(submitted)
        if submitted.prefill:
            submitted.prefill = 0
            frames.when_begun(
                partial(self._first_tokens.came, submitted.access.pool.id, submitted.id, submitted.attempt)
            )
        return out

    async def _stream(self, submitted: Submitted, connection: Connection) -> Reason:
        call, access, estimated = submitted.call, submitted.access, submitted.estimated
        frames = submitted.frames = submitted.identified.endpoint.frames(
            not estimated.prepared.wants_usage, _asked(estimated)
        )
        keeping = submitted.identified.keeping
        if keeping is not None and isinstance(frames, ResponseFrames):
            frames.dress = keeping.dress
        out = await self._first_output(submitted, connection, frames)
        submitted.first_token_s = call.now_s()
        send, now = call.send, call.loop.time
        send_s, idle_s = self._config.send_timeout_s, self._idle_s(estimated.prepared)
        call.responding = call.streaming = True
        call.status = 200
        works = partial(self._works, access.pool.id, submitted.backend)
        call.silence = Silence(idle_s, self._config.first_token_timeout_s, works)
        reader = _Reader(now(), send_s)
        call.limit(Reason.SLOW_READER, reader.until(now(), 0))
        await call.begin_stream(200, [SSE, NO_CACHE, NO_BUFFERING, *answer_headers(call)])
        pour = _Pour(call, frames, access.rename, idle_s)
        out = pour.named(out)
        while not frames.done:
            if out:
                call.limit(Reason.SLOW_READER, reader.until(began := now(), pour.passed))
                await send({"type": "http.response.body", "body": out, "more_body": True})
                reader.took(now() - began)
                pour.passed += len(out)
                call.limit(Reason.BACKEND_STALLED, now() + idle_s)
            if frames.failed:
                raise self._broken(submitted, frames.failed, suspect=frames.suspect)
            if pour.write is not None:
                await connection.follow(pour.take)
                out = pour.left()
                if out or frames.done or frames.failed:
                    continue
            data = await connection.read()
            if not data:
                raise AttemptFailed(Reason.BACKEND_LOST, "the stream was cut", suspect=True)
            out = pour.named(frames.feed(data))
        assert frames.usage is not None
        self._count(submitted, frames.usage, frames.believed)
        if frames.empty:
            self._said_nothing(submitted)
        if frames.surplus:
            connection.abort()  # what follows answers no request
        else:
            connection.release(tail=True)
        submitted.connection = None
        if keeping is not None and isinstance(frames, ResponseFrames):
            out += frames.last(await keeping.settle(pour.named(frames.complete)))
        call.limit(Reason.SLOW_READER, reader.until(now(), pour.passed))
        await send({"type": "http.response.body", "body": out})
        return ending_of(frames.finish)

    def _idle_s(self, prepared: Prepared) -> float:
        """How long a stream that has begun may be silent [s]: as long as before its first token, where the engine may
        hold output back."""
        idle_s = self._config.idle_token_timeout_s
        return max(idle_s, self._config.first_token_timeout_s) if prepared.may_hold_back else idle_s


def _asked(estimated: Estimated) -> Asked:
    prepared, exact = estimated.prepared, 0
    if prepared.exact_input:
        exact = int(prepared.raw_input)
    return Asked.of(
        prepared.chat, estimated.estimate.output_bound, estimated.estimate.input_tokens, exact,
        estimated.identified.body_bytes, estimated.access.pool.max_model_len, prepared.prompts, prepared.choices,
        bool(prepared.media),
    )  # fmt: skip


class _Reader:
    """How long a stream may wait for its client, which keeps a slot meanwhile that its engine may have left.

    ``send_s`` at once. In all ``send_s`` longer than the stream did not wait for it, or than ``send_s`` for each
    ``READ_BYTES``, whichever is more: as long as an engine writes, a slower client is waited for nearly all of the
    time, and the stream cannot tell its engine's time from the client's.
    """

    __slots__ = ("_send_s", "_started", "_waited_s")

    def __init__(self, started: float, send_s: float) -> None:
        self._started = started  # loop time
        self._send_s = send_s
        self._waited_s = 0.0

    def until(self, now: float, passed: int) -> float:
        """When a send that begins at ``now`` has to be done, after ``passed`` bytes."""
        may_s = max(now - self._started - self._waited_s, self._send_s * passed / READ_BYTES)
        return now + max(0.0, min(self._send_s, self._send_s + may_s - self._waited_s))

    def took(self, seconds: float) -> None:
        """A send took so long."""
        self._waited_s += seconds


class _Pour:
    """Passes a stream on as it arrives: each piece is written at once, without a task switch.

    What cannot be passed on so (the end, a fault, a reader who is slow) is kept, and the task goes on with it.
    """

    __slots__ = ("_call", "_frames", "_idle_s", "_left", "_now", "_rename", "passed", "write")

    def __init__(self, call: Call, frames: Frames, rename: Callable[[bytes], bytes] | None, idle_s: float) -> None:
        self._call = call
        self._frames = frames
        self._rename = rename
        self._idle_s = idle_s
        self._now = call.loop.time
        self._left = b""
        self.passed = 0  # bytes
        extensions = call.scope.get("extensions")
        self.write: Callable[[bytes], bool] | None = extensions.get(WRITE) if extensions else None

    def named(self, out: bytes) -> bytes:
        """With the model's name as clients know it."""
        return out if self._rename is None else self._rename(out)

    def take(self, data: bytes) -> bool:
        """Passes one piece on; False where the task has to go on with it. Never raises."""
        frames = self._frames
        out = frames.feed(data)
        if self._rename is not None:
            out = self._rename(out)
        write = self.write
        if frames.done or frames.failed or write is None or (out and not write(out)):
            self._left = out
            return False
        if out:
            self.passed += len(out)
            self._call.deadline = self._now() + self._idle_s  # of BACKEND_STALLED, which it is about
        return True

    def left(self) -> bytes:
        """The piece that was not passed on; empty when asked again."""
        out, self._left = self._left, b""
        return out
