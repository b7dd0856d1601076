"""Runs the lines of all open batches that nobody else works on, for a while. One process of a deployment does so.

Only as many lines run as there is idle capacity, and beside people fewer (:mod:`controlplane.batches.room`): each is
admitted on arrival or refused, atomically with everybody else's requests, and none waits in the pool's queue. So how
many may run is found by trying: one more with each that completes; after a refusal, or when one was evicted, no more
than run now, and the next attempt a moment later.

A line's result is written with the claim under which it ran (:mod:`controlplane.batches.services`). Whatever is killed:
lines without a result run again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

import msgspec
from django.db import DatabaseError, InterfaceError

from controlplane.batches import services, wire
from controlplane.batches.gateway import LineAnswer, SurplusGateway
from controlplane.batches.lines import Line, read
from controlplane.batches.models import Status
from controlplane.batches.room import PoolRoom, Room
from controlplane.batches.services import Outcome, Work
from scheduling.core.outcomes import Reason

log = logging.getLogger(__name__)

BUDGET_S = 15.0  # of one message at least; other tasks of the worker come between
LONGEST_BUDGET_S = 120.0
LINES_PER_BUDGET = 4.0  # ... and so many times the time of a line, so that ends do not cost much of it
LOOK_S = 1.0  # between two looks for new batches
FLUSH_S = 0.5  # between two writes of results, which renew the lease as well
FLUSH_LINES, FLUSH_BYTES = 200, 4 * 1024 * 1024  # ... or when there are so many
MOST_UNSTORED = 2_000  # results held while the database is away; then no line is started
READ_LINES, READ_BYTES = 200, 4 * 1024 * 1024  # read ahead of a file
TRIES = 5  # of a line whose engine or gateway failed it
STOP_S = 5.0  # of lines that run when the worker stops
TICK_S = 0.05

Pauses = Mapping[Reason, float]
GROW_S = 0.25  # without a refusal, then more may run
FORGET_S = 5.0  # without one, then nothing is known any more of how many may
PAUSE_S = 0.2  # after a refusal for want of room
PAUSES: Pauses = {
    Reason.QUOTA_EXCEEDED: 30.0,
    Reason.BUDGET_EXCEEDED: 30.0,
    Reason.TENANT_PAUSED: 5.0,
    Reason.NOT_ENTITLED: 5.0,
    Reason.STATE_UNAVAILABLE: 1.0,
    Reason.REBUILDING: 1.0,
    Reason.NO_BACKEND: 2.0,
    Reason.NO_ADAPTER: 5.0,
}


class _Usage(msgspec.Struct):
    """As chats, completions and embeddings say it, and as responses do."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer).decode


class Pace:
    """How many lines of an entitlement may run now."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._window = 1.0
        self._last_full = float(most)  # so many ran when room was last refused: from there on one by one
        self._grown_at = self._refused_at = self._paused_until = float("-inf")
        self.running = 0
        self.line_s = 0.0  # time of a line, on average

    def may_start(self, now: float) -> bool:
        if self.running < min(int(self._window), self._most):
            return now >= self._paused_until
        if now - self._grown_at >= GROW_S and now >= self._paused_until and self._window < self._most:
            # a refusal would have come by now: what was started runs
            self._grown_at = now
            if now - self._refused_at >= FORGET_S:
                self._last_full = float(self._most)
            self._window = self._window * 2 if self._window < self._last_full else self._window + 1
        return False

    def ended(self, answer: LineAnswer | None, took_s: float, now: float) -> None:
        """One that was started is over; None: it was cancelled here."""
        self.running -= 1
        if answer is None:
            return
        if answer.waits:
            self._window = self._last_full = max(1.0, float(self.running))
            self._grown_at = self._refused_at = now
            self._paused_until = now + PAUSES.get(answer.reason, PAUSE_S)
        elif answer.may_pass:
            self._window = max(1.0, self._window / 2)
            self._paused_until = now + 1.0
        else:
            self.line_s += 0.1 * (took_s - self.line_s) if self.line_s else took_s


class BatchRun:
    """One batch while this process holds its lease."""

    def __init__(self, work: Work, gateway: SurplusGateway, pace: Pace, room: Room, ending: Callable[[], bool]) -> None:
        self.work = work
        self._room = room
        self._counted: set[tuple[str, str]] = set()  # pools and accounts that lines of this batch run on
        self._gateway = gateway
        self._pace = pace
        self._ending = ending  # whether no line is to be started any more
        self._status = work.status  # as the database said last; empty: the lease is another's
        self._pending: deque[Line] = deque()
        self._unstored: list[Outcome] = []
        self._unstored_bytes = 0
        self._storing = False
        self._running: dict[asyncio.Task[LineAnswer], tuple[Line, PoolRoom, float]] = {}
        self._changed = asyncio.Event()
        self._due = asyncio.Event()  # results are to be written before their time
        self._file: IO[bytes] | None = None
        self._lines: Iterator[Line] = iter(())
        self._read_all = False
        self._problem: dict[str, Any] | None = None

    async def run(self) -> None:
        """Until the batch has ended, its lease is another's, or no line is to be started any more."""
        keeping = asyncio.create_task(self._keep())
        self._room_of(self.work.model)  # it is looked who is there before the first line runs
        try:
            if self._status == Status.VALIDATING:
                models = self._gateway.models(self.work.key_id) | {self.work.model}
                self._status = await asyncio.to_thread(services.validate, self.work, models)
            ends_as = ""
            if self._status == Status.IN_PROGRESS:
                ends_as = await self._lines_through()
            elif self._status == Status.CANCELLING:
                ends_as = Status.CANCELLED
            elif self._status == Status.FINALIZING:
                ends_as = Status.COMPLETED  # what it really is stands in its row
            if ends_as and self._status:
                await asyncio.to_thread(services.finalize, self.work, ends_as, self._problem)
            if keeping.done():
                keeping.result()  # raises why nothing is stored
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            for pool, account in self._counted:
                self._room.of(pool).accounts -= Counter([account])
            if self._file is not None:
                self._file.close()

    async def _lines_through(self) -> str:
        """Runs what has no result yet. How the batch ends; empty: it does not end here."""
        done = await asyncio.to_thread(services.done_lines, self.work)
        try:
            self._file = await asyncio.to_thread(services.open_input, self.work)
        except OSError:
            self._problem = {"code": "missing_file", "line": None, "message": "The input file cannot be read."}
            return Status.CANCELLED
        self._lines = read(self._file, self._gateway.config.max_body_bytes, without=done)
        ends_as = ""
        while self._status == Status.IN_PROGRESS and not self._ending() and self._problem is None:
            if time.time() >= self.work.expires_at.timestamp():
                ends_as = Status.EXPIRED
                break
            if not self._pending and not self._read_all:
                await asyncio.to_thread(self._read)
            if not self._pending and not self._running and self._read_all:
                ends_as = Status.COMPLETED
                break
            started = self._start_one()
            if not started:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()
            else:
                await asyncio.sleep(0)
        if self._status == Status.CANCELLING or self._problem is not None:
            ends_as = Status.CANCELLED
        if ends_as in (Status.CANCELLED, Status.EXPIRED):
            for task in self._running:
                task.cancel()
        while self._running and self._status:  # what runs when no more is to be started comes to its end
            await asyncio.wait(self._running, timeout=TICK_S)
        while (self._unstored or self._storing) and self._status:
            self._due.set()
            await asyncio.sleep(TICK_S)
        if not ends_as and self._status == Status.CANCELLING:
            ends_as = Status.CANCELLED
        if not ends_as and self._read_all and not self._pending and self._status == Status.IN_PROGRESS:
            ends_as = Status.COMPLETED
        return ends_as

    def _read(self) -> None:
        size = 0
        for line in self._lines:
            self._pending.append(line)
            size += len(line.body)
            if len(self._pending) >= READ_LINES or size >= READ_BYTES:
                return
        self._read_all = True

    # --- lines

    def _room_of(self, model: str) -> PoolRoom:
        """The room of the pool that serves a line, whose account is looked for there from now on."""
        pool, account = self._gateway.runs_on(self.work.key_id, model)
        room = self._room.of(pool)
        if (pool, account) not in self._counted:
            self._counted.add((pool, account))
            room.accounts[account] += 1
        return room

    def _start_one(self) -> bool:
        loop = asyncio.get_running_loop()
        if not self._pending or len(self._unstored) >= MOST_UNSTORED or not self._gateway.ready:
            return False
        room = self._room_of(self._pending[0].model)
        if not room.may_start(loop.time()) or not self._pace.may_start(loop.time()):
            return False
        line = self._pending.popleft()
        line.runs += 1
        request_id = f"{self.work.prefix}-{line.number}.{line.runs}"
        task = asyncio.create_task(
            self._gateway.run_line(self.work.key_id, self.work.endpoint, line.body, request_id), name=request_id
        )
        self._running[task] = line, room, loop.time()
        self._pace.running += 1
        room.running += 1
        task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[LineAnswer]) -> None:
        line, room, began = self._running.pop(task)
        room.running -= 1
        now = asyncio.get_running_loop().time()
        self._changed.set()
        if task.cancelled():
            self._pace.ended(None, 0.0, now)
            self._pending.appendleft(line)
            return
        if (fault := task.exception()) is not None:
            log.error("a line of batch %s failed here: %r", self.work.public_id, fault)
            answer = LineAnswer(500, Reason.INTERNAL, b"")
        else:
            answer = task.result()
        self._pace.ended(answer, now - began, now)
        if answer.reason in (Reason.NO_KEY, Reason.KEY_REVOKED):  # before it began, or while it ran: the same to people
            self._problem = {
                "code": Reason.KEY_REVOKED.value, "line": None, "param": None,
                "message": "The API key that created this batch is not valid any more.",
            }  # fmt: skip
            self._pending.appendleft(line)
            return
        if answer.may_pass and not answer.waits:
            line.tries += 1
        if answer.waits or (answer.may_pass and line.tries < TRIES):
            self._pending.appendleft(line)
            return
        self._keep_outcome(self._outcome(line, room, answer, task.get_name()))

    def _outcome(self, line: Line, room: PoolRoom, answer: LineAnswer, request_id: str) -> Outcome:
        ok = answer.status == 200
        if not answer.body:
            text = wire.unanswered_line(request_id, line.custom_id, answer.reason.value, "This request was ended.")
            return Outcome(line.number, False, text)
        usage = None
        if ok:
            with suppress(msgspec.DecodeError):
                usage = _answer(answer.body).usage
        text = wire.answered_line(request_id, line.custom_id, answer.status, answer.body)
        if usage is None:
            return Outcome(line.number, ok, text)
        prompt, output = usage.prompt_tokens or usage.input_tokens, usage.completion_tokens or usage.output_tokens
        room.learn(prompt, output)
        return Outcome(line.number, ok, text, prompt, output)

    # --- results

    def _keep_outcome(self, outcome: Outcome) -> None:
        self._unstored.append(outcome)
        self._unstored_bytes += len(outcome.text)
        if len(self._unstored) >= FLUSH_LINES or self._unstored_bytes >= FLUSH_BYTES:
            self._due.set()

    async def _keep(self) -> None:
        """Writes what there is and renews the lease, as long as this runs."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._due.wait()
            self._due.clear()
            unstored, self._unstored, self._unstored_bytes = self._unstored, [], 0
            self._storing = True
            try:
                status = await asyncio.to_thread(services.store, self.work, unstored)
            except (DatabaseError, InterfaceError) as error:
                self._unstored[:0] = unstored
                log.warning("batch %s: results cannot be stored yet (%s)", self.work.public_id, type(error).__name__)
                await asyncio.sleep(FLUSH_S)
                continue
            except asyncio.CancelledError:
                self._unstored[:0] = unstored
                raise
            except Exception:
                self._status = ""  # nobody renews the lease any more: as if it were another's
                self._changed.set()
                raise
            finally:
                self._storing = False
            if self._status:
                self._status = status
            self._changed.set()


class Executor:
    """Works on open batches for a while."""

    def __init__(
        self, gateway: SurplusGateway, holder: str, room: Room, *, most_running: int, stopping: Callable[[], bool],
        budget_s: float = BUDGET_S,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._room = room
        self._holder = holder
        self._most = most_running
        self._stopping = stopping
        self._budget_s = budget_s
        self._paces: dict[str, Pace] = {}
        self._runs: dict[asyncio.Task[None], BatchRun] = {}
        self._began = 0.0

    async def run(self) -> None:
        """Returns when nothing is left to do, the time is over, or the worker stops."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        look_at = 0.0
        self._room.begin()
        watching = asyncio.create_task(self._room.watch(self._gateway.store_of))
        try:
            while True:
                if not self._over() and loop.time() >= look_at:
                    look_at = loop.time() + LOOK_S
                    await self._claim()
                if not self._runs:
                    return
                await asyncio.wait(self._runs, timeout=TICK_S)
                for task in [t for t in self._runs if t.done()]:
                    run = self._runs.pop(task)
                    if (fault := task.exception()) is None:
                        await self._release([run.work])
                    else:  # its lease expires: it is not tried again at once
                        log.error("batch %s: %s; it goes on later", run.work.public_id, fault, exc_info=fault)
                if self._stopping() and self._runs:
                    await asyncio.wait(self._runs, timeout=STOP_S)
                    return
        finally:
            for task in (watching, *self._runs):
                task.cancel()
            await asyncio.gather(watching, *self._runs, return_exceptions=True)
            await self._release([run.work for run in self._runs.values()])

    def _over(self) -> bool:
        """Whether it is time to leave the worker to others. Long lines get longer, so that their ends cost less."""
        if self._stopping():
            return True
        line_s = max((pace.line_s for pace in self._paces.values()), default=0.0)
        budget_s = min(LONGEST_BUDGET_S, max(self._budget_s, LINES_PER_BUDGET * line_s))
        return asyncio.get_running_loop().time() - self._began >= budget_s

    async def _claim(self) -> None:
        for work in await asyncio.to_thread(services.claim, self._holder):
            pace = self._paces.setdefault(work.entitlement, Pace(self._most))
            run = BatchRun(work, self._gateway, pace, self._room, self._over)
            self._runs[asyncio.create_task(run.run(), name=work.public_id)] = run

    async def _release(self, works: list[Work]) -> None:
        try:
            await asyncio.to_thread(services.release, works)
        except (DatabaseError, InterfaceError) as error:
            log.warning("leases of batches could not be given back (%s); they expire", type(error).__name__)
