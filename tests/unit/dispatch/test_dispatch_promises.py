"""What the tiers of a pool promise, as its leader reads it."""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.types import EntitlementSpec, Slo
from scheduling.dispatch.configured import strictest_tbt_s
from tests.support.dispatch_world import catalog_of
from tests.support.state_world import entitlement, pool_spec


def promised(name: str, tbt_s: float | None) -> EntitlementSpec:
    spec = entitlement(name)
    return replace(spec, tier=replace(spec.tier, slo=Slo(ttft_s=1.0, tbt_s=tbt_s)))


def test_the_strictest_time_between_tokens_is_that_of_who_runs():
    specs = [promised("quick", 0.05), promised("slow", 0.2), promised("batch", None)]
    catalog = catalog_of(pool_spec(), *specs)
    assert strictest_tbt_s(catalog, ["slow", "batch"]) == 0.2
    assert strictest_tbt_s(catalog, ["slow", "quick"]) == 0.05
    assert strictest_tbt_s(catalog, ["batch"]) is None
    assert strictest_tbt_s(catalog, []) is None
    assert strictest_tbt_s(catalog, ["removed", "slow"]) == 0.2, "its requests still run"
