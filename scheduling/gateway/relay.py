"""One attempt at one engine: send the request, pass the answer on, note what accounting needs.

Bytes pass through; nothing is parsed per chunk. Until the first byte is sent to the client any trouble can still be
cured elsewhere (:class:`EngineTrouble` with ``call.responding`` False); after that a stream can only be ended with an
error frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from scheduling.core.outcomes import Reason
from scheduling.core.tracing import engine_traceparent
from scheduling.core.types import BackendSpec
from scheduling.gateway.call import Call
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.errors import Refusal, reason_header
from scheduling.gateway.headers import JSON, NO_BUFFERING, NO_CACHE, SSE, Header
from scheduling.gateway.openai_types import AnswerTail, EngineErrorAnswer
from scheduling.gateway.sse import Frames, FrameTooLong
from scheduling.gateway.upstream import Connection, Upstream, UpstreamError

LONGEST_DETAIL = 500
CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
_decode_tail = msgspec.json.Decoder(AnswerTail).decode
_decode_error = msgspec.json.Decoder(EngineErrorAnswer).decode


class EngineTrouble(Exception):
    """The engine did not do its part. ``suspect``: its replica should be looked at."""

    def __init__(self, reason: Reason, why: str, *, suspect: bool) -> None:
        super().__init__(why)
        self.reason = reason
        self.why = why
        self.suspect = suspect


def ending_of(finish_reason: str) -> Reason:
    """The reason of a complete answer."""
    return Reason.LENGTH if finish_reason == "length" else Reason.STOP


class Relay:
    """Runs attempts. ``answer_headers`` makes the headers that every answer of a call carries."""

    def __init__(
        self, config: GatewayConfig, upstream: Upstream, answer_headers: Callable[[Call], list[Header]]
    ) -> None:
        self._config = config
        self._upstream = upstream
        self._answer_headers = answer_headers

    async def run(self, call: Call, spec: BackendSpec, body: bytes) -> Reason:
        """The whole attempt, to the client's last byte. Raises :class:`EngineTrouble`, or :class:`Refusal` where the
        engine refuses the input."""
        prepared = call.prepared
        assert prepared is not None
        path = CHAT_PATH if prepared.chat else COMPLETION_PATH
        try:
            backend = self._upstream.backend(spec)
        except ValueError as exc:
            raise EngineTrouble(Reason.BACKEND_LOST, str(exc), suspect=False) from None
        call.ran = True
        more = b"" if not call.trace else b"traceparent: %b\r\n" % engine_traceparent(call.id, call.trace).encode()
        try:
            if prepared.stream:
                call.limit(Reason.BACKEND_STALLED, call.loop.time() + self._config.first_token_timeout_s)
                connection = await backend.exchange(path, body, call.id, more, whole=False)
                call.connection = connection
                if connection.status != 200:
                    raise _refused(call, connection, await _read_error(connection))
                return await self._stream(call, connection)
            limit = self._config.max_answer_bytes
            connection = await backend.exchange(path, body, call.id, more, whole=True, limit=limit)
            call.connection = connection
            answer = connection.whole_body()
            if connection.status != 200:
                raise _refused(call, connection, answer)
            connection.release()
            call.connection = None
            return await self._whole(call, answer)
        except UpstreamError as exc:
            raise EngineTrouble(Reason.BACKEND_LOST, exc.why, suspect=True) from None
        except FrameTooLong:
            raise EngineTrouble(Reason.BACKEND_ERROR, "a frame without end", suspect=True) from None

    async def _whole(self, call: Call, answer: bytes) -> Reason:
        try:
            tail = _decode_tail(answer)
        except (msgspec.MsgspecError, ValueError):
            raise EngineTrouble(Reason.BACKEND_ERROR, "the answer is not JSON", suspect=True) from None
        if tail.usage is not None:
            call.input_tokens = tail.usage.prompt_tokens
            call.output_tokens = tail.usage.completion_tokens or 0
        reason = ending_of((tail.choices[0].finish_reason if tail.choices else "") or "")
        access = call.access
        assert access is not None
        if access.rename is not None:
            answer = access.rename(answer)
        if call.idempotency is not None:
            await call.idempotency.settle(reason, answer)
        headers = [JSON, (b"content-length", b"%d" % len(answer)), reason_header(reason), *self._answer_headers(call)]
        call.responding = True
        call.status = 200
        call.limit(Reason.SLOW_READER, call.loop.time() + self._config.send_timeout_s)
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await call.send({"type": "http.response.body", "body": answer})
        return reason

    async def _stream(self, call: Call, connection: Connection) -> Reason:
        prepared, access = call.prepared, call.access
        assert prepared is not None
        assert access is not None
        rename = access.rename
        frames = call.frames = Frames(strip_usage=not prepared.wants_usage)
        out = b""
        while not out and not frames.done:
            data = await connection.read()
            if not data:
                raise EngineTrouble(Reason.BACKEND_LOST, "the stream ended before it began", suspect=True)
            out = frames.feed(data)
            if frames.failed:
                raise EngineTrouble(Reason.BACKEND_ERROR, "the stream began with an error", suspect=False)
        call.first_token_s = time.time()
        send, now = call.send, call.loop.time
        send_s, idle_s = self._config.send_timeout_s, self._config.idle_token_timeout_s
        call.responding = call.streaming = True
        call.status = 200
        call.limit(Reason.SLOW_READER, now() + send_s)
        headers = [SSE, NO_CACHE, NO_BUFFERING, *self._answer_headers(call)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            if rename is not None:
                out = rename(out)
            if frames.done:
                break
            if out:
                call.limit(Reason.SLOW_READER, now() + send_s)
                await send({"type": "http.response.body", "body": out, "more_body": True})
                call.limit(Reason.BACKEND_STALLED, now() + idle_s)
            if frames.failed:
                raise EngineTrouble(Reason.BACKEND_ERROR, "the engine ended the stream with an error", suspect=False)
            data = await connection.read()
            if not data:
                raise EngineTrouble(Reason.BACKEND_LOST, "the stream was cut", suspect=True)
            out = frames.feed(data)
        call.limit(Reason.SLOW_READER, now() + send_s)
        await send({"type": "http.response.body", "body": out})
        connection.release(tail=True)
        call.connection = None
        return ending_of(frames.finish)


async def _read_error(connection: Connection) -> bytes:
    parts = []
    size = 0
    while size < 64 * 1024 and (data := await connection.read()):
        parts.append(data)
        size += len(data)
    return b"".join(parts)


def _refused(call: Call, connection: Connection, answer: bytes) -> Exception:
    """What an engine's error status means. Its own words reach the client only where they are about the input."""
    status = connection.status
    connection.release()
    call.connection = None
    call.ran = False
    if status in (400, 413, 422):
        try:
            error = _decode_error(answer).error
        except (msgspec.MsgspecError, ValueError):
            error = None
        detail = error.message[:LONGEST_DETAIL] if error is not None and error.message else "The engine refused it."
        return Refusal(Reason.INVALID_REQUEST, detail=detail)
    # 429 and 503 say "not admitted": the replica is busy, not broken
    return EngineTrouble(Reason.BACKEND_ERROR, f"status {status}", suspect=status >= 500 and status != 503)
