"""What the management API says of an installation that never was, always the same: for pictures of its pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.browser.pretend import LIMITS, TENANTS

Json = dict[str, Any]


def books(now_s: float) -> Json:
    """Answers by their path: tenants, entitlements, replicas, alerts and events, as of ``now_s``."""

    def ago(seconds: float) -> str:
        return datetime.fromtimestamp(now_s - seconds, UTC).isoformat().replace("+00:00", "Z")

    def listed(rows: list[Json]) -> Json:
        return {"count": len(rows), "next": None, "previous": None, "results": rows}

    tenants = [
        {"slug": slug, "description": f"{tier} customer", "created_at": ago(86_400 * (30 - i)),
         "paused_since": ago(120) if slug == "dune" else None,
         "paused_reason": "its batch runs away" if slug == "dune" else ""}
        for i, (slug, tier) in enumerate(TENANTS.items())
    ]  # fmt: skip
    entitlements = [
        {"slug": f"{slug}-{tier}", "tenant": slug, "tier": tier, "pool": "llama", "adapter": None, "project": None,
         "burst_tokens": 120_000, "concurrency": LIMITS[tier], "description": "", "kv_tokens": 40_000,
         "state": "degraded" if slug == "cobalt" else "bound",
         "state_reason": "llama-2 is lost" if slug == "cobalt" else "", "tokens_per_s": 4000.0,
         "valid_from": None, "valid_until": None}
        for slug, tier in TENANTS.items()
    ]  # fmt: skip
    backends = [
        {"slug": f"llama-{i}", "pool": "llama", "url": f"http://10.0.0.{10 + i}:8000", "dcgm_url": "",
         "description": "", "draining": i == 3, "has_api_key": i == 0, "kv_tokens": 65_000, "leaving_since": None,
         "managed": i == 3,
         "silent_since": None, "slots": 32, "tokens_per_s": 2400.0}
        for i in range(4)
    ]  # fmt: skip
    pool: Json = {"slug": "llama", "model": "llama-3-8b"}
    rules = [
        _rule(1, "premium waits", "ttft", 1.5, "critical", 1),
        _rule(2, "queue grows old", "queue_age", 60.0, "warning", 0),
        _rule(3, "no leader", "no_leader", None, "critical", 0),
    ]
    alerts = [
        _alert(7, rules[0], ago(95), None, "TTFT p95 of tier premium in pool llama is 2.4 s, above 1.5 s for 60 s."),
        _alert(6, rules[1], ago(4000), ago(3600), "The oldest request of pool llama has waited 74 s, above 60 s."),
    ]
    events = [
        _event(ago(47), "backend", "Replica llama-2 of pool llama was taken out: no token for 15 s.", "llama-2"),
        _event(ago(95), "alert", alerts[0]["line"], "premium waits", severity="critical"),
        _event(
            ago(120), "change", "adam paused tenant dune: its batch runs away.", "dune", actor="adam", tenant="dune"
        ),
        _event(ago(610), "leader", "Pool llama is led by worker-1f2e (epoch 7).", "worker-1f2e"),
    ]
    return {
        "tenants": listed(tenants),
        "entitlements": listed(entitlements),
        "backends": listed(backends),
        "pools": listed([pool]),
        "alerts": listed(alerts),
        "alerts/open": {"open": 1, "critical": 1, "unwatched": []},
        "alerts/assignees": {"users": ["adam", "olga"]},
        "alert-rules": rules,
        "notification-channels": [],
        "events": {"from": ago(86_400), "to": ago(0), "whole": True, "events": events},
        "spending": {"results": []},
    }


def _rule(number: int, name: str, kind: str, threshold: float | None, severity: str, is_open: int) -> Json:
    return {
        "id": number, "name": name, "kind": kind, "threshold": threshold, "clear_threshold": None, "for_s": 60.0,
        "pool": "llama", "tenant": "", "severity": severity, "enabled": True, "open": is_open, "channels": [],
        "webhook": "",
    }  # fmt: skip


def _alert(number: int, rule: Json, at: str, resolved_at: str | None, line: str) -> Json:
    return {
        "id": number, "rule": rule["id"], "rule_name": rule["name"], "name": rule["name"], "kind": rule["kind"],
        "severity": rule["severity"], "pool": "llama", "at": at, "resolved_at": resolved_at, "line": line,
        "state": "resolved" if resolved_at else "open", "resolution": "", "note": "", "limit_tokens": None,
        "acknowledged_at": None, "acknowledged_by": "", "assigned_at": None, "assigned_by": "", "assigned_to": "",
        "delivered_at": None, "silenced_by": "", "silenced_until": None, "value": 1.0,
    }  # fmt: skip


def _event(
    at: str, kind: str, line: str, subject: str, *, actor: str = "", tenant: str = "", severity: str = "info"
) -> Json:
    return {
        "at": at, "kind": kind, "line": line, "subject": subject, "actor": actor, "tenant": tenant,
        "pool": "" if actor else "llama", "severity": severity,
    }  # fmt: skip
