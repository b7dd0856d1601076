"""How a request would have fared with another tier: the recorded waits of that tier in its pool in the same minute.

What happened to others then, rather than a replay: a replay of the minute takes longer than a page may, and its own
error is larger than the difference that one more request of a tier makes. Where fewer than :data:`LEAST_GRANTED`
requests of a tier were granted in that minute nothing is said of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from scheduling.core.percentiles import nearest_rank
from telemetry.ledger.spans import SPANS
from telemetry.models import LedgerEntry

Json = dict[str, Any]

AROUND = timedelta(seconds=30)
LEAST_GRANTED = 5
MAX_ROWS = 5_000


def instead(row: LedgerEntry) -> Json:
    """By tier other than its own: how many of that minute, and the median of their wait for a slot and of their time to
    the first token [s]; the shortest wait first. ``unknown``: tiers with too few requests to say."""
    rows = (
        LedgerEntry.objects.filter(pool=row.pool)
        .filter(received_at__gte=row.received_at - AROUND, received_at__lt=row.received_at + AROUND)
        .filter(granted_at__isnull=False)
        .exclude(tier=row.tier)
        .annotate(waited_s=SPANS["waited"], ttft_s=SPANS["ttft"])
        .order_by("-received_at")
        .values_list("tier", "waited_s", "ttft_s")
    )
    waits: dict[str, list[float]] = {}
    firsts: dict[str, list[float]] = {}
    for tier, waited_s, ttft_s in rows[:MAX_ROWS]:
        waits.setdefault(tier, []).append(waited_s or 0.0)
        if ttft_s is not None:
            firsts.setdefault(tier, []).append(ttft_s)
    finished = [
        {
            "tier": tier,
            "requests": len(values),
            "waited_s": round(nearest_rank(values, 0.5) or 0.0, 3),
            "ttft_s": _median(firsts.get(tier, [])),
        }
        for tier, values in waits.items()
        if len(values) >= LEAST_GRANTED
    ]
    finished.sort(key=lambda line: (line["waited_s"], line["tier"]))
    return {
        "seconds": 2 * AROUND.total_seconds(),
        "tiers": finished,
        "unknown": sorted(tier for tier, values in waits.items() if len(values) < LEAST_GRANTED),
    }


def _median(values: list[float]) -> float | None:
    value = nearest_rank(values, 0.5) if len(values) >= LEAST_GRANTED else None
    return None if value is None else round(value, 3)
