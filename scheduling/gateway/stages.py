"""What is known of a request, stage by stage. A stage is passed on once it is complete, and refers to the one before::

    Call  ->  Identified     ->  Estimated           ->  Submitted
    open      its key            its estimate            known to shared state: where it waits or runs, its progress

Code outside of a request's own path (time limits, failures) finds its last stage through :class:`Call`. Times are epoch
seconds unless named loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from scheduling.core.estimate.chain import Outlook
from scheduling.core.outcomes import Reason
from scheduling.core.types import Estimate, QueuedRequest
from scheduling.gateway.answers.dialects import OPENAI, Dialect
from scheduling.gateway.answers.sse import Frames
from scheduling.gateway.answers.stored import Keeping
from scheduling.gateway.asgi import ABORT, ANSWER, BEGIN, Receive, Scope, Send
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.endpoints import Endpoint
from scheduling.gateway.engine.engine_connection import Connection
from scheduling.gateway.engine.silence import Silence
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.idempotency import Pass
from scheduling.gateway.headers import NO_SNIFFING, Header
from scheduling.state.notices import GrantNotice, PreemptionNotice
from scheduling.state.types import Admission, RequestFacts

NEVER = float("inf")
PIECE_BYTES = 64 * 1024  # of a whole answer, written at once
TAKEN_BYTES = 256 * 1024  # of a whole answer: for each of these the reader has the time limit again
RETRYABLE = (Reason.BACKEND_STALLED, Reason.BACKEND_LOST)  # by another attempt, while the client has received nothing
HOLD = "quartermaster.hold"  # extension of a scope: stands for the engine (beside.py)


class Call(msgspec.Struct, eq=False):
    """One open request as its connection and the clock see it. Times are epoch seconds unless named loop."""

    id: str
    scope: Scope
    receive: Receive
    send: Send
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any]
    started_s: float  # its head came
    started_loop: float
    # what stands for the engine of an admission-only request; None where an engine serves it
    hold: Any = None
    received_s: float = 0.0  # all of it came: it has not arrived before
    deadline: float = NEVER  # loop time; passed: interrupted with ``deadline_reason``
    deadline_reason: Reason = Reason.DEADLINE
    last_deadline: float = NEVER  # loop time: the limit of the whole request
    silence: Silence | None = None  # of the engine, once its stream has begun
    why: Reason | None = None  # set by the first interruption
    closed: bool = False  # the end has begun: no more interruptions
    body_read: bool = False
    dialect: Dialect = OPENAI  # the format of errors
    listener: asyncio.Task[None] | None = None
    # the last one that is set has all that is known
    identified: Identified | None = None
    estimated: Estimated | None = None
    submitted: Submitted | None = None
    # the answer
    responding: bool = False  # the response has begun
    streaming: bool = False
    status: int = 0

    @classmethod
    def of(
        cls, request_id: str, scope: Scope, receive: Receive, send: Send, loop: asyncio.AbstractEventLoop, now_s: float
    ) -> Call:
        """The call that the running task serves. ``now_s``: the time [epoch s]."""
        extensions = scope.get("extensions")
        hold = extensions.get(HOLD) if extensions else None
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        return cls(request_id, scope, receive, send, loop, task, now_s, loop.time(), hold, now_s)

    def now_s(self) -> float:
        """The time of this request [epoch s]: when it began plus a monotonic clock, so that a changed system clock has
        no effect."""
        return self.started_s + (self.loop.time() - self.started_loop)

    def arrived(self) -> None:
        """Its body has been read. What a client sends slowly must not be older than what others send at once: arrival
        orders, and deadlines count from it."""
        self.body_read = True
        self.received_s = self.now_s()

    def limit(self, reason: Reason, at_loop: float) -> None:
        """Ends the call with ``reason`` at loop time ``at_loop``, unless it gets further before and sets another
        limit."""
        self.deadline_reason = reason
        self.deadline = at_loop

    def overdue(self, now: float) -> bool:
        """Whether there is no further limit after the one that has passed at loop time ``now``."""
        if self.deadline_reason is Reason.BACKEND_STALLED and self.silence is not None:
            self.deadline = self.silence.limit(self.deadline)
        return now >= self.deadline

    def put_off(self, seconds: float) -> None:
        """Ends the call so much later [s] than was said."""
        self.deadline += seconds
        if self.silence is not None:
            self.silence.put_off(seconds)

    def interrupt(self, reason: Reason) -> None:
        """Ends the call from outside: its task is cancelled where it waits, and ends with ``reason``. The first reason
        counts, except that one which another attempt may cure is replaced by one which none can, as long as the task
        has not seen it."""
        if self.closed:
            return
        if self.why is None:
            self.why = reason
            self.task.cancel()
        elif self.why in RETRYABLE and reason not in RETRYABLE:
            self.why = reason

    def clear_interruption(self) -> None:
        """Takes an interruption back: another attempt deals with its cause."""
        self.why = None
        self.task.uncancel()

    def release_stages(self) -> None:
        """Breaks the reference cycles between the call and its stages once it has ended, so that all is freed at once.
        Left to the garbage collector, they cost a tenth of the time of a short answer."""
        self.identified = self.estimated = self.submitted = None

    async def abort_client(self) -> None:
        """Drops the client's connection without waiting for it to read, where the server allows that. Returns when the
        server has noticed, since it takes an answer that ends early for a fault."""
        extensions = self.scope.get("extensions")
        abort = extensions.get(ABORT) if extensions else None
        if abort is not None:
            abort()
            await asyncio.sleep(0)

    async def answer(self, status: int, headers: list[Header], body: bytes, send_s: float) -> None:
        """Sends a whole answer, which no browser takes for a page. A short one is written at once where the server can
        and the reader is not slow. Of a long one each piece is written once the one before was taken: otherwise all of
        it would stay in memory for as long as the reader likes, in a request that has ended and counts nowhere.
        ``send_s``: the limit for a reader that takes nothing."""
        began = self.loop.time()
        self.limit(Reason.SLOW_READER, began + send_s)
        extensions = self.scope.get("extensions")
        write = extensions.get(ANSWER) if extensions else None
        if write is not None and len(body) <= PIECE_BYTES and write(status, headers, body):
            return
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, NO_SNIFFING]})
        for at in range(0, max(1, len(body)), PIECE_BYTES):
            self.limit(Reason.SLOW_READER, began + send_s * (1 + at // TAKEN_BYTES))
            end = at + PIECE_BYTES
            await self.send({"type": "http.response.body", "body": body[at:end], "more_body": end < len(body)})

    async def begin_stream(self, status: int, headers: list[Header]) -> None:
        """Sends the head of a streamed answer, which no browser takes for a page."""
        extensions = self.scope.get("extensions")
        begin = extensions.get(BEGIN) if extensions else None
        if begin is None or not begin(status, headers):
            await self.send({"type": "http.response.start", "status": status, "headers": [*headers, NO_SNIFFING]})

    def listen(self) -> None:
        """Starts to wait for the client's disconnect. Only once the body has been read."""
        self.listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.interrupt(Reason.CLIENT_LEFT)


class Identified(msgspec.Struct, eq=False):
    """A request with a valid key. It has a ledger record however it ends."""

    call: Call
    access: Access
    trace: str  # where traces are on
    endpoint: Endpoint
    user: str = ""  # to whom it is attributed, as in the ledger
    client_retry: int = 0  # how often its client says that it has sent it before
    streamed: bool = False  # its body was read, and asks for a stream
    body_bytes: int = 0
    hints: Mapping[bytes, float] | None = None  # when its client wishes to have the answer [s], by header
    idempotency: Pass | None = None  # if the client sent an Idempotency-Key
    keeping: Keeping | None = None  # if its answer may be stored
    instead_of: Access | None = None  # the access that refused it, if a fallback took it over
    instead_why: Reason | None = None  # and the reason
    unrecorded: bool = False  # one of a storm of invalid requests, which have no ledger record

    @property
    def id(self) -> str:
        return self.call.id


class Estimated(msgspec.Struct, eq=False):
    """A request that may be sent, with its estimate."""

    identified: Identified
    access: Access  # under which it was estimated: its own, or that of a fallback
    prepared: Prepared
    estimate: Estimate
    outlook: Outlook | None  # None: the pool predicts nothing
    request: QueuedRequest  # at its first attempt
    facts: RequestFacts


class Progress(msgspec.Struct, eq=False):
    """Where a request waits or runs, and how far it has got."""

    admission: Admission | None = None  # the first answer of shared state, once it came
    # the present attempt
    attempt: int = 1
    seq: int = 0
    moving: bool = False  # between two attempts
    backend: str = ""
    prefill_at: str = ""  # the prefill replica that computes its prompt now
    prefill_failed: str = ""  # the one that failed it
    refused_at: str = ""  # the replica that refused its input
    prefill: int = 0  # prefill credit of its replica that it holds, as known here [prompt tokens]
    policy: str = ""
    why_there: str = ""
    notice: GrantNotice | None = None
    preemption: PreemptionNotice | None = None  # it is being taken back from its replica
    retry_s: float | None = None  # when its client is told to come back
    resuming: QueuedRequest | None = None  # as it waits again, or runs, after that
    computed: int = 0  # tokens of its prompt that were computed at least when it was taken back
    waits_from: float | None = None  # loop time of that, from which its tier's longest wait counts; None: from the call
    waiter: asyncio.Future[None] | None = None
    connection: Connection | None = None
    # progress
    queued_s: float | None = None
    granted_s: float | None = None
    ran_before_s: float = 0.0  # from queued_s on, in attempts before this one
    first_token_s: float | None = None
    ran: bool = False  # the engine took it
    frames: Frames | None = None
    reported: tuple[Frames | None, int] = (None, 0)  # the frames of an attempt, and how many of them were reported
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input, as the engine says

    @property
    def interruptions(self) -> int:
        """How often its prefill was interrupted."""
        return 0 if self.resuming is None else self.resuming.preempted

    @property
    def tries(self) -> int:
        """The number of its attempts, without those that were preempted, which did not fail."""
        return self.attempt - self.interruptions


def ended_by_others(reason: Reason | None) -> Reason:
    """How a request ends that shared state says has ended already: by whom, or else its lease was lost."""
    known = (Reason.OPERATOR, Reason.EVICTED, Reason.SUPERSEDED)
    return reason if reason is not None and reason in known else Reason.LEASE_LOST


class Submitted(Progress, eq=False, kw_only=True):
    """A request that shared state was asked to take."""

    call: Call
    access: Access
    estimated: Estimated
    in_state: bool = True  # Redis may know it, so it must be finished there
    admitted: bool = False  # Redis has admitted it, so it is renewed

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def identified(self) -> Identified:
        return self.estimated.identified

    @property
    def at(self) -> str:
        """The replica that has it now."""
        return self.prefill_at or self.backend

    def queued_request(self) -> QueuedRequest:
        """The request at the attempt and arrival number that shared state gave it."""
        return replace(self.resuming or self.estimated.request, attempt=self.attempt, seq=self.seq)

    def served(self) -> int:
        """Tokens so far, the input included, by the frames that were passed on; 0 before the first token."""
        frames = self.frames
        if frames is None or not frames.count:
            return 0
        return self.estimated.estimate.input_tokens + frames.count

    def preempted(self, notice: PreemptionNotice) -> None:
        """The leader wants the request taken back. That is done if its engine has answered nothing yet."""
        runs = self.attempt == notice.attempt and self.backend == notice.backend and self.waiter is None
        answered = self.call.responding or self.input_tokens or self.output_tokens
        if runs and not (answered or self.moving or self.prefill_at or self.call.hold or self.call.why):
            self.preemption = notice
            self.call.interrupt(Reason.BACKEND_LOST)

    def pieces(self) -> int:
        """The number of pieces of the stream that have arrived since the last call."""
        frames = self.frames
        if frames is None or self.call.closed:
            return 0
        before = self.reported[1] if self.reported[0] is frames else 0
        self.reported = (frames, frames.count)
        return frames.count - before

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def hang_up(self) -> None:
        """Closes the connection to the engine, which stops generating."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None
