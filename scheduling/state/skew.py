"""How far this process' wall clock is from Redis'. Shown and alarmed; nothing is decided by it
(``docs/internals/state.md``)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from scheduling.state.types import StateError, StateUnavailable

KNOWN_S = 30.0  # older than this it is not known
MAX_WAY_S = 0.5  # there and back: a slower answer says too little


class ClockSkew:
    """``read`` asks Redis for its TIME [epoch s]."""

    def __init__(self, read: Callable[[], Awaitable[float]]) -> None:
        self._read = read
        self._measured: tuple[float, float] | None = None  # when (monotonic), and how far ahead [s]

    async def measure(self) -> None:
        """Reads the clock of Redis once and allows for half of the round trip. Does not raise: without an answer the
        last measurement stands until it is too old."""
        wall_s, began_s = time.time(), time.monotonic()
        try:
            redis_s = await self._read()
        except (StateUnavailable, StateError):
            return
        ended_s = time.monotonic()
        if ended_s - began_s <= MAX_WAY_S:
            self._measured = ended_s, wall_s + (ended_s - began_s) / 2 - redis_s

    @property
    def seconds(self) -> float | None:
        """By how much this process' clock is ahead of Redis' [s]; None: not measured lately."""
        if self._measured is None or time.monotonic() - self._measured[0] > KNOWN_S:
            return None
        return self._measured[1]
