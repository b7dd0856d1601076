"""Requests in flight, as scripts leave them in Redis."""

from __future__ import annotations

import time
from typing import Any

from scheduling.core.types import QueuedRequest, ServiceClass, Slo
from scheduling.state.codec import Entry, encode_entry, encode_request
from scheduling.state.types import RequestFacts, StoredRequest


def entry(name: str, tenant: str, gateway: str, granted_ms: int = 0, *, served: int = 0, **request: Any) -> bytes:
    """One of ``llama``'s standard tier that waits, or has run since ``granted_ms``; ``request``: what is otherwise."""
    values: dict[str, Any] = {
        "id": name, "seq": 1, "arrival_s": time.time(), "entitlement": f"{tenant}-llama", "tenant": tenant,
        "tier": "standard", "rank": 1, "weight": 30.0, "service_class": ServiceClass.ELASTIC, "input_tokens": 10,
        "output_bound": 50, "output_tokens": 20.0, "kv_tokens": 60, "gateway": gateway,
    }  # fmt: skip
    stored = StoredRequest(
        QueuedRequest(**(values | request)), RequestFacts("llama", "k1", True, Slo(ttft_s=5.0, tbt_s=0.2))
    )
    return encode_entry(
        Entry(
            1, stored.request.entitlement, "elastic", "gpu-1" if granted_ms else "", 60, 60, 30, 100, 1, granted_ms,
            gateway, 1, served, "-", encode_request(stored),
        )
    )  # fmt: skip
