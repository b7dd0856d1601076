"""What is known of a request, stage by stage. Each is handed on when all of it is known, and leads back to the one
before::

    Call  ->  Identified     ->  Estimated           ->  Submitted
    open      whose it is        what it needs           shared state was asked: where it waits and runs, how far it is

Who looks from outside (time limits, the end of a call that came to no good end) finds the furthest stage through
:class:`Call`; who is handed a stage has nothing to ask. Times are epoch seconds unless named loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduling.core.estimate.chain import Outlook
from scheduling.core.types import Estimate, QueuedRequest
from scheduling.gateway.auth import Access
from scheduling.gateway.prepare import Prepared
from scheduling.gateway.sse import Frames
from scheduling.gateway.upstream import Connection
from scheduling.state.types import Admission, GrantNotice, RequestFacts

if TYPE_CHECKING:
    from scheduling.gateway.call import Call
    from scheduling.gateway.idempotency import Pass


@dataclass(slots=True, eq=False)
class Identified:
    """A request with a valid key. It has a ledger record however it ends."""

    call: Call
    access: Access
    trace: str  # where traces are on
    streamed: bool = False  # its body was read, and asks for a stream
    idempotency: Pass | None = None  # where the client sent a key

    @property
    def id(self) -> str:
        return self.call.id


@dataclass(slots=True, eq=False)
class Estimated:
    """A request that may be sent, with what it is believed to need."""

    call: Call
    access: Access
    prepared: Prepared
    body_bytes: int
    estimate: Estimate
    outlook: Outlook | None  # None: the pool predicts nothing
    request: QueuedRequest  # at its first attempt
    facts: RequestFacts
    idempotency: Pass | None


@dataclass(slots=True, eq=False)
class Progress:
    """Where a request waits or runs, and how far it is."""

    admission: Admission | None = None  # the first answer of shared state, once it came
    # the present attempt
    attempt: int = 1
    seq: int = 0
    moving: bool = False  # between two attempts
    backend: str = ""
    prefill: int = 0  # what it holds of its replica's prefill credit, as far as is known here [prompt tokens]
    policy: str = ""
    why_there: str = ""
    notice: GrantNotice | None = None
    waiter: asyncio.Future[None] | None = None
    connection: Connection | None = None
    # progress
    queued_s: float | None = None
    granted_s: float | None = None
    first_token_s: float | None = None
    ran: bool = False  # the engine took it
    frames: Frames | None = None
    reported: tuple[Frames | None, int] = (None, 0)  # the frames of an attempt, and how many of them were reported
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Submitted(Progress):
    """A request that shared state was asked to take."""

    call: Call
    access: Access
    estimated: Estimated
    known: bool = True  # Redis may know it: it must be finished there
    admitted: bool = False  # Redis said so: it is renewed

    @property
    def id(self) -> str:
        return self.call.id

    def queued_request(self) -> QueuedRequest:
        """The request at the attempt and arrival number that shared state gave it."""
        return replace(self.estimated.request, attempt=self.attempt, seq=self.seq)

    def served(self) -> int:
        """Tokens of it so far, its input included: by the frames that were passed on. 0 until its first token."""
        frames = self.frames
        if frames is None or not frames.count:
            return 0
        return self.estimated.estimate.input_tokens + frames.count

    def pieces(self) -> int:
        """How many pieces of its stream have arrived since this was last asked."""
        frames = self.frames
        if frames is None or self.call.closed:
            return 0
        known = self.reported[1] if self.reported[0] is frames else 0
        self.reported = (frames, frames.count)
        return frames.count - known

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def hang_up(self) -> None:
        """Closes the connection to the engine, which stops generating."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None
