"""A snapshot as one compact point of the charts, and many points as one. Pure; ``docs/reference/feed.md`` has the
shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

Point = dict[str, Any]

POINTS = 900  # kept per pool: 15 minutes
TENANTS = 50  # busiest tenants, and busiest entitlements, in a point: it must stay small with a thousand of them
BACKENDS = 64
_PERCENTILES = (
    ("ttft_p50", "ttft_ms", "p50"),
    ("ttft_p95", "ttft_ms", "p95"),
    ("ttft_p99", "ttft_ms", "p99"),
    ("ttlt_p50", "ttlt_ms", "p50"),
    ("ttlt_p95", "ttlt_ms", "p95"),
    ("ttlt_p99", "ttlt_ms", "p99"),
    ("tbt_p50", "tbt_ms", "p50"),
    ("tbt_p95", "tbt_ms", "p95"),
    ("tbt_p99", "tbt_ms", "p99"),
    ("queue_p95", "queue_ms", "p95"),
)
_OF_TIERS = tuple(each for each in _PERCENTILES if each[2] == "p95")
_WORST = frozenset(name for name, _, _ in _PERCENTILES)  # where points are merged the highest stands for them
_KNOWN_OR_NOT = frozenset(
    {"weight", "debt", "burst", "attainment", "gpu", "memory", "engine", "kv_used", "out"}
)  # missing is not zero
SERVING = frozenset({"ready", "draining", "drained", "asleep", "waking"})  # nobody has to be told of these
_NARROW = ("tenants", "entitlements")
_SHARES = ("running", "waiting", "tokens", "kv")  # of an entitlement: what can be added up
_TABLES = ("tenants", "entitlements", "tiers", "backends", "parts", "watched", "judged")
_FOR_RULES = ("oldest", "watched", "judged")  # kept for alert rules that are tried on the past; no chart draws them


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
        "entitlements": {n: row for n, e in snapshot["entitlements"].items() if len(row := _entitlement(e)) > 1},
    }
    if parts := snapshot["queue"].get("parts"):
        out["parts"] = {name: {"waiting": waiting} for name, waiting in parts.items()}
    if snapshot.get("kv_tokens"):
        out["kv"] = round(snapshot["kv_used"] / snapshot["kv_tokens"], 4)
        out["kv_tokens"] = snapshot["kv_tokens"]
    used = [b["gpu_util"] for b in snapshot["backends"].values() if "gpu_util" in b]
    if used:
        out["gpu"] = round(sum(used) / len(used), 3)
    if tiers := {name: _tier(row) for name, row in snapshot["slo"].get("by_tier", {}).items() if row.get("total")}:
        out["tiers"] = tiers
    if backends := {n: row for n, b in [*snapshot["backends"].items()][:BACKENDS] if (row := _backend(b))}:
        out["backends"] = backends
    return busiest(out, TENANTS)


def is_out(backend: Mapping[str, Any]) -> bool:
    """Whether somebody has to be told of a replica in a snapshot: not of one that sleeps, unless it cannot be woken."""
    return backend["state"] not in SERVING or bool(backend.get("wake_fails"))


def watched(snapshot: dict[str, Any]) -> Point:
    """What alert rules look at and :func:`point` has not: the oldest wait [s], of each tier how many requests with an
    SLO were asked and kept in the window, and of each replica the requests inside its engine, its KV cache and whether
    it is out (0 or 1). Stored with points, and not sent to dashboards."""
    rows = {}
    for name, backend in [*snapshot["backends"].items()][:BACKENDS]:
        row = {"out": int(is_out(backend))}
        row |= {to: backend[of] for to, of in (("engine", "engine_waiting"), ("kv_used", "kv_usage")) if of in backend}
        rows[name] = row
    out: Point = {"oldest": snapshot["queue"]["oldest_s"], "watched": rows}
    tiers = {n: row for n, row in snapshot["slo"].get("by_tier", {}).items() if row.get("asked")}
    if tiers:
        out["judged"] = {
            n: {"asked": row["asked"], "kept": row["total"] - row["violations"]} for n, row in tiers.items()
        }
    return out


def busiest(full: Point, most: int) -> Point:
    """The same point with the rows of its busiest tenants and entitlements only; what stands above the rows stays, and
    what the other entitlements had is in ``rest``."""
    return narrowed([full], most)[0]


def narrowed(points: Sequence[Point], most: int) -> list[Point]:
    """Points with the rows of those tenants and entitlements only that were busiest over all of them: like
    :func:`busiest`, but the same names in each."""
    kept: dict[str, set[str]] = {}
    for table in _NARROW:
        load: dict[str, list[float]] = {}
        for each in points:
            for name, row in each.get(table, {}).items():
                sums = load.setdefault(name, [0.0, 0.0])
                sums[0] += row.get("running", 0) + row.get("waiting", 0)
                sums[1] += row.get("completed", row.get("tokens", 0))
        if len(load) > most:
            kept[table] = set(sorted(load, key=load.__getitem__, reverse=True)[:most])
    return [_only(each, kept) for each in points] if kept else list(points)


def slim(full: Point) -> Point:
    """The same point without those figures of its tenants and entitlements that no chart draws. Makes it blind to whose
    an entitlement is: what a user may see is decided before."""
    drawn = ("running", "waiting", "tokens", "kv", "weight", "debt")
    kept = {name: value for name, value in full.items() if name not in _FOR_RULES}
    return kept | {
        "tenants": {
            name: {"waiting": row["waiting"], "running": row["running"]} for name, row in full["tenants"].items()
        },
        "entitlements": {
            name: {figure: row[figure] for figure in drawn if figure in row}
            for name, row in full.get("entitlements", {}).items()
        },
    }


def spaced(points: Sequence[Point], fine_s: float, apart_s: float) -> list[Point]:
    """Every point of the last ``fine_s``, and older ones so far apart from each other."""
    newest = points[-1]["at"] if points else 0.0
    kept: list[Point] = []
    for each in points:
        if not kept or each["at"] > newest - fine_s or each["at"] - kept[-1]["at"] >= apart_s:
            kept.append(each)
    return kept


def entitlement_sums(rows: Iterable[Mapping[str, Any]]) -> Point:
    """What a snapshot's entitlements have in sum, of what can be added up; zeros are missing."""
    running = waiting = kv = 0
    tokens = 0.0
    for row in rows:
        running += row["running"]
        waiting += row["waiting"]
        kv += row.get("kv_used", 0)
        tokens += row.get("served_per_s", 0)
    sums = zip(_SHARES, (running, waiting, round(tokens, 4), kv), strict=True)
    return {name: value for name, value in sums if value}


def _only(full: Point, kept: dict[str, set[str]]) -> Point:
    out = full | {
        table: {n: row for n, row in full.get(table, {}).items() if n in names} for table, names in kept.items()
    }
    left = [row for n, row in full.get("entitlements", {}).items() if n not in kept.get("entitlements", {n})]
    if left:
        rest = dict(full.get("rest", {}))
        for row in left:
            for name in _SHARES:
                if row.get(name):
                    rest[name] = round(rest.get(name, 0) + row[name], 4)
        out["rest"] = rest
    return out


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
    out["entitlements"] = {n: row for n, row in full.get("entitlements", {}).items() if row["tenant"] in tenants}
    if len(rows) == 1:
        (only,) = rows.values()
        out |= {name: only[name] for name in (*(p[0] for p in _PERCENTILES), "attainment") if name in only}
    return out


def merged(points: Sequence[Point]) -> Point:
    """Several points, oldest first, as one at the time of the last: means, and of percentiles the highest.

    A row that is missing in some of them had nothing to show then; what is unknown (a weight, a GPU) is left out.
    """
    if len(points) == 1:
        return points[0]
    out: Point = {"at": points[-1]["at"], **_mean(points, absent_is_zero=False), "refusals": _counts(points)}
    for table in _TABLES:
        names = {name: None for p in points for name in p.get(table, {})}
        if rows := {name: _mean_row([p.get(table, {}).get(name) for p in points]) for name in names}:
            out[table] = rows
    out.setdefault("tenants", {})
    if any("rest" in each for each in points):
        out["rest"] = _mean_row([each.get("rest") for each in points])
    return busiest(out, TENANTS)


def in_steps(points: Iterable[Point], step_s: int) -> list[Point]:
    """Points, oldest first, merged by steps of the clock."""
    groups: list[list[Point]] = []
    step = None
    for each in points:
        if each["at"] // step_s != step:
            step = each["at"] // step_s
            groups.append([])
        groups[-1].append(each)
    return [merged(group) for group in groups]


def _mean_row(rows: Sequence[Point | None]) -> Point:
    present = [row for row in rows if row is not None]
    out = _mean([row or {} for row in rows], absent_is_zero=True)
    if "tenant" in present[-1]:
        out["tenant"] = present[-1]["tenant"]
    if any("refusals" in row for row in present):
        out["refusals"] = _counts([row or {} for row in rows])
    return out


def _mean(points: Sequence[Point], absent_is_zero: bool) -> Point:
    """Of every member that is a number."""
    sums: dict[str, tuple[float, int, float]] = {}
    for each in points:
        for name, value in each.items():
            if name == "at" or not isinstance(value, int | float):
                continue
            total, count, most = sums.get(name, (0.0, 0, value))
            sums[name] = (total + value, count + 1, max(most, value))
    out: Point = {}
    for name, (total, count, most) in sums.items():
        if name in _WORST:
            out[name] = most
        else:
            over = len(points) if absent_is_zero and name not in _KNOWN_OR_NOT else count
            out[name] = round(total / over, 4)
    return out


def _counts(points: Sequence[Point]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in points:
        for reason, count in each.get("refusals", {}).items():
            sums[reason] = sums.get(reason, 0) + count
    return {reason: round(total / len(points), 2) for reason, total in sums.items()}


def _figures(row: dict[str, Any]) -> Point:
    tokens = row["tokens_per_s"]
    out: Point = {name: tokens[of] for name, of in (("in", "input"), ("out", "output")) if of in tokens}
    out |= {**row["rates"], "violations": row["slo"]["violations"]}
    if "attainment" in row["slo"]:
        out["attainment"] = row["slo"]["attainment"]
    return out | _percentiles(row["latency"], _PERCENTILES)


def _percentiles(latency: dict[str, Any], which: Iterable[tuple[str, str, str]]) -> Point:
    return {name: latency[measure][p] for name, measure, p in which if p in latency.get(measure, {})}


def _tenant(row: dict[str, Any]) -> Point:
    out = {"waiting": row["waiting"], "running": row["running"], **_figures(row)}
    if row["refusals"]:
        out["refusals"] = row["refusals"]
    return out


def _entitlement(row: dict[str, Any]) -> Point:
    """An entitlement's share of the pool and its standing; only its tenant where it has neither."""
    share = {
        "running": row["running"],
        "waiting": row["waiting"],
        "tokens": row.get("served_per_s", 0),
        "kv": row.get("kv_used", 0),
    }
    out: Point = {"tenant": row["tenant"]} | {name: value for name, value in share.items() if value}
    owed = {name: row[name] for name in ("debt", "burst") if row.get(name)}
    if owed or (len(out) > 1 and "weight" in row):
        out |= {name: row[name] for name in ("weight", "debt", "burst") if name in row}
    return out


def _tier(row: dict[str, Any]) -> Point:
    out = {"violations": row["violations"], "total": row["total"]}
    return out | _percentiles(row.get("latency", {}), _OF_TIERS)


def _backend(row: dict[str, Any]) -> Point:
    out = {}
    if "gpu_util" in row:
        out["gpu"] = row["gpu_util"]
    if row.get("gpu_mem_total_bytes") and "gpu_mem_used_bytes" in row:
        out["memory"] = round(row["gpu_mem_used_bytes"] / row["gpu_mem_total_bytes"], 4)
    return out


def _busy(row: dict[str, Any]) -> bool:
    return bool(row["waiting"] or row["running"] or any(row["rates"].values()))
