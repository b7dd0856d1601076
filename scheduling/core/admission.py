"""May this request enter, and if so, at once or through the queue?

The rules of token pools 4.3 in their order; the first that fails ends it. Output bound and the entitlement's own state
are checked before (by the gateway, which needs no shared state for them). This is the meaning of
``scheduling/state/scripts/admit.lua``: the Redis twin and the simulator call this function, and the model-based test
holds the script to it. All times are whole milliseconds so that both compute the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendView, EntitlementSpec, OverLimit, PoolSpec


class Verdict(StrEnum):
    GRANT = "grant"
    QUEUE = "queue"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """``backend`` goes with a grant; ``reason`` and ``retry_ms`` with a refusal (None: waiting will not help)."""

    verdict: Verdict
    backend: str = ""
    reason: Reason | None = None
    retry_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What is true of the pool and of the entitlement at the moment of the decision."""

    rebuilding_ms: int  # until new work is admitted after a loss of state; 0 normally
    backends: tuple[BackendView, ...]  # the ready ones
    waiting: int
    waiting_bytes: int
    ent_running: int
    ent_waiting: int
    ent_kv: int  # of running and waiting requests
    level: float  # tokens in the bucket now
    service_ms: float  # moving average of a slot's occupation, over the pool
    ent_service_ms: float  # and over this entitlement


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants."""

    kv: int
    charge: int  # tokens; 0 where no budget is enforced
    body_bytes: int
    weight: float
    exclude_backend: str = ""


def refill(level: float, at_ms: float, rate: float, depth: float, now_ms: int) -> float:
    """A bucket's level now [tokens]; a clock that went back adds nothing."""
    return min(depth, level + rate * max(0, now_ms - at_ms) / 1000)


def choose_backend(backends: Iterable[BackendView], kv: int, exclude: str) -> str | None:
    """The replica with room that has the least outstanding work (ties: fewest running, then name), or None."""
    fit = [b for b in backends if b.id != exclude and b.room_for(kv)]
    if not fit:
        return None
    return min(fit, key=lambda b: (b.work_tokens, b.running, b.id)).id


def decide_admission(
    spec: EntitlementSpec, pool: PoolSpec, ask: Ask, view: AdmissionView, no_backend_retry_ms: int
) -> AdmissionDecision:
    """Pure: the same facts give the same decision. Source: token pools 4.3, order as in ``design.md`` section 4."""

    def refuse(reason: Reason, retry_ms: float | None) -> AdmissionDecision:
        return AdmissionDecision(
            Verdict.REFUSE, reason=reason, retry_ms=None if retry_ms is None else max(1, math.ceil(retry_ms))
        )

    tier = spec.tier
    if view.rebuilding_ms > 0:
        return refuse(Reason.REBUILDING, view.rebuilding_ms)
    if not view.backends:
        return refuse(Reason.NO_BACKEND, no_backend_retry_ms)
    may_wait_over = tier.over_limit is OverLimit.WAIT
    if view.ent_running + view.ent_waiting >= spec.concurrency and not may_wait_over:
        return refuse(Reason.CONCURRENCY, view.ent_service_ms / max(1, spec.concurrency))
    if ask.charge > view.level:
        # A charge deeper than the bucket will never be covered.
        in_reach = ask.charge <= spec.burst_tokens
        return refuse(Reason.TOKEN_BUDGET, (ask.charge - view.level) / spec.tokens_per_s * 1000 if in_reach else None)
    if spec.kv_tokens > 0 and view.ent_kv + ask.kv > spec.kv_tokens:
        in_reach = ask.kv <= spec.kv_tokens
        return refuse(Reason.KV_BUDGET, view.ent_service_ms / max(1, view.ent_running) if in_reach else None)

    slots = sum(b.slots for b in view.backends)
    backend = choose_backend(view.backends, ask.kv, ask.exclude_backend)
    contended = view.waiting > 0 or backend is None
    if contended and ask.weight < pool.threshold:
        return refuse(Reason.LOW_PRIORITY, view.service_ms / max(1, slots))
    if not contended and view.ent_running < spec.concurrency:
        assert backend is not None
        return AdmissionDecision(Verdict.GRANT, backend=backend)
    if view.ent_waiting >= tier.queue_limit:
        # The time its own waiting requests take to get through the slots it may use.
        lanes = max(1, min(spec.concurrency, slots))
        return refuse(Reason.QUEUE_FULL, max(1, view.ent_waiting) * view.ent_service_ms / lanes)
    if view.waiting >= pool.queue_limit or view.waiting_bytes + ask.body_bytes > pool.queue_bytes:
        return refuse(Reason.QUEUE_FULL, max(1, view.waiting) * view.service_ms / max(1, slots))
    return AdmissionDecision(Verdict.QUEUE)
