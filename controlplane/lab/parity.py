"""`manage.py lab parity`: a replay's requests once more, in the lab, so that live and simulated can be compared.

The same arrivals (when they really were sent), lengths (as the answers' usage says), tenants, tiers, promises and pool;
judged by the replay's own rule. What was cancelled is left out on both sides. Where the report says the pool's limits,
what was refused live is asked of the lab's admission as well, and each side refuses what it refuses; an older report's
refused requests are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from controlplane.lab.tables import figure
from controlplane.replay.report import Sent, summarise
from scheduling.core.admission.entitlement import read_coefficients
from scheduling.core.capacity.pool import automatic_headroom, most_headroom
from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.engine.step_time import load_preset
from scheduling.core.types import EntitlementSpec, EntitlementState, OverLimit, PoolSpec, ServiceClass, Slo, TierSpec
from scheduling.simulator.compare import FRONT, CompareError, grant_delay_s, serve_inside
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.engine_queue import Stay, waiting
from scheduling.simulator.recording import DECIDED_ANEW, Recorded
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import SimRequest, Tier
from scheduling.tuning.traffic import Serving, Traffic

LARGEST_REPORT = 256 * 1024 * 1024  # bytes of a report: 1,000,000 requests
RAN = ("completed", "failed")
LIMITS = frozenset(
    ("tokens_per_s", "burst_tokens", "kv_tokens", "state")
)  # of an entitlement, in reports that say them


@dataclass(frozen=True, slots=True)
class Setup:
    """What the report does not say of the engines, or is to be overridden (None: as the report says)."""

    preset: str
    credit: int | None = None
    signal_ms: float | None = None
    engine_order: str = "priority"
    slots: int | None = None
    policy: str | None = None  # or a composition, such as bands+edf, whose modifiers replace the pool's
    step_tokens: int | None = None
    where: str = FRONT  # INSIDE: the policy orders each engine's own queue, which this product does not do


@dataclass(frozen=True, slots=True)
class Line:
    """A tier, or all of them: live and simulated. Attainment in % of those that an engine worked on; refused in % of
    what was asked for; kept: attainment in % of that."""

    tier: str
    requests: int
    live: float
    simulated: float
    live_ttft_s: tuple[float | None, float | None]  # p50, p95
    simulated_ttft_s: tuple[float | None, float | None]
    live_refused: float = 0.0
    simulated_refused: float = 0.0

    @property
    def live_kept(self) -> float:
        return self.live * (1.0 - self.live_refused / 100.0)

    @property
    def simulated_kept(self) -> float:
        return self.simulated * (1.0 - self.simulated_refused / 100.0)

    @property
    def points(self) -> float:
        """How much more of the promises the lab keeps, of all that was asked for."""
        return self.simulated_kept - self.live_kept

    def as_json(self) -> dict[str, Any]:
        kept = {"live_kept": self.live_kept, "simulated_kept": self.simulated_kept}
        return {**asdict(self), **kept, "points": self.points}


@dataclass(frozen=True, slots=True)
class Parity:
    lines: list[Line]
    left_out: int  # cancelled, too large for a replica, or refused where the report does not say the limits
    live_tokens_per_s: float | None  # while requests are sent
    simulated_tokens_per_s: float | None
    waiting: float  # in the simulated engines' queues, mean and p99
    waiting_p99: float
    served: str

    @property
    def worst(self) -> float:
        """The largest difference of a tier [points]."""
        return max(abs(line.points) for line in self.lines[1:])

    def as_json(self) -> dict[str, Any]:
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "lines"}
        return {**columns, "worst": self.worst, "tiers": [line.as_json() for line in self.lines]}


def read_report(path: Path) -> dict[str, Any]:
    """A replay's report with its requests and pool. Raises CompareError that says what it lacks, and OSError."""
    if path.stat().st_size > LARGEST_REPORT:
        raise CompareError(f"{path} is larger than {LARGEST_REPORT // 1024 // 1024} MiB")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise CompareError(f"{path} is no report of `manage.py replay`: {problem}") from None
    if not isinstance(report, dict) or "tiers" not in report:
        raise CompareError(f"{path} is no report of `manage.py replay`")
    if not report.get("requests"):
        raise CompareError(f"{path} has no requests in it: make it with `manage.py replay --report FILE --rows`")
    if not report.get("served_by"):
        raise CompareError(f"{path} does not say what served: replay with an operator's access token")
    return report


def compare(report: Mapping[str, Any], setup: Setup) -> Parity:
    """Replays a report's requests in the lab. Raises CompareError, PolicyError or ValueError."""
    try:
        sent = [Sent(**row) for row in report["requests"]]
        limited = setup.where == FRONT and _says_limits(report["served_by"])
        ran = sorted(
            (row for row in sent if row.outcome in RAN or (limited and _turned_away(row))),
            key=lambda row: row.planned_s + row.late_s,
        )
        traffic, serving = _pool(report["served_by"], ran, setup)
    except (KeyError, TypeError) as problem:
        raise CompareError(f"the report lacks or has an odd {problem}") from None
    requests = traffic.requests()
    if not requests:
        raise CompareError("no request of the report was worked on by an engine")
    outcomes, stays = _run(traffic, serving, setup.where, requests)
    # The lab leaves out what no replica could hold: pair by arrival, which both have in the same order.
    kept = iter(ran)
    begin = ran[0].planned_s + ran[0].late_s
    pairs = []
    for outcome in outcomes:
        row = next(
            row
            for row in kept
            if row.tier == outcome.tier and abs(row.planned_s + row.late_s - begin - outcome.arrival_s) < 1e-6
        )
        if outcome.refused:
            refused = replace(row, outcome="refused", reason=outcome.refused, ttft_s=None, ttlt_s=None)
            pairs.append((row, replace(refused, input_tokens=0, output_tokens=0)))
            continue
        first = outcome.ttft_s if row.streamed else None  # as the replay sees it
        simulated = replace(row, outcome="completed", ttft_s=first, ttlt_s=outcome.ttlt_s)
        pairs.append((row, replace(simulated, input_tokens=outcome.input_tokens, output_tokens=outcome.output_tokens)))
    slos = {tier.name: tier.slo for tier in traffic.tiers}
    names = sorted({row.tier for row, _ in pairs}, key=lambda name: _rank(traffic.tiers, name))
    live, lab = _summary([row for row, _ in pairs], slos), _summary([row for _, row in pairs], slos)
    lines = [_line("all", len(pairs), live["total"], lab["total"])]
    lines += [_line(n, live["tiers"][n]["sent"], live["tiers"][n], lab["tiers"][n]) for n in names]
    queued = waiting(stays, len(traffic.replicas))
    return Parity(
        lines,
        len(sent) - len(pairs),
        live["total"]["tokens_per_s_while_sending"],
        lab["total"]["tokens_per_s_while_sending"],
        queued.mean,
        queued.p99,
        _words(traffic, serving),
    )


def _run(
    traffic: Traffic, serving: Serving, where: str, requests: Sequence[SimRequest]
) -> tuple[Sequence[Outcome], Sequence[Stay]]:
    """Outcomes in order of arrival, and stays in the engines' own queues."""
    if where == FRONT:
        replay = traffic.replay(serving)
        return replay.run(requests), replay.stays
    served = serve_inside([_engine(replica) for replica in traffic.replicas], serving.ordering(), requests)
    return served.outcomes, served.stays


def _engine(replica: Replica) -> EngineConfig:
    return EngineConfig(
        replica.step_time,
        token_budget=replica.token_budget,
        max_seqs=replica.slots,
        kv_tokens=replica.kv_tokens,
        preempt_prefills=True,
    )


def _pool(instance: Mapping[str, Any], rows: Sequence[Sent], setup: Setup) -> tuple[Traffic, Serving]:
    pool, preset = instance["pool"], load_preset(setup.preset)
    *around, policy = (setup.policy or pool["policy"]).split("+")
    serving = Serving(
        policy,
        {} if setup.policy else pool["policy_params"],
        {name: {} for name in around} or pool["modifiers"],
        pool["routing"],
        pool["routing_params"],
    )
    replicas = tuple(
        Replica(
            preset.step_time,
            row["slots"] if setup.slots is None else setup.slots,
            row["kv_tokens"],
            setup.step_tokens or row.get("step_tokens") or USUAL_BUDGET,
            _credit(pool, row) if setup.credit is None else setup.credit,
            setup.engine_order,
        )
        for row in instance["backends"]
    )
    if not replicas:
        raise CompareError("the report has no backend in service")
    if any(row.get("phase", "both") != "both" for row in instance["backends"]):
        raise CompareError("prefill and decode are apart in the report's pool: use what-if runs, which simulate that")
    tiers = tuple(
        Tier(name, Slo(row["ttft_s"], row["tbt_s"], row["ttlt_s"]), row["rank"], row["weight"],
             service_class=ServiceClass(row["service_class"]))
        for name, row in instance["tiers"].items() if "ttft_s" in row
    )  # fmt: skip
    entitlements = instance["entitlements"]
    recorded = tuple(
        Recorded(
            row.planned_s + row.late_s,
            row.input_tokens or row.wanted_input,
            row.output_tokens or row.wanted_output,
            entitlements[row.name].get("tenant", row.name),
            row.tier,
            entitlements[row.name].get("slug", row.name),
            output_bound=row.wanted_output,
            expected_tokens=float(row.wanted_output) if _turned_away(row) else 0.0,
            wait_s=None if _turned_away(row) else 0.0,
            ttft_s=row.ttft_s,
            outcome=row.outcome,
            reason=row.reason if _turned_away(row) else "",
        )
        for row in rows
    )
    missing = {row.tier for row in rows} - {tier.name for tier in tiers}
    if missing:
        raise CompareError(f"the instance has no tier {', '.join(sorted(missing))}: senders' tiers are named otherwise")
    limits = {row["slug"]: row["concurrency"] for row in entitlements.values() if row}
    measured_s = grant_delay_s(instance.get("turnaround_ms"))
    delay_s = measured_s if setup.signal_ms is None else setup.signal_ms / 1000.0
    traffic = Traffic(recorded, tiers, replicas, limits, _headroom(instance), delay_s)
    if setup.where == FRONT and _says_limits(instance):
        pool_spec, specs = _limits(instance)
        traffic = replace(traffic, pool=pool_spec, entitlements=specs)
    return traffic, serving


def _turned_away(row: Sent) -> bool:
    """Whether a limit refused it, which the lab decides anew."""
    return row.outcome == "refused" and row.reason in DECIDED_ANEW


def _says_limits(instance: Mapping[str, Any]) -> bool:
    sharing = instance.get("sharing") or []
    return bool(sharing) and all(row.keys() >= LIMITS for row in sharing)


def _limits(instance: Mapping[str, Any]) -> tuple[PoolSpec, tuple[EntitlementSpec, ...]]:
    """The pool and who shares it, as the report says them. Raises KeyError, TypeError or ValueError."""
    pool = instance["pool"]
    specs = _sharing(instance)
    fixed = pool.get("headroom_slots")
    slots = sum(row["slots"] for row in instance["backends"])
    return (
        PoolSpec(
            id=pool["slug"],
            model=pool["slug"],
            upstream_model=pool["slug"],
            backends=(),
            queue_limit=int(pool["queue_limit"]),
            queue_bytes=int(pool["queue_bytes"]),
            threshold=float(pool["threshold"]),
            coefficients=read_coefficients(pool["coefficients"]),
            slo_mean_s=pool["slo_mean_s"],
            headroom_slots=automatic_headroom(slots, specs) if fixed is None else int(fixed),
            headroom_most=most_headroom(slots, specs) if fixed is None else 0,
        ),
        specs,
    )


def _sharing(instance: Mapping[str, Any]) -> tuple[EntitlementSpec, ...]:
    """Who shares the pool. Older reports name the senders' entitlements only, without limits."""
    sharing = instance.get("sharing") or [
        {**row, "state": "bound"} for row in {row["slug"]: row for row in instance["entitlements"].values()}.values()
    ]
    tiers = instance["tiers"]
    return tuple(
        EntitlementSpec(
            row["slug"], row["tenant"], instance["pool"]["slug"], _tier(row["tier"], tiers[row["tier"]]),
            EntitlementState(row["state"]), row.get("tokens_per_s") or 0.0, row.get("burst_tokens") or 0.0,
            row.get("kv_tokens") or 0, row["concurrency"],
        )
        for row in sharing
    )  # fmt: skip


def _tier(name: str, row: Mapping[str, Any]) -> TierSpec:
    slo = Slo(row.get("ttft_s"), row.get("tbt_s"), row.get("ttlt_s"))
    limits = {key: row[key] for key in ("queue_limit", "max_wait_s") if key in row}
    over = OverLimit(row.get("over_limit", OverLimit.REFUSE))
    rank, weight = int(row.get("rank", 0)), float(row.get("weight", 1.0))
    return TierSpec(name, ServiceClass(row["service_class"]), rank, weight, slo, over, **limits)


def _headroom(instance: Mapping[str, Any]) -> int:
    """The pool's headroom [slots]; where nobody has set one, what a new pool keeps. What the leader adds to it while
    it serves is not simulated. Older reports name the senders' entitlements only."""
    fixed = instance["pool"].get("headroom_slots", 0)
    if fixed is not None:
        return int(fixed)
    return automatic_headroom(sum(row["slots"] for row in instance["backends"]), _sharing(instance))


def _credit(pool: Mapping[str, Any], backend: Mapping[str, Any]) -> int | None:
    """The pool's prefill credit, else the replica's own figure; None is found while it serves."""
    if pool.get("prefill_credit") is not None:
        return int(pool["prefill_credit"])
    return backend.get("prefill_tokens") or None


def _summary(rows: Sequence[Sent], slos: Mapping[str, Slo]) -> dict[str, Any]:
    """By the replay's own rule, over the time from the first request to the last answer."""
    begin = min(row.planned_s + row.late_s for row in rows)
    span = max(row.planned_s + row.late_s + (row.ttlt_s or 0.0) for row in rows) - begin
    return summarise(rows, dict(slos), span)


def _line(name: str, requests: int, live: Mapping[str, Any], simulated: Mapping[str, Any]) -> Line:
    def ttft(group: Mapping[str, Any]) -> tuple[float | None, float | None]:
        return group["ttft_s"]["p50"], group["ttft_s"]["p95"]

    def share(group: Mapping[str, Any]) -> float:
        return 100.0 * (1.0 if group["slo_attainment"] is None else group["slo_attainment"])

    def refused(group: Mapping[str, Any]) -> float:
        return 100.0 * sum(group["refused"].values()) / group["sent"] if group["sent"] else 0.0

    return Line(
        name, requests, share(live), share(simulated), ttft(live), ttft(simulated), refused(live), refused(simulated)
    )


def _rank(tiers: Sequence[Tier], name: str) -> tuple[int, str]:
    return next(tier.rank for tier in tiers if tier.name == name), name


def _words(traffic: Traffic, serving: Serving) -> str:
    one = traffic.replicas[0]
    credit = {None: "automatic prefill credit", 0: "no prefill credit"}.get(
        one.prefill_tokens, f"prefill credit {one.prefill_tokens}"
    )
    policy = "+".join([*serving.modifiers, serving.policy])
    return (
        f"{policy}, {len(traffic.replicas)} replicas of {one.slots} slots, {one.kv_tokens} KV tokens and "
        f"{one.token_budget} tokens a step, {credit}, {1000 * traffic.signal_s:g} ms until a grant follows, engines in "
        f"order of {one.order}"
    )


def grid_of(parity: Parity, trace: str) -> Grid:
    grid = Grid("tier", "requests", "refused live %", "lab", "kept live %", "lab", "points", "live TTFT p50 s", "lab",
                "live p95", "lab", title=f"{trace}: {parity.served}")  # fmt: skip
    for line in parity.lines:
        times = [
            "" if value is None else figure(value)
            for pair in zip(line.live_ttft_s, line.simulated_ttft_s, strict=True)
            for value in pair
        ]
        away = (f"{line.live_refused:.1f}", f"{line.simulated_refused:.1f}")
        shares = (*away, f"{line.live_kept:.1f}", f"{line.simulated_kept:.1f}", f"{line.points:+.1f}")
        grid.add_row(line.tier, str(line.requests), *shares, *times)
    return grid
