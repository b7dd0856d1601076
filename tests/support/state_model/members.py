"""Who takes part: a pool, entitlements of all five classes, and the values that moves draw from."""

from __future__ import annotations

import dataclasses

from scheduling.core.outcomes import Reason
from scheduling.core.rights import baseline_slots, cap_of, rights_of
from scheduling.core.types import (
    EntitlementState,
    OverLimit,
    RateLimits,
    ServiceClass,
)
from tests.support.state_world import FACTS, entitlement, pool_spec, tier

POOL = pool_spec(backends=(), queue_limit=8, queue_bytes=2000, threshold=0.2)
SPARING = dataclasses.replace(POOL, headroom_slots=2)
ENTITLEMENTS = (
    entitlement("plain", concurrency=3, tier=tier(queue_limit=3)),
    entitlement("metered", concurrency=2, tokens_per_s=5.5, burst_tokens=400.0, tier=tier(queue_limit=2)),
    entitlement(
        "batch", concurrency=1, kv_tokens=400, tokens_per_s=33.3, burst_tokens=900.5,
        tier=tier(over_limit=OverLimit.WAIT, queue_limit=4),
    ),
    entitlement(
        "spot", concurrency=1,
        tier=tier(service_class=ServiceClass.SPOT, over_limit=OverLimit.WAIT, queue_limit=4),
    ),
    entitlement(
        "gold", concurrency=1, tokens_per_s=20.0, burst_tokens=700.0,
        tier=tier(service_class=ServiceClass.GUARANTEED, over_limit=OverLimit.WAIT, queue_limit=3),
    ),
    entitlement(
        "short", concurrency=1, state=EntitlementState.DEGRADED,
        tier=tier(service_class=ServiceClass.GUARANTEED, queue_limit=2),
    ),
    entitlement(
        "own", concurrency=2, kv_tokens=300, tokens_per_s=9.0, burst_tokens=400.0,
        tier=tier(service_class=ServiceClass.DEDICATED, queue_limit=2),
    ),
    entitlement(
        "cheap", concurrency=3, kv_tokens=300, tier=tier(service_class=ServiceClass.PREEMPTIBLE, queue_limit=3)
    ),
    entitlement(
        "cheaper", concurrency=2, tokens_per_s=50.0, burst_tokens=900.0,
        tier=tier(service_class=ServiceClass.PREEMPTIBLE, over_limit=OverLimit.WAIT, queue_limit=3),
    ),
)  # fmt: skip
RESERVED = {spec.id for spec in ENTITLEMENTS if rights_of(spec).reserved}
BASES = {spec.id: baseline_slots(spec.tier.service_class, spec.concurrency) for spec in ENTITLEMENTS}
CAPS = {spec.id: cap_of(spec.tier.service_class, spec.concurrency) for spec in ENTITLEMENTS}
WEIGHTS = (0.05, 0.3, 0.3, 8.0, 33.3, 33.3, 80.25, 600.0)
REQUESTS = 80
BACKENDS = ("b1", "b2", "b3")
ADAPTERS = ("sql", "org/law-v1.2")
SPEEDS = (1000, 1000, 400, 333)  # per mille of the fastest replica
TOKENS_US = {1000: 0, 400: 60_000, 333: 90_000}  # between two tokens there
PACES_US = (0, 50_000, 75_000)  # that requests need
DEADLINES_S = (None, 1_700_000_000.5, 1_700_000_020.125, 1_800_000_000.0)  # of first tokens
SENT_S = (0.0, 1_699_999_990.25)  # by gateways' clocks, whatever the time is
LONGEST = (0, 0, 90)  # requests need 60 to 250 KV tokens
CREDITS = (0, 0, 25, 60, 130, 300)  # prompts have 40 to 108 tokens
STEPS = (0, 30, 100)  # step budgets
TURNAROUNDS = (None, None, 0.0, 0.005, 0.2)
WHOLE = dataclasses.replace(FACTS, streamed=False)
KEY_LIMITS = (RateLimits(5, 0, 0), RateLimits(0, 450, 3), RateLimits(60, 2000, 1))
USER_LIMITS = (RateLimits(3, 0, 1), RateLimits(0, 100, 0), RateLimits(0, 300, 2))
GATEWAYS = ("gw-1", "gw-2")
HOLDERS = ("leader-1", "leader-2")
REFUSALS = (Reason.TOKEN_BUDGET, Reason.LOW_PRIORITY, Reason.QUEUE_FULL)
REASONS = (Reason.STOP, Reason.CLIENT_LEFT, Reason.QUEUE_TIMEOUT, Reason.BACKEND_LOST)
