"""On which account the lines of batches run: surplus capacity only, behind everybody who waits for an answer.

A line runs under its entitlement as a *preemptible* request that never waits in the pool's queue: it is granted while
the pool is idle for it (beside the headroom, and beside all who wait), else refused and tried again later; who may
evict takes its slot. Shared state counts it on an account of its own, ``<entitlement>~batch``, so that it takes neither
concurrency, nor tokens of the bucket, nor KV share from the people of the same entitlement. The ledger knows the
entitlement.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from scheduling.core.types import EntitlementSpec, EntitlementState, OverLimit, ServiceClass, Slo

ACCOUNT: Final = "~batch"  # no slug has a tilde
REQUEST_ID: Final = "batch_"  # how the ids of such requests begin
LAST_RANK: Final = 1_000_000  # behind every tier, in engines as well


def account_of(entitlement: str) -> str:
    """The name under which shared state counts the batches of an entitlement."""
    return entitlement + ACCOUNT


def is_account(name: str) -> bool:
    """Whether it is such a name."""
    return name.endswith(ACCOUNT)


def owner_of(account: str) -> str:
    """The entitlement behind an account; any other name is its own."""
    return account.removesuffix(ACCOUNT)


def surplus_of(spec: EntitlementSpec) -> EntitlementSpec:
    """What the lines of an entitlement's batches may: whatever is idle, and nothing of what is its own."""
    tier = replace(
        spec.tier, service_class=ServiceClass.PREEMPTIBLE, rank=LAST_RANK, weight=min(1.0, spec.tier.weight),
        slo=Slo(), over_limit=OverLimit.REFUSE, queue_limit=0,
    )  # fmt: skip
    state = EntitlementState.BOUND if spec.state is EntitlementState.DEGRADED else spec.state
    return replace(
        spec, id=account_of(spec.id), tier=tier, state=state, tokens_per_s=0.0, burst_tokens=0.0, kv_tokens=0
    )
