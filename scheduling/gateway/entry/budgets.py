"""Has this tenant, or the project, user or key, spent its month's budget?

Nothing is asked for it on a request's path. What is known is the leaders' figures (``scheduling/state/usage.py``, read
once a second), what this process saw end since, and what it has open: tokens at the most they can cost, slot time as it
passes. A request is refused once these together reach the hard limit.

A hard limit is overrun by at most what is in flight then: the one request that this gateway admitted last, what *other*
gateways have open or saw end within the last two to three seconds, how far prompts were estimated too short, and the
slot time that open requests still take. A refusal is early by no more than open requests cost less than their bounds.
Tenants without a hard budget cost one lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.core.ledger.money import BudgetSpec, RateSpec, accounts_of, amount, rate_at
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import Catalog
from scheduling.gateway.errors import Refusal
from scheduling.gateway.headers import duration
from scheduling.state.usage import PoolUsage, period_bounds_s, spent_of_record

CELL_S = 0.1  # what ended here is remembered by tenths of a second
KEEP_S = 1800.0  # and for so long, if the ledger does not get it (the database is away)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request may cost, and who pays for it."""

    tenant: str
    project: str
    user: str
    key: str
    pool: str
    model: str
    input_tokens: int
    output_bound: int


@dataclass(slots=True)
class _Open:
    """What the open requests of an account may cost: their tokens, each at its bound [picos], and their slot time so
    far, which follows from the sum of their rates and the sum of rate times beginning."""

    picos: float = 0.0
    rate: float = 0.0  # [picos/s]
    begun: float = 0.0  # sum of rate * beginning

    def add(self, picos: float, rate: float, begun_s: float, sign: int) -> None:
        self.picos += sign * picos
        self.rate += sign * rate
        self.begun += sign * rate * begun_s

    def cost(self, now_s: float) -> float:
        return max(0.0, self.picos + self.rate * now_s - self.begun)


class Budgets:
    """The hard budgets of all tenants as one gateway process enforces them."""

    def __init__(self) -> None:
        self._budgets: dict[str, dict[str, BudgetSpec]] = {}  # by tenant, by account
        self._rates: Mapping[str, tuple[RateSpec, ...]] = {}
        self._usage: dict[str, PoolUsage] = {}
        self._opened: dict[str, tuple[list[str], float, float, float]] = {}  # request -> accounts, picos, rate, begun
        self._open: dict[str, _Open] = {}  # by account
        # (account, pool, when it ended / CELL_S) -> picos, and the newest moments one was received, and ended
        self._ended: dict[tuple[str, str, int], tuple[float, float, float]] = {}
        self._pending: dict[str, float] = {}  # by account: what the leaders do not know yet

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._budgets)

    def configure(self, catalog: Catalog) -> None:
        self._rates = catalog.rates
        hard = {t: {b.account: b for b in budgets if b.hard is not None} for t, budgets in catalog.budgets.items()}
        self._budgets = {tenant: budgets for tenant, budgets in hard.items() if budgets}

    def begin(self, asked: Asked, request_id: str, now_s: float) -> None:
        """Lets a request in.

        Raises:
            Refusal: a hard limit is reached.
        """
        budgets = self._budgets.get(asked.tenant)
        if budgets is None or request_id in self._opened:  # it was let in, and tries its fallback
            return
        mine = [a for a in accounts_of(asked.tenant, asked.project, asked.user, asked.key) if a in budgets]
        for name in mine:
            budget = budgets[name]
            assert budget.hard is not None
            if self.spent(name, now_s) >= budget.hard:
                left_s = period_bounds_s(now_s, "month")[1] - now_s
                raise Refusal(
                    Reason.BUDGET_EXCEEDED,
                    retry_s=left_s,
                    limit=f"{amount(budget.hard):f}",
                    currency=budget.currency,
                    of=budget.scope,
                    left=duration(left_s).decode(),
                )
        rate = rate_at(self._rates.get(asked.pool, ()), asked.model, now_s)
        if rate is None or not mine:
            return
        mine = [name for name in mine if budgets[name].currency == rate.currency]
        picos = float(rate.cost(asked.input_tokens, 0, asked.output_bound, 0))
        per_s = float(rate.cost(0, 0, 0, 1_000_000))
        self._opened[request_id] = (mine, picos, per_s, now_s)
        for name in mine:
            self._open.setdefault(name, _Open()).add(picos, per_s, now_s, 1)

    def end(self, record: LedgerRecord) -> None:
        """A request ended, whether ``begin`` saw it or not."""
        opened = self._opened.pop(record.request_id, None)
        if opened is not None:
            accounts, picos, per_s, begun_s = opened
            for name in accounts:
                self._open[name].add(picos, per_s, begun_s, -1)
            if not self._opened:
                self._open.clear()  # nothing is open: sums of floats begin at zero again
        budgets = self._budgets.get(record.tenant)
        if budgets is None or record.outcome == Outcome.REFUSED:
            return
        for name, spent in spent_of_record(record, self._rates, budgets):
            key = (name, record.pool, int(record.done_s / CELL_S))
            before, newest_s, ended_s = self._ended.get(key, (0.0, 0.0, 0.0))
            newest_s, ended_s = max(newest_s, record.received_s), max(ended_s, record.done_s)
            self._ended[key] = (before + float(spent), newest_s, ended_s)
            self._pending[name] = self._pending.get(name, 0.0) + float(spent)

    def spent(self, name: str, now_s: float) -> float:
        """Of the running month, on an account [picos], as far as this process knows."""
        settled = sum(usage.picos(name, now_s) for usage in self._usage.values())
        opened = self._open.get(name)
        return settled + self._pending.get(name, 0.0) + (0.0 if opened is None else opened.cost(now_s))

    def take(self, usage: dict[str, PoolUsage], now_s: float) -> None:
        """New figures of the leaders: what they contain is no longer counted here."""
        self._usage = usage
        begins_s = period_bounds_s(now_s, "month")[0]
        self._pending = {}
        for (name, pool, cell), (picos, newest_s, ended_s) in list(self._ended.items()):
            known_s = usage[pool].as_of_s if pool in usage else 0.0
            if ended_s <= max(known_s, now_s - KEEP_S):
                del self._ended[name, pool, cell]
            elif newest_s >= begins_s:
                self._pending[name] = self._pending.get(name, 0.0) + picos
