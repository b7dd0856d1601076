"""What a pool can hold: replicas times what one has, in three dimensions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scheduling.core.capacity.pool import Amounts, of_pool, reserved, slots_for_answers, tightest
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, Phase, ServiceClass, Slo, TierSpec


def backend(name: str, *, draining: bool = False, tokens_per_s: float = 1000.0) -> BackendSpec:
    return BackendSpec(name, "p", f"http://{name}:8000", 8, 1600, draining=draining, tokens_per_s=tokens_per_s)


def entitlement(service_class: ServiceClass, state: EntitlementState = EntitlementState.BOUND) -> EntitlementSpec:
    tier = TierSpec("t", service_class, 0, 1.0, Slo(ttlt_s=10.0))
    return EntitlementSpec("e", "tenant", "p", tier, state, 100.0, 1000.0, 400, 2)


def test_a_pool_has_what_its_replicas_have_together_without_those_that_drain() -> None:
    assert of_pool([backend("a"), backend("b"), backend("c", draining=True)]) == Amounts(16, 3200, 2000.0)


def test_throughput_is_no_bound_until_every_replica_was_measured() -> None:
    pool = of_pool([backend("a"), backend("b", tokens_per_s=0.0)])
    assert pool.tokens_per_s == math.inf
    assert pool.as_dict() == {"slots": 16, "kv_tokens": 3200}
    assert tightest(Amounts(tokens_per_s=1e9), pool) == ""


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (Amounts(8, 1600, 1000.0), ""),
        (Amounts(9, 9999, 9999.0), "slots"),
        (Amounts(8, 1601, 0.0), "kv_tokens"),
        (Amounts(8, 1600, 1000.1), "tokens_per_s"),
    ],
)
def test_what_does_not_fit_is_named_by_its_dimension(wanted: Amounts, name: str) -> None:
    assert tightest(wanted, of_pool([backend("a")])) == name


def test_shares_that_fill_a_pool_exactly_fit_however_they_are_summed() -> None:
    left = Amounts(tokens_per_s=1000.0)
    for _ in range(10):
        share = Amounts(tokens_per_s=0.1 * 1000.0)
        assert tightest(share, left) == ""
        left -= share


def test_only_bound_dedicated_and_guaranteed_entitlements_reserve() -> None:
    held = [entitlement(c) for c in ServiceClass]
    held.append(entitlement(ServiceClass.GUARANTEED, EntitlementState.DEGRADED))
    assert reserved(held) == Amounts(4, 800, 200.0)


def phases(*names: Phase) -> list[BackendSpec]:
    return [replace(backend(f"b{i}"), phase=phase) for i, phase in enumerate(names)]


def test_slots_and_kv_cache_of_prefill_replicas_are_not_promised_and_their_throughput_counts() -> None:
    pool = phases(Phase.PREFILL, Phase.PREFILL, Phase.DECODE)
    assert of_pool(pool) == Amounts(8, 1600, 3000.0)
    assert slots_for_answers(pool) == 8
