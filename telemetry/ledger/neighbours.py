"""What a wait was spent on: who had the slots meanwhile, and who went first. From the ledger, and what runs now.

A request waits because others run. Those are looked up, not guessed: every request that held a slot of the pool while
it waited, and every one that was granted before it. For operators and admins: members never see who else is there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from django.db.models import QuerySet

from scheduling.core.percentiles import nearest_rank
from telemetry.ledger import prefill
from telemetry.models import LedgerEntry

Json = dict[str, Any]
Span = tuple[float, float]

LONGEST = timedelta(minutes=15)  # what ran this long before somebody began to wait may still run
MAX_WAITS = 2000
MAX_RUNS = 20_000
MAX_STEPS = 60


@dataclass(frozen=True, slots=True)
class Run:
    """A request that held a slot; seconds of the epoch."""

    tenant: str
    received_s: float
    granted_s: float
    done_s: float


class Waited:
    """The time in which at least one of some waits went on."""

    def __init__(self, waits: Iterable[Span]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._all = sorted(waits)
        for start, end in self._all:
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        lengths = (end - start for start, end in zip(self._starts, self._ends, strict=True))
        self._before = [0.0, *accumulate(lengths)]
        self._last_end = list(accumulate((end for _, end in self._all), max))

    @property
    def seconds(self) -> float:
        return self._before[-1]

    def within(self, start: float, end: float) -> float:
        """How much of a span lies in it [s]."""
        return max(0.0, self._until(end) - self._until(start))

    def overtaken_by(self, run: Run) -> bool:
        """Whether one of the waits was older than this request and still went on at its grant."""
        older = bisect_left(self._all, (run.received_s, 0.0))
        return older > 0 and self._last_end[older - 1] > run.granted_s

    def _until(self, at: float) -> float:
        i = bisect_right(self._starts, at)
        if i == 0:
            return 0.0
        return self._before[i - 1] + min(at, self._ends[i - 1]) - self._starts[i - 1]


def holders(waited: Waited, runs: Iterable[Run]) -> list[Json]:
    """By tenant, the largest share first: slot-seconds held during the waits, number of requests, how many overtook."""
    rows_by_tenant: dict[str, Json] = {}
    for run in runs:
        slot_s = waited.within(run.granted_s, run.done_s)
        if slot_s <= 0:
            continue
        row = rows_by_tenant.setdefault(run.tenant, {"tenant": run.tenant, "slot_s": 0.0, "requests": 0, "overtook": 0})
        row["slot_s"] += slot_s
        row["requests"] += 1
        row["overtook"] += waited.overtaken_by(run)
    whole = sum(row["slot_s"] for row in rows_by_tenant.values())
    rows = sorted(rows_by_tenant.values(), key=lambda row: (-row["slot_s"], row["tenant"]))
    return [row | {"slot_s": round(row["slot_s"], 3), "share": round(row["slot_s"] / whole, 4)} for row in rows]


def neighbours(
    tenant: str,
    since: datetime,
    until: datetime,
    waiting: Iterable[tuple[str, float]] = (),
    running: Iterable[tuple[str, Run]] = (),
) -> Json:
    """Which tenants' requests a tenant's requests waited for.

    Args:
        since, until: of the arrival of its requests.
        waiting: (pool, since when [s]) of its requests that wait now.
        running: (pool, run) of what runs now, of anybody; ``done_s`` is now.
    """
    own = LedgerEntry.objects.filter(tenant=tenant, received_at__gte=since, received_at__lt=until)
    ended = own.filter(queued_at__isnull=False).order_by("-received_at", "-id")
    read = list(ended.values_list("pool", "queued_at", "granted_at", "done_at")[: MAX_WAITS + 1])
    waits: dict[str, list[Span]] = {}
    for pool, queued, granted, done in read[:MAX_WAITS]:
        left = granted or done
        if queued is not None and left is not None:
            waits.setdefault(pool, []).append((queued.timestamp(), left.timestamp()))
    now_s = until.timestamp()
    for pool, since_s in waiting:
        waits.setdefault(pool, []).append((since_s, now_s))
    live: dict[str, list[Run]] = {}
    for pool, run in running:
        live.setdefault(pool, []).append(run)
    refused: dict[str, int] = {}
    for reason in own.filter(outcome="refused").values_list("reason", flat=True)[:MAX_RUNS]:
        refused[reason] = refused.get(reason, 0) + 1
    lines = []
    for pool, spans in sorted(waits.items()):
        waited = Waited(spans)
        runs, whole = _runs(pool, spans, live.get(pool, ()))
        rows = holders(waited, runs)
        lengths = [end - start for start, end in spans]
        lines.append(
            {
                "pool": pool,
                "requests": len(spans),
                "waited_s": round(waited.seconds, 3),
                "wait_p50_s": round(nearest_rank(lengths, 0.5) or 0.0, 3),
                "wait_p95_s": round(nearest_rank(lengths, 0.95) or 0.0, 3),
                "longest_s": round(max(lengths), 3),
                "held": rows,
                "whole": whole and len(read) <= MAX_WAITS,
            }
        )
    engines = [line for pool in _pools_of(own) if (line := _in_engines(tenant, pool, since, until)) is not None]
    return {"tenant": tenant, "received": own.count(), "refused": refused, "pools": lines, "engines": engines}


def _pools_of(own: QuerySet[LedgerEntry]) -> list[str]:
    return sorted(own.filter(granted_at__isnull=False).order_by().values_list("pool", flat=True).distinct())


def _in_engines(tenant: str, pool: str, since: datetime, until: datetime) -> Json | None:
    """Whose prompts were ahead of a tenant's in the same engine; None where none were."""
    ahead, waited_s, behind = prefill.ahead_of_tenant(
        tenant, prefill.recent(pool, since, until), prefill.speed_of(pool, until)
    )
    if not ahead.tokens:
        return None
    tenants = [{"tenant": name, "prompt_tokens": tokens} for name, tokens in ahead.ranked().items()]
    return {"pool": pool, "requests": behind, "waited_s": round(waited_s, 3), "tenants": tenants}


def _runs(pool: str, spans: Sequence[Span], live: Iterable[Run]) -> tuple[list[Run], bool]:
    """What held slots while any of the spans went on; False where there was more than is read."""
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    zone = datetime.now().astimezone().tzinfo
    begin, end = datetime.fromtimestamp(first, zone), datetime.fromtimestamp(last, zone)
    rows = (
        LedgerEntry.objects.filter(pool=pool, received_at__gte=begin - LONGEST, received_at__lt=end)
        .filter(granted_at__lt=end, done_at__gt=begin)
        .order_by("-received_at", "-id")
        .values_list("tenant", "received_at", "granted_at", "done_at")
    )
    read = list(rows[: MAX_RUNS + 1])
    runs = [Run(t, r.timestamp(), g.timestamp(), d.timestamp()) for t, r, g, d in read[:MAX_RUNS] if g is not None]
    return [*runs, *live], len(read) <= MAX_RUNS


# --- one request


def ahead_of(row: LedgerEntry) -> Json | None:
    """What was granted while a request waited; None if it did not wait or never ran.

    ``steps``: [ms after it was received, how many still went before it]. Only what has ended by now is in the ledger.
    """
    if row.queued_at is None or row.granted_at is None:
        return None
    before = (
        LedgerEntry.objects.filter(pool=row.pool, granted_at__gte=row.queued_at, granted_at__lt=row.granted_at)
        .filter(received_at__gte=row.queued_at - LONGEST, received_at__lt=row.granted_at)
        .exclude(pk=row.pk)
        .order_by("granted_at", "id")
    )
    granted = list(before.values_list("granted_at", "received_at", "tenant")[:MAX_WAITS])
    tenants: dict[str, int] = {}
    for _, _, tenant in granted:
        tenants[tenant] = tenants.get(tenant, 0) + 1
    steps = [[_ms(row, row.queued_at), len(granted)]]
    steps += [[_ms(row, at), len(granted) - i] for i, (at, _, _) in enumerate(granted, 1) if at is not None]
    stride = max(1, -(-len(steps) // MAX_STEPS))
    summary: Json = {
        "count": len(granted),
        "overtook": sum(received > row.received_at for _, received, _ in granted),
        "tenants": dict(sorted(tenants.items(), key=lambda item: -item[1])),
        "steps": [*steps[:-1:stride], steps[-1]],
    }
    last = before.exclude(why="").last()
    if last is not None:
        names = ("request_id", "tenant", "tier", "entitlement", "received_at", "granted_at", "policy", "why")
        summary["last"] = {name: getattr(last, name) for name in (*names, "input_tokens_est", "output_tokens_est")}
    return summary


def _ms(row: LedgerEntry, at: datetime) -> float:
    return round((at - row.received_at).total_seconds() * 1000, 1)
