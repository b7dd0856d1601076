"""A pool that never was: snapshots, changes and ledger rows in the shapes of ``docs/feed.md``, the same for each seed.

For pages under test without a system behind them; what the real system shows is tested in ``test_live_system.py``.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]

TENANTS = {"acme": "premium", "birch": "standard", "cobalt": "standard", "dune": "batch", "ember": "batch"}
LIMITS = {"premium": 40, "standard": 48, "batch": 64}
SLOTS, KV_TOKENS = 64, 130_000


class PretendPool:
    """One pool whose load swings; ``step`` makes the next second."""

    def __init__(self, name: str = "llama", at: float = 1_790_000_000.0, seed: int = 7, idle: bool = False) -> None:
        self.name, self.at, self.seq, self.idle = name, at, 1000, idle
        self.random = random.Random(seed)
        self.snapshot = self._make()

    def step(self) -> Json:
        """The change to the next second."""
        before = self.snapshot
        self.at += 1
        self.seq += 1
        self.snapshot = self._make()
        return merge_diff(before, self.snapshot)

    def point(self) -> Json:
        """The current second as a point of the history."""
        s = self.snapshot
        out: Json = {
            "at": s["at"],
            "depth": s["queue"]["depth"],
            "running": s["running"],
            "slots": s["slots"],
            "kv": s["kv_used"] / s["kv_tokens"],
            "in": s["tokens_per_s"]["input"],
            "out": s["tokens_per_s"]["output"],
            **s["rates"],
            "violations": s["slo"]["violations"],
            "refusals": s["refusals"],
            "tenants": {
                name: {"waiting": t["waiting"], "running": t["running"], "in": 0.0, "out": 0.0}
                for name, t in s["tenants"].items()
            },
        }
        for name in ("ttft", "ttlt"):
            for p in ("p50", "p95", "p99"):
                if f"{name}_ms" in s["latency"]:
                    out[f"{name}_{p}"] = s["latency"][f"{name}_ms"][p]
        if "attainment" in s["slo"]:
            out["attainment"] = s["slo"]["attainment"]
        gpus = [b["gpu_util"] for b in s["backends"].values() if "gpu_util" in b]
        if gpus:
            out["gpu"] = sum(gpus) / len(gpus)
        return out

    def _wave(self, period: float, phase: float = 0.0) -> float:
        return 0.5 + 0.5 * math.sin(self.at / period * 2 * math.pi + phase) + self.random.uniform(-0.06, 0.06)

    def _make(self) -> Json:
        tenants: Json = {}
        entitlements: Json = {}
        busy = 0.0 if self.idle else 1.0
        for i, (tenant, tier) in enumerate(TENANTS.items()):
            load = busy * max(0.05, self._wave(170 + 40 * i, i))
            waiting = int(load * (2, 6, 4, 38, 14)[i])
            running = min(LIMITS[tier], int(load * (18, 14, 9, 16, 8)[i]))
            slow = (1, 1.6, 1.7, 6, 5)[i] * (1 + load)
            ttft = {"p50": 130 * slow, "p95": 420 * slow, "p99": 700 * slow} if busy else {}
            ttlt = {"p50": 2100 * slow, "p95": 5600 * slow, "p99": 9100 * slow} if busy else {}
            latency = {"ttft_ms": ttft, "ttlt_ms": ttlt, "tbt_ms": {}, "queue_ms": {}}
            total = int(load * (400, 260, 190, 60, 40)[i])
            violations = int(total * (0.01, 0.05, 0.02, 0.13, 0.0)[i])
            slo: Json = {"violations": violations, "total": total}
            if total:
                slo["attainment"] = 1 - violations / total
            refused = {"concurrency": int(load * 31), "token_budget": int(load * 12)} if i in (1, 3) and busy else {}
            tokens = {"input": load * (1900, 1500, 900, 2100, 700)[i], "output": load * (900, 620, 380, 950, 300)[i]}
            tenants[tenant] = {
                "waiting": waiting,
                "running": running,
                "tokens_per_s": tokens,
                "refusals": refused,
                "latency": latency,
                "slo": slo,
                "rates": {
                    "completed": total / 60,
                    "refused": sum(refused.values()) / 60,
                    "failed": 0.0,
                    "cancelled": 0.0,
                },
            }
            entitlements[f"{tenant}-{tier}"] = {
                "tenant": tenant,
                "tier": tier,
                "state": "degraded" if tenant == "cobalt" else "bound",
                "waiting": waiting,
                "running": running,
                "concurrency": LIMITS[tier],
                "budget_tokens_per_s": 4000.0 if i < 2 else 0.0,
                "bucket_level": 90_000.0,
                "tokens_per_s": tokens,
                "completed": total,
                "failed": 0,
                "cancelled": 0,
                "refused": refused,
                **latency,
                "violations": violations,
                **({"attainment": slo["attainment"]} if total else {}),
            }
        running = min(SLOTS, sum(t["running"] for t in tenants.values()))
        refusals: Json = {}
        for t in tenants.values():
            for reason, n in t["refusals"].items():
                refusals[reason] = refusals.get(reason, 0) + n
        total = sum(t["slo"]["total"] for t in tenants.values())
        violations = sum(t["slo"]["violations"] for t in tenants.values())
        kv = int(KV_TOKENS * 0.9 * running / SLOTS)
        output = sum(t["tokens_per_s"]["output"] for t in tenants.values())
        return {
            "pool": self.name,
            "model": "llama-3-8b",
            "seq": self.seq,
            "at": self.at,
            "window_s": 60,
            "scope": "all",
            "policy": "priority@1",
            "leader": "worker-1f2e",
            "epoch": 7,
            "queue": {
                "depth": sum(t["waiting"] for t in tenants.values()),
                "oldest_s": busy * 18 * self._wave(90),
                "limit": 10_000,
            },
            "running": running,
            "slots": SLOTS,
            "kv_used": kv,
            "kv_tokens": KV_TOKENS,
            "tokens_per_s": {"input": sum(t["tokens_per_s"]["input"] for t in tenants.values()), "output": output},
            "rates": {
                "arrived": busy * 18.4,
                "completed": sum(t["rates"]["completed"] for t in tenants.values()),
                "refused": sum(refusals.values()) / 60,
                "failed": 0.0,
                "cancelled": 0.0,
            },
            "refusals": refusals,
            "latency": {
                "ttft_ms": {
                    "p50": 210.0 + 90 * self._wave(60),
                    "p95": 900.0 + 400 * self._wave(80),
                    "p99": 2100.0 + 900 * self._wave(80),
                },
                "ttlt_ms": {"p50": 4100.0, "p95": 11_000.0 + 2500 * self._wave(70), "p99": 19_000.0},
            }
            if busy
            else {},
            "slo": {
                "violations": violations,
                "total": total,
                **({"attainment": 1 - violations / total} if total else {}),
            },
            "tenants": tenants,
            "entitlements": entitlements,
            "backends": {
                "llama-0": self._backend(running // 2, output / 2),
                "llama-1": self._backend(running - running // 2, output / 2),
                "llama-2": {
                    "state": "ejected",
                    "why": "no token for 15 s while 12 requests ran",
                    "running": 0,
                    "slots": 32,
                    "kv_usage": 0.0,
                    "observed_s": self.at - 47,
                },
                "llama-3": {
                    "state": "probing",
                    "why": "waiting for the answer to a one-token probe",
                    "running": 0,
                    "slots": 32,
                },
            },
        }

    def _backend(self, running: int, output: float) -> Json:
        return {
            "state": "ready",
            "why": "answered a one-token probe",
            "running": running,
            "slots": SLOTS // 2,
            "engine_running": running,
            "engine_waiting": 0,
            "kv_usage": 0.9 * running / (SLOTS // 2),
            "output_tokens_per_s": output,
            "input_tokens_per_s": output * 1.9,
            "gpu_util": min(1.0, 0.35 + 0.65 * running / (SLOTS // 2)),
            "gpu_mem_used_bytes": 7.1e10,
            "gpu_mem_total_bytes": 8.5e10,
            "observed_s": self.at - 0.4,
        }


def merge_diff(before: Json, after: Json) -> Json:
    """The merge patch (RFC 7396) that makes ``after`` of ``before``."""
    patch: Json = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            inner = merge_diff(old, value)
            if inner:
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def ledger_rows(count: int, now: datetime | None = None, seed: int = 3) -> list[Json]:
    """Ended requests, newest first, as ``/api/v1/requests`` gives them."""
    rnd = random.Random(seed)
    now = now or datetime.now(UTC)
    rows = []
    for i in range(count):
        tenant, tier = rnd.choice(list(TENANTS.items()))
        outcome, reason = rnd.choices(
            [
                ("completed", "stop"),
                ("completed", "length"),
                ("refused", "concurrency"),
                ("failed", "backend_lost"),
                ("cancelled", "client_left"),
            ],
            [60, 20, 12, 3, 5],
        )[0]
        ran = outcome != "refused"
        received = now - timedelta(seconds=3 + i * 0.7)
        waited = rnd.choice([0.0, 0.0, rnd.expovariate(1.0)]) if ran else 0.0
        granted = received + timedelta(seconds=0.004 + waited)
        first = granted + timedelta(seconds=rnd.uniform(0.05, 0.6))
        done = first + timedelta(seconds=rnd.uniform(0.5, 9)) if ran else received + timedelta(milliseconds=3)
        rows.append(
            {
                "request_id": f"req_{0x19A0000000 + count - i:010x}{rnd.getrandbits(56):014x}",
                "pool": "llama",
                "model": "llama-3-8b",
                "tenant": tenant,
                "tier": tier,
                "entitlement": f"{tenant}-{tier}",
                "key_id": "a1B2c3D4e5F6",
                "gateway": "gw-0a1b2c3d",
                "outcome": outcome,
                "reason": reason,
                "status": 200 if outcome == "completed" else 429,
                "streamed": True,
                "attempts": int(ran),
                "backend": f"llama-{i % 2}" if ran else "",
                "policy": "priority@1" if waited else "direct" if ran else "",
                "why": "rank 0 before 3 waiting, least work of 2"
                if waited
                else "free slot and nobody waiting"
                if ran
                else "",
                "input_tokens_est": 412,
                "output_tokens_est": 256.0,
                "output_bound": 512,
                "input_tokens": 398 if ran else 0,
                "output_tokens": rnd.randint(20, 512) if ran else 0,
                "received_at": received.isoformat(),
                "queued_at": (received + timedelta(seconds=0.004)).isoformat() if waited else None,
                "granted_at": granted.isoformat() if ran else None,
                "first_token_at": first.isoformat() if ran else None,
                "done_at": done.isoformat(),
                "ttft_slo_s": 1.0,
                "tbt_slo_s": 0.1,
                "ttlt_slo_s": None,
                "slo_met": rnd.random() > 0.1 if ran else None,
                "queue_ms": waited * 1000 if ran else None,
                "ttft_ms": (first - received).total_seconds() * 1000 if ran else None,
                "total_ms": (done - received).total_seconds() * 1000,
            }
        )
    return rows
