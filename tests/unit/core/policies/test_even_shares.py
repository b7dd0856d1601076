"""With fair shares, tenants with equal rights that ask for more than there is get as much as each other, whatever their
requests look like: Jain's index of service as the pool counts it, on virtual time."""

from __future__ import annotations

import pytest

from scheduling.core.policies.compose import make_named
from scheduling.core.types import (
    BackendSpec,
    EntitlementSpec,
    EntitlementState,
    OverLimit,
    PoolSpec,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.simulator.fairness import jain
from scheduling.simulator.pools import Client, PoolModel, Service

OUTPUT_WEIGHT = 2.0  # of `fair`, unless a pool says another
TENANTS, SLOTS, BEGIN_S, END_S = 8, 24, 30.0, 330.0
ALIKE = [(200, (100, 200))] * TENANTS
MIXED = [(100, (20, 60)), (2000, (20, 60)), (100, (300, 500)), (2000, (300, 500))] * 2
TIER = TierSpec(
    "standard", ServiceClass.SPOT, 1, 1.0, Slo(ttft_s=1.0, tbt_s=0.1), over_limit=OverLimit.WAIT, queue_limit=50,
    max_wait_s=60.0,
)  # fmt: skip


def index(shapes: list[tuple[int, tuple[int, int]]], demands: list[float], policy: str = "fair+unified") -> float:
    """Jain's index of what each tenant was served in five minutes. ``demands``: in shares of the pool."""
    clients = [
        Client(
            EntitlementSpec(f"t{n}", f"t{n}", "pool", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, SLOTS), 0.0, END_S,
            demand * SLOTS / TENANTS, False, prompt, answer, 0,
        )
        for n, ((prompt, answer), demand) in enumerate(zip(shapes, demands, strict=True))
    ]  # fmt: skip
    pool = PoolSpec("pool", "model", "model", (BackendSpec("b0", "pool", "", SLOTS, 1 << 40),))
    served = dict.fromkeys((client.spec.id for client in clients), 0.0)
    for a in PoolModel(pool, clients, Service(1 / 8000, 0.02), make_named(policy), seed=3).run(END_S).attempts:
        if a.end_s is not None and a.start_s is not None and not a.cut and BEGIN_S <= a.end_s < END_S:
            served[a.client.spec.id] += a.client.input_tokens + OUTPUT_WEIGHT * a.output_tokens
    return jain(served.values())


# At one and a half times the slots, tenants with small requests ask for less than an equal share of the tokens.
@pytest.mark.parametrize(("shapes", "demand"), [(ALIKE, 1.5), (ALIKE, 4.0), (MIXED, 4.0)])
def test_at_equal_demand_jains_index_is_95_hundredths_at_least(
    shapes: list[tuple[int, tuple[int, int]]], demand: float
) -> None:
    assert index(shapes, [demand] * TENANTS) >= 0.95


def test_in_order_of_arrival_a_tenant_with_larger_requests_gets_more() -> None:
    """The broken variant: no fair shares."""
    assert index(MIXED, [4.0] * TENANTS, "fifo") < 0.8
