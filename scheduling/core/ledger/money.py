"""What use costs, and whose budget pays for it. One formula, in whole numbers, for ledger, bills and gateways.

Amounts are **picos**, 1e-12 of a unit of the currency: a price has six decimals, so a token costs a whole number of
them, and so does a microsecond of a whole GPU. Only a slot's share of a GPU may not be whole; it stays a fraction. Sums
are therefore the same in whatever order and groups they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

PICOS = 10**12  # of one unit
PLACES = 18  # decimals an amount is told with: exact for tokens, and for up to 64 slots on a GPU
MAX_PICOS = 10**30  # of an account in a month; a larger sum is none of requests


@dataclass(frozen=True, slots=True)
class RateSpec:
    """A price of a pool, or of one adapter of it, and the time it holds for."""

    pool: str
    model: str  # the adapter's name; empty: everything of the pool that has no rate of its own
    since_s: float  # a whole hour
    until_s: float | None  # None: until another is configured
    currency: str
    per_input: int  # [picos per token]
    per_cached: int  # of the input, what the engine's prefix cache held
    per_output: int
    per_gpu_us: int  # [picos per GPU and microsecond]
    slots_per_gpu: int = 1
    per_reserved_used_us: int = 0  # of reserved slots, as of GPUs: what its owner used
    per_reserved_idle_us: int = 0  # and what stood ready for it

    def holds_at(self, at_s: float) -> bool:
        return self.since_s <= at_s and (self.until_s is None or at_s < self.until_s)

    def parts(self, input_tokens: int, cached_tokens: int, output_tokens: int, slot_us: int) -> dict[str, Fraction]:
        """What use costs [picos], by part. ``cached_tokens`` are part of the input; ``slot_us`` is grant to end."""
        cached = min(max(cached_tokens, 0), input_tokens)
        return {
            "input": Fraction((input_tokens - cached) * self.per_input),
            "cached": Fraction(cached * self.per_cached),
            "output": Fraction(output_tokens * self.per_output),
            "slot": Fraction(slot_us * self.per_gpu_us, self.slots_per_gpu),
        }

    def cost(self, input_tokens: int, cached_tokens: int, output_tokens: int, slot_us: int) -> Fraction:
        """What use costs [picos]. Linear: the cost of a sum is the sum of the costs."""
        return sum(self.parts(input_tokens, cached_tokens, output_tokens, slot_us).values(), Fraction(0))

    def reserved(self, used_us: int, idle_us: int) -> tuple[Fraction, Fraction]:
        """What reserved slots cost [picos]: the time that was used, and the time that was not."""
        return (
            Fraction(used_us * self.per_reserved_used_us, self.slots_per_gpu),
            Fraction(idle_us * self.per_reserved_idle_us, self.slots_per_gpu),
        )


def micros(amount: Decimal) -> int:
    """A price's amount with its six decimals: per million tokens it is picos each, per second picos per us."""
    return int(amount * 1_000_000)


def rate_at(rates: Iterable[RateSpec], model: str, at_s: float) -> RateSpec | None:
    """What use of ``model`` was charged by, received at a moment; None: nothing. An adapter's own rate goes first."""
    current = None
    for rate in rates:
        if rate.holds_at(at_s) and rate.model in ("", model) and (current is None or rate.model):
            current = rate
    return current


def amount(picos: Fraction | int) -> Decimal:
    """As people and files are told it, without zeros at the end."""
    whole = round(Fraction(picos) * 10**PLACES / PICOS)
    exact = Decimal(whole).scaleb(-PLACES)
    return exact.quantize(Decimal(1)) if exact == exact.to_integral() else exact.normalize()


def forecast(spent: Fraction, begin_s: float, now_s: float, end_s: float) -> Fraction | None:
    """What a month will cost at its mean pace so far [picos]; None in its first day, when there is no pace yet."""
    passed_s = now_s - begin_s
    if passed_s < 86_400 or now_s > end_s:
        return None
    return spent * Fraction(end_s - begin_s) / Fraction(passed_s)


# --- budgets

MAX_ALERTS = 8  # thresholds of a budget
SCOPES = ("tenant", "project", "user", "key")


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """What may be spent in a calendar month (UTC). Amounts are picos of ``currency``; None: no such limit."""

    tenant: str
    scope: str  # one of SCOPES
    name: str  # of the project, user or key; empty: the tenant
    currency: str
    soft: int | None = None  # passing it tells the operators
    hard: int | None = None  # from here on requests are refused until the month ends
    alert_at: tuple[int, ...] = ()  # shares of the limit that operators are told of [%]

    @property
    def account(self) -> str:
        return account(self.tenant, self.scope, self.name)

    @property
    def limit(self) -> int | None:
        """What shares are of."""
        return self.hard if self.hard is not None else self.soft


def account(tenant: str, scope: str, name: str) -> str:
    """What spending is added up under. No name of a tenant or scope has a space in it."""
    return f"{tenant} {scope} {name}"


def accounts_of(tenant: str, project: str, user: str, key: str) -> Sequence[str]:
    """The accounts that a request's cost goes to."""
    named = zip(SCOPES, ("", project, user, key), strict=True)
    return [account(tenant, scope, name) for scope, name in named if name or scope == "tenant"]
