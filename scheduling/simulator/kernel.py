"""Virtual time: exact, ordered, and random only where a stream is named.

Time is a whole number of femtoseconds since the start. Sums of integers do not depend on the order in which they are
made, so a jump over a thousand engine steps ends on exactly the instant that a thousand single steps end on; with
floating point it would not. Events of one instant come by rank, then in the order they were posted.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import Any, NamedTuple

FS = 10**15  # femtoseconds per second
NEVER = 1 << 100  # later than everything


def to_fs(seconds: float) -> int:
    """Seconds as femtoseconds, rounded to the nearest."""
    return round(seconds * FS)


def to_s(instant_fs: int) -> float:
    """Femtoseconds as seconds."""
    return instant_fs / FS


def rng(seed: int, stream: str) -> random.Random:
    """The random numbers of one purpose ("arrivals", "lengths"): what one stream draws never shifts another."""
    return random.Random(f"{seed}/{stream}")


class Event(NamedTuple):
    """Something that happens at an instant. ``what`` is never compared: ``number`` is unique."""

    at_fs: int
    rank: int
    number: int
    what: Any


class Kernel:
    """The heap of what is still to happen."""

    def __init__(self) -> None:
        self.now_fs = 0
        self._events: list[Event] = []
        self._posted = 0

    def __len__(self) -> int:
        return len(self._events)

    def post(self, at_fs: int, rank: int, what: Any) -> None:
        """Adds an event. Raises ValueError for one in the past: the order would no longer be the order of time."""
        if at_fs < self.now_fs:
            raise ValueError(f"an event at {at_fs} fs cannot be posted at {self.now_fs} fs")
        heappush(self._events, Event(at_fs, rank, self._posted, what))
        self._posted += 1

    def next_fs(self) -> int:
        """When the next event happens; NEVER when there is none."""
        return self._events[0].at_fs if self._events else NEVER

    def more_now(self, before: int) -> bool:
        """Whether another event of a rank below ``before`` happens at this very instant."""
        events = self._events
        return bool(events) and events[0].at_fs == self.now_fs and events[0].rank < before

    def pop(self) -> Event:
        """The next event; the clock goes there. Raises IndexError when there is none."""
        event = heappop(self._events)
        self.now_fs = event.at_fs
        return event
