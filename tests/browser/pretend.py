"""A pool that never was: snapshots, changes and ledger rows in the shapes of ``docs/reference/feed.md``, the same for
each seed.

For pages under test without a system behind them; what the real system shows is tested in ``test_live_system.py``.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from telemetry.feed import history

Json = dict[str, Any]

TENANTS = {"acme": "premium", "birch": "standard", "cobalt": "standard", "dune": "batch", "ember": "batch"}
CLASSES = {"premium": "guaranteed", "standard": "elastic", "batch": "spot"}
TARGETS: dict[str, Json] = {
    "premium": {"ttft_s": 1.0, "tbt_s": 0.1},
    "standard": {"ttft_s": 5.0, "tbt_s": 0.2},
    "batch": {"ttlt_s": 600.0},
}
LIMITS = {"premium": 40, "standard": 48, "batch": 64}
SLOTS, KV_TOKENS = 64, 130_000


def crowd(count: int) -> dict[str, str]:
    """So many tenants with their tiers: the five of above, then others like them."""
    known = list(TENANTS.items())
    return dict(known[:count]) | {f"{known[i % 5][0]}-{i}": known[i % 5][1] for i in range(5, count)}


def _parts(tenants: Json) -> Json:
    """What waits by band, as the ``unified`` policy has them."""
    found: Json = {}
    for tenant, row in tenants.items():
        tier = TENANTS[tenant.partition("-")[0]]
        band = {"guaranteed": "reserved band", "elastic": "elastic band"}.get(CLASSES[tier], "spot band")
        if row["waiting"]:
            found[band] = found.get(band, 0) + row["waiting"]
    return found


# What the strategic loop of a pool says, by the last word of its address.
LOOP: dict[str, Json] = {
    "versions": {"count": 1, "results": [
        {"number": 3, "policy": "unified", "serving": True, "at": "2026-03-01T12:00:00Z", "author": "adam",
         "reason": "after the outage", "changes": {}},
    ]},
    "tuning": {"mode": "advise", "settings": {}, "effective": {}},
    "trials": {"count": 1, "results": [
        {"id": 2, "at": "2026-03-01T12:00:00Z", "ended_at": "2026-03-01T12:05:00Z", "state": "rolled_back",
         "version": 2, "requests": 900, "reason": "", "gate": {}, "guard": {"reason": "p95 wait of standard doubled"}},
    ]},
    "scaling": {"mode": "advise", "promised": {"slots": 48},
                "state": {"current": 2, "wanted": 3, "reason": "demand of 70 slots"}},
}  # fmt: skip


class PretendPool:
    """One pool whose load swings; ``step`` makes the next second."""

    def __init__(
        self, name: str = "llama", at: float = 1_790_000_000.0, seed: int = 7, idle: bool = False, tenants: int = 5
    ) -> None:
        self.name, self.at, self.seq, self.idle = name, at, 1000, idle
        self.tenants = crowd(tenants)
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
        return history.point(self.snapshot)

    def _wave(self, period: float, phase: float = 0.0) -> float:
        return 0.5 + 0.5 * math.sin(self.at / period * 2 * math.pi + phase) + self.random.uniform(-0.06, 0.06)

    def _make(self) -> Json:
        tenants: Json = {}
        entitlements: Json = {}
        busy = 0.0 if self.idle else 1.0
        for n, (tenant, tier) in enumerate(self.tenants.items()):
            i = n % len(TENANTS)
            load = busy * max(0.05, self._wave(170 + 40 * i, n))
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
                "class": CLASSES[tier],
                "kv_used": running * 1700,
                "served_per_s": round(sum(tokens.values()), 1),
                "weight": (612.2, 41.0, 28.0, 0.3, 0.3)[i] * (1 + 0.4 * load * busy),
                "debt": round((0.0, 0.42, -0.31, 0.0, 0.0)[i] * load * busy, 3),
                "burst": round((0.0, 0.0, 0.6, 0.1, 0.0)[i] * load * busy, 3),
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
                "parts": _parts(tenants),
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
                "by_tier": self._tiers(entitlements),
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

    def _tiers(self, entitlements: Json) -> Json:
        rows: Json = {}
        for tier, targets in TARGETS.items():
            mine = [e for e in entitlements.values() if e["tier"] == tier]
            missed, total = sum(e["violations"] for e in mine), sum(e["completed"] for e in mine)
            rows[tier] = {**targets, "violations": missed, "total": total}
            if total:
                slow = max(e["ttft_ms"].get("p95", 0.0) for e in mine)
                tbt = {"p50": 21.0, "p95": 34.0 + slow / 60, "p99": 48.0 + slow / 60}
                latency = {
                    "ttft_ms": {"p50": slow / 3, "p95": slow, "p99": slow * 1.6},
                    "tbt_ms": tbt,
                    "ttlt_ms": {"p50": 2000.0, "p95": slow * 9, "p99": slow * 15},
                }
                rows[tier] |= {"attainment": 1 - missed / total, "latency": latency}
        return rows

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


def queue_of(pool: PretendPool, waiting: int = 24, running: int = 12) -> Json:
    """What waits and runs, as ``/api/v1/pools/<pool>/queue`` gives it."""
    rnd = random.Random(5)
    entitlements = [f"{tenant}-{tier}" for tenant, tier in TENANTS.items()]

    def row(i: int, name: str) -> Json:
        entitlement = rnd.choice(entitlements)
        tenant, tier = entitlement.split("-")
        return {
            "id": f"req_{0x19B0000000 + i:010x}{name}{rnd.getrandbits(48):012x}", "tenant": tenant,
            "entitlement": entitlement, "tier": tier, "class": CLASSES[tier],
            "arrival_s": pool.at - rnd.uniform(0.2, 9), "input_tokens": rnd.randint(20, 3000),
            "output_tokens": float(rnd.randint(20, 500)), "attempt": 1,
        }  # fmt: skip

    waits = []
    for i in range(waiting):
        late = i % 9 == 8
        why = "overdue by 9 s" if i == 1 else "elastic band, due 5.31 s after arrival: deadline 5.00 + work 0.31"
        each = row(i, "a") | {"place": i + 1, "kv_tokens": 900, "why": f"relegated, {why}" if late else why}
        each |= {"deadline_s": pool.at + 4, "expires_s": pool.at + 30}
        waits.append(each if i == waiting - 1 else each | {"start_s": pool.at + i * 0.4, "backend": "llama-0"})
    parts: list[Json] = [
        {"name": "reserved band", "kind": "band", "waiting": 3},
        {"name": "elastic band", "kind": "band", "waiting": waiting - 8},
        {"name": "spot band", "kind": "band", "waiting": 3},
        {"name": "relegated", "kind": "relegated", "waiting": 2},
        {"name": "elastic, queue 1", "kind": "queue", "waiting": 9, "low": 20, "high": 255, "score": 0.0132},
        {"name": "elastic, queue 2", "kind": "queue", "waiting": 6, "low": 256, "high": 1023, "score": 0.0071},
        {"name": "elastic, bubble 3", "kind": "bubble", "waiting": 1, "low": 1024, "high": 1400, "score": 0.0009},
    ]
    runs = [
        row(i, "b") | {"granted_s": pool.at - rnd.uniform(0.1, 6), "output_bound": 512, "served": 420,
                       "backend": f"llama-{i % 2}", "gateway": "gw-0a1b2c3d"}
        for i in range(running)
    ]  # fmt: skip
    preview = {
        "at": pool.at, "policy": "unified@3", "waiting": waiting, "parked": 0, "occupation_s": 2.4, "took_ms": 8.0,
        "exact": True, "parts": parts, "requests": waits,
    }  # fmt: skip
    return {"pool": pool.name, "at": pool.at, "preview": preview, "running": runs}


def story_of(row: Json) -> Json:
    """The story of a ledger row, as ``/api/v1/requests/<id>`` adds it."""
    refused = row["outcome"] == "refused"
    rules = ["right", "quota", "pool", "concurrency", "token_budget", "kv_budget", "weight", "slot"]
    numbers: Json = {
        "concurrency": {"value": 48 if refused else 31, "limit": 48, "unit": "in flight before it"},
        "token_budget": {"value": 924, "limit": 90_000, "depth": 120_000, "unit": "tokens in its bucket"},
        "kv_budget": {"value": 924, "unit": "tokens of KV cache", "note": "no share of its own"},
        "slot": {"value": 7, "unit": "place in the queue"} if row["queued_at"] else {"note": "a slot was free"},
    }
    checks = []
    for i, rule in enumerate(rules):
        state = "passed" if not refused or i < 3 else "failed" if i == 3 else "not_reached"
        checks.append({"rule": rule, "state": state} | numbers.get(rule, {}))
    positions = [{"at": row["queued_at"], "place": 7}, {"at": row["granted_at"], "place": 0}]
    last = row | {"request_id": "req_before", "tenant": "dune", "why": "rank 1, due 2.0 s after arrival; waited 0.4 s"}
    ahead = {"count": 4, "overtook": 1, "tenants": {"dune": 3, "birch": 1}, "last": last,
             "steps": [[0.0, 4], [80.0, 3], [150.0, 2], [310.0, 1], [420.0, 0]]}  # fmt: skip
    factors = {"service_class": 100.0, "slo": 0.42, "burst": 0.91, "debt": 1.84}
    return {
        "retry": None,
        "instead": {
            "seconds": 60.0, "unknown": ["batch"],
            "tiers": [{"tier": "gold", "requests": 9, "waited_s": 0.02, "ttft_s": 0.2}],
        },
        "verdict": "Kept its SLO: first token after 480 ms (1.00 s at most).",
        "engine": None,
        "checks": checks,
        "weight": {"weight": 70.3, "debt": 0.21, "burst": 0.1, "at": 1_790_000_000.0, "class": "elastic",
                   "factors": factors},
        "positions": positions if row["queued_at"] and row["granted_at"] else [],
        "ahead": ahead if row["queued_at"] and row["granted_at"] else None,
        "cost": None if refused else {"amount": 0.00125, "currency": "EUR", "slot_s": 2.1,
                                      "parts": {"input": 0.00025, "output": 0.001}},
    }  # fmt: skip
