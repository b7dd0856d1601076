"""What alert rules look at, and when it is wrong: pure functions over a pool's snapshot (``docs/reference/feed.md``).

Question: which subjects does a rule have in this pool now, what is seen of each, and is that wrong, right, or between?
Between threshold and clear threshold nothing changes, and either has to last: what flickers is told once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.core.ledger.slo import MIN_JUDGED, falls_short
from telemetry.feed.history import is_out
from telemetry.models import AlertRule, RuleKind

NO_THRESHOLD = frozenset({RuleKind.BACKEND, RuleKind.NO_LEADER})  # it is so, or it is not
SHARE = frozenset(  # 0..1
    {RuleKind.SLO, RuleKind.QUOTA, RuleKind.REFUSALS, RuleKind.FAILURES, RuleKind.KV_CACHE, RuleKind.GPU}
)
OF_TENANT_ONLY = frozenset({RuleKind.QUOTA, RuleKind.COST})  # over all pools
OF_POOL_ONLY = frozenset(
    {RuleKind.QUEUE, RuleKind.BACKEND, RuleKind.ENGINE_QUEUE, RuleKind.KV_CACHE, RuleKind.GPU, RuleKind.NO_LEADER}
)

Costs = Mapping[str, tuple[float, str]]  # tenant: since midnight UTC, and the currency
Shares = Mapping[tuple[str, str], tuple[int, int]]  # (tenant, period): tokens used, and the limit


@dataclass(frozen=True, slots=True)
class Seen:
    """One subject of a rule: its value in the rule's unit, and what is wrong with it in words."""

    value: float
    line: str
    tenant: str = ""
    since_s: float | None = None  # when it began, where that is known; None: when a rule first saw it


def seen(rule: AlertRule, snapshot: Mapping[str, Any], shares: Shares, costs: Costs | None = None) -> dict[str, Seen]:
    """By subject, what a rule can see of a pool; empty where it does not apply. Quotas and costs are of no pool."""
    pool = snapshot["pool"]
    if rule.kind == RuleKind.COST:
        return {
            tenant: Seen(spent, f"{tenant} has cost {spent:,.2f} {currency} since midnight UTC", tenant)
            for tenant, (spent, currency) in (costs or {}).items()
            if rule.tenant in ("", tenant)
        }
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
    """All requests, or those of one tier (of a tenant: of one of its entitlements) if they fare worse: what all had
    together says little of a tier with few requests. Few that may be late by chance are not looked at."""
    low = _threshold(rule)
    whole = snapshot.get("tenants", {}).get(rule.tenant, {}) if rule.tenant else snapshot
    slo = whole.get("slo", {})
    rows = [(f"{rule.tenant}'s requests in pool {pool}" if rule.tenant else f"the requests of pool {pool}", slo)]
    if rule.tenant:
        own = ((id_, row) for id_, row in snapshot.get("entitlements", {}).items() if row["tenant"] == rule.tenant)
        rows += [(f"the requests of entitlement {id_} in pool {pool}", row) for id_, row in own]
    else:
        rows += [(f"the {name} requests of pool {pool}", row) for name, row in slo.get("by_tier", {}).items()]
    judged = [
        (whose, row)
        for whose, row in rows
        if (asked := row.get("asked", 0)) >= MIN_JUDGED or (asked and falls_short(row["attainment"], asked, low))
    ]
    if not judged:
        return {}
    whose, worst = min(judged, key=lambda each: float(each[1]["attainment"]))
    refused = worst["asked"] - worst["total"] if "total" in worst else 0
    among = f" ({refused} of {worst['asked']} were refused)" if refused else ""
    value = worst["attainment"]
    return {rule.tenant: Seen(value, f"{value:.1%} of {whose} met their SLO over the last minute{among}", rule.tenant)}


def _queue(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    queue = snapshot["queue"]
    value, depth = queue["oldest_s"], queue["depth"]
    many = f"The oldest of {depth} requests in the queue of pool {pool} waits {value:.0f} s"
    one = f"The only request in the queue of pool {pool} waits {value:.0f} s"
    return {"": Seen(value, f"No request waits in pool {pool}" if depth == 0 else one if depth == 1 else many)}


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
            float(is_out(backend)),
            f"Backend {name} of pool {pool} is {backend['state']}: {backend['why']}",
            since_s=backend.get("down_since"),
        )
        for name, backend in snapshot.get("backends", {}).items()
    }


def _whole(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, int]:
    """A pool's figures or a tenant's in it, whose they are, and how many requests ended in the window."""
    whole = snapshot.get("tenants", {}).get(rule.tenant, {}) if rule.tenant else snapshot
    whose = f"{rule.tenant}'s requests in pool {pool}" if rule.tenant else f"the requests of pool {pool}"
    rates = whole.get("rates", {})
    ended = sum(rates.get(name, 0.0) for name in ("completed", "refused", "failed", "cancelled"))
    return whole, whose, round(ended * snapshot.get("window_s", 60))


def _ttft(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    whole, whose, ended = _whole(rule, pool, snapshot)
    p95_ms = whole.get("latency", {}).get("ttft_ms", {}).get("p95")
    if p95_ms is None or ended < MIN_JUDGED:
        return {}
    line = f"5 % of {whose} waited {p95_ms / 1000:.2f} s or longer for their first token over the last minute"
    return {rule.tenant: Seen(p95_ms / 1000, line, rule.tenant)}


def _ended_as(outcome: str, words: str) -> Callable[[AlertRule, str, Mapping[str, Any]], dict[str, Seen]]:
    def share(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
        whole, whose, ended = _whole(rule, pool, snapshot)
        if not ended:
            return {}
        value = min(1.0, whole["rates"].get(outcome, 0.0) * snapshot.get("window_s", 60) / ended)
        if ended < MIN_JUDGED and not falls_short(1 - value, ended, 1 - _threshold(rule)):
            return {}
        return {rule.tenant: Seen(value, f"{value:.1%} of {whose} {words} over the last minute", rule.tenant)}

    return share


def _of_backends(figure: str, words: str) -> Callable[[AlertRule, str, Mapping[str, Any]], dict[str, Seen]]:
    def each(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
        return {
            name: Seen(float(row[figure]), f"Backend {name} of pool {pool}: {words.format(row[figure])}")
            for name, row in snapshot.get("backends", {}).items()
            if figure in row  # what is not seen is neither wrong nor right
        }

    return each


def _leader(rule: AlertRule, pool: str, snapshot: Mapping[str, Any]) -> dict[str, Seen]:
    """Whoever looks here leads; web processes see that there is none (:mod:`telemetry.alerts.leaderless`)."""
    return {"": Seen(0.0, f"{snapshot['leader']} leads pool {pool}")}


_OF_POOL = {
    RuleKind.SLO: _slo,
    RuleKind.QUEUE: _queue,
    RuleKind.DEBT: _debt,
    RuleKind.BACKEND: _backend,
    RuleKind.TTFT: _ttft,
    RuleKind.REFUSALS: _ended_as("refused", "were refused"),
    RuleKind.FAILURES: _ended_as("failed", "failed"),
    RuleKind.ENGINE_QUEUE: _of_backends("engine_waiting", "{} requests wait inside the engine"),
    RuleKind.KV_CACHE: _of_backends("kv_usage", "{:.0%} of the KV cache is in use"),
    RuleKind.GPU: _of_backends("gpu_util", "its GPUs are {:.0%} busy"),
    RuleKind.NO_LEADER: _leader,
}


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
    if rule.kind in NO_THRESHOLD:
        return value > 0.0
    return value < bound if rule.kind == RuleKind.SLO else value > bound


def limit_in_words(rule: AlertRule) -> str:
    """The threshold and how long, as the end of a sentence."""
    lasting = f" for {_duration(rule.for_s)}" if rule.for_s else ""
    bound = _threshold(rule)
    if rule.kind in NO_THRESHOLD:
        return f", for {_duration(rule.for_s)} or longer" if rule.for_s else ""
    if rule.kind in SHARE:
        return f", {'below' if rule.kind == RuleKind.SLO else 'above'} {float(f'{bound:.4g}'):.0%}{lasting}"
    if rule.kind in (RuleKind.QUEUE, RuleKind.TTFT):
        return f", longer than {bound:g} s{lasting}"
    return f", above {bound:g}{lasting}"


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
