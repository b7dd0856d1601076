"""What if? Policies on a recording, executed piece by piece by Celery workers.

A piece is one policy on one variant of the recording. A worker does pieces for some seconds and rings for the next; a
message that is lost or a worker that is killed costs a minute, because a sweep rings again for runs that stand still. A
piece that is there is not done again.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from celery import current_app
from django.core.exceptions import ValidationError
from django.db import DatabaseError, transaction
from django.utils import timezone

from controlplane.tuning import recent, replicas
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import PolicyError, make_routing
from scheduling.core.types import Slo
from scheduling.simulator import import_trace
from scheduling.simulator.compare import CompareError, parse_policy
from scheduling.simulator.recording import Recorded, Recording, read_recording
from scheduling.simulator.workload import Tier
from scheduling.tuning.supposed import busier, joined
from scheduling.tuning.traffic import Serving, Traffic
from scheduling.tuning.whatif import Figures, compare, figures_of
from telemetry.models import LabRecording, LabRun
from tenants import drafts, tuning
from tenants.models import Pool

log = logging.getLogger(__name__)

BUDGET_S = 15.0  # of one message: it is delivered again after a minute
STILL = timedelta(seconds=60)  # a run on which nobody worked for so long is announced again
LARGEST_TRACE = 32 * 1024 * 1024  # bytes of a trace that somebody brings, as it comes and unpacked
READ_S = 60.0  # for reading one
ROOT = Path(__file__).resolve().parents[2]  # where the packages lie
_reading = threading.BoundedSemaphore(1)  # one trace is read at a time in each web process
MAX_POLICIES, MAX_VARIANTS, MAX_REPLICAS = 8, 30, 64
TARGETS = frozenset(field.name for field in fields(Slo))
LOADS = (0.1, 10.0)  # times the recorded one; also of a newcomer's, as a share of whom it is like
MAX_NEWCOMERS = 5
PRESENT = "now"  # what the pool serves with now
UNCHANGED = "unchanged"  # the same, on the traffic and the pool as they were


class LabError(ValueError):
    """A lab run that cannot be done; the message says why."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run is about. ``policies``: ``now``, ``unchanged``, or as ``lab compare`` takes them; the first is
    compared with. The others but ``unchanged`` meet what is supposed: ``objects`` as in a draft
    (:mod:`tenants.drafts`), ``lost`` backends, ``newcomers`` (``name``, ``like`` which entitlement, ``times`` its
    requests)."""

    policies: tuple[str, ...]
    variants: int = 5
    replicas: int = 0  # 0: as many as the pool has
    slos: Mapping[str, Mapping[str, float | None]] | None = None  # tier -> its SLO instead of the recording's
    load: float = 1.0  # times the recorded one
    objects: Sequence[drafts.Change] = ()
    lost: Sequence[str] = ()
    newcomers: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.policies) <= MAX_POLICIES or len(set(self.policies)) < len(self.policies):
            raise LabError(f"policies: name 1 to {MAX_POLICIES}, each once")
        if not 1 <= self.variants <= MAX_VARIANTS:
            raise LabError(f"variants: 1 to {MAX_VARIANTS}")
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise LabError(f"replicas: 1 to {MAX_REPLICAS}, or 0 for as many as the pool has")
        if self.replicas and self.lost:
            raise LabError("replicas: give a number of replicas or name lost ones, not both")
        if not LOADS[0] <= self.load <= LOADS[1]:  # nan is not, either
            raise LabError(f"load: {LOADS[0]:g} to {LOADS[1]:g} times the recorded one")
        if len(self.newcomers) > MAX_NEWCOMERS:
            raise LabError(f"newcomers: {MAX_NEWCOMERS} at most")
        if len({one["name"] for one in self.newcomers}) < len(self.newcomers):
            raise LabError("newcomers: name each once")
        for one in self.newcomers:
            if not LOADS[0] <= one["times"] <= LOADS[1]:
                raise LabError(
                    f"newcomers: {one['name']}: {LOADS[0]:g} to {LOADS[1]:g} times the requests of whom it is like"
                )
        if UNCHANGED in self.policies and not self.supposes:
            raise LabError(f"policies: {UNCHANGED} is for a run that changes something; {PRESENT} is the active policy")
        if len(set(self.lost)) < len(self.lost):
            raise LabError("lost: name each once")
        for name, slo in (self.slos or {}).items():
            if unknown := sorted(set(slo) - TARGETS):
                raise LabError(
                    f"slos: {name}: there is no target {unknown[0]!r}; there are: {', '.join(sorted(TARGETS))}"
                )
            try:
                Slo(**slo)
            except (TypeError, ValueError) as problem:
                raise LabError(f"slos: {name}: {problem}") from problem
            if not all(target is None or 0 < target < math.inf for target in slo.values()):
                raise LabError(f"slos: {name}: a target is a time above 0")

    @property
    def supposes(self) -> bool:
        """Whether anything is supposed beside the policies."""
        return bool(self.replicas or self.slos or self.load != 1.0 or self.objects or self.lost or self.newcomers)

    def as_it_was(self) -> RunSpec:
        """The same without what is supposed."""
        return RunSpec((PRESENT,), self.variants)


# --- recordings


def keep_window(*, pool: Pool, since: datetime, until: datetime | None, name: str, author: str) -> LabRecording:
    """What came to a pool from ``since`` on, up to now or ``until``. Raises LabError when there was nothing to run."""
    return _keep(recent.record(pool.slug, since, until), name, author)


def keep_trace(*, data: bytes, name: str, author: str) -> LabRecording:
    """A recording or trace that somebody brings, in any format that ``lab compare`` reads. Requests of one without
    tiers draw one of the shipped ones. Raises LabError."""
    if len(data) > LARGEST_TRACE:
        raise LabError(f"the trace is larger than {LARGEST_TRACE // 1024 // 1024} MiB")
    if not _reading.acquire(timeout=READ_S):
        raise LabError("other traces are being read; try again in a moment")
    try:
        # In a process of its own with little memory: what a file unpacks to is not known before, and this one serves.
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "scheduling.simulator.import_trace", str(LARGEST_TRACE), str(recent.MOST_RECORDED)],
            input=data, capture_output=True, timeout=READ_S, check=False, cwd=ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LabError(f"the trace was not read within {READ_S:g} s; use a shorter one") from None
    finally:
        _reading.release()
    if done.returncode == import_trace.REFUSED:
        raise LabError(done.stderr.decode(errors="replace").strip())
    if done.returncode:
        log.warning("reading a trace ended with %d: %s", done.returncode, done.stderr[-500:].decode(errors="replace"))
        raise LabError("the trace needs too much memory or time to read; use a shorter one")
    head, _, packed = done.stdout.partition(b"\n")
    requests, span_s = json.loads(head)
    return _kept(name, "", author, requests, span_s, packed)


def _keep(recording: Recording, name: str, author: str) -> LabRecording:
    packed, requests = import_trace.packed(recording)
    return _kept(name, recording.pool, author, requests, recording.span_s, packed)


def _kept(name: str, pool: str, author: str, requests: int, span_s: float, packed: bytes) -> LabRecording:
    if not requests:
        raise LabError("no request of that time ran on an engine; choose another time, or look for it in Requests")
    if LabRecording.objects.filter(name=name).exists():
        raise LabError(f"there is a recording {name!r} already")
    return LabRecording.objects.create(
        name=name, pool=pool, author=author, requests=requests, span_s=span_s, packed=packed
    )


def unpacked(row: LabRecording) -> Recording:
    """The recording of a row."""
    lines = gzip.decompress(bytes(row.packed)).decode().splitlines()
    return read_recording(Path(row.name), enumerate(lines, 1))


# --- runs


def ask(*, recording: LabRecording, pool: Pool, spec: RunSpec, name: str, author: str) -> LabRun:
    """A new run. Raises LabError or PolicyError for what cannot be run."""
    serving = [_serving(policy, pool) for policy in spec.policies]
    for one in serving:
        make_policy(one.policy, dict(one.params), {k: dict(v) for k, v in one.modifiers.items()})
        make_routing(one.routing, dict(one.routing_params))
    _traffic(recording, pool, spec)
    return LabRun.objects.create(
        name=name, recording=recording, pool=pool.slug, author=author, asked=asdict(spec),
        total=len(spec.policies) * spec.variants,
    )  # fmt: skip


def again(run: LabRun, author: str) -> LabRun:
    """The same question once more. Raises LabError or PolicyError."""
    pool = Pool.objects.filter(slug=run.pool).first()
    if pool is None:
        raise LabError(f"there is no pool {run.pool} any more")
    return ask(recording=run.recording, pool=pool, spec=_spec(run), name=run.name, author=author)


def notify(run_id: int) -> bool:
    """Tells a worker of a run, within a second or not at all; whether it was told. A lost message is made up for
    within two minutes."""
    try:
        # By its name: the web process would import all that tasks import, seconds of work and 85 MB of it.
        current_app.send_task("telemetry.run_lab", (run_id,), retry=False)
    except Exception as error:
        log.warning("lab run %d could not be announced (%s); the next sweep does", run_id, type(error).__name__)
        return False
    return True


def work(run_id: int) -> bool:
    """Does pieces of a run for a while; whether some are left. Doubled calls do the same pieces and change nothing."""
    run = _claim(run_id)
    if run is None:
        return False
    try:
        spec = _spec(run)
        pool = Pool.objects.get(slug=run.pool)
        supposed = _traffic(run.recording, pool, spec)
        as_it_was = _traffic(run.recording, pool, spec.as_it_was()) if UNCHANGED in spec.policies else supposed
        begun = time.monotonic()
        for key, policy, variant in _missing(run, spec):
            traffic = as_it_was if policy == UNCHANGED else supposed
            requests = traffic.requests(variant)
            figures = figures_of(requests, traffic.run(_serving(policy, pool), requests))
            if not _store(run_id, key, figures):
                return False  # cancelled
            if time.monotonic() - begun > BUDGET_S:
                return True
    except (LabError, PolicyError, CompareError, ValueError, Pool.DoesNotExist) as problem:
        _finish(run_id, "failed", str(problem))
        return False
    except DatabaseError:
        raise  # it passes: the next sweep goes on
    except Exception as problem:  # another try would end like this one, every two minutes for ever
        log.exception("lab run %d cannot be computed", run_id)
        _finish(run_id, "failed", f"It cannot be computed ({type(problem).__name__}). The log of the worker says more.")
        return False
    _finish(run_id, "done", "")
    return False


def cancel(run: LabRun) -> LabRun:
    """Ends a run; what was done stays to be read. One that has ended stays as it is."""
    _finish(run.pk, "cancelled", "")
    run.refresh_from_db()
    return run


def still() -> list[int]:
    """Runs that nobody works on."""
    rows = LabRun.objects.filter(state__in=("queued", "running"))
    before = timezone.now() - STILL
    return [run.pk for run in rows.only("pk", "moved_at", "at") if (run.moved_at or run.at) < before]


def table(run: LabRun) -> list[dict[str, Any]]:
    """Policy by policy and figure by figure: mean, 95 % interval, and the difference to the first policy with its own.
    Of a run that is not done: of the variants that every policy has."""
    spec = _spec(run)
    complete = [v for v in _variants(spec) if all(_key(policy, v) in run.figures for policy in spec.policies)]
    if not complete:
        return []
    figures_by_policy: dict[str, Sequence[Figures]] = {
        policy: [run.figures[_key(policy, variant)] for variant in complete] for policy in spec.policies
    }
    rows = []
    for policy, figures in compare(figures_by_policy).items():
        for name, (own, difference) in figures.items():
            group, _, figure = name.partition("|")
            row: dict[str, Any] = {"policy": policy, "group": group, "figure": figure, "variants": len(complete)}
            row |= {"mean": own.mean, "low": own.low, "high": own.high}
            if difference is not None:
                spread = {"mean": difference.mean, "low": difference.low, "high": difference.high}
                row["difference"] = {**spread, "sure": difference.sure}
            rows.append(row)
    return rows


def _spec(run: LabRun) -> RunSpec:
    return RunSpec(**{**run.asked, "policies": tuple(run.asked["policies"])})


def _variants(spec: RunSpec) -> range:
    return range(1, spec.variants + 1)


def _key(policy: str, variant: int) -> str:
    return f"{policy}#{variant}"


def _missing(run: LabRun, spec: RunSpec) -> Iterator[tuple[str, str, int]]:
    for variant in _variants(spec):
        for policy in spec.policies:
            if _key(policy, variant) not in run.figures:
                yield _key(policy, variant), policy, variant


def _serving(policy: str, pool: Pool) -> Serving:
    now = replicas.serving_of(pool)
    if policy in (PRESENT, UNCHANGED):
        return now
    try:
        name, params = parse_policy(policy)
    except CompareError as problem:
        raise LabError(str(problem)) from problem
    *around, name = name.split("+")
    return Serving(name, dict(params), {modifier: {} for modifier in around}, now.routing, now.routing_params)


def _traffic(recording: LabRecording, pool: Pool, spec: RunSpec) -> Traffic:
    """The recording under what is supposed of it and of the pool. Raises LabError."""
    recorded = unpacked(recording)
    if spec.slos:
        unknown = set(spec.slos) - {tier.name for tier in recorded.tiers}
        if unknown:
            names = ", ".join(tier.name for tier in recorded.tiers)
            raise LabError(f"slos: the recording has no tier {', '.join(sorted(unknown))}; it has: {names}")
        recorded = replace(recorded, tiers=tuple(_promised(tier, spec.slos) for tier in recorded.tiers))
    recorded = replace(recorded, rows=busier(_with_newcomers(recorded, spec), spec.load))
    if not (spec.objects or spec.lost or spec.newcomers):
        return _many(_served(recorded, pool), spec.replicas)
    there = {row.slug for row in replicas.in_service(pool)}
    if unknown := set(spec.lost) - there:
        raise LabError(f"lost: pool {pool.slug} has no backend {', '.join(sorted(unknown))} in service")
    if there == set(spec.lost):
        raise LabError("lost: no replica would be left")
    newcomers = {one["name"]: one["like"] for one in spec.newcomers}
    try:
        setting = {"objects": drafts.completed(pool, spec.objects)}
        with drafts.as_if(tuning.OPTIMISER, pool, setting, lost=spec.lost, newcomers=newcomers) as supposed:
            traffic = _served(recorded, supposed, spec.lost)
    except ValidationError as problem:
        raise LabError(" ".join(problem.messages)) from problem
    return _many(traffic, spec.replicas)


def _served(recorded: Recording, pool: Pool, without: Sequence[str] = ()) -> Traffic:
    traffic = replicas.as_traffic(pool, recorded, without=without)
    if traffic is None:
        raise LabError(f"pool {pool.slug} has no backend in service, so there is nothing to replay on")
    return traffic


def _many(traffic: Traffic, number: int) -> Traffic:
    """With so many replicas, like those that there are in turn; 0: with these."""
    if not number:
        return traffic
    if len(traffic.answering) < len(traffic.replicas):
        raise LabError("replicas: 0, as prefill and decode are apart: such a pool is simulated with its own replicas")
    places = [n % len(traffic.replicas) for n in range(number)]
    many, own = tuple(traffic.replicas[n] for n in places), tuple(traffic.own_credits[n] for n in places)
    return replace(traffic, replicas=many, own_credits=own)


def _with_newcomers(recorded: Recording, spec: RunSpec) -> tuple[Recorded, ...]:
    rows = recorded.rows
    senders = {row.entitlement or row.tenant for row in rows}
    for one in spec.newcomers:
        if one["like"] not in senders:
            raise LabError(
                f"newcomers: {one['name']}: the recording has no request of entitlement {one['like']} to copy; it has "
                f"those of: {', '.join(sorted(senders)[:20])}"
            )
        rows = joined(rows, one["name"], one["like"], one["times"])
        if len(rows) > recent.MOST_RECORDED:
            raise LabError(f"newcomers: more than {recent.MOST_RECORDED} requests in all; use a shorter recording")
    return rows


def _promised(tier: Tier, slos: Mapping[str, Mapping[str, float | None]]) -> Tier:
    return replace(tier, slo=Slo(**slos[tier.name])) if tier.name in slos else tier


def _claim(run_id: int) -> LabRun | None:
    with transaction.atomic():
        run = LabRun.objects.select_for_update().filter(pk=run_id, state__in=("queued", "running")).first()
        if run is not None:
            run.state, run.moved_at = "running", timezone.now()
            run.save(update_fields=["state", "moved_at"])
    return run


def _store(run_id: int, key: str, figures: Figures) -> bool:
    with transaction.atomic():
        run = LabRun.objects.select_for_update().get(pk=run_id)
        if run.state != "running":
            return False
        run.figures[key] = figures
        run.done, run.moved_at = len(run.figures), timezone.now()
        run.save(update_fields=["figures", "done", "moved_at"])
    return True


def _finish(run_id: int, state: str, problem: str) -> None:
    rows = LabRun.objects.filter(pk=run_id, state__in=("queued", "running"))
    rows.update(state=state, problem=problem[:300], finished_at=timezone.now())
