"""The past of what predictions are corrected by, and errors over time: what a drift page draws.

Gateways put up what they have learned (``scheduling/state/history.py``); every few minutes the most taught factors of
each pool are kept, so that a drift that came and went can be seen afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Avg, Count, F, FloatField, Max, Q, QuerySet
from django.db.models.functions import Abs, Cast, TruncDay, TruncHour, TruncMinute
from django.utils import timezone

from telemetry.estimates.drift import DriftStore, DriftUnavailable
from telemetry.models import LearnedFactor, LedgerEntry
from tenants.models import Pool

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=5)
MAX_TENANTS = 100  # of one pool at one moment, by name: whose are kept is not a matter of who sends most
MAX_PER_TENANT = 8  # factors and corrections of each, the most taught
POINTS = 300  # of one factor in one answer
SOURCE = "source"  # the scope of what corrects a predictor's 90 % limit: by tenant, the predictor as category
OF_TENANTS = Q(scope="tenant") | (Q(scope=SOURCE) & ~Q(category=""))  # rows that are about the tenant they name


def keep(store: DriftStore | None = None) -> int:
    """Keeps what the gateways have learned by now, unless it was kept lately; how many factors."""
    now = timezone.now()
    newest = LearnedFactor.objects.aggregate(at=Max("at"))["at"]
    if newest is not None and now - newest < EVERY:
        return 0
    if store is None:
        if not settings.QUARTERMASTER_REDIS_URL:
            return 0
        store = DriftStore(settings.QUARTERMASTER_REDIS_URL)
    try:
        drifts = store.load(Pool.objects.values_list("slug", flat=True))
    except DriftUnavailable as error:
        log.warning("what predictions have learned was not kept: Redis does not answer (%s)", error)
        return 0
    rows = [row for pool, drift in drifts.items() for row in _rows(pool, drift, now)]
    LearnedFactor.objects.bulk_create(rows)
    return len(rows)


def _rows(pool: str, drift: dict[str, Any], at: datetime) -> list[LearnedFactor]:
    rows = [
        LearnedFactor(
            pool=pool, at=at, scope="category", category=c["category"], factor=c["factor"], observed=c["tenants"]
        )
        for c in drift.get("prior", ())
    ]
    for tenant, share in sorted(drift.get("tenants", {}).items())[:MAX_TENANTS]:
        own = [("tenant", f["category"], f) for f in share["factors"]]
        own += [(SOURCE, c["source"], c) for c in share["calibration"]]
        own.sort(key=lambda one: -one[2]["observed"])
        rows += [
            LearnedFactor(
                pool=pool, at=at, scope=scope, name=tenant[:200], category=category, factor=f["factor"],
                observed=f["observed"],
            )
            for scope, category, f in own[:MAX_PER_TENANT]
        ]  # fmt: skip
    return rows


def purge(days: int) -> int:
    """Forgets what is older; how many rows went."""
    return LearnedFactor.objects.filter(at__lt=timezone.now() - timedelta(days=days)).delete()[0]


def factors(rows: QuerySet[LearnedFactor]) -> list[dict[str, Any]]:
    """One line per pool, scope, name and category, the most taught first: ``points`` are [epoch s, factor]."""
    lines: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    columns = ("pool", "scope", "name", "category", "at", "factor", "observed")
    for pool, scope, name, category, at, factor, observed in rows.order_by("at", "id").values_list(*columns):
        line = lines.setdefault(
            (pool, scope, name, category),
            {"pool": pool, "scope": scope, "name": name, "category": category, "observed": 0, "points": []},
        )
        line["observed"] = observed
        line["points"].append([round(at.timestamp()), round(factor, 4)])
    for line in lines.values():
        line["points"] = list(_thinned(line["points"]))
    return sorted(lines.values(), key=lambda row: -row["observed"])


def _thinned(points: list[list[float]]) -> Iterator[list[float]]:
    """At most ``POINTS`` of them, evenly, the newest among them."""
    step = max(1, -(-len(points) // POINTS))
    yield from points[(len(points) - 1) % step :: step]


def steps(since: datetime, until: datetime) -> tuple[str, type[TruncMinute] | type[TruncHour] | type[TruncDay]]:
    """How fine a stretch of time is drawn: by the minute up to three hours, by the hour up to a week, else by day."""
    span = until - since
    if span <= timedelta(hours=3):
        return "minute", TruncMinute
    return ("hour", TruncHour) if span <= timedelta(days=7) else ("day", TruncDay)


def errors(rows: QuerySet[LedgerEntry], since: datetime, until: datetime) -> dict[str, Any]:
    """Judged rows (``telemetry.estimates.drift.judged``) by step of time. ``ratio``: actual to expected tokens, 1 where
    predictions are right on the whole; ``coverage90``: share within the limit of 90 %; ``mae`` [tokens]."""
    name, trunc = steps(since, until)
    off = Cast(F("output_tokens"), FloatField()) - F("output_tokens_est")
    groups: Any = (
        rows.order_by()
        .annotate(step=trunc("received_at"))
        .values("step")
        .annotate(
            requests=Count("id"),
            actual=Avg("output_tokens"),
            expected=Avg("output_tokens_est"),
            mae=Avg(Abs(off)),
            covered=Count("id", filter=Q(output_tokens__lte=F("output_tokens_p90"))),
        )
        .order_by("step")
    )
    points = [
        {
            "at": round(row["step"].timestamp()),
            "requests": row["requests"],
            "ratio": round(row["actual"] / row["expected"], 4) if row["expected"] else None,
            "mae": round(row["mae"], 2),
            "coverage90": round(row["covered"] / row["requests"], 4),
        }
        for row in groups
    ]
    return {"step": name, "points": points}
