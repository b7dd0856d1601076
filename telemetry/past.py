"""The dashboard's past beyond the 15 minutes of the live store: snapshots added up, in the database, of bounded size.

| step | kept for | at most, per pool |
|---|---|---|
| 10 s | 24 h | 8,640 rows |
| 60 s | 7 days | 10,080 rows |

A pool's leader writes them from the thread that publishes its snapshots; what a leader had not written when it stopped
is missing (at most a minute of the coarse steps, and the finer ones have it). A row holds one point of the history
(``docs/feed.md``), which names at most 50 tenants and entitlements.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db import Error as DatabaseTrouble
from django.db import close_old_connections, connection

from telemetry import history
from telemetry.history import Point
from telemetry.models import PastPoint

log = logging.getLogger(__name__)

KEPT_S = {10: 24 * 3600, 60: 7 * 24 * 3600}  # step -> how long
MOST_POINTS = 1000  # of one answer
STEPS = (1, 10, 20, 60, 120, 300, 600)  # of answers; 1: from the live store
FORGET_EVERY_S = 600.0
_UNWRITTEN = 400  # rows that wait for a database that is away: an hour of one pool


@dataclass(slots=True)
class _Pool:
    """What of one pool is not written yet."""

    open: dict[int, tuple[int, list[Point]]] = field(default_factory=dict)  # step -> (its beginning, points of it)


class Past:
    """Keeps the past of the pools that this process leads. One thread; a database's trouble only delays it."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._unwritten: deque[PastPoint] = deque(maxlen=_UNWRITTEN)
        self._available = True
        self._forgot_s = float("-inf")

    def add(self, snapshot: dict[str, Any]) -> None:
        """Takes a pool's next snapshot. Never raises."""
        try:
            self._add(snapshot)
        except Exception:
            log.exception("a second of the past of pool %s was lost", snapshot.get("pool"))

    def _add(self, snapshot: dict[str, Any]) -> None:
        pool = self._pools.setdefault(snapshot["pool"], _Pool())
        points = [history.point(snapshot)]
        for step in KEPT_S:  # a coarse step is made of finer ones
            points = list(self._step(snapshot["pool"], pool, step, points))
        if self._unwritten:
            self._write()

    def _step(self, name: str, pool: _Pool, step: int, points: list[Point]) -> Iterator[Point]:
        """The steps that end with these points."""
        for point in points:
            begin = int(point["at"] // step * step)
            since, collected = pool.open.get(step, (begin, []))
            if begin != since and collected:
                done = history.merged(collected)
                self._unwritten.append(
                    PastPoint(pool=name, step_s=step, at=since, point=msgspec.json.encode(done).decode())
                )
                yield done
                collected = []
            collected.append(point)
            pool.open[step] = (begin, collected)

    def _write(self) -> None:
        rows = list(self._unwritten)
        own = not connection.in_atomic_block
        if own:
            close_old_connections()
        try:
            PastPoint.objects.bulk_create(
                rows, update_conflicts=True, unique_fields=["pool", "step_s", "at"], update_fields=["point"]
            )
            self._forget(rows[-1].at)
        except DatabaseTrouble as error:
            if own:
                connection.close()
            if self._available:
                log.warning("the dashboard's past cannot be written (%s); it waits", type(error).__name__)
            self._available = False
            return
        self._unwritten.clear()
        self._available = True

    def _forget(self, now_s: float) -> None:
        if now_s - self._forgot_s < FORGET_EVERY_S:
            return
        self._forgot_s = now_s
        forget(now_s)


def forget(now_s: float) -> int:
    """Deletes what is older than it is kept; how many rows."""
    return sum(
        PastPoint.objects.filter(step_s=step, at__lt=int(now_s - kept)).delete()[0] for step, kept in KEPT_S.items()
    )


def step_for(span_s: float) -> int:
    """The finest step [s] at which so much time fits into one answer."""
    return next((step for step in STEPS if span_s / step <= MOST_POINTS), STEPS[-1])


def points(pool: str, since_s: float, until_s: float, step_s: int, now_s: float) -> list[Point]:
    """Stored points of ``[since, until)``, oldest first, merged to ``step_s`` (10 s at the finest).

    What is older than the fine rows are kept comes in steps of a minute.
    """
    stored = max(step for step in KEPT_S if step <= max(step_s, 10))
    if since_s < now_s - KEPT_S[stored]:
        stored = max(KEPT_S)
    rows = PastPoint.objects.filter(pool=pool, step_s=stored, at__gte=int(since_s), at__lt=int(until_s))
    decoded = (msgspec.json.decode(text) for text in rows.order_by("at").values_list("point", flat=True).iterator())
    return history.in_steps(decoded, step_s) if step_s > stored else list(decoded)
