"""On which account the lines of batches run: surplus capacity only, behind everybody who waits for an answer.

A line runs under its entitlement as a *preemptible* request that never waits in the pool's queue: it is granted while
the pool is idle for it (beside the headroom, and beside all who wait), else refused and tried again later; who may
evict takes its slot. Shared state counts it on an account of its own, ``<entitlement>~batch``, so that it takes neither
concurrency, nor tokens of the bucket, nor KV share from the people of the same entitlement. The ledger knows the
entitlement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scheduling.core.engine.step_time import StepTime
from scheduling.core.types import EntitlementSpec, EntitlementState, OverLimit, ServiceClass, Slo

ACCOUNT: Final = "~batch"  # no slug has a tilde
REQUEST_ID: Final = "batch_"  # how the ids of such requests begin
MOST_LINES: Final = 1_000_000  # where a line costs a step nothing
LAST_RANK: Final = 1_000_000  # behind every tier, in engines as well
GATHERED: Final = 4  # replicas whose lines one of them takes while people are there


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


def lines_beside(step: StepTime, prompt: float, output: float, slowdown: float) -> int:
    """How many lines of these lengths [tokens] a replica may add to a pool's while people are on it: if they ran there,
    its steps would become longer by at most the share ``slowdown`` of one that decodes for one person. At least 1: a
    batch stands still nowhere. Where they run: :func:`kept_for_people`.

    A line is in a step with one token and, over its life, with its prompt.
    """
    output = max(1.0, output)
    alone = step.step(0, 1)
    each = step.a * prompt / output + step.b + step.c * (prompt + output / 2) + step.e * prompt * prompt / 2 / output
    return max(1, int(slowdown * alone / each)) if each > 0 else MOST_LINES


def kept_for_people(replicas: Mapping[str, int]) -> frozenset[str]:
    """The replicas that lines leave to people while these are there. ``replicas``: the ready ones, with the KV cache
    that they offer.

    A first token waits for the end of the step that runs, and a replica with any line is always in one. So lines gather
    on one replica of every ``GATHERED``, the largest, which is where lines fit that fit anywhere; requests of people
    come there as well when that is where the least work is. A single replica is kept for nobody. Of equal ones the
    first by name are kept: idle ones take requests in this order (:mod:`scheduling.core.placement.rule`).
    """
    ranked = sorted(replicas, key=lambda name: (replicas[name], name))
    return frozenset(ranked[: len(ranked) - -(-len(ranked) // GATHERED)])
