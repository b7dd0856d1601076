"""The strategic loop of a pool: watch the canary, cut queues anew, try values on recent traffic, let the best serve.

:func:`tend` does what is due and can be called at any time, by anybody, any number of times: everything it knows is in
the database, a proposal follows from the trials that are stored, and a trial that is there is not made again. The
pool's leader rings for it every few seconds; a worker that is killed leaves at most a canary that nobody watches, which
the next call ends.

A **study** is one window of traffic and the trials on it. Trial 0 is what serves. When all are made, the best of them
meets what serves on variants of the window (the gate); the winner is a canary for one interval (automatic) or waits for
somebody to start it (advise).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.tuning import recent, replicas
from scheduling.core.registry import PolicyError
from scheduling.tuning.gate import Gate
from scheduling.tuning.guard import Tally, tally, watch
from scheduling.tuning.optimizer import Optimizer
from scheduling.tuning.reward import Parts
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, params_of, queues_of, values_of
from scheduling.tuning.study import GATED, REFERENCE, Tried, drifted, due, next_trial
from scheduling.tuning.traffic import Serving, Traffic
from telemetry.models import LedgerEntry
from tenants import tuning
from tenants.models import Author, PolicyVersion, Pool, Trial, TrialState, TuningMode
from tenants.services import set_policy
from tenants.versions import Note, because

log = logging.getLogger(__name__)

BLIND = timedelta(seconds=60)  # a canary that nobody has looked at for so long is ended
BUDGET_S = 15.0  # of trials in one call: a Celery message is delivered again after a minute
RECALIBRATE = timedelta(minutes=15)
CALIBRATION_WINDOW = timedelta(minutes=30)
STALE = timedelta(hours=1)  # a study that is not done by then is about traffic of the past
DRIFT = "repartition: prompts have changed"  # how the reason of a version begins that was made for it


def tend(slug: str, *, oldest_wait_s: float = 0.0, leader: str = "", now: datetime | None = None) -> str:
    """Does what is due in one pool; says what that was. ``oldest_wait_s``: of what waits there now. ``leader``: the
    process that rings, if that is known."""
    now = now or timezone.now()
    pool = Pool.objects.filter(slug=slug).first()
    if pool is None:
        return "no such pool"
    chosen = tuning.tuning_of(pool)
    _recalibrate(pool, now)
    canary = Trial.objects.filter(pool=pool, state=TrialState.CANARY).select_related("base", "version").first()
    if canary is not None:
        pool.refresh_from_db()  # what came before took seconds: the canary may be younger than what was read
        return _watch(pool, canary, chosen.loop, oldest_wait_s, leader, now)
    if judged := _judge_asked(pool, chosen.loop, now):
        return judged
    if chosen.mode == TuningMode.OFF:
        return "off"
    if pool.policy not in SPACES:
        return f"policy {pool.policy} has nothing to tune"
    settings = chosen.loop
    automatic = chosen.mode == TuningMode.AUTOMATIC
    return _repartition(pool, settings, automatic, now) or _study(pool, settings, automatic, now)


def _recalibrate(pool: Pool, now: datetime) -> None:
    """Finds anew how fast the engines are, every quarter of an hour in which they had something to do."""
    last = replicas.latest(pool.slug)
    if last is None or now - last.at >= RECALIBRATE:
        replicas.recalibrate(pool, now - CALIBRATION_WINDOW, now)


# --- the canary


def _watch(pool: Pool, trial: Trial, settings: LoopSettings, oldest_wait_s: float, leader: str, now: datetime) -> str:
    assert trial.canary_at is not None
    assert trial.canary_until is not None
    if trial.version is not None and pool.policy_version != trial.version.number:
        return _close(trial, TrialState.ABORTED, "the policy was changed during the trial")
    if trial.watched_at is None or now - trial.watched_at > BLIND:
        return _close(trial, TrialState.ABORTED, "it was not checked for a minute: no worker or leader was available")
    watcher = trial.guard.get("leader") or leader
    if leader and leader != watcher:
        return _close(trial, TrialState.ABORTED, f"its leader {watcher} was replaced")
    since = trial.canary_at - timedelta(seconds=settings.window_s)
    since = max(since, _changed(pool) or since)  # how well prompts were served that come no more says nothing
    before, lately = _tally(pool.slug, since, trial.canary_at), _tally(pool.slug, trial.canary_at, now)
    rails = watch(before, lately, oldest_wait_s, settings)
    if rails.stop:
        return _close(trial, TrialState.ROLLED_BACK, rails.reason, rails.as_json())
    if now >= trial.canary_until:
        if not rails.enough:
            return _close(trial, TrialState.ROLLED_BACK, "too few requests arrived to judge it", rails.as_json())
        return _close(trial, TrialState.PROMOTED, "it completed its interval within the guard rails", rails.as_json())
    guard = {**rails.as_json(), "leader": watcher}
    Trial.objects.filter(pk=trial.pk, state=TrialState.CANARY).update(watched_at=now, guard=guard)
    return "watched"


def _close(trial: Trial, state: TrialState, reason: str, guard: dict[str, object] | None = None) -> str:
    tuning.close(actor=tuning.OPTIMISER, trial=trial, state=state, reason=reason, guard=guard)
    log.info("pool %s: trial %s is %s: %s", trial.pool.slug, trial.number, state, reason)
    return str(state)


def _tally(pool: str, since: datetime, until: datetime) -> dict[str, Tally]:
    rows = LedgerEntry.objects.filter(pool=pool, received_at__gte=since, received_at__lt=until)
    entries = rows.values_list("tier", "slo_met", "queued_at", "granted_at", "received_at")
    return tally(
        [
            (tier, met, None if granted is None else max(0.0, (granted - (queued or received)).total_seconds()))
            for tier, met, queued, granted, received in entries
        ]
    )


# --- what a person asked for


def _judge_asked(pool: Pool, settings: LoopSettings, now: datetime) -> str:
    """Tries what a person proposed against what serves, as soon as there is traffic to try it on. Empty when there is
    nothing to do."""
    trials = Trial.objects.filter(pool=pool, state=TrialState.PROPOSED, reward=None, values={}, gate={})
    trial = trials.select_related("base", "pool").order_by("at").first()
    if trial is None:
        return ""
    if trial.base.number != pool.policy_version:
        return _close(trial, TrialState.ABORTED, "the policy has changed since")
    since = max(
        now - timedelta(seconds=settings.window_s), _changed(pool) or now - timedelta(seconds=settings.window_s)
    )
    traffic = replicas.traffic_of(pool, since, now, most=settings.most_requests)
    if traffic is None or len(traffic.rows) < settings.least_requests:
        return ""
    serving = replicas.serving_of(trial.base)
    passed, why, figures = gate(Gate(traffic, serving, settings), serving, trial.params)
    Trial.objects.filter(pk=trial.pk, state=TrialState.PROPOSED).update(
        gate=figures, reason=why[:300], requests=len(traffic.rows), window_from=since, window_until=now
    )
    trial.refresh_from_db()
    return "proposed" if passed else _close(trial, TrialState.REJECTED, why)


# --- queues


def _repartition(pool: Pool, settings: LoopSettings, automatic: bool, now: datetime) -> str:
    """Cuts the queues anew where there are none yet, or where prompts have changed; empty when neither is so."""
    if "split_alpha" not in {knob.name for knob in SPACES[pool.policy]}:
        return ""
    since = now - timedelta(seconds=settings.window_s)
    prompts = recent.recent_lengths(pool.slug, since, most=settings.most_requests)
    if len(prompts) < settings.least_requests:
        return ""
    version = tuning.version_now(pool)
    if version.partition:
        seen = _cut_from(pool, version, settings)
        changed = drifted(seen, prompts, settings)
        if changed is not None:
            why = f"{DRIFT} (Kolmogorov-Smirnov {changed[0]:.2f}, p {changed[1]:.1g})"
        elif automatic and len(seen) >= REFERENCE and now - _cut(version).at >= timedelta(seconds=settings.recut_s):
            why = f"repartition: the queues are older than {settings.recut_s:g} s"
        else:
            return ""
    else:
        prompts = recent.lengths(pool.slug) or prompts  # the first queues follow the long run
        why = f"repartition: the first queues, from {len(prompts)} prompts"
    values = _values_now(pool, version)
    params = {**pool.policy_params, "partition": params_of(values, queues_of(values, prompts))["partition"]}
    if params["partition"] == version.partition:
        return ""
    if not automatic:
        return _advise(pool, version, params, values, why, now, settings)
    with because(Note(why, Author.OPTIMISER)):
        set_policy(actor=tuning.OPTIMISER, pool=pool, policy=pool.policy, params=params)
    _abort_open(pool, "the queue boundaries were recomputed")
    return why


def _cut_from(pool: Pool, version: PolicyVersion, settings: LoopSettings) -> list[int]:
    """The prompts that the serving queues were cut from, as far as the ledger still has them."""
    cut = _cut(version)
    rows = LedgerEntry.objects.filter(
        pool=pool.slug,
        received_at__gte=cut.at - timedelta(seconds=settings.window_s),
        received_at__lt=cut.at,
        granted_at__isnull=False,
    )
    lengths = list(rows.order_by("-received_at").values_list("input_tokens", flat=True)[: settings.most_requests])
    return lengths if len(lengths) >= REFERENCE else recent.lengths(pool.slug)


def _cut(version: PolicyVersion) -> PolicyVersion:
    """The version that brought the serving queues."""
    while version.parent is not None and version.parent.partition == version.partition:
        version = version.parent
    return version


def _advise(
    pool: Pool, base: PolicyVersion, params: dict, values: dict, why: str, now: datetime, settings: LoopSettings
) -> str:
    if Trial.objects.filter(
        pool=pool, base=base, number=0, state=TrialState.PROPOSED, reason__startswith="rep"
    ).exists():
        return ""  # it is said already
    Trial.objects.create(
        pool=pool, at=now, study=now, number=0, base=base, values=values, params=params, reason=why[:300],
        window_from=now - timedelta(seconds=settings.window_s), window_until=now,
    )  # fmt: skip
    return why


# --- studies


def _study(pool: Pool, settings: LoopSettings, automatic: bool, now: datetime) -> str:
    """Goes on with the study under way, or begins one when it is time."""
    base = tuning.version_now(pool)
    for trial in Trial.objects.filter(pool=pool, state=TrialState.PROPOSED).exclude(base=base):
        tuning.close(
            actor=tuning.OPTIMISER, trial=trial, state=TrialState.ABORTED, reason="the policy has changed since"
        )
    changed = _changed(pool)
    trials = _open(pool)
    if trials and now - trials[0].study > STALE:
        _abort_open(pool, "it took too long")
        trials = []
    if not trials:
        last = Trial.objects.filter(pool=pool).exclude(reward=None).order_by("-study").first()
        moments = (last.study if last else None, _drifted(pool))
        studied, moved = (None if at is None else at.timestamp() for at in moments)
        if not due(now.timestamp(), studied, moved, settings.every_s):
            return "not due"
    study = trials[0].study if trials else now
    since = study - timedelta(seconds=settings.window_s)
    since = since if changed is None else max(since, changed)  # what came before is not what comes now
    traffic = replicas.traffic_of(pool, since, study, most=settings.most_requests)
    if traffic is None or len(traffic.rows) < settings.least_requests:
        if trials:
            _abort_open(pool, "its traffic is no longer in the ledger")
        return "too little traffic"
    begun = time.monotonic()
    optimizer = Optimizer(
        SPACES[pool.policy], settings.seed + int(study.timestamp()) % 1_000_000, _values_now(pool, base)
    )
    optimizer.retell([(trial.values, trial.reward or 0.0) for trial in trials])
    while len(trials) <= settings.trials:
        tried = next_trial(optimizer, replicas.serving_of(base), traffic, settings, first=not trials)
        trials.append(_keep(pool, base, (since, study), len(trials), tried))
        if time.monotonic() - begun > BUDGET_S and len(trials) <= settings.trials:
            return f"tried {len(trials)} of {settings.trials + 1}"
    return _conclude(pool, base, trials, traffic, settings, automatic)


def _changed(pool: Pool) -> datetime | None:
    """From when on traffic is held against traffic: prompts changed, or somebody was advised to cut queues anew."""
    return max((row.at for row in (_cut_for_drift(pool), _advised(pool).first()) if row is not None), default=None)


def _drifted(pool: Pool) -> datetime | None:
    """When prompts were last seen to have changed. Advice on a pool's first queues says nothing of that."""
    advised = _advised(pool).filter(reason__startswith=DRIFT).first()
    return max((row.at for row in (_cut_for_drift(pool), advised) if row is not None), default=None)


def _cut_for_drift(pool: Pool) -> PolicyVersion | None:
    return PolicyVersion.objects.filter(pool=pool, author_kind=Author.OPTIMISER, reason__startswith=DRIFT).first()


def _advised(pool: Pool) -> QuerySet[Trial]:
    """Advice to cut queues anew, the latest first, as ``_advise`` writes it."""
    return Trial.objects.filter(pool=pool, reward=None).exclude(values={})


def _open(pool: Pool) -> list[Trial]:
    """Trials of the study under way, in order."""
    rows = Trial.objects.filter(pool=pool, state=TrialState.PROPOSED, ended_at=None, gate={}).exclude(reward=None)
    newest = rows.order_by("-study").first()
    return [] if newest is None else list(rows.filter(study=newest.study).order_by("number"))


def _abort_open(pool: Pool, why: str) -> None:
    for trial in _open(pool):
        tuning.close(actor=tuning.OPTIMISER, trial=trial, state=TrialState.ABORTED, reason=why)


def _keep(pool: Pool, base: PolicyVersion, window: tuple[datetime, datetime], number: int, tried: Tried) -> Trial:
    """A trial's row. Where another worker was quicker, with the same proposal, it is that one's."""
    since, study = window
    trial = Trial(
        pool=pool, at=timezone.now(), study=study, number=number, base=base, values=tried.values, params=tried.params,
        window_from=since, window_until=study, requests=tried.requests, reward=tried.reward,
        reason="tried on recent traffic", parts={name: getattr(tried.parts, name) for name in Parts.__slots__},
    )  # fmt: skip
    try:
        with transaction.atomic():
            trial.save(force_insert=True)
    except IntegrityError:
        return Trial.objects.get(pool=pool, study=study, number=number)
    return trial


def _conclude(
    pool: Pool, base: PolicyVersion, trials: Sequence[Trial], traffic: Traffic, settings: LoopSettings, automatic: bool
) -> str:
    """The best trials meet what serves, one after the other, until one wins; the others are done."""
    better = [trial for trial in trials[1:] if (trial.reward or 0.0) > (trials[0].reward or 0.0)]
    if not better:
        _reject(trials, "the active version was better")
        return "nothing better was found"
    serving, why = replicas.serving_of(base), ""
    gate_check = Gate(traffic, serving, settings)
    for best in sorted(better, key=lambda trial: -(trial.reward or 0.0))[:GATED]:
        passed, why, figures = gate(gate_check, serving, best.params)
        Trial.objects.filter(pk=best.pk, state=TrialState.PROPOSED).update(gate=figures, reason=why[:300])
        if passed:
            break
        _reject([best], why)
    else:
        _reject([trial for trial in trials if not _gated(trial)], "another candidate of the study was better")
        return f"rejected: {why}"
    _reject(
        [trial for trial in trials if trial.pk != best.pk and not _gated(trial)],
        "another candidate of the study was better",
    )
    best.refresh_from_db()
    if automatic:
        tuning.start_canary(actor=tuning.OPTIMISER, trial=best, reason=why)
        return "canary"
    return "proposed"


def _gated(trial: Trial) -> bool:
    return Trial.objects.filter(pk=trial.pk).exclude(gate={}).exists()


def gate(judge: Gate, serving: Serving, params: dict[str, float | int | str]) -> tuple[bool, str, dict[str, object]]:
    """Whether parameters win on recent traffic without starving anybody, why, and the figures."""
    try:
        verdict = judge.judge(replace(serving, params=params))
    except PolicyError as error:
        return False, f"invalid policy: {error}", {"passed": False}
    return verdict.passed, verdict.reason, verdict.as_json()


def _reject(trials: Sequence[Trial], reason: str) -> None:
    for trial in trials:
        tuning.close(actor=tuning.OPTIMISER, trial=trial, state=TrialState.REJECTED, reason=reason)


def _values_now(pool: Pool, version: PolicyVersion) -> dict[str, float]:
    """The knobs of what serves. How queues were cut is not a parameter; it is what the last kept trial says."""
    values = values_of(SPACES[pool.policy], version.policy_params)
    kept = Trial.objects.filter(pool=pool, state=TrialState.PROMOTED, version__number__lte=version.number)
    last = kept.order_by("-version__number").first()
    if last is not None:
        values.update({name: last.values[name] for name in ("split_alpha", "max_queues") if name in last.values})
    return values
