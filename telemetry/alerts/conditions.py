"""What alert rules look at, and when it is wrong: pure functions over a pool's snapshot (``docs/reference/feed.md``).

Question: which subjects does a rule have in this pool now, what is seen of each, and is that wrong, right, or between?
Between threshold and clear threshold nothing changes, and either has to last: what flickers is told once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telemetry.models import AlertRule, RuleKind

MIN_JUDGED = 10  # requests of the last minute: a share of fewer says nothing

Shares = Mapping[tuple[str, str], tuple[int, int]]  # (tenant, period): tokens used, and the limit


@dataclass(frozen=True, slots=True)
class Seen:
    """One subject of a rule: its value in the rule's unit, and what is wrong with it in words."""

    value: float
    line: str
    tenant: str = ""


def seen(rule: AlertRule, snapshot: Mapping[str, Any], shares: Shares) -> dict[str, Seen]:
    """By subject, what a rule can see of a pool; empty where it does not apply. Quotas are of no pool."""
    pool = snapshot["pool"]
    if rule.kind == RuleKind.QUOTA:
        return {
            f"{tenant} {period}": Seen(
                used / limit, f"{tenant} has used {used / limit:.0%} of its tokens of the {period}", tenant
            )
            for (tenant, period), (used, limit) in shares.items()
            if rule.tenant in ("", tenant)
        }
    if rule.pool not in ("", pool):
        return {}
    return _OF_POOL[RuleKind(rule.kind)](rule, pool, snapshot)


def _slo(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    whole = snapshot.get("tenants", {}).get(rule.tenant, {}) if rule.tenant else snapshot
    slo = whole.get("slo", {})
    if slo.get("total", 0) < MIN_JUDGED:
        return {}
    whose = f"{rule.tenant}'s requests in pool {pool}" if rule.tenant else f"the requests of pool {pool}"
    value = slo["attainment"]
    return {rule.tenant: Seen(value, f"{value:.1%} of {whose} met their SLO over the last minute", rule.tenant)}


def _queue(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    queue = snapshot["queue"]
    value = queue["oldest_s"]
    return {"": Seen(value, f"The oldest of {queue['depth']} requests in the queue of pool {pool} waits {value:.0f} s")}


def _debt(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    return {
        name: Seen(
            standing["debt"], f"Entitlement {name} in pool {pool} has debt {standing['debt']:.2f}", standing["tenant"]
        )
        for name, standing in snapshot.get("entitlements", {}).items()
        if "debt" in standing and rule.tenant in ("", standing["tenant"])
    }


def _backend(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    return {
        name: Seen(
            float(backend["state"] not in ("ready", "draining", "drained")),
            f"Backend {name} of pool {pool} is {backend['state']}: {backend['why']}",
        )
        for name, backend in snapshot.get("backends", {}).items()
    }


_OF_POOL = {RuleKind.SLO: _slo, RuleKind.QUEUE: _queue, RuleKind.DEBT: _debt, RuleKind.BACKEND: _backend}


def wrong(rule: AlertRule, value: float) -> bool:
    """Whether a value is on the wrong side of the threshold."""
    return _beyond(rule, value, _threshold(rule))


def right(rule: AlertRule, value: float) -> bool:
    """Whether a value is back on the right side of the clear threshold."""
    back = rule.clear_threshold
    return not _beyond(rule, value, _threshold(rule) if back is None else back)


def _threshold(rule: AlertRule) -> float:
    return math.nan if rule.threshold is None else rule.threshold


def _beyond(rule: AlertRule, value: float, bound: float) -> bool:
    if rule.kind == RuleKind.BACKEND:
        return value > 0.0
    return value < bound if rule.kind == RuleKind.SLO else value > bound


def limit_in_words(rule: AlertRule) -> str:
    """The threshold and how long, as the end of a sentence."""
    lasting = f" for {_duration(rule.for_s)}" if rule.for_s else ""
    match rule.kind:
        case RuleKind.BACKEND:
            return lasting
        case RuleKind.SLO | RuleKind.QUOTA:
            bound = f"{_threshold(rule):.4g}"
            return f", {'below' if rule.kind == RuleKind.SLO else 'above'} {float(bound):.0%}{lasting}"
        case RuleKind.QUEUE:
            return f", longer than {_threshold(rule):g} s{lasting}"
        case _:
            return f", above {_threshold(rule):g}{lasting}"


def _duration(s: int) -> str:
    return f"{s // 60} min" if s % 60 == 0 else f"{s} s"


@dataclass(slots=True)
class Timer:
    """How long something has been wrong (before it is told) or right (before it is over)."""

    since_s: float | None = None

    def lasts(self, so: bool, now_s: float, for_s: float) -> bool:
        """Whether ``so`` has held for ``for_s`` seconds up to now. Anything else begins anew."""
        if not so:
            self.since_s = None
            return False
        if self.since_s is None:
            self.since_s = now_s
        return now_s - self.since_s >= for_s
