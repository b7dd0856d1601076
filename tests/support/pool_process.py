"""A gateway process without HTTP, to be killed.

    python -m tests.support.pool_process REDIS_URL POOL NAME SEED COUNT HISTORY

Sends ``COUNT`` requests of random tenants and sizes, some aborted while they wait and some while they run, and writes
what it knows into ``HISTORY``, one JSON array per line and one write each, so that a kill loses nothing:

    sent id entitlement | refused id reason | held id entitlement backend kv t | free id t | done id reason tokens said

``held`` is written after the lease was known and ``free`` before it was given back, both by the machine's monotonic
clock: between them the lease was certainly held.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementSpec, OverLimit, PoolSpec, ServiceClass
from scheduling.state import codec
from scheduling.state.notices import EvictionNotice, GrantNotice
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import AdmissionStatus, RenewStatus, gateway_channel
from tests.support.connected import connected
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

TASKS = 24
RENEW_S = 1.0
PATIENCE_S = 2.0
REFILL = 1e-6  # tokens/s: as good as none, so that a bucket is the sum of what was charged


def pool_of(pool_id: str) -> PoolSpec:
    both = (
        replace(backend("b1", 6, 2000, pool_id), prefill_tokens=500),
        replace(backend("b2", 5, 1500, pool_id), prefill_tokens=400),
    )
    return pool_spec(pool_id, backends=both, policy="fifo", queue_limit=200, threshold=0.4)


def tenants_of(pool_id: str) -> list[EntitlementSpec]:
    """Eight tenants of all five classes; together they want about three times what the pool has."""

    def one(name: str, service_class: ServiceClass, concurrency: int, **changes: Any) -> EntitlementSpec:
        waits = OverLimit.WAIT if changes.pop("waits", False) else OverLimit.REFUSE
        given: dict[str, Any] = {"tokens_per_s": REFILL, "burst_tokens": 1e9}
        spec = tier(name=name, service_class=service_class, over_limit=waits, queue_limit=20)
        return entitlement(name, pool_id, tier=spec, concurrency=concurrency, **(given | changes))

    return [
        one("gold", ServiceClass.GUARANTEED, 4),
        one("poor", ServiceClass.GUARANTEED, 2, burst_tokens=10_000.0),
        one("own", ServiceClass.DEDICATED, 3, kv_tokens=600),
        one("elastic", ServiceClass.ELASTIC, 3, kv_tokens=400),
        one("patient", ServiceClass.ELASTIC, 2, waits=True),
        one("spot", ServiceClass.SPOT, 4, kv_tokens=500),
        one("batch", ServiceClass.SPOT, 3, waits=True),
        one("cheap", ServiceClass.PREEMPTIBLE, 4, waits=True),
    ]


@dataclass(slots=True)
class Live:
    attempt: int
    granted: asyncio.Future[str]
    evicted: asyncio.Event
    served: int = 0


class Process:
    def __init__(self, url: str, pool_id: str, name: str, seed: int, count: int, history: str) -> None:
        self.pool, self.tenants = pool_of(pool_id), tenants_of(pool_id)
        self.name = name
        self.rng = random.Random(seed)
        self.left = iter(range(count))
        self.resp = RespConnection(url, name=name, call_timeout=20.0)
        self.store = PoolStore(self.resp, pool_id)
        self.ear = Subscriber(url, [gateway_channel(name)], self.heard, name=f"{name}-sub")
        self.live: dict[str, Live] = {}
        self.file = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: Any) -> None:
        os.write(self.file, (json.dumps(words) + "\n").encode())

    def heard(self, _channel: str, payload: bytes) -> None:
        notice = codec.decode_notice(payload)
        live = self.live.get(notice.request_id)
        if live is None:
            return
        if isinstance(notice, EvictionNotice):
            live.evicted.set()
        else:
            self.grant(live, notice)

    def grant(self, live: Live, notice: GrantNotice) -> None:
        if not live.granted.done():
            live.granted.set_result(notice.backend)

    async def run(self) -> None:
        await connected(self.resp)
        await self.ear.start()
        renewing = asyncio.create_task(self.renew())
        await asyncio.gather(*(self.work() for _ in range(TASKS)))
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await self.ear.close()
        await self.resp.close()

    async def work(self) -> None:
        for n in self.left:
            await self.one(f"req-{self.name}-{n:06d}")

    async def renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            items = [(name, live.attempt, live.served) for name, live in self.live.items()]
            for renewal in await self.store.renew(self.name, items):
                live = self.live.get(renewal.request_id)
                if live is not None and renewal.status is RenewStatus.HOLDS:
                    self.grant(live, GrantNotice(renewal.request_id, 1, renewal.backend, "", ""))
                elif live is not None and renewal.reason is Reason.EVICTED:
                    live.evicted.set()

    async def one(self, name: str) -> None:
        rng = self.rng
        spec = rng.choice(self.tenants)
        est = estimate(rng.randrange(5, 200), rng.randrange(5, 100))
        queued = request(name, spec, est, gateway=self.name, arrival_s=time.time())
        live = self.live[name] = Live(1, asyncio.get_running_loop().create_future(), asyncio.Event())
        self.note("sent", name, spec.id)
        record = replace(
            ledger(name), entitlement=spec.id, tenant=spec.tenant, gateway=self.name, input_tokens=0, output_tokens=0,
            input_tokens_est=est.input_tokens, output_bound=est.output_bound, pool=self.pool.id,
        )  # fmt: skip
        try:
            facts = replace(FACTS, streamed=rng.random() < 0.8)
            answer = await self.store.admit(spec, self.pool, queued, est, rng.randrange(100, 2000), facts)
            if answer.status is AdmissionStatus.REFUSED:
                assert answer.reason is not None
                self.note("refused", name, answer.reason.value)
                await self.store.record([_as(record, answer.reason, 0, 429)])
                await asyncio.sleep(rng.random() * 0.02)
                return
            if answer.status is AdmissionStatus.GRANTED:
                live.granted.set_result(answer.backend)
            reason, used, ran = await self.live_through(name, live, spec, est.input_tokens, est.output_bound)
            finish = await self.store.finish(name, 1, reason, used, ran, _as(record, reason, used if ran else 0, 200))
            self.note("done", name, reason.value, used if ran else 0, finish.status.value)
        finally:
            del self.live[name]

    async def live_through(
        self, name: str, live: Live, spec: EntitlementSpec, input_tokens: int, bound: int
    ) -> tuple[Reason, int, bool]:
        """Waits, holds, and says how it ends: reason, tokens, whether it ran."""
        rng = self.rng
        patience = rng.random() * 0.02 if rng.random() < 0.2 else PATIENCE_S
        try:
            async with asyncio.timeout(patience):
                at = await asyncio.shield(live.granted)
        except TimeoutError:
            return (Reason.QUEUE_TIMEOUT if patience == PATIENCE_S else Reason.CLIENT_LEFT), 0, False
        self.note("held", name, spec.id, at, input_tokens + bound, time.monotonic())
        hold = rng.random() * (0.05 if rng.random() < 0.1 else 0.006)
        output = rng.randrange(1, bound + 1)
        live.served = input_tokens + output // 2
        for _ in range(rng.choice((0, 1, 1, 1, 2))):  # some streams end before their first token, some tell it twice
            self.store.tell_first_tokens([name, 1])
        try:
            async with asyncio.timeout(hold):
                await live.evicted.wait()
        except TimeoutError:
            self.note("free", name, time.monotonic())
            if rng.random() < 0.2:
                return Reason.CLIENT_LEFT, input_tokens + output // 2, True
            return Reason.STOP, input_tokens + output, True
        return Reason.EVICTED, input_tokens + output // 3, True


def _as(record: Any, reason: Reason, tokens: int, status: int) -> Any:
    fresh = ledger(record.request_id, reason)
    return replace(
        record, outcome=fresh.outcome, reason=reason.value, status=status, output_tokens=tokens, slo_met=None
    )


if __name__ == "__main__":
    url, pool_id, name, seed, count, history = sys.argv[1:]
    asyncio.run(Process(url, pool_id, name, int(seed), int(count), history).run())
