"""Usage of any time range, by whatever it is asked by, with what it cost.

Complete hours come from the roll-up (``telemetry/ledger/rollup.py``), the edges of the range and the last two hours
from the ledger itself: figures are exact to the request, are there at once, and outlive the ledger's retention. Groups
that the roll-up does not know (user, outcome, reason) come from the ledger alone.

A request that ran is charged by the price that was in force in the hour it was received: tokens by the million, and
its slot's share of a GPU for as long as it held the slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Sum, Value, When
from django.db.models.functions import TruncDay, TruncHour, TruncMonth

from scheduling.core.slo import Kept
from telemetry.ledger import rollup
from telemetry.models import LedgerEntry, UsageHour
from tenants.models import Price

COUNTS = ("requests", "completed", "refused", "failed", "cancelled", "input_tokens", "output_tokens")
FIGURES = (
    *COUNTS, "slo_met", "slo_total", "slo_asked", "attainment", "attainment_served", "slot_s", "cost", "currency",
)  # fmt: skip
COLUMNS = {
    "pool": "pool", "model": "model", "tenant": "tenant", "tier": "tier", "entitlement": "entitlement",
    "key": "key_id", "user": "user", "outcome": "outcome", "reason": "reason",
}  # fmt: skip
TIMES = {"hour": TruncHour, "day": TruncDay, "month": TruncMonth}
LEDGER_ONLY = frozenset({"user", "outcome", "reason"})
GROUPS = (*COLUMNS, *TIMES)
_NO_PRICE = -1
_MIXED = "mixed"


@dataclass(slots=True)
class _Cell:
    """One group's sums."""

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    slo_met: int = 0
    slo_total: int = 0
    turned_away: int = 0
    slot_s: float = 0.0
    cost: float = 0.0
    currencies: set[str] = field(default_factory=set)

    def add(self, other: _Cell) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.slo_met += other.slo_met
        self.slo_total += other.slo_total
        self.turned_away += other.turned_away
        self.slot_s += other.slot_s
        self.cost += other.cost
        self.currencies |= other.currencies

    def figures(self) -> dict[str, Any]:
        mixed = len(self.currencies) > 1
        slo = Kept(self.slo_met, self.slo_total - self.slo_met, self.turned_away)
        return dict(zip(COUNTS, self.counts, strict=True)) | {
            "slo_met": self.slo_met,
            "slo_total": self.slo_total,
            "slo_asked": slo.asked,
            "attainment": None if slo.attainment is None else round(slo.attainment, 4),
            "attainment_served": None if slo.attainment_served is None else round(slo.attainment_served, 4),
            "slot_s": round(self.slot_s, 3),
            "cost": None if mixed else round(self.cost, 6),
            "currency": _MIXED if mixed else "".join(self.currencies),
        }


@dataclass(frozen=True, slots=True)
class _Rate:
    """A price and the hours it holds for."""

    pool: str
    since: datetime
    until: datetime | None
    currency: str
    per_input: float
    per_output: float
    per_slot_s: float


def usage(
    tenants: frozenset[str] | None, since: datetime, until: datetime, groups: Sequence[str], **only: str
) -> Iterator[dict[str, Any]]:
    """One dictionary per group with :data:`FIGURES`, ordered by the groups as far as the roll-up goes.

    Args:
        tenants: whose; None for everybody's.
        since, until: requests received at or after the one and before the other.
        only: ``tenant="acme"``, ``pool="llama"``, ... by the names of :data:`COLUMNS`.

    Raises:
        KeyError: a group or filter that does not exist.
    """
    rates = _rates()
    where = Q(**{COLUMNS[name]: value for name, value in only.items()})
    if tenants is not None:
        where &= Q(tenant__in=tenants)
    first, last = since, since  # the part of the range that the roll-up answers for
    seam = rollup.rolled_until()
    if seam is not None and not LEDGER_ONLY & (set(groups) | set(only)):
        first = rollup.floor_hour(since + timedelta(hours=1) - timedelta(microseconds=1))
        last = max(first, min(seam, rollup.floor_hour(until)))
        if last <= first or first >= until:
            first = last = since
    edges: dict[tuple[Any, ...], _Cell] = {}
    for begin, end in ((since, first), (last, until)):
        if begin < end:
            rows = LedgerEntry.objects.filter(where, received_at__gte=begin, received_at__lt=end)
            for key, cell in _sums(rows, "received_at", groups, rates):
                edges.setdefault(key, _Cell()).add(cell)
    if first < last:  # else it may be asked for what hours do not know
        hours = UsageHour.objects.filter(where, hour__gte=first, hour__lt=last)
        for key, cell in _sums(hours, "hour", groups, rates):
            edge = edges.pop(key, None)
            if edge is not None:
                cell.add(edge)
            yield _shown(groups, key, cell)
    for key in sorted(edges):
        yield _shown(groups, key, edges[key])


def _sums(
    rows: QuerySet[Any], moment: str, groups: Sequence[str], rates: Sequence[_Rate]
) -> Iterator[tuple[tuple[Any, ...], _Cell]]:
    keys = {f"by_{name}": F(COLUMNS[name]) if name in COLUMNS else TIMES[name](moment, tzinfo=UTC) for name in groups}
    ledger = rows.model is LedgerEntry
    sums = (
        rows.order_by()
        .annotate(**keys, price=_price(moment, rates))
        .values(*keys, "price")
        .annotate(**(_of_ledger() if ledger else _of_hours()))
        .order_by(*keys, "price")
    )
    current: tuple[tuple[Any, ...], _Cell] | None = None
    for row in sums.iterator(chunk_size=2000):
        key = tuple(row[name] for name in keys)
        if current is not None and current[0] != key:
            yield current
            current = None
        cell = _cell(row, rates)
        if current is None:
            current = (key, cell)
        else:
            current[1].add(cell)
    if current is not None:
        yield current


def _price(moment: str, rates: Sequence[_Rate]) -> Any:
    """Which rate a row is charged by, as its place in ``rates``."""
    cases = []
    for index, rate in enumerate(rates):
        holds = Q(pool=rate.pool, **{f"{moment}__gte": rate.since})
        if rate.until is not None:
            holds &= Q(**{f"{moment}__lt": rate.until})
        cases.append(When(holds, then=Value(index)))
    return Case(*cases, default=Value(_NO_PRICE), output_field=IntegerField())


def _of_ledger() -> dict[str, Any]:
    ran = ~Q(outcome="refused")
    return {
        "n_requests": Count("id"),
        **{f"n_{name}": Count("id", filter=Q(outcome=name)) for name in COUNTS[1:5]},
        "n_input_tokens": Sum(rollup.INPUT, filter=ran, default=0),
        "n_output_tokens": Sum(rollup.OUTPUT, filter=ran, default=0),
        "met": Count("id", filter=Q(slo_met=True)),
        "judged": Count("id", filter=Q(slo_met__isnull=False)),
        "turned_away": Count("id", filter=rollup.TURNED_AWAY),
        "slot_time": Sum(rollup.SLOT_TIME, filter=Q(granted_at__isnull=False)),
    }


def _of_hours() -> dict[str, Any]:
    return {
        **{f"n_{name}": Sum(rollup.OF_HOUR[name], default=0) for name in COUNTS},
        "met": Sum(rollup.OF_HOUR["slo_met"], default=0),
        "judged": Sum(rollup.OF_HOUR["slo_total"], default=0),
        "turned_away": Sum(rollup.OF_HOUR["slo_turned_away"], default=0),
        "slot_time": Sum(rollup.OF_HOUR["slot_ms"], default=0),
    }


def _cell(row: dict[str, Any], rates: Sequence[_Rate]) -> _Cell:
    spent = row["slot_time"] or 0
    slot_s = spent.total_seconds() if isinstance(spent, timedelta) else spent / 1000
    counts = [row[f"n_{name}"] for name in COUNTS]
    cell = _Cell(counts, row["met"], row["judged"], row["turned_away"], max(0.0, slot_s))
    if row["price"] != _NO_PRICE:
        rate = rates[row["price"]]
        cell.cost = (
            row["n_input_tokens"] * rate.per_input
            + row["n_output_tokens"] * rate.per_output
            + cell.slot_s * rate.per_slot_s
        )
        cell.currencies = {rate.currency}
    return cell


def cost_of(row: LedgerEntry) -> dict[str, Any] | None:
    """What one request cost, by part; None where its pool has no price, or it did not run."""
    hour = rollup.floor_hour(row.received_at)
    holding = [r for r in _rates() if r.pool == row.pool and r.since <= hour and (r.until is None or hour < r.until)]
    if not holding or row.outcome == "refused":
        return None
    rate = holding[-1]
    slot_s = max(0.0, (row.done_at - row.granted_at).total_seconds()) if row.granted_at is not None else 0.0
    parts = {
        "input": row.input_tokens * rate.per_input,
        "output": row.output_tokens * rate.per_output,
        "slot": slot_s * rate.per_slot_s,
    }
    return {
        "amount": round(sum(parts.values()), 9),
        "currency": rate.currency,
        "slot_s": round(slot_s, 3),
        "parts": {name: round(value, 9) for name, value in parts.items() if value},
    }


def _rates() -> list[_Rate]:
    prices = list(Price.objects.select_related("pool").order_by("pool_id", "valid_from"))
    rates = []
    for price, following in zip(prices, [*prices[1:], None], strict=False):
        until = following.valid_from if following is not None and following.pool_id == price.pool_id else None
        rates.append(
            _Rate(
                price.pool.slug, price.valid_from, until, price.currency, float(price.per_million_input) / 1e6,
                float(price.per_million_output) / 1e6, float(price.per_gpu_second) / price.slots_per_gpu,
            )
        )  # fmt: skip
    return rates


def _shown(groups: Sequence[str], key: tuple[Any, ...], cell: _Cell) -> dict[str, Any]:
    names = (value.isoformat() if isinstance(value, datetime) else value for value in key)
    return dict(zip(groups, names, strict=True)) | cell.figures()
