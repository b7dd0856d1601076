"""The ledger's end, as it grows: the rows that were stored since a place in it, each once.

Rows are followed as they are stored, which is as they end: by the moment at which they came, one that waited ten
minutes would lie far below the newest. A place is the last row's number and how many of the :data:`LATE` numbers up to
it were there: a writer that is still at it holds lower numbers than one that is done, and when its rows appear the
count has grown, so those numbers are read once more. Who reads leaves out what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import BooleanField, Case, Max, Q, Value, When

from telemetry.ledger.spans import SPANS
from telemetry.models import LedgerEntry

LATE = 500  # numbers before the last one that may still appear: as many as are written at once
FURTHEST = 20_000  # rows that are looked at for those that fit
MOST = 200  # rows of one answer: more are not read by anybody while they pass
FIRST = 50  # rows to begin with


@dataclass(frozen=True, slots=True)
class Place:
    last: int  # number of the newest row that was there
    late: int  # rows there were among the LATE numbers up to it


@dataclass(frozen=True, slots=True)
class Tail:
    rows: list[LedgerEntry]  # the newest first
    place: Place
    whole: bool  # no row that fits was left out since the place that was handed in


def since(fits: Q, place: Place | None) -> Tail:
    """The rows that fit and were stored since; without a place the newest few, to begin with.

    ``fits`` may name durations as ``waited_s``, ``ttft_s`` and ``total_s``.
    """
    last = LedgerEntry.objects.aggregate(last=Max("id"))["last"] or 0
    now = Place(last, _stored(last - LATE, last))
    if place is None:
        return Tail(_newest(fits, last - FURTHEST, last, FIRST), now, True)
    if last < place.last:  # another ledger than the one that the place is of
        return Tail([], now, False)
    begin = place.last
    if _stored(begin - LATE, begin) > place.late:
        begin -= LATE
    nearest = max(begin, last - FURTHEST)
    rows = _newest(fits, nearest, last, MOST + 1)
    return Tail(rows[:MOST], now, len(rows) <= MOST and nearest == begin)


def _stored(after: int, last: int) -> int:
    return LedgerEntry.objects.filter(id__gt=after, id__lte=last).count()


def _newest(fits: Q, after: int, last: int, most: int) -> list[LedgerEntry]:
    rows = LedgerEntry.objects.filter(id__gt=after, id__lte=last)
    if fits:
        # As a value, so that no index of a filter is used: SQLite would read all of a tenant's rows for the newest few.
        holds = Case(When(fits, then=Value(True)), default=Value(False), output_field=BooleanField())
        rows = rows.alias(**{f"{name}_s": span for name, span in SPANS.items()}).filter(holds)
    return list(rows.order_by("-id")[:most])
