"""A pool with a patient tier and an urgent one, behind a gateway and a leader: where prompts are interrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from scheduling.core.types import BackendSpec, Catalog, OverLimit, ServiceClass, Slo, TierSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until
from tests.support.gateway_world import World, gateway_world, make_key

BATCH = TierSpec(
    "batch", ServiceClass.ELASTIC, 2, 1.0, Slo(ttlt_s=600.0), over_limit=OverLimit.WAIT, queue_limit=100,
    max_wait_s=240.0,
)  # fmt: skip
PREMIUM = replace(BATCH, name="premium", rank=0, weight=50.0, slo=Slo(ttft_s=1.0, tbt_s=1.0))


class TwoTiers(World):
    """A gateway with two keys: ``key`` is of the batch tier, ``urgent`` of the other."""

    urgent: str
    dispatcher: PoolDispatcher
    told: Telemetry


@asynccontextmanager
async def two_tiers(
    redis_url: str,
    pool_id: str,
    backends: Sequence[BackendSpec],
    *,
    urgent: TierSpec = PREMIUM,
    resumes: bool = True,
    ready_s: float = 30.0,
    prefill_preemption: bool = True,
    config: GatewayConfig | None = None,
    **pool: Any,
) -> AsyncIterator[TwoTiers]:
    """``resumes``: whether a prompt that is sent again resumes where it stopped, which is known before it begins.
    ``pool``: fields of its spec."""
    async with gateway_world(redis_url, pool_id, engines=0, lead=False, config=config) as gateway:
        world: TwoTiers = gateway  # type: ignore[assignment]
        world.pool = replace(
            world.pool, backends=tuple(backends), routing="prefix_affinity", prefill_credit=None, **pool
        )
        world.entitlement = replace(world.entitlement, tier=BATCH)
        other = replace(world.entitlement, id=f"{pool_id}-urgent", tier=urgent)
        world.urgent, spec = make_key(9_000, other.id)
        keys = {world.key_spec.id: world.key_spec, spec.id: spec}
        entitlements = {each.id: each for each in (world.entitlement, other)}
        world.catalog = Catalog(2, {world.pool.id: world.pool}, entitlements, keys)
        await world.app._catalog.refreshed(10)
        catalog, world.told = catalog_of(world.pool, *entitlements.values()), Telemetry()
        async with dispatching(
            redis_url, catalog, over_http=True, telemetry=world.told, prefill_preemption=prefill_preemption
        ) as world.dispatcher:
            await until(lambda: _resumes(world.dispatcher) == [resumes] * len(backends), "ready", ready_s)
            yield world


def _resumes(dispatcher: PoolDispatcher) -> list[bool]:
    """Of the replicas that are ready: whether a prompt that is sent again resumes where it stopped."""
    if dispatcher.term is None:
        return []
    return [b.told_resumes for b in dispatcher.term.monitor._backends.values() if b.state == "ready" and b.metrics]
