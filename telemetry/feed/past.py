"""The dashboard's past beyond the 15 minutes of the live store: snapshots added up, in the database, of bounded size.

| step | kept for | at most, per pool | made of |
|---|---|---|---|
| 10 s | 24 h | 8,640 rows | snapshots |
| 60 s | 7 days | 10,080 rows | snapshots |
| 5 min | 7 days | 2,016 rows | rows of 60 s |
| 30 min | 7 days | 336 rows | rows of 5 min |

So a window of any length is read as a few hundred rows, as they are. A pool's leader writes them from the thread that
publishes its snapshots; what a leader had not written when it stopped is missing (at most a minute of the rows of 60 s,
and the finer ones have it); the coarse rows are made of what is stored, by whoever leads then. A row holds one point of
the history (``docs/reference/feed.md``), which names at most 50 tenants and entitlements.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from django.db import Error as DatabaseTrouble
from django.db import close_old_connections, connection
from django.db.models import QuerySet

from telemetry.feed import history
from telemetry.feed.history import Point
from telemetry.models import PastPoint

log = logging.getLogger(__name__)

_WEEK_S = 7 * 24 * 3600
KEPT_S = {10: 24 * 3600, 60: _WEEK_S, 300: _WEEK_S, 1800: _WEEK_S}  # step -> how long
SEEN = (10, 60)  # steps made while they pass
MADE_OF = {300: 60, 1800: 300}  # step -> of which steps it is made when it is over
MAX_POINTS = 900  # of one answer
STEPS = (1, *KEPT_S)  # of answers; 1: from the live store
_AT_ONCE = 4  # coarse rows made in one go: a second has other things to do
FORGET_EVERY_S = 600.0
_UNWRITTEN = 420  # rows of a pool that wait for a database that is away: an hour
_WRITTEN_AT_ONCE = 200  # after an hour without a database there are thousands


@dataclass(slots=True)
class _Pool:
    """What of one pool is not written yet."""

    open: dict[int, tuple[int, list[Point]]] = field(default_factory=dict)  # step -> (its beginning, points of it)
    made: dict[int, int] = field(default_factory=dict)  # coarse step -> end of the last row of it
    done: deque[PastPoint] = field(default_factory=lambda: deque(maxlen=_UNWRITTEN))


class Past:
    """Keeps the past of the pools that this process leads. One thread; a database's trouble only delays it."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
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
        points = [history.point(snapshot) | history.watched(snapshot)]
        for step in SEEN:  # a minute is made of its steps of ten seconds
            points = list(self._step(snapshot["pool"], pool, step, points))
        if self._write():
            self._condense(snapshot["pool"], pool, int(snapshot["at"]))

    def _step(self, name: str, pool: _Pool, step: int, points: list[Point]) -> Iterator[Point]:
        """The steps that end with these points."""
        for point in points:
            begin = int(point["at"] // step * step)
            since, collected = pool.open.get(step, (begin, []))
            if begin != since and collected:
                done = history.merged(collected)
                pool.done.append(PastPoint(pool=name, step_s=step, at=since, point=msgspec.json.encode(done).decode()))
                yield done
                collected = []
            collected.append(point)
            pool.open[step] = (begin, collected)

    def _write(self) -> bool:
        """Writes what waits, of whichever pool; whether something was written."""
        rows = list(islice((row for pool in self._pools.values() for row in pool.done), _WRITTEN_AT_ONCE))
        if not rows:
            return False
        own = not connection.in_atomic_block
        if own:
            close_old_connections()
        try:
            _store(rows)
            self._forget(rows[-1].at)
        except DatabaseTrouble as error:
            if own:
                connection.close()
            if self._available:
                log.warning("the dashboard's past cannot be written (%s); it waits", type(error).__name__)
            self._available = False
            return False
        for row in rows:
            self._pools[row.pool].done.popleft()
        self._available = True
        return True

    def _condense(self, name: str, pool: _Pool, now: int) -> None:
        """Makes coarse rows of the stored fine ones, a few at a time, from where the last leader was with it."""
        try:
            for step, finer in MADE_OF.items():
                begin = pool.made.get(step)
                if begin is None:
                    last = _rows(name, step).order_by("-at").values_list("at", flat=True).first()
                    begin = 0 if last is None else last + step
                for _ in range(_AT_ONCE):
                    first = _rows(name, finer).filter(at__gte=begin).order_by("at").values_list("at", flat=True).first()
                    # The last of the finer rows is written a little after it is over.
                    if first is None or (begin := first // step * step) + step > now - finer:
                        break
                    parts = _rows(name, finer).filter(at__gte=begin, at__lt=begin + step).order_by("at")
                    done = history.merged([msgspec.json.decode(text) for text in parts.values_list("point", flat=True)])
                    _store([PastPoint(pool=name, step_s=step, at=begin, point=msgspec.json.encode(done).decode())])
                    begin += step
                else:
                    pool.made[step] = begin
                    return  # those that are made of these wait until none is missing
                pool.made[step] = begin
        except DatabaseTrouble as error:
            log.debug("coarse steps of pool %s wait (%s)", name, type(error).__name__)

    def _forget(self, now_s: float) -> None:
        if now_s - self._forgot_s < FORGET_EVERY_S:
            return
        self._forgot_s = now_s
        forget(now_s)


def _rows(pool: str, step_s: int) -> QuerySet[PastPoint]:
    return PastPoint.objects.filter(pool=pool, step_s=step_s)


def _store(rows: list[PastPoint]) -> None:
    PastPoint.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["pool", "step_s", "at"], update_fields=["point"]
    )


def forget(now_s: float) -> int:
    """Deletes what is older than it is kept; how many rows."""
    return sum(
        PastPoint.objects.filter(step_s=step, at__lt=int(now_s - kept)).delete()[0] for step, kept in KEPT_S.items()
    )


def step_for(span_s: float) -> int:
    """The finest step [s] at which so much time fits into one answer."""
    return next((step for step in STEPS if span_s / step <= MAX_POINTS), STEPS[-1])


def points(pool: str, since_s: float, until_s: float, step_s: int, now_s: float) -> list[Point]:
    """Stored points of ``[since, until)``, oldest first, merged to ``step_s`` (10 s at the finest).

    What is older than fine rows are kept comes in steps of a minute; where coarse rows are not made yet, finer ones
    stand for them.
    """
    finest = 10 if since_s >= now_s - KEPT_S[10] else 60
    step_s = max(step_s, finest)
    series: list[Point] = []
    begin = int(since_s)
    for stored in sorted((s for s in KEPT_S if s <= step_s), reverse=True):
        rows = _rows(pool, stored).filter(at__gte=begin, at__lt=int(until_s)).order_by("at")
        read = list(rows.values_list("at", "point"))
        decoded = [msgspec.json.decode(text) for _, text in read]
        series += history.in_steps(decoded, step_s) if step_s > stored else decoded
        if read:
            begin = read[-1][0] + stored
    return series
