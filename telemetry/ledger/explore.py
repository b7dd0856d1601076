"""Requests summed up: how many have each value of a filter, and percentiles of their durations by group.

Exact over the newest :data:`MOST_READ` requests that fit; with more, or where the search ended before, the answer tells
from when on it holds. Of a time that was asked for and that holds more, an even sample is read instead, and the answer
tells its share (``sampling.py``). Percentiles are those of measurements (``scheduling/core/percentiles.py``): values
that occurred.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from scheduling.core.outcomes import Reason
from scheduling.core.percentiles import nearest_rank
from telemetry.ledger import over_time, sampling
from telemetry.ledger.sampling import Reach
from telemetry.ledger.selectors import tokens_unknown
from telemetry.ledger.spans import SPANS, Epoch
from telemetry.models import LedgerEntry

MOST_READ = 20_000
MAX_VALUES = 20  # of a facet, and groups of the table
GROUPS = {
    "tenant": "tenant", "tier": "tier", "outcome": "outcome", "reason": "reason", "pool": "pool", "key": "key_id",
    "entitlement": "entitlement", "backend": "backend", "user": "user",
}  # fmt: skip
LARGEST_ROWS = 200  # rows of a list in another order than that of time
ORDERS = (*SPANS, "input_tokens", "output_tokens")
TIME_BINS = 60  # of a heat map
# Upper bounds of its other axis [s]; the last row is open. Steps of 1, 2, 5, as people read durations.
LEVELS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
CHUNK = 2000
# Where things run, and for whom, is no business of tenants.
OPERATORS_ONLY = ("gateway", "backend", "interruptions", "ran_before_s")
# What a file of requests has: all who may see a request may see these, but for what is the operators'.
EXPORTED = (
    "request_id", "received_at", "queued_at", "granted_at", "first_token_at", "done_at", "waited_s", "ttft_s",
    "total_s", "tenant", "tier", "entitlement", "key_id", "pool", "model", "backend", "outcome", "reason", "status",
    "streamed", "attempts", "policy", "input_tokens_est", "output_tokens_est", "output_bound", "input_tokens",
    "output_tokens", "ttft_slo_s", "tbt_slo_s", "ttlt_slo_s", "slo_met", "category", "interruptions",
    "sequences", "ran_before_s", "client_retry",
)  # fmt: skip
SORTS = ("requests", "waited_p95", "ttft_p95", "total_p95")

Json = dict[str, Any]


def _with_spans(rows: QuerySet[LedgerEntry], searched_to: datetime | None) -> QuerySet[LedgerEntry]:
    """The newest first, with their durations as ``waited_s``, ``ttft_s`` and ``total_s``."""
    if searched_to is not None:
        rows = rows.filter(received_at__gte=searched_to)
    return rows.annotate(**{f"{name}_s": span for name, span in SPANS.items()}).order_by("-received_at", "-id")


def largest(rows: QuerySet[LedgerEntry], by: str, searched_to: datetime | None) -> tuple[list[int], datetime | None]:
    """Ids of the :data:`LARGEST_ROWS` rows by one of :data:`ORDERS`, and from when on that holds (None: for all)."""
    column = f"{by}_s" if by in SPANS else by
    read = sampling.read(_with_spans(rows, searched_to).values_list("id", column)[: MOST_READ + 1])
    if len(read) > MOST_READ:
        last = LedgerEntry.objects.filter(id=read[MOST_READ - 1][0])
        searched_to = last.values_list("received_at", flat=True).first() or searched_to
    measured = [(value, number) for number, value in read[:MOST_READ] if value is not None]
    measured.sort(reverse=True)
    return [number for _, number in measured[:LARGEST_ROWS]], searched_to


def exported(
    rows: QuerySet[LedgerEntry], searched_to: datetime | None, operator: bool
) -> tuple[list[str], Iterator[list[tuple[Any, ...]]], datetime | None]:
    """The columns, the newest :data:`MOST_READ` rows in chunks, and from when on that is all (None: it is)."""
    columns = [name for name in EXPORTED if operator or name not in OPERATORS_ONLY]
    newest = _with_spans(rows, searched_to)
    beyond = newest.values_list("received_at", flat=True)[MOST_READ : MOST_READ + 1].first()
    return columns, _chunks(newest, columns), searched_to if beyond is None else beyond


def _chunks(newest: QuerySet[LedgerEntry], columns: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
    place, left = newest, MOST_READ
    while left > 0:
        read = list(place.values_list(*columns, "received_at", "id")[: min(CHUNK, left)])
        if not read:
            return
        yield [_known(row[:-2], columns) for row in read]
        left -= len(read)
        *_, at, number = read[-1]
        place = newest.filter(Q(received_at__lt=at) | Q(received_at=at, id__lt=number))


def _known(row: tuple[Any, ...], columns: Sequence[str]) -> tuple[Any, ...]:
    """With nothing in the place of tokens that nobody knows."""
    if row[columns.index("reason")] != Reason.GATEWAY_LOST:
        return row
    given = dict(zip(columns, row, strict=True))
    if tokens_unknown(given["reason"], given["granted_at"], given["output_tokens"]):
        given |= {"input_tokens": given["input_tokens"] or None, "output_tokens": None}  # None: of older releases
    return tuple(given.values())


def explored(
    rows: QuerySet[LedgerEntry],
    group_by: str,
    sort: str,
    reach: Reach | None,
    operator: bool,
    heat: str = "ttft",
    between: tuple[datetime | None, datetime | None] = (None, None),
    over_time_of: QuerySet[LedgerEntry] | None = None,
) -> Json:
    """The figures of the explorer. ``rows``: requests that match, at any time; ``between``: the chosen period;
    ``reach``: how far back of it can be searched, None: to its beginning; ``heat``: the duration that the heat map
    shows; ``over_time_of``: adds figures over time, from all rows that the viewer may see (before the first of them
    nothing is known).

    Raises:
        KeyError: ``group_by`` is not in :data:`GROUPS`.
    """
    facets = {name: column for name, column in GROUPS.items() if operator or name != "backend"}
    more = {} if over_time_of is None else over_time.COLUMNS
    names = (*facets, "received_s", *SPANS, *more)
    # Moments as numbers: a driver's datetime of each row costs more than all that is done with it here.
    searched_to = None if reach is None else reach.at
    ever = _with_spans(rows, None).annotate(received_s=Epoch(F("received_at")))
    ever = ever.annotate(**{f"of_{name}": F(what) if isinstance(what, str) else what for name, what in more.items()})
    fields = ever.values_list(
        *facets.values(), "received_s", *(f"{name}_s" for name in SPANS), *(f"of_{name}" for name in more)
    )
    time = sampling.span_of(between, timezone.now())
    some = None if time is None else _sample(_within(rows, between, None), rows, reach, time)
    if some is None:
        share, read = 1.0, sampling.read(_within(fields, between, searched_to)[: MOST_READ + 1])
        whole = len(read) <= MOST_READ
        read = read[:MOST_READ]
    else:
        share, read, whole, searched_to = (
            some.share,
            sampling.read_windows(fields, some.windows, 2 * MOST_READ),
            True,
            None,
        )
        if len(read) > MOST_READ:  # there were more than it seemed; every other one is as even
            share, read = share / 2, read[::2]
        read.sort(key=itemgetter(names.index("received_s")), reverse=True)
    # By column, so that counting is one call for all rows instead of one for each.
    column = dict(zip(names, zip(*read, strict=True), strict=True)) if read else dict.fromkeys(names, ())
    sizes = Counter(column[group_by])
    measured = {span: _by_group(column[group_by], column[span]) for span in SPANS}
    table = [
        _group(key, round(n / share), {span: measures.get(key, []) for span, measures in measured.items()})
        for key, n in sizes.items()
    ]
    table.sort(key=lambda line: (-(line[sort] or 0), line["name"]))
    if not whole:
        searched_to = datetime.fromtimestamp(column["received_s"][-1], UTC)
    answer = {
        "requests": round(len(read) / share),
        "searched_to": None if searched_to is None else searched_to.isoformat(),
        "share": round(share, 6),
        "facets": {
            name: [
                {"value": value, "requests": round(n / share)}
                for value, n in Counter(column[name]).most_common(MAX_VALUES)
            ]
            for name in facets
        },
        "groups": table[:MAX_VALUES],
        "heat": _heat(heat, column["received_s"], column[heat], between, share),
        "over_time": None,
    }
    if over_time_of is not None and time is not None:
        since = time.begin if searched_to is None else searched_to
        answer["over_time"] = over_time.over_time(column, time, since, share, _beginning_s(over_time_of))
    return answer


def _beginning_s(seen: QuerySet[LedgerEntry]) -> float:
    """When the oldest of these requests came: before it nothing is known, rather than none came. Of the viewer's own
    tenants: the first request of another one is not theirs to know."""
    oldest = seen.order_by("received_at").values_list("received_at", flat=True).first()
    return math.inf if oldest is None else oldest.timestamp()


def _within(
    rows: QuerySet[LedgerEntry, Any], between: tuple[datetime | None, datetime | None], searched_to: datetime | None
) -> QuerySet[LedgerEntry, Any]:
    begins = [moment for moment in (between[0], searched_to) if moment is not None]
    if begins:
        rows = rows.filter(received_at__gte=max(begins))
    return rows if between[1] is None else rows.filter(received_at__lt=between[1])


def _sample(
    fitting: QuerySet[LedgerEntry], ever: QuerySet[LedgerEntry], reach: Reach | None, time: sampling.Span
) -> sampling.Sample | None:
    """What stands for the requests of a time, where these are more than are read."""
    if reach is None:  # whatever is looked at fits
        last = fitting.order_by("-received_at").values_list("received_at", flat=True)[MOST_READ : MOST_READ + 1].first()
        if last is None:
            return None
        reach = Reach(last, MOST_READ, alone=True)
    return sampling.sample(ever, reach, time, MOST_READ)


def _by_group(keys: Sequence[str], values: Sequence[float | None]) -> dict[str, list[float]]:
    by_group: defaultdict[str, list[float]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            by_group[key].append(value)
    return by_group


def _heat(
    measure: str,
    received_s: Sequence[float],
    values: Sequence[float | None],
    between: tuple[datetime | None, datetime | None],
    share: float,
) -> Json:
    """How many requests lie in each cell of time and duration, the newest first."""
    shown = {"measure": measure, "levels_s": list(LEVELS_S), "bins": TIME_BINS, "from": None, "to": None, "cells": []}
    if not received_s:
        return shown
    # The whole time asked for where it was read whole; else what was read.
    first, last = received_s[-1], received_s[0]
    if between[0] is not None:
        first = min(first, between[0].timestamp())
    if between[1] is not None:
        last = max(last, between[1].timestamp())
    step_s = max((last - first) / TIME_BINS, 1e-3)
    most = TIME_BINS - 1
    cells = Counter(
        (min(most, int((at_s - first) / step_s)), bisect_right(LEVELS_S, value))
        for at_s, value in zip(received_s, values, strict=True)
        if value is not None
    )
    return shown | {
        "from": round(first, 3),
        "to": round(first + step_s * TIME_BINS, 3),
        "cells": [[column, level, round(n / share)] for (column, level), n in sorted(cells.items())],
    }


def _group(name: str, requests: int, measured: Mapping[str, list[float]]) -> Json:
    line: Json = {"name": name, "requests": requests}
    for span, values in measured.items():
        for percent in (50, 95):
            value = nearest_rank(values, percent / 100)
            line[f"{span}_p{percent}"] = None if value is None else round(value, 3)
    return line
