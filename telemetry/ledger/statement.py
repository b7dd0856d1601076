"""A month's bill: what each model, project and key of a tenant used, what stood ready for it, and what that cost.

Lines are the figures of ``telemetry/ledger/usage.py`` with the rates that were in force, one per group and rate, so
that each amount can be checked by hand: quantities times prices. What stood ready and was not used has lines of its own
(showback). Months are of UTC, like hours and prices: no hour is in two of them, and no clock change moves one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from django.conf import settings
from django.utils import timezone

from scheduling.core.ledger.money import RateSpec, amount, rate_at
from telemetry.ledger import whose
from telemetry.ledger.usage import cells
from telemetry.models import ReservedHour
from tenants import prices

GROUPS = ("tenant", "pool", "model", "project", "key")
METERS = ("input", "cached", "output", "slot")
UNITS = {"input": "Tokens", "cached": "Tokens", "output": "Tokens", "slot": "Slot-Seconds"}
KINDS = ("requests", "reserved_used", "reserved_idle")
COLUMNS = (
    "kind", "tenant", "pool", "model", "project", "key", "user", "entitlement", "priced_from", "requests",
    "input_tokens", "cached_tokens", "output_tokens", "slot_seconds", "amount", "currency", "tokens_unknown",
)  # fmt: skip
# What a file with types makes of a column; those not named are texts.
COLUMN_KINDS = {
    "priced_from": "time", "slot_seconds": "amount", "amount": "amount",
    **dict.fromkeys(("requests", "input_tokens", "cached_tokens", "output_tokens", "tokens_unknown"), "count"),
}  # fmt: skip
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """What one group used under one rate; without a rate it is metered and costs nothing."""

    kind: str
    names: dict[str, str]
    rate: RateSpec | None
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    slot_us: int
    tokens_unknown: int | None = 0  # of the requests; None: nobody counted them

    @property
    def picos(self) -> Fraction:
        if self.rate is None:
            return Fraction(0)
        if self.kind == "reserved_used":
            return self.rate.reserved(self.slot_us, 0)[0]
        if self.kind == "reserved_idle":
            return self.rate.reserved(0, self.slot_us)[1]
        return self.rate.cost(self.input_tokens, self.cached_tokens, self.output_tokens, self.slot_us)

    def row(self) -> dict[str, Any]:
        rate = self.rate
        names = {name: self.names.get(name, "") for name in (*GROUPS, "user", "entitlement")}
        return {
            "kind": self.kind,
            **names,
            "priced_from": "" if rate is None else datetime.fromtimestamp(rate.since_s, UTC).isoformat(),
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "slot_seconds": f"{amount(self.slot_us * _US):f}",
            "amount": f"{amount(self.picos):f}",
            "currency": "" if rate is None else rate.currency,
            "tokens_unknown": self.tokens_unknown,
        }


def month_of(text: str) -> tuple[datetime, datetime]:
    """When a month such as 2026-11 begins and ends. Raises ValueError for what is none."""
    begin = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    return begin, (begin + timedelta(days=32)).replace(day=1)


def users_known(begin: datetime) -> bool:
    """Whether the ledger, which alone knows users, still has all of the time since then."""
    return begin >= timezone.now() - timedelta(days=settings.QUARTERMASTER_RETENTION_DAYS)


def lines(
    tenants: frozenset[str] | None,
    begin: datetime,
    end: datetime,
    former: Mapping[str, datetime] | None = None,
    *,
    by_user: bool = False,
    **only: str,
) -> Iterator[Line]:
    """What requests cost, then what stood ready."""
    groups = [*GROUPS, "user"] if by_user else list(GROUPS)
    for key, cell in cells(tenants, begin, end, groups, former, **only):
        names = dict(zip(groups, key, strict=True))
        left = [cell.counts[0], *(cell.counts[place] for place in (5, 7, 6)), cell.slot_us]
        for number, (rate, amounts) in enumerate(sorted(cell.priced.items(), key=lambda one: one[0].since_s)):
            left = [left[0], *(a - b for a, b in zip(left[1:], amounts, strict=True))]
            # a group's requests are counted once, whatever rates were in force
            counted, unknown = (0, 0) if number else (left[0], cell.without_tokens)
            yield replace(Line("requests", names, rate, counted, *amounts), tokens_unknown=unknown)
        if not cell.priced or any(left[1:]):
            counted, unknown = (0, 0) if cell.priced else (left[0], cell.without_tokens)
            yield replace(Line("requests", names, None, counted, *left[1:]), tokens_unknown=unknown)
    yield from _reserved(tenants, begin, end, former, **only)


def _reserved(
    tenants: frozenset[str] | None, begin: datetime, end: datetime, former: Mapping[str, datetime] | None, **only: str
) -> Iterator[Line]:
    rows = ReservedHour.objects.filter(hour__gte=begin, hour__lt=end, **only)
    if tenants is not None:
        rows = rows.filter(whose.of(tenants, former, "hour"))
    used: dict[tuple[str, datetime], int] = {}
    for (entitlement, hour), cell in cells(tenants, begin, end, ["entitlement", "hour"], former, **only):
        used[entitlement, hour] = cell.slot_us
    rates = prices.rates()
    sums: dict[tuple[str, ...], dict[RateSpec | None, list[int]]] = {}
    for row in rows.order_by("tenant", "pool", "entitlement", "hour").iterator(chunk_size=2000):
        key = (row.tenant, row.pool, row.model, row.project, row.entitlement)
        rate = rate_at(rates.get(row.pool, ()), row.model, row.hour.timestamp())
        taken = min(used.get((row.entitlement, row.hour), 0), row.slot_us)
        both = sums.setdefault(key, {}).setdefault(rate, [0, 0])
        both[0] += taken
        both[1] += row.slot_us - taken
    for (tenant, pool, model, project, entitlement), of_rates in sums.items():
        names = {
            "tenant": tenant, "pool": pool, "model": model, "project": project, "entitlement": entitlement,
        }  # fmt: skip
        for rate, (taken, idle) in of_rates.items():
            yield Line("reserved_used", names, rate, 0, 0, 0, 0, taken)
            yield Line("reserved_idle", names, rate, 0, 0, 0, 0, idle)


def totals(lines: list[Line]) -> dict[str, Fraction]:
    """By currency [picos]: of the exact amounts, not of rounded ones."""
    sums: dict[str, Fraction] = {}
    for line in lines:
        if line.rate is not None:
            sums[line.rate.currency] = sums.get(line.rate.currency, Fraction(0)) + line.picos
    return sums


# --- FOCUS 1.2 (focus.finops.org): one row per line and meter

FOCUS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId",
    "SkuMeter", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags", "x_TokensUnknown",
)  # fmt: skip
FOCUS_KINDS = {"x_TokensUnknown": "count"} | {
    name: "amount" if name.endswith(("Cost", "Quantity", "UnitPrice")) else "time"
    for name in FOCUS
    if name.endswith(("Cost", "Quantity", "UnitPrice", "Start", "End"))
}


def focus(line: Line, begin: datetime, end: datetime) -> Iterator[dict[str, Any]]:
    """A line as FOCUS tells it; nothing for what has no price, for FOCUS has no cost without a currency."""
    rate = line.rate
    if rate is None:
        return
    since = max(begin, datetime.fromtimestamp(rate.since_s, UTC))
    until = end if rate.until_s is None else min(end, datetime.fromtimestamp(rate.until_s, UTC))
    tags = {name: line.names[name] for name in ("project", "key", "user", "entitlement") if line.names.get(name)}
    for number, (meter, quantity, unit, unit_picos, picos) in enumerate(_meters(line, rate)):
        cost, unit_price = f"{amount(picos):f}", f"{amount(unit_picos):f}"
        yield {
            "BilledCost": cost, "EffectiveCost": cost, "ListCost": cost, "ContractedCost": cost,
            "ListUnitPrice": unit_price, "ContractedUnitPrice": unit_price,
            "BillingAccountId": line.names["tenant"], "BillingAccountName": line.names["tenant"],
            "BillingCurrency": rate.currency,
            "BillingPeriodStart": _focus_time(begin), "BillingPeriodEnd": _focus_time(end),
            "ChargePeriodStart": _focus_time(since), "ChargePeriodEnd": _focus_time(until),
            "ChargeCategory": "Usage", "ChargeClass": "", "ChargeFrequency": "Usage-Based",
            "ChargeDescription": f"{meter.replace('_', ' ')} of {line.names['model']}",
            "ConsumedQuantity": quantity, "ConsumedUnit": unit, "PricingQuantity": quantity, "PricingUnit": unit,
            "PricingCategory": "Standard",
            "InvoiceIssuerName": "Quartermaster", "ProviderName": "Quartermaster", "PublisherName": "Quartermaster",
            "ResourceId": line.names["pool"], "ResourceName": line.names["pool"], "ResourceType": "Pool",
            "ServiceCategory": "AI and Machine Learning", "ServiceSubcategory": "Generative AI",
            "ServiceName": line.names["model"],
            "SkuId": f"{line.names['pool']}/{line.names['model']}/{meter}", "SkuMeter": meter,
            "SkuPriceId": f"{line.names['pool']}/{rate.model or '*'}/{meter}@{_focus_time(since)}",
            "SubAccountId": line.names.get("project", ""), "SubAccountName": line.names.get("project", ""),
            "Tags": json.dumps(tags, sort_keys=True),
            "x_TokensUnknown": 0 if number else line.tokens_unknown,  # once a line, so that it can be summed up
        }  # fmt: skip


def _meters(line: Line, rate: RateSpec) -> Iterator[tuple[str, str, str, Fraction, Fraction]]:
    """Meter, quantity, unit, price of a unit and cost [picos] of what a line has."""
    if line.kind != "requests":
        unit_picos = sum(rate.reserved(*((_US, 0) if line.kind == "reserved_used" else (0, _US))), Fraction(0))
        yield line.kind, f"{amount(line.slot_us * _US):f}", "Slot-Seconds", unit_picos, line.picos
        return
    parts = rate.parts(line.input_tokens, line.cached_tokens, line.output_tokens, line.slot_us)
    units = rate.parts(1, 0, 1, _US) | {"cached": rate.parts(1, 1, 0, 0)["cached"]}
    amounts = {
        "input": str(line.input_tokens - line.cached_tokens), "cached": str(line.cached_tokens),
        "output": str(line.output_tokens), "slot": f"{amount(line.slot_us * _US):f}",
    }  # fmt: skip
    for meter in METERS:
        if units[meter]:  # what is free is no charge
            yield meter, amounts[meter], UNITS[meter], units[meter], parts[meter]


def _focus_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
