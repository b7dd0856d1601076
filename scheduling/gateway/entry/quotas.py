"""Has this tenant used up its day or month, or this key its day?

The figure is the leaders' (``scheduling/state/usage.py``, read once a second) plus what this process saw end since,
plus what it has open now, at its estimate.

A hard limit is therefore overshot by at most what *other* gateways have open and ended within the last two to three
seconds, and by how far this gateway's open requests exceed their estimates; while the database is away, by what other
gateways end meanwhile. A refusal is never early, but for estimates of open requests that turn out too high. Tenants
and keys without a quota cost a lookup each.
"""

from __future__ import annotations

import asyncio
import logging
import time

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import Catalog, QuotaSpec
from scheduling.gateway.entry.budgets import CELL_S, KEEP_S, Budgets
from scheduling.gateway.errors import Refusal
from scheduling.gateway.headers import duration
from scheduling.state.resp import RespConnection
from scheduling.state.types import StateUnavailable
from scheduling.state.usage import PERIODS, PoolUsage, period_bounds_s, read_usage

log = logging.getLogger(__name__)

READ_EVERY_S = 1.0


def key_account(key: str) -> str:
    """Under which name the tokens of a key are counted here, beside those of tenants: no slug has a colon."""
    return f"k:{key}"


class Quotas:
    """The quotas of all tenants, and the days of all keys, as one gateway process enforces them.

    An *account* is a tenant's name, or a key's (:func:`key_account`)."""

    def __init__(self, resp: RespConnection) -> None:
        self.budgets = Budgets()  # read from the same figures
        self._resp = resp
        self._limits: dict[str, tuple[QuotaSpec, ...]] = {}
        self._usage: dict[str, PoolUsage] = {}
        self._open: dict[str, tuple[list[str], float]] = {}  # request -> accounts, expected tokens
        self._opened: dict[str, float] = {}  # account -> their sum
        # (account, pool, when it ended / CELL_S) -> tokens, and the newest moment one of them was received
        self._ended: dict[tuple[str, str, int], tuple[float, float]] = {}
        self._pending: dict[tuple[str, str], float] = {}  # (account, period) -> what of them the leaders do not know
        self._task: asyncio.Task[None] | None = None

    def configure(self, catalog: Catalog) -> None:
        limits = {t: tuple(q for q in quotas if q.hard_tokens is not None) for t, quotas in catalog.quotas.items()}
        self._limits = {tenant: quotas for tenant, quotas in limits.items() if quotas}
        for key in catalog.keys.values():
            if key.tokens_per_day:
                self._limits[key_account(key.id)] = (QuotaSpec("day", None, key.tokens_per_day),)
        self.budgets.configure(catalog)

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="quotas")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def begin(self, tenant: str, key: str, request_id: str, expected_tokens: float, now_s: float) -> None:
        """Lets a request of ``tenant`` in, that came with ``key``.

        Raises:
            Refusal: a hard limit is reached.
        """
        accounts = self._accounts(tenant, key)
        if not accounts or request_id in self._open:  # it was let in, and tries its fallback
            return
        for account in accounts:
            for quota in self._limits[account]:
                used = self.used(account, quota.period, now_s)
                assert quota.hard_tokens is not None
                if used >= quota.hard_tokens:
                    left_s = period_bounds_s(now_s, quota.period)[1] - now_s
                    raise Refusal(
                        Reason.QUOTA_EXCEEDED,
                        retry_s=left_s,
                        of="tenant" if account == tenant else "key",
                        limit=quota.hard_tokens,
                        used=int(used),
                        period=quota.period,
                        left=duration(left_s).decode(),
                    )
        self._open[request_id] = (accounts, expected_tokens)
        for account in accounts:
            self._opened[account] = self._opened.get(account, 0.0) + expected_tokens

    def end(self, record: LedgerRecord) -> None:
        """A request ended, whether ``begin`` saw it or not."""
        self.budgets.end(record)
        opened = self._open.pop(record.request_id, None)
        if opened is not None:
            accounts, expected = opened
            for account in accounts:
                left = self._opened[account] - expected
                if left > 0.5:
                    self._opened[account] = left
                else:
                    del self._opened[account]
        tokens = record.input_tokens + record.output_tokens
        if record.outcome == Outcome.REFUSED or not tokens:
            return
        for account in self._accounts(record.tenant, record.key_id):
            at = (account, record.pool, int(record.done_s / CELL_S))
            before, newest_s = self._ended.get(at, (0.0, 0.0))
            self._ended[at] = (before + tokens, max(newest_s, record.received_s))
            for period in PERIODS:
                self._pending[account, period] = self._pending.get((account, period), 0.0) + tokens

    def used(self, account: str, period: str, now_s: float) -> float:
        """Tokens of the running period [tokens], as far as this process knows."""
        key = account.removeprefix("k:")
        if key != account:
            settled = sum(usage.tokens_of_key(key, now_s) for usage in self._usage.values())
        else:
            settled = sum(usage.tokens(account, period, now_s) for usage in self._usage.values())
        return settled + self._pending.get((account, period), 0.0) + self._opened.get(account, 0.0)

    def take(self, usage: dict[str, PoolUsage], now_s: float) -> None:
        """New figures of the leaders: what they contain is no longer counted here."""
        self._usage = usage
        self.budgets.take(usage, now_s)
        begins = {period: period_bounds_s(now_s, period)[0] for period in PERIODS}
        self._pending = {}
        for (account, pool, cell), (tokens, newest_s) in list(self._ended.items()):
            known_s = usage[pool].as_of_s if pool in usage else 0.0
            if (cell + 1) * CELL_S <= max(known_s, now_s - KEEP_S):
                del self._ended[account, pool, cell]
                continue
            for period in PERIODS:
                if newest_s >= begins[period]:
                    self._pending[account, period] = self._pending.get((account, period), 0.0) + tokens

    def _accounts(self, tenant: str, key: str) -> list[str]:
        """Those of the two that have a hard limit."""
        if not self._limits:
            return []
        return [account for account in (tenant, key_account(key)) if account in self._limits]

    async def _follow(self) -> None:
        while True:
            if self._limits or self.budgets:
                try:
                    self.take(await read_usage(self._resp), time.time())
                except StateUnavailable:
                    pass  # nothing is admitted either
                except Exception:
                    log.exception("quotas: the usage figures could not be read; the last ones stay in force")
            await asyncio.sleep(READ_EVERY_S)
