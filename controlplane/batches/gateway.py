"""A gateway without a door: it runs the lines of batches as the web process runs requests, on surplus capacity.

The same parsing, limits, estimates, admission, retries and ledger. What differs: nobody connects to it, whoever calls
names a key by its id, and the entitlement behind it is that of :mod:`scheduling.core.admission.batch_account`. A
refusal for want of room is no end of a line, so it leaves no ledger row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from scheduling.catalog import CatalogCache
from scheduling.core.admission.batch_account import account_of, surplus_of
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import ENDINGS, Outcome, Reason
from scheduling.core.types import PoolSpec
from scheduling.gateway.app import GatewayApp
from scheduling.gateway.asgi import Message
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.entry.auth import Access, Keyring
from scheduling.gateway.entry.authenticator import NEW_KEY_WAIT_S, Authenticator
from scheduling.gateway.errors import Refusal
from scheduling.gateway.estimate.forecasts import Forecasts
from scheduling.state.store import PoolStore

# Refusals after which a line waits: it may run later, and has not been an attempt.
WAITS = frozenset(
    reason for reason, ending in ENDINGS.items() if ending.outcome is Outcome.REFUSED and ending.retry
) | {Reason.NOT_ENTITLED, Reason.TENANT_PAUSED, Reason.QUOTA_EXCEEDED, Reason.BUDGET_EXCEEDED}
AGAIN = frozenset(
    {Reason.EVICTED, Reason.LEASE_LOST, Reason.GATEWAY_LOST, Reason.CLIENT_LEFT}
)  # it ran, and runs again
LIMITS = frozenset({Reason.KEY_LIMIT.value, Reason.USER_LIMIT.value})
Kept = Callable[[str], Collection[str]]
LARGEST_ANSWER = 8 * 1024 * 1024  # bytes: results are held until they are stored


class Unmeasured:
    """Metrics of a process that serves no /metrics."""

    def ended(self, record: LedgerRecord) -> None: ...

    def rejected(self, reason: str, status: int) -> None: ...

    def usage_rejected(self, pool: str, backend: str) -> None: ...

    def answer_rejected(self, pool: str, backend: str, cause: str) -> None: ...

    def prefill_preempted(self, pool: str, backend: str) -> None: ...

    def storm_refused(self, pool: str, tenant: str, reason: str) -> None: ...

    def state_available(self, available: bool) -> None: ...

    def gauge(self, name: str, value: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """How one run of a line ended. ``status`` 0: it was ended before there was an answer."""

    status: int
    reason: Reason
    body: bytes
    never: bool = False  # it does not fit, however long it waits

    @property
    def waits(self) -> bool:
        """Whether the line was not run, or was stopped for others, and is to be run later."""
        return not self.never and (self.reason in WAITS or self.reason in AGAIN)

    @property
    def may_pass(self) -> bool:
        """Whether it failed in a way that need not be so the next time."""
        return not self.never and self.reason.ending.outcome is not Outcome.COMPLETED and self.reason.ending.retry


class LineAuthenticator(Authenticator):
    """Of lines: each is sent with the id of the key whose batch it is of."""

    def __init__(self, catalog: CatalogCache, keyring: Callable[[], Keyring]) -> None:
        super().__init__(catalog, keyring)
        self._surplus: dict[str, Access] = {}

    async def access(self, authorization: bytes | None, now_s: float) -> Access:
        key_id = (authorization or b"").decode("ascii")
        if not self._keyring().holds(key_id, now_s):
            await self._catalog.refreshed(NEW_KEY_WAIT_S)
            if not self._keyring().holds(key_id, now_s):
                raise Refusal(Reason.NO_KEY)
        access = self._keyring().opened(key_id)
        if access is None:
            raise Refusal(Reason.NOT_ENTITLED, state="missing")
        return access

    def choose(self, model: str, access: Access) -> Access:
        """A line runs on the surplus account of what it asks for, and nowhere else."""
        asked = super().choose(model, access)
        spec = self._surplus.get(asked.door)
        if spec is None:
            account = surplus_of(asked.entitlement)
            spec = self._surplus[asked.door] = replace(asked, entitlement=account, reach=None)
        return spec

    def configured(self) -> None:
        self._surplus.clear()


class SurplusGateway(GatewayApp):
    """The gateway of a process that works on batches."""

    AUTHENTICATOR = LineAuthenticator

    def __init__(
        self, config: GatewayConfig, catalog: CatalogCache, redis_url: str, kept: Kept = lambda pool: (),
        learned: Forecasts | None = None,
    ) -> None:  # fmt: skip
        """``kept``: the replicas of a pool that lines leave to people now. ``learned``: by the gateway of the task
        before, which has stopped."""
        config = replace(config, unrecorded=WAITS, records_mistakes=True, max_answer_bytes=LARGEST_ANSWER, drain_s=0.0)
        self._kept = kept
        super().__init__(config, catalog, redis_url, Unmeasured())
        if learned is not None:
            self._forecasts.resume(learned)

    async def run_line(self, key_id: str, path: str, body: bytes, request_id: str) -> LineAnswer:
        """Runs one request. Cancelling it ends the request at its engine."""
        status, headers, parts = 0, list[tuple[bytes, bytes]](), list[bytes]()
        never = asyncio.get_running_loop().create_future()
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await never  # there is no client who could leave
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
            else:
                parts.append(message.get("body", b""))

        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"authorization", key_id.encode("ascii")), (b"content-length", b"%d" % len(body))],
        }
        await self._requests.handle(scope, receive, send, request_id)
        reason = next((v.decode("ascii") for k, v in headers if k == b"x-quartermaster-reason"), "")
        # A limit of its key or user that is smaller than the line. The entitlement's own are not asked of lines.
        too_large = reason in LIMITS and not any(k == b"retry-after" for k, _ in headers)
        return LineAnswer(status, Reason(reason) if reason else Reason.CLIENT_LEFT, b"".join(parts), too_large)

    @property
    def learned(self) -> Forecasts:
        """What this gateway knows of how long answers become."""
        return self._forecasts

    def models(self, key_id: str) -> frozenset[str]:
        """The names of the model that a key opens; none where it opens nothing."""
        access = self._keyring.opened(key_id)
        return frozenset() if access is None else frozenset(access.cards())

    def runs_on(self, key_id: str, model: str) -> tuple[str, str]:
        """The pool of a key's model, and the account that its lines run on; empty where it opens nothing."""
        access = self._keyring.opened(key_id)
        asked = None if access is None else access.at(model)
        return ("", "") if asked is None else (asked.pool.id, account_of(asked.entitlement.id))

    def store_of(self, pool: str) -> PoolStore:
        """The shared state of a pool."""
        return self._store(pool)

    def _avoided(self, pool: PoolSpec) -> Collection[str]:
        """What is kept for people. An adapter's lines go anywhere: it may be on no other replica."""
        return () if pool.adapter else self._kept(pool.id)
