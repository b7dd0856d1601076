"""Has this tenant used up its day or month?

The figure is the leaders' (``scheduling/state/usage.py``, read once a second) plus what this process saw end since,
plus what it has open now, at its estimate.

A hard limit is therefore overshot by at most what *other* gateways have open and ended within the last two to three
seconds, and by how far this gateway's open requests exceed their estimates; while the database is away, by what other
gateways end meanwhile. A refusal is never early, but for estimates of open requests that turn out too high. Tenants
without a quota cost one lookup.
"""

from __future__ import annotations

import asyncio
import logging
import time

from scheduling.core.ledger import LedgerRecord
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import Catalog, QuotaSpec
from scheduling.gateway.errors import Refusal
from scheduling.gateway.headers import duration
from scheduling.state.resp import RespConnection
from scheduling.state.types import StateUnavailable
from scheduling.state.usage import PERIODS, PoolUsage, period_bounds_s, read_usage

log = logging.getLogger(__name__)

READ_EVERY_S = 1.0
CELL_S = 0.1  # what ended here is remembered by tenths of a second
KEEP_S = 1800.0  # and for so long, if the ledger does not get it (the database is away)


class Quotas:
    """The quotas of all tenants as one gateway process enforces them."""

    def __init__(self, resp: RespConnection) -> None:
        self._resp = resp
        self._limits: dict[str, tuple[QuotaSpec, ...]] = {}
        self._usage: dict[str, PoolUsage] = {}
        self._open: dict[str, tuple[str, float]] = {}  # request -> tenant, expected tokens
        self._opened: dict[str, float] = {}  # tenant -> their sum
        # (tenant, pool, when it ended / CELL_S) -> tokens, and the newest moment one of them was received
        self._ended: dict[tuple[str, str, int], tuple[float, float]] = {}
        self._pending: dict[tuple[str, str], float] = {}  # (tenant, period) -> what of them the leaders do not know
        self._task: asyncio.Task[None] | None = None

    def configure(self, catalog: Catalog) -> None:
        limits = {t: tuple(q for q in quotas if q.hard_tokens is not None) for t, quotas in catalog.quotas.items()}
        self._limits = {tenant: quotas for tenant, quotas in limits.items() if quotas}

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="quotas")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def begin(self, tenant: str, request_id: str, expected_tokens: float, now_s: float) -> None:
        """Lets a request of ``tenant`` in.

        Raises:
            Refusal: a hard limit is reached.
        """
        limits = self._limits.get(tenant)
        if limits is None or request_id in self._open:  # it was let in, and tries its fallback
            return
        for quota in limits:
            used = self.used(tenant, quota.period, now_s)
            assert quota.hard_tokens is not None
            if used >= quota.hard_tokens:
                left_s = period_bounds_s(now_s, quota.period)[1] - now_s
                raise Refusal(
                    Reason.QUOTA_EXCEEDED,
                    retry_s=left_s,
                    limit=quota.hard_tokens,
                    used=int(used),
                    period=quota.period,
                    left=duration(left_s).decode(),
                )
        self._open[request_id] = (tenant, expected_tokens)
        self._opened[tenant] = self._opened.get(tenant, 0.0) + expected_tokens

    def end(self, record: LedgerRecord) -> None:
        """A request ended, whether ``begin`` saw it or not."""
        opened = self._open.pop(record.request_id, None)
        if opened is not None:
            tenant, expected = opened
            left = self._opened[tenant] - expected
            if left > 0.5:
                self._opened[tenant] = left
            else:
                del self._opened[tenant]
        tokens = record.input_tokens + record.output_tokens
        if record.tenant not in self._limits or record.outcome == Outcome.REFUSED or not tokens:
            return
        key = (record.tenant, record.pool, int(record.done_s / CELL_S))
        before, newest_s = self._ended.get(key, (0.0, 0.0))
        self._ended[key] = (before + tokens, max(newest_s, record.received_s))
        for period in PERIODS:
            self._pending[record.tenant, period] = self._pending.get((record.tenant, period), 0.0) + tokens

    def used(self, tenant: str, period: str, now_s: float) -> float:
        """Tokens of the running period [tokens], as far as this process knows."""
        settled = sum(usage.tokens(tenant, period, now_s) for usage in self._usage.values())
        return settled + self._pending.get((tenant, period), 0.0) + self._opened.get(tenant, 0.0)

    def take(self, usage: dict[str, PoolUsage], now_s: float) -> None:
        """New figures of the leaders: what they contain is no longer counted here."""
        self._usage = usage
        begins = {period: period_bounds_s(now_s, period)[0] for period in PERIODS}
        self._pending = {}
        for (tenant, pool, cell), (tokens, newest_s) in list(self._ended.items()):
            known_s = usage[pool].as_of_s if pool in usage else 0.0
            if (cell + 1) * CELL_S <= max(known_s, now_s - KEEP_S):
                del self._ended[tenant, pool, cell]
                continue
            for period in PERIODS:
                if newest_s >= begins[period]:
                    self._pending[tenant, period] = self._pending.get((tenant, period), 0.0) + tokens

    async def _follow(self) -> None:
        while True:
            if self._limits:
                try:
                    self.take(await read_usage(self._resp), time.time())
                except StateUnavailable:
                    pass  # nothing is admitted either
                except Exception:
                    log.exception("quotas: the usage figures could not be read; the last ones stay in force")
            await asyncio.sleep(READ_EVERY_S)
