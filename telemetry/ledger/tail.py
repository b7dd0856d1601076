"""The ledger's end, as it grows: the rows that were stored since a place in it, each once.

Rows are followed as they are stored, which is as they end: by the moment at which they came, one that waited ten
minutes would lie far below the newest. A place is the last row's number and how many of the :data:`LATE` numbers up to
it were there: a writer that is still at it holds lower numbers than one that is done, and when its rows appear the
count has grown, so those numbers are read once more. Who reads leaves out what it has.

A member's place and count are of its own tenants' rows alone (``mine``): what others send changes none of its answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import BooleanField, Case, Q, QuerySet, Value, When

from telemetry.ledger import whose
from telemetry.ledger.spans import SPANS
from telemetry.models import LedgerEntry

LATE = 500  # numbers before the last one that may still appear: as many as are written at once
FURTHEST = 20_000  # rows of all tenants that are looked at for those that fit
MOST_ROWS = 200  # rows of one answer: more are not read by anybody while they pass
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


def since(
    fits: Q, place: Place | None, mine: Collection[str] | None = None, former: Mapping[str, datetime] | None = None
) -> Tail:
    """The rows that fit and were stored since; without a place the newest few, to begin with.

    ``fits`` may name durations as ``waited_s``, ``ttft_s`` and ``total_s``. ``mine``: the tenants whose rows may be
    read; None: all; ``former`` as :func:`telemetry.ledger.whose.of` takes it.
    """
    own = Q() if mine is None else whose.of(mine, former, "received_at")
    seen = LedgerEntry.objects.filter(own)
    last = seen.order_by("-id").values_list("id", flat=True).first() or 0
    now = Place(last, _stored(seen, last - LATE, last))
    furthest = last - FURTHEST if mine is None else 0
    if place is None:
        return Tail(_newest(seen, fits, furthest, last, FIRST), now, True)
    if last < place.last:  # another ledger than the one that the place is of
        return Tail([], now, False)
    begin = place.last
    if _stored(seen, begin - LATE, begin) > place.late:
        begin -= LATE
    nearest = max(begin, furthest)
    rows = _newest(seen, fits, nearest, last, MOST_ROWS + 1)
    return Tail(rows[:MOST_ROWS], now, len(rows) <= MOST_ROWS and nearest == begin)


def _stored(seen: QuerySet[LedgerEntry], after: int, last: int) -> int:
    return seen.filter(id__gt=after, id__lte=last).count()


def _newest(seen: QuerySet[LedgerEntry], fits: Q, after: int, last: int, most: int) -> list[LedgerEntry]:
    rows = seen.filter(id__gt=after, id__lte=last)
    if fits:
        # As a value, so that no index of a filter is used: SQLite would read all of a tenant's rows for the newest few.
        holds = Case(When(fits, then=Value(True)), default=Value(False), output_field=BooleanField())
        rows = rows.alias(**{f"{name}_s": span for name, span in SPANS.items()}).filter(holds)
    return list(rows.order_by("-id")[:most])
