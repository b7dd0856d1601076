"""Usage of any time range, by whatever it is asked by, with what it cost.

Complete hours come from the roll-up (``telemetry/ledger/rollup.py``), the edges of the range and the last two hours
from the ledger itself: figures are exact to the request, are there at once, and outlive the ledger's retention. Groups
that the roll-up does not know (user, outcome, reason) come from the ledger alone.

A request that ran is charged by the price that was in force in the hour it was received: tokens by the million, and
its slot's share of a GPU for as long as it held the slot (``scheduling/core/ledger/money.py``). Sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Sum, Value, When
from django.db.models.functions import TruncDay, TruncHour, TruncMonth

from scheduling.core.ledger.money import PICOS, RateSpec, rate_at
from scheduling.core.ledger.slo import Kept
from telemetry.ledger import rollup, whose
from telemetry.ledger.selectors import tokens_unknown
from telemetry.models import LedgerEntry, UsageHour
from tenants import prices

COUNTS = ("requests", "completed", "refused", "failed", "cancelled", "input_tokens", "output_tokens", "cached_tokens")
FIGURES = (
    *COUNTS, "slo_met", "slo_total", "slo_asked", "attainment", "attainment_served", "slot_s", "cost", "currency",
    "slo_retries", "attainment_first", "tokens_unknown",
)  # fmt: skip
COLUMNS = {
    "pool": "pool", "model": "model", "tenant": "tenant", "tier": "tier", "entitlement": "entitlement",
    "project": "project", "key": "key_id", "user": "user", "outcome": "outcome", "reason": "reason",
}  # fmt: skip
TIMES = {"hour": TruncHour, "day": TruncDay, "month": TruncMonth}
# What a file with types makes of a column; those not named are texts.
COLUMN_KINDS = {
    **dict.fromkeys((*COUNTS, "slo_met", "slo_total", "slo_asked", "slo_retries", "tokens_unknown"), "count"),
    **dict.fromkeys(("attainment", "attainment_served", "attainment_first"), "figure"),
    **dict.fromkeys(("slot_s", "cost"), "amount"),
    **dict.fromkeys(TIMES, "time"),
}
LEDGER_ONLY = frozenset({"user", "outcome", "reason"})
GROUPS = (*COLUMNS, *TIMES)
_NO_PRICE = -1
_MIXED = "mixed"


@dataclass(slots=True)
class Cell:
    """One group's sums."""

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    slo_met: int = 0
    slo_total: int = 0
    turned_away: int = 0
    slot_us: int = 0
    retries: int = 0
    retries_met: int = 0
    retries_unknown: int = 0  # hours in which nobody counted them
    tokens_unknown: int = 0  # requests, of which no answer is in the sums of tokens
    tokens_uncounted: int = 0  # hours in which nobody counted these
    priced: dict[RateSpec, list[int]] = field(default_factory=dict)  # input, cached, output tokens, slot time [us]

    @property
    def costs(self) -> dict[str, Fraction]:
        """What it cost by currency [picos]."""
        costs: dict[str, Fraction] = {}
        for rate, amounts in self.priced.items():
            costs[rate.currency] = costs.get(rate.currency, Fraction(0)) + rate.cost(*amounts)
        return costs

    @property
    def without_tokens(self) -> int | None:
        """Requests whose tokens nobody knows; None where nobody counted them."""
        return None if self.tokens_uncounted else self.tokens_unknown

    def add(self, other: Cell) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.slo_met += other.slo_met
        self.slo_total += other.slo_total
        self.turned_away += other.turned_away
        self.slot_us += other.slot_us
        self.retries += other.retries
        self.retries_met += other.retries_met
        self.retries_unknown += other.retries_unknown
        self.tokens_unknown += other.tokens_unknown
        self.tokens_uncounted += other.tokens_uncounted
        for rate, amounts in other.priced.items():
            mine = self.priced.get(rate, [0, 0, 0, 0])
            self.priced[rate] = [a + b for a, b in zip(mine, amounts, strict=True)]

    def figures(self) -> dict[str, Any]:
        costs = self.costs
        mixed = len(costs) > 1
        missed = self.slo_total - self.slo_met
        slo = Kept(self.slo_met, missed, self.turned_away, 0, self.retries, self.retries_met)
        first = None if self.retries_unknown else slo.attainment_first
        return dict(zip(COUNTS, self.counts, strict=True)) | {
            "slo_met": self.slo_met,
            "slo_total": self.slo_total,
            "slo_asked": slo.asked,
            "attainment": None if slo.attainment is None else round(slo.attainment, 4),
            "attainment_served": None if slo.attainment_served is None else round(slo.attainment_served, 4),
            "slot_s": round(self.slot_us / 1e6, 3),
            "cost": None if mixed else round(float(sum(costs.values(), Fraction(0)) / PICOS), 6),
            "currency": _MIXED if mixed else "".join(costs),
            "slo_retries": None if self.retries_unknown else self.retries,
            "attainment_first": None if first is None else round(first, 4),
            "tokens_unknown": self.without_tokens,
        }


def usage(
    tenants: frozenset[str] | None,
    since: datetime,
    until: datetime,
    groups: Sequence[str],
    former: Mapping[str, datetime] | None = None,
    **only: str,
) -> Iterator[dict[str, Any]]:
    """One dictionary per group with :data:`FIGURES`, ordered by the groups as far as the roll-up goes.
    Arguments and errors are those of :func:`cells`."""
    for key, cell in cells(tenants, since, until, groups, former, **only):
        yield _shown(groups, key, cell)


def cells(
    tenants: frozenset[str] | None,
    since: datetime,
    until: datetime,
    groups: Sequence[str],
    former: Mapping[str, datetime] | None = None,
    **only: str,
) -> Iterator[tuple[tuple[Any, ...], Cell]]:
    """The groups and their sums, ordered by the groups as far as the roll-up goes.

    Args:
        tenants: whose; None for everybody's.
        former: as :func:`telemetry.ledger.whose.of` takes it.
        since, until: requests received at or after the one and before the other.
        only: ``tenant="acme"``, ``pool="llama"``, ... by the names of :data:`COLUMNS`.

    Raises:
        KeyError: a group or filter that does not exist.
    """
    rates = _rates()
    where = Q(**{COLUMNS[name]: value for name, value in only.items()})
    of_ledger, of_hours = (
        where if tenants is None else where & whose.of(tenants, former, moment) for moment in ("received_at", "hour")
    )
    first, last = since, since  # the part of the range that the roll-up answers for
    seam = rollup.rolled_until()
    if seam is not None and not LEDGER_ONLY & (set(groups) | set(only)):
        first = rollup.floor_hour(since + timedelta(hours=1) - timedelta(microseconds=1))
        last = max(first, min(seam, rollup.floor_hour(until)))
        if last <= first or first >= until:
            first = last = since
    edges: dict[tuple[Any, ...], Cell] = {}
    for begin, end in ((since, first), (last, until)):
        if begin < end:
            rows = LedgerEntry.objects.filter(of_ledger, received_at__gte=begin, received_at__lt=end)
            for key, cell in _sums(rows, "received_at", groups, rates):
                edges.setdefault(key, Cell()).add(cell)
    if first < last:  # else it may be asked for what hours do not know
        hours = UsageHour.objects.filter(of_hours, hour__gte=first, hour__lt=last)
        for key, cell in _sums(hours, "hour", groups, rates):
            edge = edges.pop(key, None)
            if edge is not None:
                cell.add(edge)
            yield key, cell
    for key in sorted(edges):
        yield key, edges[key]


def _sums(
    rows: QuerySet[Any], moment: str, groups: Sequence[str], rates: Sequence[RateSpec]
) -> Iterator[tuple[tuple[Any, ...], Cell]]:
    keys = {f"by_{name}": F(COLUMNS[name]) if name in COLUMNS else TIMES[name](moment, tzinfo=UTC) for name in groups}
    ledger = rows.model is LedgerEntry
    sums = (
        rows.order_by()
        .annotate(**keys, price=_price(moment, rates))
        .values(*keys, "price")
        .annotate(**(_of_ledger() if ledger else _of_hours()))
        .order_by(*keys, "price")
    )
    current: tuple[tuple[Any, ...], Cell] | None = None
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


def _price(moment: str, rates: Sequence[RateSpec]) -> Any:
    """Which rate a row is charged by, as its place in ``rates``."""
    cases = []
    for index, rate in sorted(enumerate(rates), key=lambda one: not one[1].model):  # an adapter's own goes first
        holds = Q(pool=rate.pool, **{f"{moment}__gte": datetime.fromtimestamp(rate.since_s, UTC)})
        if rate.model:
            holds &= Q(model=rate.model)
        if rate.until_s is not None:
            holds &= Q(**{f"{moment}__lt": datetime.fromtimestamp(rate.until_s, UTC)})
        cases.append(When(holds, then=Value(index)))
    return Case(*cases, default=Value(_NO_PRICE), output_field=IntegerField())


def _of_ledger() -> dict[str, Any]:
    ran = ~Q(outcome="refused")
    return {
        "n_requests": Count("id"),
        **{f"n_{name}": Count("id", filter=Q(outcome=name)) for name in COUNTS[1:5]},
        "n_input_tokens": Sum(rollup.INPUT, filter=ran, default=0),
        "n_output_tokens": Sum(rollup.OUTPUT, filter=ran, default=0),
        "n_cached_tokens": Sum(rollup.CACHED, filter=ran, default=0),
        "met": Count("id", filter=Q(slo_met=True)),
        "judged": Count("id", filter=Q(slo_met__isnull=False)),
        "turned_away": Count("id", filter=rollup.TURNED_AWAY),
        "slot_us": Sum(rollup.SLOT_US, filter=rollup.HELD_A_SLOT, default=0),
        "retries": Count("id", filter=rollup.RETRIES),
        "retries_met": Count("id", filter=rollup.RETRIES & Q(slo_met=True)),
        "retries_unknown": Value(0),
        "without_tokens": Count("id", filter=rollup.TOKENS_UNKNOWN),
        "tokens_uncounted": Value(0),
    }


def _of_hours() -> dict[str, Any]:
    return {
        **{f"n_{name}": Sum(rollup.OF_HOUR[name], default=0) for name in COUNTS},
        "met": Sum(rollup.OF_HOUR["slo_met"], default=0),
        "judged": Sum(rollup.OF_HOUR["slo_total"], default=0),
        "turned_away": Sum(rollup.OF_HOUR["slo_turned_away"], default=0),
        "slot_us": Sum(rollup.OF_HOUR["slot_us"], default=0),
        "retries": Sum(rollup.OF_HOUR["slo_retries"], default=0),
        "retries_met": Sum(rollup.OF_HOUR["slo_retries_met"], default=0),
        "retries_unknown": Count("id", filter=rollup.RETRIES_UNKNOWN),
        "without_tokens": Sum(rollup.OF_HOUR["tokens_unknown"], default=0),
        "tokens_uncounted": Count("id", filter=rollup.TOKENS_UNCOUNTED),
    }


def _cell(row: dict[str, Any], rates: Sequence[RateSpec]) -> Cell:
    slot_us = int(row["slot_us"])  # PostgreSQL's sums are of type numeric
    counts = [row[f"n_{name}"] for name in COUNTS]
    more = (row[name] for name in ("retries", "retries_met", "retries_unknown", "without_tokens", "tokens_uncounted"))
    cell = Cell(counts, row["met"], row["judged"], row["turned_away"], slot_us, *more)
    if row["price"] != _NO_PRICE:
        amounts = [row["n_input_tokens"], row["n_cached_tokens"], row["n_output_tokens"], slot_us]
        cell.priced[rates[row["price"]]] = amounts
    return cell


def cost_of(row: LedgerEntry) -> dict[str, Any] | None:
    """What one request cost, by part; None where its pool has no price, or it did not run. The amount is None where
    answers have a price and nobody knows how long this one was."""
    rate = rate_at(prices.rates().get(row.pool, ()), row.model, row.received_at.timestamp())
    if rate is None or row.outcome == "refused":
        return None
    slot_us = slot_us_of(row)
    parts = rate.parts(row.input_tokens, row.cached_tokens, row.output_tokens, slot_us)
    unknown = tokens_unknown(row.reason, row.granted_at, row.output_tokens) and (
        rate.per_output or (rate.per_input and not row.input_tokens)
    )
    return {
        "amount": None if unknown else round(float(sum(parts.values(), Fraction(0)) / PICOS), 9),
        "currency": rate.currency,
        "slot_s": round(slot_us / 1e6, 3),
        "parts": {name: round(float(value / PICOS), 9) for name, value in parts.items() if value},
    }


def slot_us_of(row: LedgerEntry) -> int:
    """How long a request held a slot [us]."""
    ran = row.granted_at is not None and row.done_at >= row.granted_at
    return (row.done_at - row.granted_at) // timedelta(microseconds=1) if ran and row.granted_at is not None else 0


def _rates() -> list[RateSpec]:
    return [rate for rates in prices.rates().values() for rate in rates]


def _shown(groups: Sequence[str], key: tuple[Any, ...], cell: Cell) -> dict[str, Any]:
    names = (value.isoformat() if isinstance(value, datetime) else value for value in key)
    return dict(zip(groups, names, strict=True)) | cell.figures()
