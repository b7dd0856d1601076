"""An alert as an incident: what happened around it, whom it hurt, whose load had grown, and what can be done.

From rows that exist: events, the ledger, the alert. What went before is shown as having gone before; that it was the
cause is said only of what the rule itself names (a replica's state).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Q, QuerySet
from django.utils import timezone

from scheduling.core.outcomes import Outcome
from telemetry.alerts.leaderless import NO_REDIS, REFUSED
from telemetry.models import Alert, LedgerEntry, RuleKind

Json = dict[str, Any]

BEFORE = timedelta(minutes=15)
AFTER = timedelta(minutes=5)
LONGEST = timedelta(hours=6)  # of an incident's effect, from its beginning: what is read has to be bounded
IN_FLIGHT = timedelta(hours=1)  # for which a request may have been under way when it began
FOUND_OUT = timedelta(seconds=20)  # within which it is that a replica stands still
COMPARED = timedelta(minutes=5)  # load just before, against the half hour before that
LEAST_KNOWN_MIN = 5.0  # of that half hour the ledger has at least so much, or what was usual is not known
MAX_TENANTS = 12
_OF_BACKEND = (RuleKind.BACKEND, RuleKind.ENGINE_QUEUE, RuleKind.KV_CACHE, RuleKind.GPU)


@dataclass(frozen=True, slots=True)
class Span:
    """What an incident covers: from when its condition began to hold, to its end or now."""

    began: datetime
    until: datetime
    whole: bool  # False: it lasted longer than is summed up


def span(alert: Alert) -> Span:
    held_s = alert.rule.for_s if alert.rule else 0
    began = alert.began_at or alert.at - timedelta(seconds=held_s)
    until = alert.resolved_at or timezone.now()
    return Span(began, min(until, began + LONGEST), until <= began + LONGEST)


def effect(alert: Alert) -> Json:
    """By tenant: asked, refused, failed, late; and the same over all. Of requests that waited, ran or were refused
    while it lasted."""
    over = span(alert)
    earlier = over.began - IN_FLIGHT
    ended = Q(done_at__gte=over.began)
    if alert.kind == RuleKind.BACKEND:  # what it lost before it was found out
        ended |= Q(done_at__gte=over.began - FOUND_OUT, outcome=Outcome.FAILED, backend=alert.subject)
    rows = _rows(alert).filter(ended, received_at__gte=earlier, received_at__lte=over.until)
    counted = (
        rows.order_by()
        .values("tenant")
        .annotate(
            requests=Count("id"),
            refused=Count("id", filter=Q(outcome=Outcome.REFUSED)),
            failed=Count("id", filter=Q(outcome=Outcome.FAILED)),
            late=Count("id", filter=Q(slo_met=False)),
            waited=Count("id", filter=Q(queued_at__isnull=False)),
        )
    )
    tenants: list[Json] = [dict(row) for row in counted]
    tenants.sort(key=lambda row: (-(row["refused"] + row["failed"] + row["late"]), row["tenant"]))
    names = ("requests", "refused", "failed", "late", "waited")
    return {
        "from": over.began,
        "to": over.until,
        "whole": over.whole,
        "total": {name: sum(row[name] for row in tenants) for name in names},
        "tenants": tenants[:MAX_TENANTS],
        "more_tenants": max(0, len(tenants) - MAX_TENANTS),
    }


def load(alert: Alert) -> list[Json]:
    """Tenants whose requests per minute grew before it began, the most first: in the five minutes before, and in the
    half hour before those, or what the ledger has of it (None: too little, so it is not known)."""
    began = span(alert).began
    recent, earlier = began - COMPARED, began - COMPARED - timedelta(minutes=30)
    rows = LedgerEntry.objects.filter(received_at__gte=earlier, received_at__lt=began)
    if alert.pool:
        rows = rows.filter(pool=alert.pool)
    counted = (
        rows.order_by()
        .values("tenant")
        .annotate(now=Count("id", filter=Q(received_at__gte=recent)), all=Count("id"), longest=Max("input_tokens"))
    )
    grown, tenants = [], list(counted)
    oldest = LedgerEntry.objects.order_by("received_at").values_list("received_at", flat=True).first() or recent
    known_min = (recent - max(earlier, oldest)).total_seconds() / 60
    measured = known_min >= LEAST_KNOWN_MIN
    for row in tenants:
        now, before = row["now"] / 5, (row["all"] - row["now"]) / known_min if measured else 0.0
        if now > 1.5 * before and row["now"] >= 5:
            grown.append(
                {
                    "tenant": row["tenant"],
                    "per_minute": round(now, 2),
                    "before": round(before, 2) if measured else None,
                    "longest_prompt": row["longest"],
                }
            )
    return sorted(grown, key=lambda row: (row["before"] or 0.0) - row["per_minute"])[:MAX_TENANTS]


def replica(alert: Alert) -> str:
    """The replica that it names; empty where it names none."""
    return alert.subject if alert.kind in _OF_BACKEND else ""


def actions(alert: Alert, hurt: Json, grown: list[Json]) -> list[Json]:
    """Possible actions, the most likely first: ``do`` names a button of the console, ``of`` its object."""
    choices: list[Json] = []

    def add(do: str, text: str, of: str = "") -> None:
        choices.append({"do": do, "of": of, "text": text})

    named = replica(alert)
    if alert.kind == RuleKind.BACKEND:
        add("backend", f"See why {named} is out; it returns by itself once it answers.", named)
        add("scale", "Add a replica while it is away.", alert.pool)
    if alert.kind == RuleKind.GPU:
        add("scale", "Add a replica if requests wait as well; busy GPUs without a queue are well used.", alert.pool)
    if alert.kind in (RuleKind.ENGINE_QUEUE, RuleKind.KV_CACHE):
        add("drain", f"Take {named} out of service: running requests finish, new ones go elsewhere.", named)
        add("credit", "Limit prompt tokens inside the engine by the pool's prefill credit.", alert.pool)
    if alert.kind in (RuleKind.QUEUE, RuleKind.TTFT, RuleKind.SLO, RuleKind.REFUSALS):
        for row in [row for row in grown if row["before"] is not None][:2]:
            times = row["per_minute"] / row["before"] if row["before"] else None
            how = f"{times:.1f} times as many requests as before" if times else "many requests after none"
            add("pause", f"{row['tenant']} sent {how}: pause it, or lower its share.", row["tenant"])
        add("queue", "See who waits and in which order they will run.", alert.pool)
        add("scale", "Add a replica.", alert.pool)
        add("policy", "Try another policy on the pool's recent traffic before it goes live.", alert.pool)
    if alert.kind == RuleKind.DEBT:
        add("entitlements", "Compare the entitlement's share with what it asks for.", alert.tenant)
    if alert.kind in (RuleKind.QUOTA, RuleKind.COST) or alert.kind.startswith("quota_"):
        add("quotas", "Raise the tenant's quota, or tell its owner.", alert.tenant)
    if alert.kind.startswith("budget_"):
        add("budgets", "Raise the budget, or tell its owner.", alert.tenant)
    if alert.kind == RuleKind.FAILURES:
        add("failed", "See which requests failed and on which replica.", alert.pool)
    if alert.kind == RuleKind.NO_LEADER and alert.value == NO_REDIS:
        add("redis", "Start Redis, or restore the connection to it; the pool is led again by itself.", alert.pool)
    elif alert.kind == RuleKind.NO_LEADER and alert.value == REFUSED:
        add(
            "redis",
            "Give Redis what it lacks (memory, disk, replicas, its user's rights); /readyz has its words, and "
            "requests are served again by themselves.",
            alert.pool,
        )
    elif alert.kind == RuleKind.NO_LEADER:
        add("workers", "Start a worker process: the next one to start leads the pool.", alert.pool)
    if alert.kind == "scaling_failed":
        add("scale", "See what the scaling driver answered.", alert.pool)
    if hurt["total"]["refused"]:
        add("refused", "See who was refused and why.", alert.pool)
    return choices


def _rows(alert: Alert) -> QuerySet[LedgerEntry]:
    rows = LedgerEntry.objects.all()
    if alert.pool:
        rows = rows.filter(pool=alert.pool)
    if alert.tenant:
        rows = rows.filter(tenant=alert.tenant)
    # What it ran, and what was turned away meanwhile. One that is out runs nothing: it is missing to all of its pool.
    if alert.kind != RuleKind.BACKEND and (named := replica(alert)):
        rows = rows.filter(Q(backend=named) | Q(outcome=Outcome.REFUSED))
    return rows
