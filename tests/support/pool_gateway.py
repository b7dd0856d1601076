"""A gateway as a pool sees it: it asks, hears of grants and evictions, and ends what it holds. No HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementSpec, PoolSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.state import codec
from scheduling.state.notices import EvictionNotice, GrantNotice
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import Admission, gateway_channel
from tests.support.dispatch_world import until, until_await
from tests.support.state_world import FACTS, backend, estimate, ledger, pool_spec, request


@dataclass
class Gateway:
    """What a gateway does with a pool: asks, hears of grants, ends."""

    url: str
    pool: PoolSpec
    store: PoolStore
    name: str

    def __post_init__(self) -> None:
        self.notices: list[GrantNotice] = []
        self.evicted: list[str] = []
        self.asked = 0

    def heard(self, _channel: str, payload: bytes) -> None:
        notice = codec.decode_notice(payload)
        if isinstance(notice, EvictionNotice):
            self.evicted.append(notice.request_id)
        else:
            self.notices.append(notice)

    async def admit(self, request_id: str, spec: EntitlementSpec, **changes: object) -> Admission:
        self.asked += 1
        est = estimate()
        queued = request(request_id, spec, est, gateway=self.name, arrival_s=1_700_000_000.0 + self.asked, **changes)
        return await self.store.admit(spec, self.pool, queued, est, 300, FACTS)

    async def finish(self, request_id: str, attempt: int = 1) -> None:
        await self.store.finish(request_id, attempt, Reason.STOP, 140, True, ledger(request_id, pool=self.pool.id))

    async def renew(self, *request_ids: str) -> None:
        """As a real gateway does all the time: what it holds and does not renew is free after ten seconds."""
        await self.store.renew(self.name, [(request_id, 1, 0) for request_id in request_ids])

    def granted(self) -> list[str]:
        return [notice.request_id for notice in self.notices]

    async def serve_all(self, count: int) -> list[str]:
        """Ends each granted request, in order, until ``count`` were granted; the order."""
        for n in range(count):
            await until(lambda n=n: len(self.notices) > n)
            await self.finish(self.notices[n].request_id, self.notices[n].attempt)
        return self.granted()


@asynccontextmanager
async def make_gateway(url: str, resp: RespConnection, pool_id: str, name: str = "gw") -> AsyncIterator[Gateway]:
    pool = pool_spec(pool_id, backends=(backend("b1", slots=1, pool=pool_id),), policy="priority")
    g = Gateway(url, pool, PoolStore(resp, pool_id), f"{name}-{pool_id}")
    async with listening(g):
        yield g


@asynccontextmanager
async def listening(g: Gateway) -> AsyncIterator[None]:
    ear = Subscriber(g.url, [gateway_channel(g.name)], g.heard)
    await ear.start()
    while not await g.store.listening([g.name]):
        await asyncio.sleep(0.01)
    yield
    await ear.close()
    while await g.store.listening([g.name]):
        await asyncio.sleep(0.01)


async def ready(dispatcher: PoolDispatcher, store: PoolStore) -> None:
    async def look() -> bool:
        snapshot = await store.view()
        return dispatcher.epoch > 0 and any(b.ready for b in snapshot.backends.values())

    await until_await(look)
