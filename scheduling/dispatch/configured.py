"""A pool's catalog as its leader needs it: limits, rights and the policy in force."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.contracts import OrderingPolicy, RoutingPolicy
from scheduling.core.policies.registry import PolicyError, make_routing
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import Catalog, EntitlementSpec, EntitlementState, PoolSpec
from scheduling.state.types import BATCH

log = logging.getLogger("quartermaster.dispatch")


def entitlements_of(catalog: Catalog, pool_id: str) -> Mapping[str, EntitlementSpec]:
    """By id."""
    return {e.id: e for e in catalog.entitlements.values() if e.pool == pool_id}


def give_rights(scheduler: Scheduler, pool: PoolSpec, catalog: Catalog) -> None:
    """What the pool keeps free, and whose promise it cannot keep now."""
    scheduler.headroom = pool.headroom_slots
    scheduler.unreserved = frozenset(
        e.id for e in catalog.entitlements.values() if e.pool == pool.id and e.state is not EntitlementState.BOUND
    )


def decided_by(pool: PoolSpec) -> tuple[object, ...]:
    """The settings of a pool from which its policy follows: a change of one changes who goes next, or where."""
    return (
        pool.policy, pool.policy_version, pool.policy_params, pool.modifiers, pool.routing, pool.routing_params,
    )  # fmt: skip


def policies_of(pool: PoolSpec) -> tuple[OrderingPolicy, RoutingPolicy]:
    """Raises ``PolicyError``."""
    ordering = make_policy(pool.policy, pool.policy_params, pool.modifiers)
    return ordering, make_routing(pool.routing, pool.routing_params)


def scheduler_of(pool: PoolSpec) -> tuple[str, Scheduler]:
    """Its policy's name@version and its scheduler; arrival order where its policy cannot be made."""
    name = f"{pool.policy}@{pool.policy_version}"
    try:
        ordering, routing = policies_of(pool)
    except PolicyError as error:
        log.error("pool %s: %s; serving in arrival order until it is corrected", pool.id, error)
        name, ordering, routing = "fifo@0", make_policy("fifo"), make_routing("least_work")
    return name, Scheduler(ordering, routing, max_grants=BATCH, rights=True)


def strictest_tbt_s(catalog: Catalog, entitlements: Iterable[str]) -> float | None:
    """The strictest time between tokens that is promised to these entitlements; None: none is. What is no longer in the
    catalog may still run, and nothing is promised to it any more."""
    tiers = [catalog.entitlements[name].tier for name in entitlements if name in catalog.entitlements]
    return min((tier.slo.tbt_s for tier in tiers if tier.slo.tbt_s is not None), default=None)
