"""A snapshot as one compact point of the dashboard's charts. Pure; the shape is fixed by ``docs/feed.md``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Point = dict[str, Any]

POINTS = 900  # kept per pool: 15 minutes
TENANTS = 50  # busiest tenants in a point: a history must stay small with a thousand of them
_PERCENTILES = (
    ("ttft_p50", "ttft_ms", "p50"),
    ("ttft_p95", "ttft_ms", "p95"),
    ("ttft_p99", "ttft_ms", "p99"),
    ("ttlt_p50", "ttlt_ms", "p50"),
    ("ttlt_p95", "ttlt_ms", "p95"),
    ("queue_p95", "queue_ms", "p95"),
)


def point(snapshot: dict[str, Any]) -> Point:
    """One point of the history; what the snapshot does not know is missing."""
    slots: dict[str, int] = {}
    for row in snapshot["entitlements"].values():
        slots[row["tenant"]] = slots.get(row["tenant"], 0) + row["concurrency"]
    tenants = {
        name: _tenant(row) | {"slots": slots.get(name, 0)} for name, row in snapshot["tenants"].items() if _busy(row)
    }
    out: Point = {
        "at": snapshot["at"],
        "depth": snapshot["queue"]["depth"],
        "running": snapshot["running"],
        "slots": snapshot["slots"],
        **_figures(snapshot),
        "refusals": snapshot["refusals"],
        "tenants": tenants,
    }
    if snapshot.get("kv_tokens"):
        out["kv"] = round(snapshot["kv_used"] / snapshot["kv_tokens"], 4)
    used = [b["gpu_util"] for b in snapshot["backends"].values() if "gpu_util" in b]
    if used:
        out["gpu"] = round(sum(used) / len(used), 3)
    return busiest(out, TENANTS)


def busiest(full: Point, tenants: int) -> Point:
    """The same point with the rows of its busiest tenants only; what stands above the rows stays."""
    rows = full["tenants"]
    if len(rows) <= tenants:
        return full
    names = sorted(rows, key=lambda n: (rows[n]["running"] + rows[n]["waiting"], rows[n]["completed"]), reverse=True)
    return full | {"tenants": {name: rows[name] for name in names[:tenants]}}


def visible(full: Point, tenants: Collection[str] | None) -> Point:
    """A point made of the given tenants only; unchanged for ``tenants=None``."""
    if tenants is None:
        return full
    rows = {name: row for name, row in full["tenants"].items() if name in tenants}
    out: Point = {"at": full["at"], "depth": sum(row["waiting"] for row in rows.values()), "tenants": rows}
    for name in ("running", "slots", "in", "out", "completed", "refused", "failed", "cancelled", "violations"):
        out[name] = round(sum(row[name] for row in rows.values()), 3)
    refusals: dict[str, int] = {}
    for row in rows.values():
        for reason, count in row.get("refusals", {}).items():
            refusals[reason] = refusals.get(reason, 0) + count
    if refusals or not out["refused"]:  # points written by an earlier version know how many, not why
        out["refusals"] = refusals
    if len(rows) == 1:
        (only,) = rows.values()
        out |= {name: only[name] for name in (*(p[0] for p in _PERCENTILES), "attainment") if name in only}
    return out


def _figures(row: dict[str, Any]) -> Point:
    out: Point = {
        "in": row["tokens_per_s"]["input"],
        "out": row["tokens_per_s"]["output"],
        **row["rates"],
        "violations": row["slo"]["violations"],
    }
    if "attainment" in row["slo"]:
        out["attainment"] = row["slo"]["attainment"]
    for name, measure, percentile in _PERCENTILES:
        if percentile in row["latency"].get(measure, {}):
            out[name] = row["latency"][measure][percentile]
    return out


def _tenant(row: dict[str, Any]) -> Point:
    out = {"waiting": row["waiting"], "running": row["running"], **_figures(row)}
    if row["refusals"]:
        out["refusals"] = row["refusals"]
    return out


def _busy(row: dict[str, Any]) -> bool:
    return bool(row["waiting"] or row["running"] or any(row["rates"].values()))
