"""When a connection to Redis is given up: silence, a call that takes too long, and what is neither. A clock of ours."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from scheduling.state import resp
from scheduling.state.resp import CALL_TIMEOUT_S, PROBE_S, SILENCE_S
from scheduling.state.types import StateUnavailable
from scheduling.state.wire import LOOK_AGAIN_S, NotLetIn, Wire, pack

ASK = pack(("GET", "a"))
ANSWER = b"+OK\r\n"
GRACE_S = LOOK_AGAIN_S  # the loop reads once more before a connection is given up


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """As much of an event loop as a connection uses, in simulated time."""

    def __init__(self) -> None:
        self.now = 100.0
        self._heap: list[tuple[float, int, Handle, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._futures = asyncio.new_event_loop()

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return self._futures.create_future()

    def call_at(self, at: float, what: Callable[..., None], *args: Any) -> Handle:
        handle = Handle()
        heapq.heappush(self._heap, (at, next(self._count), handle, what, args))
        return handle

    def call_later(self, after: float, what: Callable[..., None], *args: Any) -> Handle:
        return self.call_at(self.now + after, what, *args)

    def call_soon(self, what: Callable[..., None], *args: Any) -> Handle:
        return self.call_at(self.now, what, *args)

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            at, _, handle, what, args = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            if not handle.cancelled:
                what(*args)
        self.now = until

    def close(self) -> None:
        self._futures.close()


class Server:
    """The transport of a connection and who is behind it: answers ``after`` so long, or not at all (None)."""

    def __init__(self, clock: Clock, wire: Wire) -> None:
        self.clock, self.wire, self.after = clock, wire, 0.001
        self.stalled_until = 0.0
        self.frozen = False
        self.asked: list[float] = []

    def write(self, data: bytes) -> None:
        for _ in range(data.count(b"*")):
            self.asked.append(self.clock.now)
            if not self.frozen:
                self.clock.call_at(max(self.clock.now + self.after, self.stalled_until), self._answer)

    def _answer(self) -> None:
        if not self.wire.closed and not self.frozen:
            self.wire.data_received(ANSWER)

    def abort(self) -> None:
        """The connection is closed."""


class World:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lost: list[tuple[float, str]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.wire = Wire(CALL_TIMEOUT_S, lambda _, why: self.lost.append((clock.now, why)), silence=SILENCE_S)
        self.server = Server(clock, self.wire)
        self.wire.connection_made(cast(Any, self.server))

    def calls(self, every: float, until: float) -> None:
        def call() -> None:
            self.answers.append(self.wire.send(ASK))
            if self.clock.now + every <= until:
                self.clock.call_later(every, call)

        self.clock.call_soon(call)

    def refused(self) -> list[asyncio.Future[Any]]:
        return [a for a in self.answers if a.done() and isinstance(a.exception(), StateUnavailable)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(resp.asyncio, "get_running_loop", lambda: clock)
    made = World(clock)
    yield made
    for answer in made.answers:
        if answer.done():
            answer.exception()  # asked for, or asyncio says that nobody did
    clock.close()


def test_a_stall_of_three_tenths_of_a_second_fails_nothing(world: World):
    world.calls(0.01, 102.0)
    world.clock.run(101.0)
    world.server.stalled_until = 101.3
    world.clock.run(103.0)
    assert not world.lost
    assert len(world.answers) > 190
    assert all(a.result() == b"OK" for a in world.answers)


def test_a_server_that_is_slow_but_answers_is_kept(world: World):
    world.server.after = 0.45
    world.wire.probe_every(PROBE_S)
    world.calls(0.05, 110.0)
    world.clock.run(112.0)
    assert not world.lost
    assert all(a.result() == b"OK" for a in world.answers)


def test_a_process_that_was_kept_from_running_gives_its_server_as_much_time_again(world: World):
    """A machine without a free processor: it looks 0.15 s late, and the server runs 0.1 s after it."""
    world.calls(0.05, 110.0)
    world.clock.run(101.02)
    late = 101.05 + SILENCE_S + 0.15  # what was due meanwhile is done then
    world.server.stalled_until = late + 0.1
    world.clock.run(101.06)
    world.clock.now = late
    world.clock.run(112.0)
    assert not world.lost
    assert all(a.result() == b"OK" for a in world.answers)


def test_answers_that_flow_keep_a_connection_though_each_takes_longer_than_silence_may(world: World):
    """A server with a queue: its answers come steadily, each 0.8 s after it was asked."""
    for n in range(9):
        world.clock.call_at(100.0 + n / 10, lambda: world.answers.append(world.wire.send(ASK)))
    for n in range(9):  # the server is busy with others, and answers in order
        world.clock.call_at(100.4 + n / 20, lambda: world.wire.data_received(ANSWER))
    world.server.frozen = True  # answers are played above
    world.clock.run(100.85)
    assert not world.lost
    assert not world.refused()


def test_silence_fails_all_that_wait_together(world: World):
    world.calls(0.05, 110.0)
    world.clock.run(101.02)
    world.server.frozen = True
    world.clock.run(110.0)
    ((at, why),) = world.lost
    assert at - 101.02 <= SILENCE_S + 0.05 + GRACE_S, "from the first call that is not answered"
    assert why == f"nothing came back for {SILENCE_S:g} s"
    late = [sent for sent in world.server.asked if sent > 101.02]
    assert 0 < len([sent for sent in late if at - sent > 0.25]) <= 8
    assert len(world.refused()) > len(late), "those that came afterwards as well, at once"


def test_one_call_that_takes_too_long_ends_a_connection_that_is_not_silent(world: World):
    world.server.frozen = True
    world.wire.send(ASK)
    world.wire.send(ASK)
    # pushes of no call keep it from being silent: an answer to the first one in pieces
    for n in range(30):
        world.clock.call_at(100.0 + n / 10, lambda: None if world.wire.closed else world.wire.data_received(b""))
    world.clock.run(103.0)
    ((at, why),) = world.lost
    assert CALL_TIMEOUT_S <= at - 100.0 <= CALL_TIMEOUT_S + GRACE_S + 0.001
    assert why == f"no answer within {CALL_TIMEOUT_S:g} s"


def test_a_connection_that_nobody_uses_notices_that_its_server_has_frozen(world: World):
    world.wire.probe_every(PROBE_S)
    world.clock.run(110.0)
    assert not world.lost
    assert len(world.server.asked) == pytest.approx(10.0 / PROBE_S, abs=2), "asked so often, and no more"
    world.server.frozen = True
    world.clock.run(120.0)
    ((at, _),) = world.lost
    assert at - 110.0 <= PROBE_S + SILENCE_S + GRACE_S
    asked = len(world.server.asked)
    world.clock.run(130.0)
    assert len(world.server.asked) == asked, "a connection that is closed asks nothing"


def test_without_a_probe_nobody_would_know(world: World):
    """The broken variant."""
    world.clock.run(110.0)
    world.server.frozen = True
    world.clock.run(120.0)
    assert not world.lost


def test_of_a_minute_without_redis_less_than_one_request_in_a_hundred_waits_longer_than_a_quarter_of_a_second():
    assert (SILENCE_S + 0.05 - 0.25) / 60 < 0.01
    assert SILENCE_S > 0.3, "a stall of 0.3 s is none that requests must be refused for"


def test_what_a_server_says_before_it_is_asked_and_closes_is_told_to_who_asks(world: World):
    """As to one client too many."""
    world.wire.data_received(b"-ERR max number of clients reached\r\n")
    world.wire.connection_lost(None)
    asked = world.wire.send(ASK).exception()
    assert isinstance(asked, NotLetIn)
    assert str(asked) == "Redis: ERR max number of clients reached"
    assert [why for _, why in world.lost] == ["ERR max number of clients reached"]
