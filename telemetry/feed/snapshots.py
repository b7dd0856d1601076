"""One pool's live snapshot, the change from one to the next, and what of it a user may see.

Pure functions over plain dictionaries; the shapes are fixed by ``docs/reference/feed.md``. Snapshots hold no ``None``
and no lists, so that an RFC 7396 merge patch can express every change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from scheduling.core.capacity.engine_limits import slow_steps, slow_tokens
from scheduling.core.engine.calibration import StepFit
from scheduling.core.ledger.slo import Kept
from scheduling.core.types import BackendSpec, EntitlementSpec, Phase, Slo
from scheduling.dispatch.ports import BackendStatus, Sample, StepStatus
from telemetry.feed.window import MEASURES, WINDOW_S, Cell, Window

Snapshot = dict[str, Any]
Patch = dict[str, Any]

UNSEEN_S = 4.0  # a replica is scraped each second; without an answer for so long its figures are not known

_SERVES_NOTHING = ("ejected", "probing", "unpaired")
_OUT_OF_SERVICE = ("draining", "drained")
_LOST_BEFORE_S = 20.0  # requests fail before a replica that stands still is found out
PREFILL_BOUND = 0.5  # of the last seconds
_NOTHING = Cell()
_NO_SLO = Slo()
_NOT_FOR_MEMBERS = ("leader", "epoch", "kv_used", "kv_tokens", "turnaround_ms", "headroom", "prefill_bound")
_OF_A_CLASS = ("share",)  # which tells what the neighbours of its class were served
_OUTCOMES = ("completed", "refused", "failed", "cancelled")


def snapshot(sample: Sample, window: Window, entitlements: Mapping[str, EntitlementSpec], seq: int) -> Snapshot:
    """A pool at one moment.

    Args:
        sample: state of the queue, leases and backends, from the pool's leader.
        window: what ended lately; its expired seconds are dropped here.
        entitlements: the configured ones by id; those of other pools are left out.
        seq: number of this snapshot.
    """
    window.expire(sample.at_s)
    span_s = window.span_s(sample.at_s)
    view, pool = sample.view, sample.pool
    running = view.running_by_entitlement
    own = {id_: spec for id_, spec in entitlements.items() if spec.pool == pool.id}
    tbt_s = min((tbt for spec in own.values() if (tbt := spec.tier.slo.tbt_s) is not None), default=None)
    depth, in_engines = sum(sample.waiting.values()), sum(b.running for b in view.backends.values())
    arrived, over_s = window.arrived(depth + sum(running.values()), sample.at_s)
    waits: dict[str, int] = dict.fromkeys((spec.tenant for spec in own.values()), 0)
    runs, limits = dict(waits), dict(waits)
    for id_, spec in own.items():
        limits[spec.tenant] += spec.concurrency
        waits[spec.tenant] += sample.waiting.get(id_, 0)
        runs[spec.tenant] += running.get(id_, 0)
    rates = {"arrived": round(arrived / over_s, 3) if over_s > 0 else 0.0} | _rates(window.pool, span_s)
    caches = {status.id: status.kv_tokens for status in sample.backends}  # a view has what may be reserved of them
    return {
        "pool": pool.id,
        "model": pool.model,
        "seq": seq,
        "at": round(sample.at_s, 3),
        "window_s": WINDOW_S,
        "scope": "all",
        "policy": sample.policy,
        "leader": sample.leader,
        "epoch": sample.epoch,
        "queue": {"depth": depth, "oldest_s": round(sample.oldest_wait_s, 1), "limit": pool.queue_limit}
        | ({"parts": dict(sample.parts)} if sample.parts else {}),
        "state": {"rebuilt": sample.totals_rebuilt, "unread": sample.ledger_unread}
        | ({} if sample.clock_skew_s is None else {"skew_s": round(sample.clock_skew_s, 3)})
        | ({"lost": round(sample.state_lost_s, 3)} if sample.state_lost_s else {}),
        **({} if sample.ledger_since_s is None else {"ledger_since": round(sample.ledger_since_s, 3)}),
        **({} if sample.turnaround_s is None else {"turnaround_ms": round(1000 * sample.turnaround_s, 1)}),
        **({"wakes_in_s": round(sample.wakes_in_s, 1)} if sample.wakes_in_s else {}),
        **({"headroom": sample.headroom} if sample.headroom else {}),
        **({"prefill_bound": True} if depth and _prefill_bound(sample) else {}),
        "running": in_engines,
        "slots": sum(b.slots for b in view.backends.values() if b.ready),
        "kv_used": sum(b.kv_used for b in view.backends.values()),
        "kv_tokens": sum(caches.get(b.id) or b.kv_tokens for b in view.backends.values() if b.ready),
        "tokens_per_s": _engine_tokens(sample) or _ended_tokens(window.pool, in_engines, span_s),
        "rates": rates,
        "refusals": dict(window.pool.refusals),
        "latency": window.pool.percentiles(),
        "slo": _slo(window.pool.slo) | {"by_tier": _by_tier(own.values(), window, sample)},
        "tenants": {t: _tenant(window.tenants.get(t, _NOTHING), waits[t], runs[t], limits[t], span_s) for t in waits},
        "entitlements": {
            id_: _entitlement(spec, window.entitlements.get(id_, _NOTHING), sample, span_s) for id_, spec in own.items()
        },
        "backends": {spec.id: _backend(spec, sample, tbt_s) for spec in pool.backends},
    }


def _prefill_bound(sample: Sample) -> bool:
    """Whether requests wait for prefill alone on every replica that computes prompts and can be seen."""
    seen = [b for b in sample.backends if b.state == "ready" and not _unseen(b, sample.at_s)]
    computing = [b for b in seen if b.prefill_credit]
    return bool(computing) and all(b.credit_short > PREFILL_BOUND for b in computing)


def carry_seen(previous: Mapping[str, Any], current: Snapshot) -> None:
    """Since when replicas are unseen that the pool's new leader has not seen yet: the one before it had."""
    for id_, row in current["backends"].items():
        observed_s = previous.get("backends", {}).get(id_, {}).get("observed_s")
        if "observed_s" not in row and observed_s is not None:
            row["observed_s"] = observed_s
            if row["state"] != "ready" or current["at"] - observed_s > UNSEEN_S:
                row["unseen_since"] = observed_s


def carry_down(previous: Mapping[str, Any], current: Snapshot, window: Window) -> None:
    """Since when replicas serve nothing although nobody took them out of service, and the requests they lost since."""
    for id_, row in current["backends"].items():
        if row["state"] not in _SERVES_NOTHING and "unseen_since" not in row:
            continue
        if row["state"] in _OUT_OF_SERVICE or row.get("generates"):
            continue
        before = previous.get("backends", {}).get(id_, {})
        seen_s = row.get("unseen_since", current["at"])
        row["down_since"] = min(before.get("down_since", seen_s), seen_s)
        if lost := window.lost(id_, row["down_since"] - _LOST_BEFORE_S):
            row["lost"] = lost


def delta(previous: Mapping[str, Any], current: Mapping[str, Any]) -> Patch:
    """The merge patch with ``apply(previous, delta(previous, current)) == current``."""
    patch: Patch = dict.fromkeys(previous.keys() - current.keys())
    for key, value in current.items():
        if key not in previous:
            patch[key] = value
            continue
        before = previous[key]
        if before is value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            inner = delta(before, value)
            if inner:
                patch[key] = inner
        elif before != value or type(before) is not type(value):
            patch[key] = value
    return patch


def apply(previous: Mapping[str, Any], patch: Mapping[str, Any]) -> Snapshot:
    """RFC 7396: the snapshot after a patch. Its arguments stay as they are."""
    out = dict(previous)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            before = out.get(key)
            out[key] = apply(before if isinstance(before, dict) else {}, value)
        else:
            out[key] = value
    return out


def visible(full: Snapshot, tenants: Collection[str] | None) -> Snapshot | None:
    """What a user may see: everything for ``tenants=None``, else only figures of those tenants; None where it has none.

    Totals are rebuilt from the user's own rows and never shown as the pool's: a difference of two totals would tell
    the neighbour's figures.
    """
    if tenants is None:
        return full
    own = {
        id_: {key: value for key, value in row.items() if key not in _OF_A_CLASS}
        for id_, row in full["entitlements"].items()
        if row["tenant"] in tenants
    }
    if not own:
        return None
    rows = {t: row for t, row in full["tenants"].items() if t in tenants}
    seen = {key: value for key, value in full.items() if key not in _NOT_FOR_MEMBERS}
    seen |= {
        "scope": "own",
        "queue": {"depth": sum(row["waiting"] for row in rows.values())},
        "running": sum(row["running"] for row in rows.values()),
        "slots": sum(row["concurrency"] for row in own.values()),
        "tokens_per_s": _sum(row["tokens_per_s"] for row in rows.values()),
        "rates": _sum(row["rates"] for row in rows.values()),
        "refusals": _sum(row["refusals"] for row in rows.values()),
        "latency": next(iter(rows.values()))["latency"] if len(rows) == 1 else {},
        "slo": _slo(_added(row["slo"] for row in rows.values())),
        "tenants": rows,
        "entitlements": own,
        "backends": {
            id_: {"state": _state_for_members(row["state"])}
            | {key: row[key] for key in ("unseen_since",) if key in row}
            for id_, row in full["backends"].items()
        },
    }
    return seen


def _state_for_members(state: str) -> str:
    """A replica that has become idle would tell when the neighbours' last request ended."""
    return "draining" if state == "drained" else state


def _by_tier(own: Iterable[EntitlementSpec], window: Window, sample: Sample) -> dict[str, Any]:
    """What each tier of the pool promises, and how that went."""
    slos = {spec.tier.name: spec.tier.slo for spec in own}
    rows: dict[str, Any] = {}
    for name in slos.keys() | {name for name, cell in window.tiers.items() if cell.slo.asked or cell.left}:
        cell, slo = window.tiers.get(name, _NOTHING), slos.get(name, _NO_SLO)
        targets = {"ttft_s": slo.ttft_s, "tbt_s": slo.tbt_s, "ttlt_s": slo.ttlt_s}
        rows[name] = {key: value for key, value in targets.items() if value is not None} | _slo(cell.slo)
        if percentiles := cell.percentiles():
            rows[name]["latency"] = percentiles
            if why := _tbt_why(sample, slo, percentiles):
                rows[name]["tbt_why"] = why
    return rows


def _tenant(cell: Cell, waiting: int, running: int, concurrency: int, span_s: float) -> dict[str, Any]:
    return {
        "waiting": waiting,
        "running": running,
        "concurrency": concurrency,
        "tokens_per_s": _tokens(cell, span_s),
        "rates": _rates(cell, span_s),
        "refusals": dict(cell.refusals),
        "latency": cell.percentiles(),
        "slo": _slo(cell.slo),
    }


def _entitlement(spec: EntitlementSpec, cell: Cell, sample: Sample, span_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tenant": spec.tenant,
        "tier": spec.tier.name,
        "class": spec.tier.service_class.value,
        "state": spec.state.value,
        "waiting": sample.waiting.get(spec.id, 0),
        "running": sample.view.running_by_entitlement.get(spec.id, 0),
        "concurrency": spec.concurrency,
        "budget_tokens_per_s": spec.tokens_per_s,
        "kv_used": sample.kv_used.get(spec.id, 0),
        "served_per_s": round(sample.served_per_s.get(spec.id, 0.0), 1),
        "tokens_per_s": _tokens(cell, span_s),
        "completed": cell.completed,
        "failed": cell.failed,
        "cancelled": cell.cancelled,
        "refused": dict(cell.refusals),
        "violations": cell.slo_missed,
        **{measure: {} for measure in MEASURES},
        **cell.percentiles(),
    }
    if spec.paused:
        row["paused"] = True
    level = sample.bucket_levels.get(spec.id)
    if level is not None:
        row["bucket_level"] = round(level)
    gap = sample.bucket_gaps.get(spec.id)
    if gap is not None:
        row["bucket_gap"] = round(gap)
    standing = sample.standings.get(spec.id)
    if standing is not None:
        row |= {
            "weight": float(f"{standing.weight:.4g}"),
            "debt": round(standing.debt, 4),
            "burst": round(standing.burst, 4),
        }
    if spec.id in sample.shares:
        row["share"] = round(sample.shares[spec.id], 3)
    slo = _slo(cell.slo)
    return row | {name: slo[name] for name in ("attainment", "attainment_served", "asked", "left") if name in slo}


def _backend(spec: BackendSpec, sample: Sample, tbt_s: float | None) -> dict[str, Any]:
    """``tbt_s``: the strictest time between tokens that a tier of the pool promises."""
    view = sample.view.backends.get(spec.id)
    row: dict[str, Any] = {"running": view.running if view else 0, "slots": spec.slots}
    status = next((s for s in sample.backends if s.id == spec.id), None)
    if status is None:
        return row | {"state": "probing", "why": "not looked at yet"} | _unknown_adapters(sample)
    drained = status.state == "draining" and row["running"] == 0 and not status.engine_running
    row |= {"state": "drained" if drained else status.state, "why": status.why}
    if status.wake_fails:
        row["wake_fails"] = True
    if _unseen(status, sample.at_s):
        seen_s: dict[str, Any] = {
            "observed_s": round(status.observed_s, 1),
            "unseen_since": round(status.observed_s, 1),
        }
        if status.generates:
            seen_s["generates"] = True
        return row | (seen_s if status.observed_s else {}) | _unknown_adapters(sample)
    observed: dict[str, float | None] = {
        "engine_running": status.engine_running,
        "engine_waiting": status.engine_waiting,
        "kv_usage": _rounded(status.kv_usage, 4),
        "output_tokens_per_s": _rounded(status.output_tokens_per_s, 1),
        "input_tokens_per_s": _rounded(status.input_tokens_per_s, 1),
        "gpu_util": _rounded(status.gpu_util, 3),
        "gpu_mem_used_bytes": status.gpu_mem_used_bytes,
        "gpu_mem_total_bytes": status.gpu_mem_total_bytes,
        "engine_slots": status.engine_facts.slots,
        "engine_kv_tokens": status.engine_facts.kv_tokens,
        "engine_step_tokens": status.engine_facts.step_tokens,
        "engine_max_model_len": status.engine_facts.max_model_len,
        "slots_in_force": status.slots or None,
        "kv_tokens_in_force": status.kv_tokens or None,
        "kv_offered": status.kv_offered or None,
        "prefill_credit": status.prefill_credit,
        "token_ms": _rounded(1e3 * status.token_s, 2) or None,
        "speed": _rounded(status.speed, 3),
        "foreign": status.foreign,
        "observed_s": round(status.observed_s, 1) or None,
    }
    if status.adapters is not None:
        row["adapters"] = dict(status.adapters.states)
    adapters_why = "" if status.adapters is None else status.adapters.why
    if status.steps is not None and status.steps.fit is not None:
        row["step_time"] = _step_time(status.steps, status.steps.fit)
    reasons = {
        "steps_why": "" if status.steps is None else status.steps.why,
        "adapters_why": adapters_why,
        "limits_why": status.limits_why,
        "credit_why": status.credit_why,
        "step_why": _step_why(spec, status, tbt_s),
        "speed_why": status.speed_why,
    }
    return (
        row
        | {key: value for key, value in observed.items() if value is not None}
        | {key: words for key, words in reasons.items() if words}
    )


def _step_why(spec: BackendSpec, status: BackendStatus, tbt_s: float | None) -> str:
    """Why its steps are too long for so short a time between tokens, and what to change."""
    if spec.phase is Phase.PREFILL or status.steps is not None:
        return ""  # no answer waits for a full step: it writes none, or the plugin, which logs steps, ends them in time
    return slow_steps(*status.full_step, tbt_s, reported=status.engine_facts.step_tokens is not None)


def _tbt_why(sample: Sample, slo: Slo, percentiles: Mapping[str, Mapping[str, float]]) -> str:
    """Why most answers miss the promised time between tokens, where no replica that can be seen keeps it; with the
    first replica's name."""
    if slo.tbt_s is None or percentiles.get("tbt_ms", {}).get("p50", 0.0) <= 1e3 * slo.tbt_s:
        return ""
    specs = {spec.id: spec for spec in sample.pool.backends if spec.phase is not Phase.PREFILL}
    seen = [s for s in sample.backends if s.id in specs and s.state == "ready" and not _unseen(s, sample.at_s)]
    known = [s for s in seen if s.token_s or s.full_step[1]]
    whys = [f"{s.id}: {why}" for s in known if (why := _too_slow(specs[s.id], s, slo.tbt_s))]
    return whys[0] if whys and len(whys) == len(known) else ""


def _too_slow(spec: BackendSpec, status: BackendStatus, tbt_s: float) -> str:
    return _step_why(spec, status, tbt_s) or slow_tokens(status.token_s, tbt_s)


def _step_time(steps: StepStatus, fit: StepFit) -> dict[str, Any]:
    """What the engine's own log says of its steps: coefficients [s], and how well they predict."""
    error = {"recent_error": _rounded(steps.recent_error, 4)} if steps.recent_error is not None else {}
    figures = {"error": round(fit.error, 4), "steps": fit.steps, "drifts": steps.drifts, "believed": steps.believed}
    return {name: float(f"{value:.6g}") for name, value in asdict(fit.step_time).items()} | figures | error


def _unknown_adapters(sample: Sample) -> dict[str, Any]:
    adapters = sample.pool.adapters
    return {"adapters": {adapter.name: "unknown" for adapter in adapters}} if adapters else {}


def _unseen(status: BackendStatus, now_s: float) -> bool:
    """Whether a replica's figures say nothing about now: it was not scraped lately, or never."""
    return now_s - status.observed_s > UNSEEN_S


def _engine_tokens(sample: Sample) -> dict[str, float]:
    """Tokens per second by the engines' own counters; empty where none reports them, or one that runs requests does
    not: of the others alone they would be too few."""
    seen = [b for b in sample.backends if not _unseen(b, sample.at_s)]
    rates = [(b.input_tokens_per_s, b.output_tokens_per_s) for b in seen if _runs(sample, b.id) or _counts(b)]
    if not rates or any(None in rate for rate in rates):
        return {}
    return {"input": round(sum(i or 0 for i, _ in rates), 1), "output": round(sum(o or 0 for _, o in rates), 1)}


def _runs(sample: Sample, backend: str) -> bool:
    view = sample.view.backends.get(backend)
    return view is not None and view.running > 0


def _counts(status: BackendStatus) -> bool:
    return status.input_tokens_per_s is not None or status.output_tokens_per_s is not None


def _ended_tokens(cell: Cell, running: int, span_s: float) -> dict[str, float]:
    """Those of requests that ended. None known while requests run of which none has ended."""
    return {} if running and not cell.input_tokens + cell.output_tokens else _tokens(cell, span_s)


def _tokens(cell: Cell, span_s: float) -> dict[str, float]:
    return {"input": round(cell.input_tokens / span_s, 1), "output": round(cell.output_tokens / span_s, 1)}


def _rates(cell: Cell, span_s: float) -> dict[str, float]:
    return {name: round(getattr(cell, name) / span_s, 3) for name in _OUTCOMES}


def _slo(kept: Kept) -> dict[str, float]:
    row: dict[str, float] = {"violations": kept.missed, "total": kept.served, "asked": kept.asked}
    if kept.left:
        row["left"] = kept.left
    if kept.retries:
        row |= {"retries": kept.retries, "retries_kept": kept.retries_kept}
        if kept.attainment_first is not None:
            row["attainment_first"] = round(kept.attainment_first, 4)
    for name in ("attainment", "attainment_served"):
        share = getattr(kept, name)
        if share is not None:
            row[name] = round(share, 4)
    return row


def _added(rows: Iterable[Mapping[str, float]]) -> Kept:
    """The counts of several :func:`_slo`."""
    missed = served = asked = left = retries = retries_kept = 0
    for row in rows:
        missed, served = missed + int(row["violations"]), served + int(row["total"])
        asked += int(row.get("asked", row["total"]))  # an older leader's rows have no refusals
        left += int(row.get("left", 0))
        retries, retries_kept = retries + int(row.get("retries", 0)), retries_kept + int(row.get("retries_kept", 0))
    return Kept(served - missed, missed, asked - served, left, retries, retries_kept)


def _sum(rows: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows:
        for key, value in row.items():
            total[key] = round(total.get(key, 0) + value, 3)
    return total


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
