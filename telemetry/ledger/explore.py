"""Requests summed up: how many have each value of a filter, and percentiles of their durations by group.

Exact over the newest :data:`MOST` requests that fit; with more, or where the search ended before, the answer tells from
when on it holds. Percentiles are those of measurements (``scheduling/core/percentiles.py``): values that occurred.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from scheduling.core.percentiles import nearest_rank
from telemetry.ledger.spans import SPANS
from telemetry.models import LedgerEntry

MOST = 20_000
MAX_VALUES = 20  # of a facet, and groups of the table
GROUPS = {
    "tenant": "tenant", "tier": "tier", "outcome": "outcome", "reason": "reason", "pool": "pool", "key": "key_id",
    "entitlement": "entitlement", "backend": "backend", "user": "user",
}  # fmt: skip
SORTS = ("requests", "waited_p95", "ttft_p95", "total_p95")

Json = dict[str, Any]


def explored(
    rows: QuerySet[LedgerEntry], group_by: str, sort: str, searched_to: datetime | None, operator: bool
) -> Json:
    """``rows``: those that fit. ``searched_to``: older ones are not looked at; None: all are.

    Raises:
        KeyError: ``group_by`` is not in :data:`GROUPS`.
    """
    if searched_to is not None:
        rows = rows.filter(received_at__gte=searched_to)
    facets = {name: column for name, column in GROUPS.items() if operator or name != "backend"}
    columns = [*facets.values(), "received_at", *(f"{name}_s" for name in SPANS)]
    spans = {f"{name}_s": span for name, span in SPANS.items()}
    newest = rows.annotate(**spans).order_by("-received_at", "-id").values_list(*columns)[: MOST + 1]
    read = list(newest)
    whole = len(read) <= MOST
    read = read[:MOST]
    counts: dict[str, Counter[str]] = {name: Counter() for name in facets}
    groups: dict[str, tuple[list[float], ...]] = {}
    names, wanted = list(facets), list(facets).index(group_by)
    sizes: Counter[str] = Counter()
    for row in read:
        for place, name in enumerate(names):
            counts[name][row[place]] += 1
        key = row[wanted]
        sizes[key] += 1
        measured = groups.setdefault(key, tuple([] for _ in SPANS))
        for values, value in zip(measured, row[-len(SPANS) :], strict=True):
            if value is not None:
                values.append(value)
    table = [_group(key, sizes[key], measured) for key, measured in groups.items()]
    table.sort(key=lambda line: (-(line[sort] or 0), line["name"]))
    if not whole:
        searched_to = read[-1][len(names)]
    return {
        "requests": len(read),
        "searched_to": None if searched_to is None else searched_to.isoformat(),
        "facets": {
            name: [{"value": value, "requests": n} for value, n in counted.most_common(MAX_VALUES)]
            for name, counted in counts.items()
        },
        "groups": table[:MAX_VALUES],
    }


def _group(name: str, requests: int, measured: tuple[list[float], ...]) -> Json:
    line: Json = {"name": name, "requests": requests}
    for span, values in zip(SPANS, measured, strict=True):
        for percent in (50, 95):
            value = nearest_rank(values, percent / 100)
            line[f"{span}_p{percent}"] = None if value is None else round(value, 3)
    return line
