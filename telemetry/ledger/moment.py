"""The requests that ran and waited at one moment of the past: from the ledger, so only those that have ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from telemetry.models import LedgerEntry

Json = dict[str, Any]

LONGEST = timedelta(minutes=30)  # what was received so long before is not looked for
MAX_ROWS = 5_000
LISTED = 200
_COLUMNS = (
    "request_id", "tenant", "tier", "backend", "received_at", "queued_at", "granted_at", "first_token_at", "done_at",
    "input_tokens", "input_tokens_est",
)  # fmt: skip


def at_moment(pool: str, at: datetime) -> Json:
    """``rows``: the longest waiting first, then what ran, the earliest granted first. ``whole``: nothing was cut."""
    then = (
        LedgerEntry.objects.filter(pool=pool, received_at__gte=at - LONGEST, received_at__lte=at, done_at__gt=at)
        .filter(Q(granted_at__isnull=False) | Q(queued_at__isnull=False))
        .order_by("received_at", "id")
        .values(*_COLUMNS)
    )
    read = list(then[: MAX_ROWS + 1])
    rows = [line for row in read[:MAX_ROWS] if (line := _line(row, at)) is not None]
    rows.sort(key=lambda line: (line["state"] != "waiting", -line["for_s"]))
    tenants: dict[str, Json] = {}
    for line in rows:
        sums = tenants.setdefault(
            line["tenant"], {"tenant": line["tenant"], "waiting": 0, "running": 0, "prompt_tokens": 0}
        )
        sums["waiting" if line["state"] == "waiting" else "running"] += 1
        if line["state"] == "prefill":
            sums["prompt_tokens"] += line["prompt_tokens"]
    return {
        "pool": pool,
        "at": at,
        "waiting": sum(line["state"] == "waiting" for line in rows),
        "running": sum(line["state"] != "waiting" for line in rows),
        "tenants": sorted(tenants.values(), key=lambda row: (-row["running"] - row["waiting"], row["tenant"])),
        "rows": rows[:LISTED],
        "whole": len(read) <= MAX_ROWS and len(rows) <= LISTED,
    }


def _line(row: Any, at: datetime) -> Json | None:
    granted, first = row["granted_at"], row["first_token_at"]
    if granted is not None and granted <= at:
        state, since = ("decode", first) if first is not None and first <= at else ("prefill", granted)
    elif row["queued_at"] is not None and row["queued_at"] <= at:
        state, since = "waiting", row["queued_at"]
    else:
        return None  # on its way between the two
    return {
        "request_id": row["request_id"],
        "tenant": row["tenant"],
        "tier": row["tier"],
        "backend": row["backend"] if state != "waiting" else "",
        "state": state,
        "for_s": round((at - since).total_seconds(), 3),
        "prompt_tokens": row["input_tokens"] or row["input_tokens_est"],
    }
