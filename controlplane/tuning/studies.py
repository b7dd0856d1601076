"""Studies: searches for better settings on one window of traffic, in shares of one processor."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.tuning import recent, replicas
from controlplane.tuning.in_flight import in_flight, packed, unpacked
from controlplane.tuning.partitions import drifted_at, traffic_changed_at
from scheduling.tuning.search import FEWEST, GATE, SERVING, Candidate, Search
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.study import drifted, due
from scheduling.tuning.traffic import Traffic
from tenants import tuning
from tenants.models import PolicyVersion, Pool, Study, StudyState, Trial, TrialState

RING_S = 10.0  # between two calls: the time that a study has a share of a processor of
WRITTEN = timedelta(seconds=15)  # within this time after its end a request is in the ledger
KEPT = 50  # studies of a pool
LAST = GATE - 1  # the round of a study whose candidates are kept
STALE = timedelta(hours=1)  # a study that takes longer is about old traffic


def continue_study(pool: Pool, settings: LoopSettings, automatic: bool, now: datetime) -> str:
    """Goes on with the running study, or begins one when it is due. Returns how far it is."""
    base = tuning.version_now(pool)
    for trial in Trial.objects.filter(pool=pool, state=TrialState.PROPOSED).exclude(base=base):
        tuning.close(
            actor=tuning.OPTIMISER, trial=trial, state=TrialState.ABORTED, reason="the policy has changed since"
        )
    study = Study.objects.filter(pool=pool, state=StudyState.RUNNING).first()
    if study is not None and (why := _outdated(study, base, now)):
        tuning.stop_study(actor=tuning.OPTIMISER, pool=pool, reason=why)
        study = None
    at, moved = now if study is None else study.at, None
    if study is None and not due(now.timestamp(), _last_study_s(pool), _seconds(drifted_at(pool)), settings.every_s):
        moved = _drifted_since_study(pool, settings, now)
        if moved is None:
            return "not due"
    since = at - timedelta(seconds=settings.window_s)
    changed = max((moment for moment in (moved, traffic_changed_at(pool)) if moment is not None), default=None)
    if study is not None:
        since = study.window_from
    elif changed is not None:
        since = max(since, changed)  # older traffic was of another kind
    # Each call reads the study's window again, and has to find the same requests and engines.
    unended = in_flight(pool.slug, now) if study is None else unpacked(study.in_flight)
    if unended is None:
        return "Redis does not say what is in flight"
    most = settings.most_requests
    unended = unended[-most:]
    traffic = replicas.traffic_of(pool, since, at, most=most, ended_by=at - WRITTEN, unended=unended)
    if traffic is None or len(traffic.rows) < max(settings.least_requests, FEWEST):
        if study is not None:
            tuning.stop_study(actor=tuning.OPTIMISER, pool=pool, reason="its traffic is no longer in the ledger")
        return "too little traffic"
    if study is not None:
        traffic = replicas.on_engines(traffic, study.engines)
    seed = settings.seed + int(at.timestamp()) % 1_000_000
    began_s, until_s = time.thread_time(), time.monotonic() + settings.cpu_share * RING_S
    search = Search(traffic, replicas.serving_of(base), settings, seed, () if study is None else study.replays)
    study = study or _begin(pool, base, since, at, traffic, search.total, packed(unended))
    if study is None:
        return "another worker is at it"
    return _replay_share(pool, study, search, settings, automatic, began_s, until_s)


def _drifted_since_study(pool: Pool, settings: LoopSettings, now: datetime) -> datetime | None:
    """When the last study began, if the prompt lengths have changed since."""
    last = Study.objects.filter(pool=pool).order_by("-at").first()
    if last is None or now - last.at < timedelta(seconds=settings.interval_s):
        return None
    lately = recent.recent_lengths(pool.slug, last.at, most=settings.most_requests)
    if len(lately) < settings.least_requests:
        return None
    seen = recent.recent_lengths(pool.slug, last.window_from, until=last.window_until, most=settings.most_requests)
    return None if drifted(seen, lately, settings) is None else last.at


def _outdated(study: Study, base: PolicyVersion, now: datetime) -> str:
    if study.base_id != base.pk:
        return "the policy has changed since"
    return "it took too long" if now - study.at > STALE else ""


def _begin(
    pool: Pool, base: PolicyVersion, since: datetime, at: datetime, traffic: Traffic, total: int,
    unended: list[dict[str, Any]],
) -> Study | None:  # fmt: skip
    try:
        with transaction.atomic():
            return Study.objects.create(
                pool=pool, at=at, base=base, window_from=since, window_until=at, requests=len(traffic.rows),
                total=total, heard_at=at, in_flight=unended, engines=replicas.engines_of(traffic),
            )  # fmt: skip
    except IntegrityError:
        return None


def _replay_share(
    pool: Pool, study: Study, search: Search, settings: LoopSettings, automatic: bool, began_s: float, until_s: float
) -> str:
    """Replays until the study has used its share for now, and concludes it when nothing is left to replay. With
    ``automatic`` the winner becomes a canary. Returns how far it is.

    The share is of the time of this process, which has others' tasks to do: counted in time of the processor, a study
    would keep it for as long as others keep the processor from it.
    """
    before = study.done
    while (step := search.step()) is not None:
        search.run(step)
        if time.monotonic() >= until_s:
            break
    took_s = study.cpu_s + time.thread_time() - began_s
    done = len(search.replays)
    mine = Study.objects.filter(pk=study.pk, state=StudyState.RUNNING, done=before)
    if not mine.update(replays=search.replays, done=done, cpu_s=took_s, heard_at=timezone.now()):
        return "another worker was quicker"
    if search.step() is not None:
        return f"replayed {done} of at most {study.total}"
    winner, said = _conclude(pool, study, search)
    if winner is None:
        return said
    return _start_canary(winner, said, settings, timezone.now()) if automatic else "proposed"


def _conclude(pool: Pool, study: Study, search: Search) -> tuple[Trial | None, str]:
    """Ends a study: keeps what served and what came into the last round as trials. The winner, if any, and what to
    say."""
    winner, (_, why) = search.winner(), search.verdict()
    with transaction.atomic():
        result = f"proposed: {why}" if winner is not None else f"nothing better: {why}"
        if not Study.objects.filter(pk=study.pk, state=StudyState.RUNNING).update(
            state=StudyState.ENDED,
            result=result[:300],
            ended_at=timezone.now(),
            total=F("done"),
            in_flight=[],
            engines={},
        ):
            return None, "another worker was quicker"
        if winner is not None:
            for older in Trial.objects.filter(pool=pool, state=TrialState.PROPOSED).exclude(reward=None):
                later = "a later study proposes another"
                tuning.close(actor=tuning.OPTIMISER, trial=older, state=TrialState.ABORTED, reason=later)
        proposed = None
        for candidate in search.candidates():
            if candidate.round == LAST:
                trial = _keep_trial(pool, study, candidate, candidate == winner)
                proposed = trial if candidate == winner else proposed
        old = Study.objects.filter(pool=pool).exclude(state=StudyState.RUNNING).values_list("pk", flat=True)[KEPT:]
        Study.objects.filter(pk__in=list(old)).delete()
    return proposed, result if proposed is None else why


def _start_canary(trial: Trial, why: str, settings: LoopSettings, now: datetime) -> str:
    """Starts the canary of a winner, unless the simulation in which it won is too far from live figures: then it waits,
    and its reason says so."""
    doubt = replicas.doubt(trial.pool.slug, settings.most_error, now)
    if not doubt:
        tuning.start_canary(actor=tuning.OPTIMISER, trial=trial, reason=why)
        return "canary"
    waits = f"it waits to be started: {doubt}"
    reason = f"{waits}; {why}"[:300]
    Trial.objects.filter(pk=trial.pk, state=TrialState.PROPOSED).exclude(reason=reason).update(reason=reason)
    return "proposed"


def start_waiting_canary(pool: Pool, settings: LoopSettings, now: datetime) -> str:
    """Starts the canary of the last study's winner, if it waited because simulated figures were too far from live ones
    and no longer are. Empty if none was started."""
    trials = Trial.objects.filter(pool=pool, state=TrialState.PROPOSED, base__number=pool.policy_version)
    trial = trials.exclude(reward=None).select_related("base", "pool").order_by("-study").first()
    if trial is None or now - trial.study > STALE:
        return ""
    started = _start_canary(trial, str(trial.gate.get("reason", "")), settings, now)
    return started if started == "canary" else ""


def _keep_trial(pool: Pool, study: Study, candidate: Candidate, won: bool) -> Trial:
    decision = candidate.decision
    reason = "what serves" if candidate.number == SERVING else "another candidate of the study was better"
    if decision is not None:
        reason = decision.reason
    elif candidate.number != SERVING and not won:
        reason = "it was not better than what serves, or others were"
    now = timezone.now()
    setting = replicas.setting_of(candidate.serving)
    return Trial.objects.create(
        pool=pool, at=now, study=study.at, number=candidate.number, base=study.base, values=dict(candidate.point),
        params=setting["policy_params"], setting=setting, window_from=study.window_from,
        window_until=study.window_until, requests=study.requests, reward=candidate.reward, parts=candidate.parts,
        gate=decision.as_json() if decision is not None else {}, reason=reason[:300],
        state=TrialState.PROPOSED if won else TrialState.REJECTED, ended_at=None if won else now,
    )  # fmt: skip


def _last_study_s(pool: Pool) -> float | None:
    """When the last study began [epoch s]; studies of earlier releases are known by their trials only."""
    last = Study.objects.filter(pool=pool).order_by("-at").values_list("at", flat=True).first()
    trial = Trial.objects.filter(pool=pool).exclude(reward=None).order_by("-study").first()
    moments = [at for at in (last, trial.study if trial else None) if at is not None]
    return _seconds(max(moments, default=None))


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
