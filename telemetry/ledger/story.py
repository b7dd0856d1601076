"""What explains one request beyond its ledger row: each check of admission with its numbers, its weight, its cost.

What was measured is in the row (``admission``) and in the standings that the pool's leader published; what was
configured (class, SLO, coefficients, price) is looked up as it is now, and said so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec

from scheduling.core.admission import entitlement as core
from scheduling.core.admission.key_limits import LIMITED
from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementState, ServiceClass
from telemetry.feed import past
from telemetry.feed.history import Point
from telemetry.ledger import counterfactual, neighbours, prefill, retries, usage
from telemetry.ledger.verdict import verdict
from telemetry.models import LedgerEntry
from tenants.models import Entitlement
from tenants.rows import slo_spec

Json = dict[str, Any]

# The rules of admission in their order (docs/reference/admission.md), with the reasons by which each refuses.
RULES: tuple[tuple[str, tuple[Reason, ...]], ...] = (
    ("right", (Reason.NOT_ENTITLED, Reason.TENANT_PAUSED)),
    ("quota", (Reason.QUOTA_EXCEEDED, Reason.BUDGET_EXCEEDED)),
    ("pool", (Reason.STATE_UNAVAILABLE, Reason.REBUILDING, Reason.NO_BACKEND, Reason.NO_ADAPTER)),
    ("limits", (Reason.KEY_LIMIT, Reason.USER_LIMIT)),
    ("concurrency", (Reason.CONCURRENCY,)),
    ("token_budget", (Reason.TOKEN_BUDGET,)),
    ("kv_budget", (Reason.KV_BUDGET,)),
    ("weight", (Reason.LOW_PRIORITY,)),
    ("slot", (Reason.QUEUE_FULL,)),
)
_NEAR_S = 90.0  # a standing further away than this says nothing of a request


def without_place(admission: str) -> str:
    """The recorded figures as members see them: without the place in the queue, which counts everybody's requests."""
    figures: Json = msgspec.json.decode(admission) if admission else {}
    if figures.pop("position", None) is None:
        return admission
    return msgspec.json.encode(figures).decode()


def checks(row: LedgerEntry, others: bool = True) -> list[Json]:
    """Each rule: passed, failed or not reached, with what it compared. Empty where the request never came to them."""
    admission = row.admission if others else without_place(row.admission)
    figures: Json = msgspec.json.decode(admission) if admission else {}
    failed = next((i for i, (_, reasons) in enumerate(RULES) if row.reason in reasons), None)
    if not figures and failed is None:
        return []
    rows = []
    for i, (name, _) in enumerate(RULES):
        state = "passed" if failed is None or i < failed else "failed" if i == failed else "not_reached"
        rows.append({"rule": name, "state": state} | _compared(name, figures, row.queued_at is not None))
    return rows


def _compared(rule: str, f: Json, queued: bool) -> Json:
    """The numbers of one rule, from what was recorded."""
    if not f:
        return {}
    if rule == "limits":
        whose, _, what = f.get("limit", "").partition(" ")
        return {"note": f"the limit of its {whose}: {LIMITED.get(what, what)}"} if whose else {}
    if rule == "concurrency":
        its = {"refused": 0, "granted": f.get("sequences", 1)}.get(f["answer"], 1)  # what waits takes one place
        before = f["inflight"] - its
        return {"value": before, "limit": f["concurrency"], "unit": "in flight before it"}
    if rule == "token_budget":
        if "charge" not in f:
            return {"note": "no token budget"}
        level = f.get("level")
        before = None if level is None else level + (f["charge"] if f["answer"] != "refused" else 0)
        return {"value": f["charge"], "limit": before, "depth": f["depth"], "unit": "tokens in its bucket"}
    if rule == "kv_budget":
        if "kv_share" not in f:
            return {"value": f["kv"], "unit": "tokens of KV cache", "note": "no share of its own"}
        return {"value": f["kv"], "limit": f["kv_share"], "unit": "tokens of its KV share"}
    if rule == "slot":
        if queued or f["answer"] == "queued":
            return {"value": f.get("position"), "unit": "place in the queue"} if "position" in f else {"note": "queued"}
        return {"note": "a slot was free"} if f["answer"] == "granted" else {}
    return {}


def positions(row: LedgerEntry) -> list[Json]:
    """Its place in the pool's queue over time, as far as it is known: where it began to wait, and its grant."""
    figures: Json = msgspec.json.decode(row.admission) if row.admission else {}
    if row.queued_at is None or "position" not in figures:
        return []
    places: list[Json] = [{"at": row.queued_at.isoformat(), "place": figures["position"]}]
    if row.granted_at is not None:
        places.append({"at": row.granted_at.isoformat(), "place": 0})
    return places


def weight(row: LedgerEntry, recent: Iterable[Point], now_s: float, others: bool = True) -> Json | None:
    """The four factors of its entitlement's weight when it arrived (token pools, eq. 1); None where unknown.
    ``others``: with the mean target of all entitlements of the pool, which is made of the neighbours' too."""
    received_s = row.received_at.timestamp()
    points = [p for p in recent if abs(p["at"] - received_s) <= _NEAR_S]
    if not points:
        points = past.points(row.pool, received_s - _NEAR_S, received_s + _NEAR_S, 10, now_s)
    stood = [p for p in points if "debt" in p.get("entitlements", {}).get(row.entitlement, {})]
    if not stood:
        return None
    nearest = min(stood, key=lambda p: abs(p["at"] - received_s))
    standing = nearest["entitlements"][row.entitlement]
    spec = Entitlement.objects.select_related("tier__slo", "pool").filter(slug=row.entitlement).first()
    result: Json = {name: standing[name] for name in ("weight", "debt", "burst") if name in standing}
    result["at"] = nearest["at"]
    if spec is None:
        return result
    bound = Entitlement.objects.select_related("tier__slo").filter(
        pool=spec.pool, state__in=(EntitlementState.BOUND.value, EntitlementState.DEGRADED.value)
    )
    mean = core.slo_mean((core.slo_target(slo_spec(e.tier.slo)) for e in bound), spec.pool.slo_mean_s)
    ratio = core.slo_ratio(core.slo_target(slo_spec(spec.tier.slo)), mean)
    coefficients = core.read_coefficients(spec.pool.coefficients)
    parts = core.factors(
        ServiceClass(spec.tier.service_class), ratio, standing["debt"], standing.get("burst", 0.0), coefficients
    )
    result |= {"factors": asdict(parts), "class": spec.tier.service_class}
    return result | {"slo_mean_s": mean} if others else result


def _in_engine(row: LedgerEntry, ahead: prefill.Ahead | None, predicted_s: float | None) -> Json | None:
    """The time from grant to first token, by what it was spent on."""
    own = prefill.prompt_of(row)
    if own is None or ahead is None or row.first_token_at is None:
        return None
    queue_s, prefill_s = prefill.split(own, ahead, predicted_s)
    return {
        "queue_ms": round(queue_s * 1000, 1),
        "prefill_ms": round(prefill_s * 1000, 1),
        "predicted_ms": None if predicted_s is None else round(predicted_s * 1000, 1),
        "requests": ahead.requests,
        "prompt_tokens": ahead.tokens,
        "tenants": ahead.ranked(),
    }


def story(row: LedgerEntry, recent: Iterable[Point], now_s: float, others: bool = True) -> Json:
    """Everything that is known beyond the row. ``others``: with what went before it, of whomever, and its place
    among them."""
    ahead = neighbours.ahead_of(row) if others else None
    engine = prefill.ahead_of(row) if others else None
    predicted_s = prefill.predicted(row) if engine is not None and engine.tokens else None
    return {
        "verdict": verdict(row, engine, ahead["count"] if ahead else None, predicted_s),
        "engine": _in_engine(row, engine, predicted_s),
        "retry": retries.retry_of(row),
        "instead": counterfactual.instead(row) if others else None,
        "checks": checks(row, others),
        "weight": weight(row, recent, now_s, others),
        "positions": positions(row) if others else [],
        "ahead": ahead,
        "cost": usage.cost_of(row),
    }
