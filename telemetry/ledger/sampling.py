"""An even sample of a time that holds more requests than are read at once: the same share of each of its parts.

The time is cut into :data:`PARTS`, and of each its middle is read: a share of the time is the same share of the
requests, so that counts are divided by it and percentiles need no weights. Every read is bounded, whatever the ledger
holds, and goes through the index of what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet

from telemetry.models import LedgerEntry

PARTS = 60  # as many as a heat map has columns: each has its share
PROBE = 5000  # rows that are looked at to learn how many there are
CANDIDATES = 100_000  # rows that are looked at where no index names those that fit
Window = tuple[datetime, datetime]
# Stand for a window's ends while its statement is made; no request was received then.
_BEGIN, _END = (datetime(1971, 1, 1, 0, 0, 0, moment, tzinfo=UTC) for moment in (1, 2))


@dataclass(frozen=True, slots=True)
class Span:
    """A time that was asked for, and until when it has passed."""

    begin: datetime
    end: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a bounded search comes: back to ``at`` it looks at ``rows``; ``alone``: all that it looks at fit."""

    at: datetime
    rows: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    share: float  # of the time and of the requests
    windows: tuple[Window, ...]


def sample(rows: QuerySet[LedgerEntry], reach: Reach, time: Span, most: int) -> Sample | None:
    """How to read about ``most`` of the rows of a time; None where what fits is so rare that the newest are better.

    ``rows`` are of all times: beside another bound of the same column, SQLite would search each window from that one.
    """
    passed = (time.until - time.begin).total_seconds()
    seen = (time.until - reach.at).total_seconds()
    if not 0 < seen < passed:
        return None
    all_rows = reach.rows * passed / seen
    probed = min(1.0, PROBE / all_rows)
    counted = _count(rows, windows(time, probed), 8 * most)
    fitting = counted / probed
    if not counted or (not reach.alone and fitting * seen / passed < most):
        return None
    share = min(most / fitting, 1.0 if reach.alone else CANDIDATES / all_rows)
    return None if share >= 1.0 else Sample(share, windows(time, share))


def windows(time: Span, share: float) -> tuple[Window, ...]:
    """The middle of each part of a time, so long that together they are a share of it."""
    part = (time.end - time.begin) / PARTS
    margin = part * ((1 - share) / 2)
    begins = (time.begin + part * i for i in range(PARTS))
    return tuple((begin + margin, begin + part - margin) for begin in begins if begin < time.until)


def read(rows: QuerySet[LedgerEntry, Any]) -> list[tuple[Any, ...]]:
    """The rows as the database gives them: of 20,000, the ORM's converters alone cost a third of the time."""
    statement = _statement(rows)
    return [] if statement is None else _fetched(rows, *statement)


def read_windows(rows: QuerySet[LedgerEntry, Any], wanted: Sequence[Window], most: int) -> list[tuple[Any, ...]]:
    """The rows of all windows, at most so many."""
    statement = _of_windows(rows, wanted)
    if statement is None:
        return []
    sql, values = statement
    return _fetched(rows, f"{sql} LIMIT {most:d}", values)


def _count(rows: QuerySet[LedgerEntry], wanted: Sequence[Window], most: int) -> int:
    statement = _of_windows(rows.values_list("received_at"), wanted)
    if statement is None:
        return 0
    sql, values = statement
    counted = f"SELECT COUNT(*) FROM ({sql} LIMIT {most:d}) AS found"  # noqa: S608 made by the ORM
    return int(_fetched(rows, counted, values)[0][0])


def _of_windows(rows: QuerySet[LedgerEntry, Any], wanted: Sequence[Window]) -> tuple[str, list[Any]] | None:
    """One statement over all windows, made once: a query of the ORM for each costs as much as reading it."""
    statement = _statement(rows.order_by().filter(received_at__gte=_BEGIN, received_at__lt=_END))
    if statement is None:
        return None
    sql, values = statement
    adapt = connections[rows.db].ops.adapt_datetimefield_value
    begin, end = adapt(_BEGIN), adapt(_END)
    filled: list[Any] = []
    for since, until in wanted:
        filled += [adapt(since) if value == begin else adapt(until) if value == end else value for value in values]
    return " UNION ALL ".join([sql] * len(wanted)), filled


def _statement(rows: QuerySet[LedgerEntry, Any]) -> tuple[str, list[Any]] | None:
    """None: nothing can fit."""
    try:
        sql, values = rows.query.get_compiler(using=rows.db).as_sql()
    except EmptyResultSet:
        return None
    return sql, list(values)


def _fetched(rows: QuerySet[LedgerEntry, Any], sql: str, values: list[Any]) -> list[tuple[Any, ...]]:
    with connections[rows.db].cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def span_of(between: tuple[datetime | None, datetime | None], now: datetime) -> Span | None:
    """The time that was asked for; None where it has no beginning, or has not begun."""
    begin, end = between
    if begin is None:
        return None
    until = now if end is None else min(end, now)
    if until <= begin:
        return None
    return Span(begin, until if end is None or end - until > until - begin else end, until)
