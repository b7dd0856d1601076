"""Small makers of specs and requests for tests of shared state."""

from __future__ import annotations

from typing import Any

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason, outcome_of
from scheduling.core.types import (
    BackendSpec,
    EntitlementSpec,
    EntitlementState,
    Estimate,
    OverLimit,
    PoolSpec,
    QueuedRequest,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.state.store import PoolStore
from scheduling.state.types import RequestFacts

FACTS = RequestFacts(model="llama", key_id="abcdefghijkl", streamed=True, slo=Slo(ttft_s=1.0, tbt_s=0.1))


def tier(**changes: Any) -> TierSpec:
    given: dict[str, Any] = {
        "name": "standard", "service_class": ServiceClass.ELASTIC, "rank": 1, "weight": 30.0,
        "slo": Slo(ttft_s=5.0, tbt_s=0.2), "over_limit": OverLimit.REFUSE, "queue_limit": 10,
    }  # fmt: skip
    return TierSpec(**(given | changes))


def entitlement(name: str = "acme", pool: str = "p", **changes: Any) -> EntitlementSpec:
    given: dict[str, Any] = {
        "id": name, "tenant": name, "pool": pool, "tier": tier(), "state": EntitlementState.BOUND,
        "tokens_per_s": 0.0, "burst_tokens": 0.0, "kv_tokens": 0, "concurrency": 8,
    }  # fmt: skip
    return EntitlementSpec(**(given | changes))


def backend(name: str = "b1", slots: int = 4, kv_tokens: int = 100_000, pool: str = "p") -> BackendSpec:
    return BackendSpec(name, pool, f"http://{name}", slots, kv_tokens)


def pool_spec(name: str = "p", **changes: Any) -> PoolSpec:
    given: dict[str, Any] = {"id": name, "model": "llama", "upstream_model": "llama", "backends": (backend(),)}
    return PoolSpec(**(given | changes))


def estimate(input_tokens: int = 100, output: int = 50, **changes: Any) -> Estimate:
    given: dict[str, Any] = {
        "input_tokens": input_tokens,
        "output_bound": output,
        "output_tokens": float(output),
        "kv_tokens": input_tokens + output,
        "cost_tokens": input_tokens + output,
    }
    return Estimate(**(given | changes))


def request(request_id: str, spec: EntitlementSpec, est: Estimate | None = None, **changes: Any) -> QueuedRequest:
    est = est or estimate()
    given: dict[str, Any] = {
        "id": request_id, "seq": 0, "arrival_s": 1_700_000_000.0, "entitlement": spec.id, "tenant": spec.tenant,
        "tier": spec.tier.name, "rank": spec.tier.rank, "weight": spec.tier.weight,
        "service_class": spec.tier.service_class, "input_tokens": est.input_tokens, "output_bound": est.output_bound,
        "output_tokens": est.output_tokens, "kv_tokens": est.kv_tokens, "gateway": "gw-1",
        "concurrency": spec.concurrency,
    }  # fmt: skip
    return QueuedRequest(**(given | changes))


def ledger(request_id: str, reason: Reason = Reason.STOP, **changes: Any) -> LedgerRecord:
    given: dict[str, Any] = {
        "request_id": request_id, "pool": "p", "model": "llama", "tenant": "acme", "tier": "standard",
        "entitlement": "acme", "key_id": "abcdefghijkl", "gateway": "gw-1", "outcome": outcome_of(reason).value,
        "reason": reason.value, "status": 200, "streamed": True, "attempts": 1, "backend": "b1", "policy": "direct",
        "why": "", "input_tokens_est": 100, "output_tokens_est": 50.0, "output_bound": 50, "input_tokens": 100,
        "output_tokens": 40, "received_s": 1_700_000_000.0, "queued_s": None, "granted_s": 1_700_000_000.1,
        "first_token_s": 1_700_000_000.5, "done_s": 1_700_000_002.0, "ttft_slo_s": 1.0, "tbt_slo_s": 0.1,
        "ttlt_slo_s": None, "slo_met": True,
    }  # fmt: skip
    return LedgerRecord(**(given | changes))


async def leads_on(store: PoolStore) -> None:
    """Whoever leads does so for as long as the test runs: scripts decide nothing by themselves."""
    meta = store._key("meta")
    epoch = await store._resp.call(b"HGET", meta, b"epoch")
    await store._resp.call(b"HSET", meta, b"leader_until", str(10**14).encode(), b"decides", epoch)
