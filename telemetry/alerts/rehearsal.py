"""How often a rule would have fired: its own conditions over the stored past, a point per minute of seven days.

A minute is one value, the mean of its seconds (of percentiles the highest): what lasts less than a minute is not seen.
Minutes without a point, and points of releases that did not store what the rule looks at, are unknown: neither wrong
nor right, and an alert that is open stays open over them, as it does while nobody leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from telemetry.alerts.conditions import Seen, Timer, right, seen, wrong
from telemetry.feed.history import Point
from telemetry.models import AlertRule, PastPoint, RuleKind

STEP_S = 60
DAYS = 7
MAX_POINTS = 60_000  # read for one answer: six pools; of more pools those that come first
SHOWN = 20
NOT_STORED = frozenset({RuleKind.QUOTA, RuleKind.COST, RuleKind.NO_LEADER})  # no point of a pool says it

# What a point must have for a rule of this kind to be judged by it; others have what they need, or nothing happened.
_NEEDS = {
    RuleKind.QUEUE: "oldest",
    RuleKind.BACKEND: "watched",
    RuleKind.ENGINE_QUEUE: "watched",
    RuleKind.KV_CACHE: "watched",
    RuleKind.GPU: "watched",
}


@dataclass(slots=True)
class Firing:
    """One alert that would have been."""

    pool: str
    subject: str
    at: float
    until: float | None  # None: open at the end of the time looked at
    value: float


@dataclass(slots=True)
class Rehearsed:
    firings: list[Firing] = field(default_factory=list)
    known: int = 0  # minutes of pools that could be judged
    unknown: int = 0
    left_out: list[str] = field(default_factory=list)  # pools that were not looked at


def rehearse(rule: AlertRule, pools: Sequence[str], now_s: float) -> Rehearsed:
    """``rule`` need not be stored. ``pools``: those that it may concern."""
    rehearsed = Rehearsed()
    steps = DAYS * 24 * 60
    if rule.kind in NOT_STORED:
        rehearsed.unknown = steps * len(pools)
        return rehearsed
    since = int(now_s) // STEP_S * STEP_S - steps * STEP_S
    room = MAX_POINTS // steps
    rehearsed.left_out = list(pools[room:])
    for pool in pools[:room]:
        rows = PastPoint.objects.filter(pool=pool, step_s=STEP_S, at__gte=since, at__lt=since + steps * STEP_S)
        texts = rows.order_by("at").values_list("at", "point").iterator(chunk_size=2000)
        judged = judge(rule, pool, ((at, msgspec.json.decode(text)) for at, text in texts), rehearsed.firings)
        rehearsed.known += judged
        rehearsed.unknown += steps - judged
    rehearsed.firings.sort(key=lambda firing: firing.at)
    return rehearsed


def judge(rule: AlertRule, pool: str, points: Iterable[tuple[int, Point]], firings: list[Firing]) -> int:
    """Adds what one pool's points would have raised; how many points said anything."""
    timers: dict[str, Timer] = {}
    standing: dict[str, Firing] = {}
    known, last_at = 0, None
    need = _NEEDS.get(RuleKind(rule.kind))
    for at, point in points:
        if need is not None and need not in point:
            continue
        if last_at is not None and at - last_at > STEP_S:
            timers.clear()  # nothing is known of what lasted meanwhile
        known, last_at = known + 1, at
        now = seen(rule, as_snapshot(point, pool), {})
        for subject, one in _subjects(now, standing):
            timer = timers.setdefault(subject, Timer())
            firing = standing.get(subject)
            # A minute stands for all of its seconds, so one alone has lasted a minute.
            if firing is None:
                if one is not None and timer.lasts(wrong(rule, one.value), at, max(0, rule.for_s - STEP_S)):
                    standing[subject] = Firing(pool, subject, float(at), None, one.value)
                    firings.append(standing[subject])
                    del timers[subject]
            elif timer.lasts(one is None or right(rule, one.value), at, max(0, rule.for_s - STEP_S)):
                firing.until = float(at)
                del standing[subject], timers[subject]
    return known


def _subjects(now: dict[str, Seen], firing: dict[str, Firing]) -> Iterator[tuple[str, Seen | None]]:
    for subject in sorted(now.keys() | firing.keys()):
        yield subject, now.get(subject)


def as_snapshot(point: Point, pool: str) -> dict[str, Any]:
    """A stored point in the shape in which conditions read a snapshot, as far as a point has it."""
    whole = _figures(point)
    whole |= {"pool": pool, "leader": "", "window_s": STEP_S}
    whole["queue"] = {"depth": round(point.get("depth", 0)), "oldest_s": point.get("oldest", 0.0)}
    whole["tenants"] = {name: _figures(row) for name, row in point.get("tenants", {}).items()}
    judged = {name: row for name, row in point.get("judged", {}).items() if row["asked"]}
    whole["slo"]["by_tier"] = {
        name: {"attainment": row["kept"] / row["asked"], "asked": row["asked"]} for name, row in judged.items()
    }
    whole["entitlements"] = point.get("entitlements", {})
    whole["backends"] = {name: _backend(row) for name, row in point.get("watched", {}).items()}
    return whole


def _figures(row: Point) -> dict[str, Any]:
    rates = {name: row.get(name, 0.0) for name in ("completed", "refused", "failed", "cancelled")}
    out: dict[str, Any] = {"rates": rates, "latency": {}, "slo": {}}
    if "ttft_p95" in row:
        out["latency"] = {"ttft_ms": {"p95": row["ttft_p95"]}}
    if "attainment" in row:  # of how many is not stored: those that ended stand for those that were asked
        ended = round(sum(rates.values()) * STEP_S)
        out["slo"] = {"attainment": row["attainment"], "asked": ended, "total": ended}
    return out


def _backend(row: Point) -> dict[str, Any]:
    out: dict[str, Any] = {"state": "ejected" if row.get("out", 0) > 0.5 else "ready", "why": ""}
    figures = (("engine_waiting", "engine"), ("kv_usage", "kv_used"), ("gpu_util", "gpu"))
    return out | {to: row[of] for to, of in figures if of in row}
