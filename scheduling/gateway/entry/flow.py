"""The tenant and the importance of a request, in the headers of gateways behind this one."""

from __future__ import annotations

from functools import lru_cache

from scheduling.gateway.headers import Header


@lru_cache(maxsize=4096)
def flow_headers(tenant: str, tier: str) -> tuple[Header, ...]:
    """As llm-d's flow control and the inference extension of the Gateway API read it: requests of one fairness id
    share; the priority is that of the InferenceObjective which has the tier's name. Both spellings are in use."""
    who, what = tenant.encode("ascii", "replace"), tier.encode("ascii", "replace")
    return (
        (b"x-gateway-inference-fairness-id", who),
        (b"x-gateway-inference-objective", what),
        (b"x-llm-d-inference-fairness-id", who),
        (b"x-llm-d-inference-objective", what),
    )


@lru_cache(maxsize=4096)
def flow_lines(tenant: str, tier: str) -> bytes:
    """The same, as lines of a request's head."""
    return b"".join(b"%b: %b\r\n" % header for header in flow_headers(tenant, tier))
