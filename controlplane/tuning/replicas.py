"""A pool's recent traffic and its engines as they are now, as the strategic loop and the lab try things on them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.db.models import Q
from django.utils import timezone

from controlplane.tuning import recent
from controlplane.tuning.in_flight import InFlight, in_flight
from scheduling.core.capacity.engine_limits import EngineFacts, in_force
from scheduling.core.capacity.prefill_credit import MAX_BUDGET, USUAL_BUDGET
from scheduling.core.engine.calibration import StepFit
from scheduling.core.engine.step_time import StepTime, load_preset
from scheduling.core.outcomes import Outcome
from scheduling.core.percentiles import interpolated
from scheduling.core.placement.rule import relative_speed
from scheduling.core.types import Phase, Slo
from scheduling.engines.kinds import kind_of
from scheduling.simulator.compare import grant_delay_s
from scheduling.simulator.recording import IN_FLIGHT, Recorded, Recording
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome as Replayed
from scheduling.simulator.result import is_late
from scheduling.state.codec import DIRECT
from scheduling.tuning.step_time_fit import Timed, calibrate
from scheduling.tuning.traffic import Room, Serving, Traffic
from telemetry.api.common import Unavailable
from telemetry.api.live import live_store
from telemetry.feed.store import LiveUnavailable
from telemetry.models import Calibration, LedgerEntry
from tenants.models import Backend, PolicyVersion, Pool
from tenants.specs import pool_and_entitlements

UNKNOWN = "llama-3-8b-a100"  # stands for engines of which nothing has been measured yet
TRUSTED = 0.10  # relative error of a latency up to which a lab's word is worth something
TRUSTED_POINTS = 3.0  # likewise, of a tier's attainment
COMPARED = 5000  # requests of a window that are replayed for a comparison
LEAST_COMPARED = 50  # of them, without which a calibration says nothing of what the one before was worth
EDGE_S, EDGE = (
    60.0,
    1 / 6,
)  # of a window that is replayed and not compared, at both ends: at most so long, and its share
UNSEEN = timedelta(minutes=10)  # the shortest window that a calibration is checked on
CURRENT = timedelta(hours=1)  # an error measured longer ago is not known any more
KEPT = 200  # calibrations of a pool
_ENGINES: Final = {"replicas": tuple[Replica, ...], "signal_s": float, "own_credits": tuple[int | None, ...]}
FIGURES = {"ttft p50": 0.50, "ttft p95": 0.95, "ttlt p50": 0.50, "ttlt p95": 0.95}
NEAR_RANKS = 0.015  # of the middle: where two tiers are served apart it may lie in the gap between them, where one
# request in a hundred moves it by seconds. Between neighbours this is far less than TRUSTED


@dataclass(frozen=True, slots=True)
class Trust:
    """Simulated against live figures of the same requests. ``figures``: name to (live, simulated) [s]. ``near``: for
    medians, the live latencies :data:`NEAR_RANKS` ranks below and above [s]. ``refused``: refused share of all requests
    (live, simulated) [%]. ``attainment``: likewise by tier with an SLO [%]."""

    requests: int
    figures: dict[str, tuple[float, float]]
    near: dict[str, tuple[float, float]] = field(default_factory=dict)
    refused: tuple[float, float] = (0.0, 0.0)
    attainment: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The largest relative error of a latency; a middle that lies in ``near`` has none."""
        return max(self._error(name) for name in self.figures)

    def _error(self, name: str) -> float:
        live, simulated = self.figures[name]
        low, high = self.near.get(name, (live, live))
        nearest = min(max(simulated, low), high)
        return abs(simulated / nearest - 1.0)

    @property
    def points(self) -> float:
        """The largest difference of a tier's attainment [points]."""
        return max((abs(simulated - live) for live, simulated in self.attainment.values()), default=0.0)

    def as_json(self) -> dict[str, object]:
        trusted = self.worst <= TRUSTED and self.points <= TRUSTED_POINTS
        figures = {name: value for name, value in asdict(self).items() if name != "near"}
        return {**figures, "worst": self.worst, "points": self.points, "trusted": trusted}


def serving_of(version: PolicyVersion | Pool) -> Serving:
    """What decides under a version, or in a pool now, whose room its traffic has."""
    room = version.room if isinstance(version, PolicyVersion) else None
    return Serving(
        version.policy, version.policy_params, version.modifiers, version.routing, version.routing_params,
        None if room is None else Room(room.get("prefill_credit"), room.get("headroom_slots")),
    )  # fmt: skip


def setting_of(serving: Serving) -> dict[str, Any]:
    """A setting as a policy version keeps it."""
    return {
        "policy": serving.policy,
        "policy_params": dict(serving.params),
        "modifiers": {name: dict(params) for name, params in serving.modifiers.items()},
        "routing": serving.routing,
        "routing_params": dict(serving.routing_params),
        **({} if serving.room is None else {"room": asdict(serving.room)}),
    }


def logged_steps(pool: str) -> dict[str, StepFit]:
    """The step-time models of the schedulers inside a pool's engines, by backend, where they predict well enough; empty
    where none does, or nothing is reported."""
    step_times = {name: row.get("step_time") or {} for name, row in _backends_now(pool).items()}
    return {
        name: StepFit(
            StepTime(**{field.name: row[field.name] for field in fields(StepTime)}), row["error"], row["steps"]
        )
        for name, row in step_times.items()
        if row.get("believed")
    }


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of an engine: its reported limits, and how many sequences it was seen to run at once."""

    facts: EngineFacts = field(default_factory=EngineFacts)
    learned: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Told:
        """From its row in a snapshot."""
        facts = EngineFacts(
            row.get("engine_slots"), row.get("engine_step_tokens"), kv_tokens=row.get("engine_kv_tokens")
        )
        slots = row.get("slots_in_force")
        bounds = [bound for bound in (row.get("slots"), facts.slots) if bound]
        return cls(facts, slots if slots and bounds and slots < min(bounds) else None)


def told_of(pool: str) -> dict[str, Told]:
    """What a pool's engines report now, by backend; empty if its leader reports nothing."""
    return {name: Told.of(row) for name, row in _backends_now(pool).items()}


def _step_budget(told: Mapping[str, Told]) -> int | None:
    """Tokens a step, where those engines that say it say the same."""
    budgets = {one.facts.step_tokens for one in told.values() if one.facts.step_tokens}
    return min(budgets.pop(), MAX_BUDGET) if len(budgets) == 1 else None


def _backends_now(pool: str) -> Mapping[str, dict[str, Any]]:
    """The pool's backends in the leader's last snapshot."""
    try:
        stored = live_store().load(pool)
    except (LiveUnavailable, Unavailable):
        return {}
    return {} if stored is None else stored.snapshot.get("backends", {})


def in_service(pool: Pool, without: Collection[str] = ()) -> list[Backend]:
    """The pool's backends that take work, but for those named, in the order of :func:`replicas_of`."""
    rows = [backend for backend in pool.backends.all() if not backend.draining and backend.slug not in without]
    paired = {Phase.PREFILL, Phase.DECODE} <= {row.phase for row in rows}
    rows = [row for row in rows if paired or row.phase == Phase.BOTH]
    return sorted(rows, key=lambda row: row.phase == Phase.PREFILL)


def replicas_of(
    pool: Pool,
    calibration: Calibration | None,
    logged: Mapping[str, StepFit] | None = None,
    *,
    without: Collection[str] = (),
) -> tuple[Replica, ...]:
    """The pool's backends that take work, as fast as they were last found to be, with the pool's prefill credit; each
    as its own steps say, where those are ``logged``. Prefill replicas are the last ones; they and decode replicas are
    left out without any of the other kind, as live. A prompt's KV cache is as large as an unknown engine's.

    Slots and KV tokens are those in force, as live. A step budget is what the engine says of itself, else what the
    others all say, else what the calibration found; without one, that which live credits begin with, as most engines
    serve by it.
    """
    unknown = load_preset(UNKNOWN)
    step = StepTime(**calibration.step_time) if calibration is not None else unknown.step_time
    told = told_of(pool.slug)
    budget = _step_budget(told) or (USUAL_BUDGET if calibration is None else calibration.token_budget)
    own = {name: fit.step_time for name, fit in (logged or {}).items()}
    found, rows = [], in_service(pool, without)
    for row in rows:
        alike = [one.tokens_per_s for one in rows if one.phase == row.phase]
        engine = told.get(row.slug) or Told()
        used, _ = in_force(row.spec(), engine.facts, engine.learned, pool.max_model_len)
        steps = min(engine.facts.step_tokens or budget, MAX_BUDGET)
        found.append(
            Replica(
                own.get(row.slug, step), used.slots, used.kv_tokens, steps, _credit(pool, row), "priority",
                phase=Phase(row.phase), kv_bytes_per_token=unknown.kv_bytes_per_token,
                speed=relative_speed(row.tokens_per_s, alike),
            )
        )  # fmt: skip
    return tuple(found)


def apart(pool: str) -> bool:
    """Whether a pool has prefill and decode replicas."""
    return Backend.objects.filter(pool__slug=pool).exclude(phase=Phase.BOTH).exists()


def _credit(pool: Pool, backend: Backend) -> int | None:
    """The pool's prefill credit, else the replica's own figure; None is found while it serves, which it is not where
    our scheduler is inside."""
    own = backend.spec().prefill_tokens or (0 if kind_of(pool.engine).takes_digest else None)
    return own if pool.prefill_credit is None else pool.prefill_credit


def traffic_of(
    pool: Pool,
    since: datetime,
    until: datetime,
    *,
    most: int | None = None,
    calibration: Calibration | None = None,
    ended_by: datetime | None = None,
    unended: Sequence[InFlight] | None = None,
) -> Traffic | None:
    """What was asked for in a window, its latest ``most`` requests (:func:`recent.record`); None without any, or
    without backends."""
    fetched = recent.MOST_RECORDED if most is None else 2 * most
    recording = recent.record(pool.slug, since, until, most=fetched, ended_by=ended_by, unended=unended)
    return as_traffic(pool, recording, most=most, calibration=calibration)


def as_traffic(
    pool: Pool,
    recording: Recording,
    *,
    most: int | None = None,
    calibration: Calibration | None = None,
    without: Collection[str] = (),
) -> Traffic | None:
    """A recording on the pool's own engines (``without`` some), under its present limits: requests that were refused
    then are admitted or refused again."""
    rows = [row for row in recording.rows if row.ran or row.turned_away or row.in_flight]
    rows = rows[-most:] if most else rows
    logged = None if calibration is not None else logged_steps(pool.slug)  # one that is asked for is what is tried
    replicas = replicas_of(pool, calibration or latest(pool.slug), logged, without=without)
    if not rows or not replicas:
        return None
    spec, entitlements = pool_and_entitlements(pool)
    signal_s = grant_delay_s(turnaround_ms(pool))
    own = tuple(row.spec().prefill_tokens or None for row in in_service(pool, without))
    return Traffic(
        tuple(rows), recording.tiers, replicas, signal_s=signal_s, pool=spec, entitlements=entitlements, own_credits=own
    )


def engines_of(traffic: Traffic) -> dict[str, Any]:
    """What a replay runs on, as JSON: for replays that are made later, when other things are known of the engines."""
    kept: dict[str, Any] = msgspec.to_builtins({name: getattr(traffic, name) for name in _ENGINES})
    return kept


def on_engines(traffic: Traffic, kept: Mapping[str, Any]) -> Traffic:
    """The same requests on what :func:`engines_of` kept; of a release that kept nothing, on what there is."""
    return replace(traffic, **{name: msgspec.convert(kept[name], kind) for name, kind in _ENGINES.items() if kept})


def turnaround_ms(pool: Pool) -> float | None:
    """How long the pool's leader takes from a first token to the next prompt, as it last measured; None where it has
    not, or is not heard."""
    try:
        stored = live_store().load(pool.slug)
    except (LiveUnavailable, Unavailable):
        return None
    return None if stored is None else stored.snapshot.get("turnaround_ms")


def latest(pool: str) -> Calibration | None:
    """The last calibration of a pool."""
    return Calibration.objects.filter(pool=pool).first()


def measured(pool: str) -> dict[str, Any] | None:
    """How far a pool's simulated figures were from live when that was last measured (:class:`Trust` as JSON, and
    ``at``), which every calibration does on the window before it; None where it never was."""
    row = Calibration.objects.filter(pool=pool).exclude(trust={}).first()
    return None if row is None else {**row.trust, "at": row.at.isoformat()}


def doubt(pool: str, most: float, now: datetime) -> str:
    """Why simulated figures of a pool are no reason to change what serves: how far they were from live ones, where
    that is more than ``most`` or not known. Empty where they are reason enough."""
    measurement = measured(pool)
    if apart(pool):
        return "engines are not calibrated where prefill and decode are apart, so simulated figures are not measured"
    if measurement is None:
        return "no calibration has compared simulated figures with live ones yet"
    if now - datetime.fromisoformat(measurement["at"]) > CURRENT:
        return "the last calibration that compared simulated figures with live ones is more than an hour old"
    error, points = measurement["worst"], measurement.get("points", 0.0)
    if error > most:
        return f"simulated latencies are {100 * error:.0f} % off live ones, more than most_error, {100 * most:g} %"
    if points > 100 * most:
        return f"simulated attainment is {points:.0f} points off, more than most_error, {100 * most:g} points"
    return ""


def recalibrate(pool: Pool, since: datetime, until: datetime) -> Calibration | None:
    """Fits the engines anew on a window (to their own steps, where those are logged), and stores it with what the fit
    before it was worth on this window. None where the window does not tell, and where prefill and decode are apart: the
    ledger does not say which of two engines took the time."""
    if apart(pool.slug):
        return None
    logged = logged_steps(pool.slug)
    best = max(logged.values(), key=lambda one: (one.steps, -one.error), default=None)
    unended = in_flight(pool.slug, timezone.now())
    if unended is None:
        return None  # what loads the engines now is not known
    rows = [*timed(pool.slug, since, until), *running_now(unended, since, until)]
    fit = calibrate(rows, best, _step_budget(told_of(pool.slug)))
    if fit is None:
        return None
    before, worth = latest(pool.slug), None
    if before is not None:
        worth = trust(pool, max(since, min(before.at, until - UNSEEN)), until, before, unended)
    if worth is not None and worth.requests < LEAST_COMPARED:
        worth = None
    row = Calibration.objects.create(
        pool=pool.slug, at=until, step_time=asdict(fit.step_time),
        overhead_s=fit.overhead_s + _entering_s(pool.slug, since, until), error=fit.error,
        token_budget=fit.token_budget,
        requests=fit.requests, trust=worth.as_json() if worth is not None else {},
    )  # fmt: skip
    old = Calibration.objects.filter(pool=pool.slug).values_list("id", flat=True)[KEPT:]
    Calibration.objects.filter(id__in=list(old)).delete()
    return row


def _entering_s(pool: str, since: datetime, until: datetime) -> float:
    """What a request takes from its arrival to its grant where it finds a free place at once, in the middle [s]."""
    rows = LedgerEntry.objects.filter(
        pool=pool, received_at__gte=since, received_at__lt=until, granted_at__isnull=False, policy=DIRECT
    )
    moments = rows.order_by("-received_at").values_list("received_at", "granted_at")[: recent.MOST_RECORDED]
    return interpolated([max(0.0, (granted - at).total_seconds()) for at, granted in moments if granted] or [0.0], 0.5)


def timed(pool: str, since: datetime, until: datetime) -> list[Timed]:
    """Completed requests of a window, as the calibration wants them."""
    rows = LedgerEntry.objects.filter(
        pool=pool, received_at__gte=since, received_at__lt=until, granted_at__isnull=False
    ).order_by("received_at", "id")
    rows = rows.filter(Q(first_token_at__isnull=False) | Q(streamed=False, outcome=Outcome.COMPLETED))
    names = ("backend", "granted_at", "first_token_at", "done_at", "input_tokens", "output_tokens")
    return [
        Timed(backend, granted.timestamp(), None if first is None else first.timestamp(), done.timestamp(), given, out)
        for backend, granted, first, done, given, out in rows.values_list(*names)[: recent.MOST_RECORDED]
    ]


def running_now(unended: Sequence[InFlight], since: datetime, until: datetime) -> list[Timed]:
    """The requests of a window that still run, as the calibration takes them: as load, since no more is known of
    them."""
    return [
        Timed(
            one.row.backend, one.received_at.timestamp() + one.row.wait_s, None,
            one.received_at.timestamp() + one.row.ttlt_s, one.row.input_tokens, max(1, one.row.output_tokens),
        )
        for one in unended
        if one.row.wait_s is not None and since <= one.received_at < until
    ]  # fmt: skip


def trust(
    pool: Pool,
    since: datetime,
    until: datetime,
    calibration: Calibration | None = None,
    unended: Sequence[InFlight] | None = None,
) -> Trust | None:
    """Replays a window, as far as the policy of now served in it, and compares the same requests with what happened.

    At its ends requests are replayed and not compared: the replay begins with nothing waiting. What is in flight
    (``unended``; None: it is read now) is replayed too, and the replay is looked at as of the same moment: what has not
    ended by then has no latency on either side, and counts as missed where no end can be in time. None without requests
    or without a calibration, and where Redis does not say what is in flight.
    """
    fit = calibration or latest(pool.slug)
    version = PolicyVersion.objects.filter(pool=pool, number=pool.policy_version).first()
    since = since if version is None else max(since, version.at)
    if unended is None and (unended := in_flight(pool.slug, timezone.now())) is None:
        return None
    traffic = traffic_of(pool, since, until, most=COMPARED, calibration=fit, unended=unended)
    if traffic is None or fit is None:
        return None
    rows = traffic.fitting(traffic.rows)
    now_s = max((row.arrival_s + row.ttlt_s for row in rows if row.in_flight), default=math.inf)
    asked = [
        (row, _seen(row, again, fit.overhead_s, now_s))
        for row, again in zip(rows, traffic.serve(serving_of(pool)), strict=True)
    ]
    began_s, span_s = traffic.rows[0].arrival_s, traffic.rows[-1].arrival_s - traffic.rows[0].arrival_s
    edge_s = min(EDGE_S, EDGE * span_s)
    asked = [one for one in asked if edge_s <= one[0].arrival_s - began_s <= span_s - edge_s]
    both = [(row, again) for row, again in asked if (row.ran or row.in_flight) and again.outcome != Outcome.REFUSED]
    live = [row for row, _ in both if row.outcome == Outcome.COMPLETED]
    simulated = [again for row, again in both if again.outcome == Outcome.COMPLETED and _may_complete(row)]
    latencies = [_latencies(live), _latencies(simulated)]
    if not all(seen for side in latencies for seen in side.values()):
        return None  # not one of them says when its first token came
    figures = {
        name: (interpolated(latencies[0][name[:4]], q), interpolated(latencies[1][name[:4]], q))
        for name, q in FIGURES.items()
    }
    near = {name: around_the_middle(latencies[0][name[:4]]) for name, q in FIGURES.items() if q == 0.5}
    slos = {tier.name: tier.slo for tier in traffic.tiers}
    kept = [_kept([one[side] for one in asked if one[0].outcome != Outcome.CANCELLED], slos) for side in (0, 1)]
    refused = (sum(row.turned_away for row, _ in asked), sum(again.outcome == Outcome.REFUSED for _, again in asked))
    return Trust(
        len(live),
        figures,
        near,
        (100.0 * refused[0] / len(asked), 100.0 * refused[1] / len(asked)),
        {tier: (share, kept[1][tier]) for tier, share in kept[0].items() if tier in kept[1]},
    )


def _seen(row: Recorded, again: Replayed, overhead_s: float, now_s: float) -> Recorded:
    """A simulated request as a recording has it that is made at ``now_s``: one that ends later is in flight."""
    if again.refused:
        return replace(row, outcome=Outcome.REFUSED, wait_s=None, ttft_s=None, ttlt_s=again.ttlt_s)
    ttft_s = None if row.whole else again.ttft_s + overhead_s
    ttlt_s, age_s = again.ttlt_s + overhead_s, now_s - row.arrival_s
    if ttlt_s <= age_s:
        return replace(
            row, outcome=Outcome.COMPLETED, output_tokens=again.output_tokens, wait_s=again.wait_s, ttft_s=ttft_s,
            ttlt_s=ttlt_s,
        )  # fmt: skip
    waits = again.wait_s > age_s
    return replace(row, outcome=IN_FLIGHT, wait_s=None if waits else again.wait_s, ttft_s=None, ttlt_s=age_s)


def _may_complete(row: Recorded) -> bool:
    """Whether nothing but time keeps a request from having completed."""
    return row.outcome == Outcome.COMPLETED or row.in_flight


def around_the_middle(latencies: Sequence[float]) -> tuple[float, float]:
    """The latencies :data:`NEAR_RANKS` below and above their middle [s]."""
    return interpolated(latencies, 0.5 - NEAR_RANKS), interpolated(latencies, 0.5 + NEAR_RANKS)


def _latencies(rows: Sequence[Recorded]) -> dict[str, list[float]]:
    """Of first tokens, where they were seen, and of whole answers [s]."""
    return {
        "ttft": [row.ttft_s for row in rows if row.ttft_s is not None],
        "ttlt": [row.ttlt_s for row in rows],
    }


def _kept(rows: Sequence[Recorded], slos: Mapping[str, Slo]) -> dict[str, float]:
    """Attainment by tier with an SLO [%]. Requests in flight that may still be in time are left out; the first token of
    a whole answer is not known."""
    kept: dict[str, list[bool]] = {}
    for row in rows:
        slo = slos[row.tier]
        if slo.ttft_s is None and slo.ttlt_s is None:
            continue
        if row.in_flight:
            if _late_already(slo, row):
                kept.setdefault(row.tier, []).append(False)
            continue
        late = is_late(slo, row.ttft_s or 0.0, row.ttlt_s, max(1, row.output_tokens))
        kept.setdefault(row.tier, []).append(row.outcome == Outcome.COMPLETED and not late)
    return {tier: 100.0 * sum(each) / len(each) for tier, each in sorted(kept.items())}


def _late_already(slo: Slo, row: Recorded) -> bool:
    """Whether what is in flight has missed its SLO, however it ends: one that runs may have had its first token at its
    grant, and may have its longest answer."""
    first_s = row.ttlt_s if row.wait_s is None else row.wait_s
    return is_late(slo, first_s, row.ttlt_s, max(1, row.output_bound))


def window(minutes: float, now: datetime) -> tuple[datetime, datetime]:
    """The last minutes."""
    return now - timedelta(minutes=minutes), now
