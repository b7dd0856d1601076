"""What telemetry's tests share: a pool's sample, ledger records, a store in memory, a signed-in socket."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import (
    BackendSpec,
    BackendView,
    EntitlementSpec,
    EntitlementState,
    PoolSpec,
    PoolView,
    ServiceClass,
    Slo,
    Standing,
    TierSpec,
)
from scheduling.dispatch.ports import BackendStatus, Sample
from telemetry.feed.history import Point
from telemetry.feed.store import LiveUnavailable, Memory, Stored

NOW = 1_790_000_000.0

POOL = PoolSpec(
    id="llama",
    model="meta/llama",
    upstream_model="meta/llama",
    backends=(BackendSpec("gpu-1", "llama", "http://10.0.0.1:8000", slots=32, kv_tokens=100_000),),
)
PREMIUM = TierSpec("premium", ServiceClass.GUARANTEED, 0, 50.0, Slo(ttft_s=1.0, tbt_s=0.1))
STANDARD = TierSpec("standard", ServiceClass.ELASTIC, 1, 30.0, Slo(ttft_s=5.0, tbt_s=0.2))


def entitlement(id_: str, tenant: str, tier: TierSpec = PREMIUM, pool: str = "llama") -> EntitlementSpec:
    return EntitlementSpec(id_, tenant, pool, tier, EntitlementState.BOUND, 1000.0, 10_000.0, 0, concurrency=8)


ENTITLEMENTS = {
    "acme-llama": entitlement("acme-llama", "acme"),
    "globex-llama": entitlement("globex-llama", "globex", STANDARD),
}


def record(number: int = 1, **changes: Any) -> LedgerRecord:
    """A completed request of acme's that ended at NOW after 3 s: queued 0.1 s, first token after 0.5 s, 101 tokens."""
    values: dict[str, Any] = {
        "request_id": f"req_{number:024x}", "pool": "llama", "model": "meta/llama", "tenant": "acme",
        "tier": "premium", "entitlement": "acme-llama", "key_id": "k1", "gateway": "gw-1", "outcome": "completed",
        "reason": "stop", "status": 200, "streamed": True, "attempts": 1, "backend": "gpu-1", "policy": "priority@1",
        "why": "rank 0 before 3 waiting", "input_tokens_est": 100, "output_tokens_est": 64.0, "output_bound": 256,
        "input_tokens": 120, "output_tokens": 101, "received_s": NOW - 3.0, "queued_s": NOW - 3.0,
        "granted_s": NOW - 2.9, "first_token_s": NOW - 2.5, "done_s": NOW, "ttft_slo_s": 1.0, "tbt_slo_s": 0.1,
        "ttlt_slo_s": None, "slo_met": True,
    }  # fmt: skip
    return LedgerRecord(**(values | changes))


def globex_record(number: int, **changes: Any) -> LedgerRecord:
    """The same of globex's."""
    return record(number, **({"tenant": "globex", "tier": "standard", "entitlement": "globex-llama"} | changes))


def refused(number: int, **changes: Any) -> LedgerRecord:
    """A request refused for its entitlement's concurrency."""
    values: dict[str, Any] = {
        "outcome": "refused", "reason": "concurrency", "status": 429, "backend": "", "policy": "", "why": "",
        "output_tokens": 0, "queued_s": None, "granted_s": None, "first_token_s": None, "slo_met": None,
    }  # fmt: skip
    return record(number, **(values | changes))


def sample(at_s: float = NOW, **changes: Any) -> Sample:
    """acme has 2 waiting and 3 running, globex 5 waiting and 7 running, all on one replica."""
    values: dict[str, Any] = {
        "at_s": at_s, "pool": POOL, "leader": "worker-1", "epoch": 1, "policy": "priority@1",
        "view": PoolView(
            {"gpu-1": BackendView("gpu-1", 32, 100_000, running=10, kv_used=5000)},
            {"acme-llama": 3, "globex-llama": 7},
        ),
        "waiting": {"acme-llama": 2, "globex-llama": 5}, "oldest_wait_s": 1.25,
        "bucket_levels": {"acme-llama": 9000.0}, "standings": {"acme-llama": Standing(612.2449, 0.0234567, 0.25)},
        "backends": [BackendStatus("gpu-1", "ready", "answered a probe", at_s, 10, 0, 0.05, 800.0, 900.0, 0.9)],
    }  # fmt: skip
    return Sample(**(values | changes))


class MemoryStore:
    """The stored snapshots without Redis: same methods, same fence."""

    def __init__(self) -> None:
        self.available = True
        self.stored: dict[str, tuple[int, int, bytes]] = {}
        self.points: dict[str, list[bytes]] = {}

    def store(self, pool: str, epoch: int, seq: int, snapshot: bytes, point: bytes) -> bool:
        self._answer()
        if pool in self.stored and self.stored[pool][0] > epoch:
            return False
        self.stored[pool] = (epoch, seq, snapshot)
        self.points.setdefault(pool, []).append(point)
        return True

    def load(self, pool: str) -> Stored | None:
        self._answer()
        if pool not in self.stored:
            return None
        epoch, seq, snapshot = self.stored[pool]
        return Stored(epoch, seq, msgspec.json.decode(snapshot))

    def memory(self) -> Memory | None:
        self._answer()
        return Memory(1_000_000, 0, evicts=False)

    def load_all(self, versions: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Stored | None]:
        self._answer()
        same = {p for p, row in self.stored.items() if versions and versions.get(p) == row[:2]}
        return {pool: None if pool in same else self.load(pool) for pool in self.stored}

    def history(self, pool: str, points: int = 900) -> list[Point]:
        self._answer()
        return [msgspec.json.decode(p) for p in self.points.get(pool, [])[-points:]]

    def keep_only(self, pools: Collection[str]) -> list[str]:
        self._answer()
        gone = sorted(self.stored.keys() - set(pools))
        for pool in gone:
            del self.stored[pool]
            self.points.pop(pool, None)
        return gone

    def _answer(self) -> None:
        if not self.available:
            raise LiveUnavailable("ConnectionError")
