"""A pool's recent traffic and its engines as they are now, as the strategic loop and the lab try things on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.tuning import recent
from scheduling.core.percentiles import interpolated
from scheduling.core.prefill_credit import USUAL_BUDGET
from scheduling.core.step_time import StepTime, load_preset
from scheduling.simulator.compare import grant_delay_s
from scheduling.simulator.recording import Recording
from scheduling.simulator.replay import Replica
from scheduling.simulator.result import served
from scheduling.tuning.calibrate import Timed, calibrate
from scheduling.tuning.traffic import Room, Serving, Traffic
from telemetry.api.common import Unavailable
from telemetry.api.live import live_store
from telemetry.feed.store import LiveUnavailable
from telemetry.models import Calibration, LedgerEntry
from tenants.models import Backend, PolicyVersion, Pool
from tenants.specs import pool_and_entitlements

UNKNOWN = "llama-3-8b-a100"  # stands for engines of which nothing has been measured yet
TRUSTED = 0.10  # relative error of a figure up to which a lab's word is worth something
COMPARED = 5000  # requests of a window that are replayed for a comparison
KEPT = 200  # calibrations of a pool
FIGURES = ("ttft p50", "ttft p95", "ttlt p50", "ttlt p95")


@dataclass(frozen=True, slots=True)
class Trust:
    """Simulated against live on one window. ``figures``: name to (live, simulated) [s]. ``refused``: of those that were
    asked for [%], likewise."""

    requests: int
    figures: dict[str, tuple[float, float]]
    refused: tuple[float, float] = (0.0, 0.0)

    @property
    def worst(self) -> float:
        """The largest relative error."""
        return max(abs(simulated / live - 1.0) for live, simulated in self.figures.values())

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "worst": self.worst, "trusted": self.worst <= TRUSTED}


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


def replicas_of(pool: Pool, calibration: Calibration | None) -> tuple[Replica, ...]:
    """The pool's backends that take work, as fast as they were last found to be, with the pool's prefill credit.

    A step budget that no calibration has found is the one that live credits begin with, as most engines serve by it.
    """
    step = StepTime(**calibration.step_time) if calibration is not None else load_preset(UNKNOWN).step_time
    budget = calibration.token_budget if calibration is not None else USUAL_BUDGET
    rows = [backend for backend in pool.backends.all() if not backend.draining]
    return tuple(Replica(step, row.slots, row.kv_tokens, budget, _credit(pool, row), "priority") for row in rows)


def _credit(pool: Pool, backend: Backend) -> int | None:
    """The pool's prefill credit, else the replica's own figure; None is found while it serves."""
    own = backend.spec().prefill_tokens or None
    return own if pool.prefill_credit is None else pool.prefill_credit


def traffic_of(
    pool: Pool,
    since: datetime,
    until: datetime,
    *,
    most: int | None = None,
    calibration: Calibration | None = None,
    ended_by: datetime | None = None,
) -> Traffic | None:
    """What was asked for in a window, its latest ``most`` requests; None without any, or without backends."""
    fetched = recent.MOST if most is None else 2 * most
    recording = recent.record(pool.slug, since, until, most=fetched, ended_by=ended_by)
    return as_traffic(pool, recording, most=most, calibration=calibration)


def as_traffic(
    pool: Pool, recording: Recording, *, most: int | None = None, calibration: Calibration | None = None
) -> Traffic | None:
    """A recording on the pool's own engines, under its own limits: what it refused then is decided anew."""
    rows = [row for row in recording.rows if row.ran or row.turned_away]
    rows = rows[-most:] if most else rows
    replicas = replicas_of(pool, calibration or latest(pool.slug))
    if not rows or not replicas:
        return None
    spec, entitlements = pool_and_entitlements(pool)
    signal_s = grant_delay_s(turnaround_ms(pool))
    own = tuple(row.spec().prefill_tokens or None for row in pool.backends.all() if not row.draining)
    return Traffic(
        tuple(rows), recording.tiers, replicas, signal_s=signal_s, pool=spec, entitlements=entitlements, own_credits=own
    )


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


def recalibrate(pool: Pool, since: datetime, until: datetime) -> Calibration | None:
    """Fits the engines anew on a window, and stores it with what the fit before it was worth on this window. None
    where the window does not tell."""
    fit = calibrate(timed(pool.slug, since, until))
    if fit is None:
        return None
    before = latest(pool.slug)
    worth = trust(pool, since, until, before) if before is not None else None
    row = Calibration.objects.create(
        pool=pool.slug, at=until, step_time=asdict(fit.step_time), overhead_s=fit.overhead_s, error=fit.error,
        token_budget=fit.token_budget,
        requests=fit.requests, trust=worth.as_json() if worth is not None else {},
    )  # fmt: skip
    old = Calibration.objects.filter(pool=pool.slug).values_list("id", flat=True)[KEPT:]
    Calibration.objects.filter(id__in=list(old)).delete()
    return row


def timed(pool: str, since: datetime, until: datetime) -> list[Timed]:
    """Completed requests of a window, as the calibration wants them."""
    rows = LedgerEntry.objects.filter(
        pool=pool, received_at__gte=since, received_at__lt=until, granted_at__isnull=False, first_token_at__isnull=False
    ).order_by("received_at", "id")
    names = ("backend", "granted_at", "first_token_at", "done_at", "input_tokens", "output_tokens")
    return [
        Timed(backend, granted.timestamp(), first.timestamp(), done.timestamp(), given, out)
        for backend, granted, first, done, given, out in rows.values_list(*names)[: recent.MOST]
    ]


def trust(pool: Pool, since: datetime, until: datetime, calibration: Calibration | None = None) -> Trust | None:
    """Replays a window under the policy that serves, and compares with what happened. None without requests or without
    a calibration."""
    fit = calibration or latest(pool.slug)
    traffic = traffic_of(pool, since, until, most=COMPARED, calibration=fit)
    if traffic is None or fit is None:
        return None
    live = [row for row in traffic.rows if row.outcome == "completed" and row.ttft_s is not None]
    if not live:
        return None
    outcomes = traffic.serve(serving_of(pool))
    simulated = served(outcomes)
    if not simulated:
        return None
    turned_away = sum(row.turned_away for row in traffic.rows)
    refused = (100.0 * turned_away / len(traffic.rows), 100.0 * (1.0 - len(simulated) / len(outcomes)))
    ttft = [outcome.ttft_s + fit.overhead_s for outcome in simulated]
    ttlt = [outcome.ttlt_s + fit.overhead_s for outcome in simulated]
    pairs = (
        (_figures([row.ttft_s or 0.0 for row in live]), _figures(ttft)),
        (_figures([row.ttlt_s for row in live]), _figures(ttlt)),
    )
    columns = [(a, b) for happened, replayed in pairs for a, b in zip(happened, replayed, strict=True)]
    return Trust(len(live), dict(zip(FIGURES, columns, strict=True)), refused)


def window(minutes: float, now: datetime) -> tuple[datetime, datetime]:
    """The last minutes."""
    return now - timedelta(minutes=minutes), now


def _figures(values: Sequence[float]) -> tuple[float, float]:
    return interpolated(values, 0.5), interpolated(values, 0.95)
