"""How long a stream that has begun may send nothing.

Formula: ``idle_s``, and ``most_s`` in all while its replica is ready. A ready replica generates, as its leader sees:
where it sends nothing of this answer, it has preempted it, and goes on when its KV cache has room again.
Inputs: which replicas were ready when this gateway last looked, a few seconds ago. One that hangs is not for long.
Source: ours.
"""

from __future__ import annotations

from collections.abc import Callable

LOOK_S = 1.0  # between two looks at the replica


class Silence:
    """The silences of one stream. Times are of the loop's clock [s]."""

    __slots__ = ("_limit", "_more_s", "_works")

    def __init__(self, idle_s: float, most_s: float, works: Callable[[], bool]) -> None:
        self._more_s = max(0.0, most_s - idle_s)
        self._works = works
        self._limit = (0.0, 0.0)  # that was given last, and the last of that silence

    def limit(self, passed: float) -> float:
        """The next limit of a silence whose limit ``passed`` is over; the same where there is none."""
        given, last = self._limit
        if passed != given:  # it spoke since
            last = passed + self._more_s
        self._limit = (min(last, passed + LOOK_S) if self._works() else passed), last
        return self._limit[0]

    def put_off(self, seconds: float) -> None:
        """The limit was put off by so much, although nothing was said."""
        given, last = self._limit
        self._limit = given + seconds, last + seconds
