"""Reads of the ledger. Callers narrow the rows to a scope first (``telemetry.api``); replay and tests read all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import TruncDay, TruncHour

from scheduling.core.outcomes import Reason
from telemetry.ledger import rollup
from telemetry.models import LedgerEntry

_GROUPS: dict[str, Any] = {
    "pool": F("pool"),
    "tenant": F("tenant"),
    "tier": F("tier"),
    "entitlement": F("entitlement"),
    "key": F("key_id"),
    "outcome": F("outcome"),
    "reason": F("reason"),
    "hour": TruncHour("received_at"),
    "day": TruncDay("received_at"),
}
GROUPS = tuple(_GROUPS)
FIGURES = (
    "requests", "completed", "refused", "failed", "cancelled",
    "input_tokens", "output_tokens", "slo_met", "slo_total",
)  # fmt: skip


def between(since: datetime | None, until: datetime | None) -> QuerySet[LedgerEntry]:
    """Requests received at or after ``since`` and before ``until``."""
    rows = LedgerEntry.objects.all()
    if since is not None:
        rows = rows.filter(received_at__gte=since)
    if until is not None:
        rows = rows.filter(received_at__lt=until)
    return rows


def tokens_unknown(reason: str, granted_at: datetime | None, output_tokens: int) -> bool:
    """Whether nobody knows what a request was answered: it ran, its gateway was lost, and had not told of any token of
    the answer. Its prompt counts as it was estimated."""
    return reason == Reason.GATEWAY_LOST and granted_at is not None and not output_tokens


def id_begins(text: str) -> dict[str, str]:
    """Lookups of the requests whose id begins with this. SQLite uses no index for LIKE and would read all rows; it
    compares texts byte by byte, so that a range says the same. PostgreSQL has an index for LIKE and compares by
    language."""
    if connection.vendor == "sqlite":
        return {"request_id__gte": text, "request_id__lt": text + "\U0010ffff"}
    return {"request_id__startswith": text}


def usage(rows: QuerySet[LedgerEntry], group_by: Sequence[str]) -> QuerySet[LedgerEntry, dict[str, Any]]:
    """One dictionary per group: requests by outcome, tokens, SLO figures; ordered by the groups.

    Raises:
        KeyError: a group that is not in :data:`GROUPS`.
    """
    groups = {f"by_{name}": _GROUPS[name] for name in group_by}
    grouped: QuerySet[LedgerEntry, dict[str, Any]] = (
        rows.order_by()
        .annotate(**groups)
        .values(*groups)
        .annotate(
            **rollup.ENDS,
            input_tokens_sum=Sum(rollup.INPUT, filter=rollup.RAN, default=0),
            output_tokens_sum=Sum(rollup.OUTPUT, filter=rollup.RAN, default=0),
            slo_met_count=Count("id", filter=Q(slo_met=True)),
            slo_total=Count("id", filter=Q(slo_met__isnull=False)),
        )
        .order_by(*groups)
    )
    return grouped


def usage_rows(rows: QuerySet[LedgerEntry], group_by: Sequence[str]) -> Iterator[dict[str, Any]]:
    """:func:`usage` under the names that people and files see."""
    for row in usage(rows, group_by).iterator(chunk_size=2000):
        out: dict[str, Any] = {}
        for name in group_by:
            value = row[f"by_{name}"]
            out[name] = value.isoformat() if isinstance(value, datetime) else value
        for name in ("requests", "completed", "refused", "failed", "cancelled"):
            out[name] = row[name]
        out["input_tokens"] = row["input_tokens_sum"]
        out["output_tokens"] = row["output_tokens_sum"]
        out["slo_met"] = row["slo_met_count"]
        out["slo_total"] = row["slo_total"]
        yield out


def sums(
    since: datetime | None = None, until: datetime | None = None, request_ids: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Totals per tenant, tier, outcome and reason of the requests received in a time range: what replay compares with.

    Args:
        request_ids: only these requests, where the range holds others' traffic too.
    """
    groups = ("tenant", "tier", "outcome", "reason")
    if request_ids is None:
        return list(usage_rows(between(since, until), groups))
    total: dict[tuple[Any, ...], dict[str, Any]] = {}
    wanted = list(request_ids)
    for start in range(0, len(wanted), 500):  # SQLite bounds the variables of a statement
        part = between(since, until).filter(request_id__in=wanted[start : start + 500])
        for row in usage_rows(part, groups):
            kept = total.setdefault(tuple(row[g] for g in groups), dict.fromkeys(row, 0) | {g: row[g] for g in groups})
            for name in row.keys() - set(groups):
                kept[name] += row[name]
    return [total[key] for key in sorted(total)]
