"""Small makers of requests and views for tests of scheduling."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from scheduling.core.types import BackendView, PoolView, QueuedRequest, ServiceClass

TIERS = {
    0: ("premium", ServiceClass.GUARANTEED, 50.0),
    1: ("standard", ServiceClass.ELASTIC, 30.0),
    2: ("batch", ServiceClass.SPOT, 20.0),
}


def waiting(number: int, entitlement: str = "acme", rank: int = 1, **changes: Any) -> QueuedRequest:
    """The ``number``-th arrival, one a second."""
    tier, service_class, weight = TIERS[rank]
    given: dict[str, Any] = {
        "id": f"req_{number:06d}", "seq": number, "arrival_s": 1000.0 + number, "entitlement": entitlement,
        "tenant": entitlement, "tier": tier, "rank": rank, "weight": weight, "service_class": service_class,
        "input_tokens": 100, "output_bound": 100, "output_tokens": 50.0, "kv_tokens": 200, "concurrency": 1000,
        "ttft_deadline_s": 1005.0 + number, "gateway": "gw-1",
    }  # fmt: skip
    return QueuedRequest(**(given | changes))


def crowd(seed: int, count: int = 200, tenants: int = 7) -> list[QueuedRequest]:
    """Mixed requests of several tenants in order of arrival; the same for the same seed."""
    rng = random.Random(seed)
    ranks = {f"t{n}": rng.choice((0, 1, 2)) for n in range(tenants)}
    requests = []
    for number in range(count):
        tenant = rng.choice(sorted(ranks))
        size, output = rng.choice((20, 200, 2000)), rng.choice((16.0, 128.0, 600.0))
        interactive = ranks[tenant] < 2
        requests.append(
            waiting(
                number,
                tenant,
                ranks[tenant],
                input_tokens=size,
                output_tokens=output,
                output_bound=int(output * 2),
                kv_tokens=size + int(output * 2),
                client_priority=rng.choice((0, 0, 0, -1, 3)),
                ttft_deadline_s=1005.0 + number if interactive else None,
                ttlt_deadline_s=None if interactive else 1600.0 + number,
            )
        )
    return requests


def pool_view(*backends: BackendView, running: dict[str, int] | None = None) -> PoolView:
    return PoolView({b.id: b for b in backends}, dict(running or {}))


def backend_view(name: str = "b1", slots: int = 4, kv_tokens: int = 100_000, **changes: Any) -> BackendView:
    return BackendView(name, slots, kv_tokens, **changes)


def ids(requests: Iterable[QueuedRequest]) -> list[str]:
    return [request.id for request in requests]
