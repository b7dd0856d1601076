"""The strategic loop of a pool: watch the canary, cut queues anew, try settings on recent traffic, let the best serve.

:func:`tend` does what is due and can be called at any time, by anybody, any number of times: everything it knows is in
the database, what comes next follows from what is stored, and a replay that is there is not made again. The pool's
leader rings for it every ten seconds; a worker that is killed leaves at most a canary that nobody watches, which the
next call ends.

A **study** is one window of traffic and the search on it (:mod:`scheduling.tuning.search`), which takes a share of one
processor and goes on from call to call. What served and what came into its last round are kept as trials. The winner is
a canary for one interval (automatic) or waits for somebody to start it (advise). Where simulated figures of the pool
are too far from live ones, it waits in automatic mode too, until they are near enough or somebody starts it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.tuning import drafts, recent, replicas
from controlplane.tuning.in_flight import in_flight, packed, unpacked
from scheduling.core.registry import PolicyError
from scheduling.tuning.gate import Gate
from scheduling.tuning.guard import Tally, tally, watch
from scheduling.tuning.search import FEWEST, GATE, SERVING, Candidate, Search
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, params_of, queues_of, values_of
from scheduling.tuning.study import REFERENCE, drifted, due
from scheduling.tuning.traffic import Serving, Traffic
from telemetry.models import LedgerEntry
from tenants import tuning
from tenants.models import Author, PolicyVersion, Pool, Study, StudyState, Trial, TrialState, TuningMode
from tenants.services import set_policy
from tenants.versions import Note, because

log = logging.getLogger(__name__)

BLIND = timedelta(seconds=60)  # a canary that nobody has looked at for so long is ended
RING_S = 10.0  # between two calls: a study's share of a processor is of so long
WRITTEN = timedelta(seconds=15)  # after its end a request is in the ledger
KEPT = 50  # studies of a pool
CUTS = "ewsjf"  # the policy that has queues to cut
LAST = GATE - 1  # round of a study whose candidates are kept
RECALIBRATE, RECALIBRATE_SOON = timedelta(minutes=15), timedelta(minutes=2)
ENOUGH = 500  # requests of a calibration that is kept for a quarter of an hour
CALIBRATION_WINDOW = timedelta(minutes=30)
STALE = timedelta(hours=1)  # a study that is not done by then is about traffic of the past
DRIFT = "repartition: prompts have changed"  # how the reason of a version begins that was made for it


def tend(
    slug: str, *, oldest_waits_s: Mapping[str, float] | None = None, leader: str = "", now: datetime | None = None
) -> str:
    """Does what is due in one pool; says what that was. ``oldest_waits_s``: by tier, of the oldest request
    that waits there now. ``leader``: the process that rings, if that is known."""
    now = now or timezone.now()
    pool = Pool.objects.filter(slug=slug).first()
    if pool is None:
        return "no such pool"
    chosen = tuning.tuning_of(pool)
    _recalibrate(pool, now)
    canary = Trial.objects.filter(pool=pool, state=TrialState.CANARY).select_related("base", "version").first()
    if canary is not None:
        pool.refresh_from_db()  # what came before took seconds: the canary may be younger than what was read
        return _watch(pool, canary, chosen.loop, oldest_waits_s or {}, leader, now)
    if judged := _judge_asked(pool, chosen.loop, now):
        return judged
    if chosen.mode == TuningMode.OFF:
        return "off"
    settings = chosen.loop
    automatic = chosen.mode == TuningMode.AUTOMATIC
    if automatic and (started := _start_waiting(pool, settings, now)):
        return started
    return _repartition(pool, settings, automatic, now) or _study(pool, settings, automatic, now)


def _recalibrate(pool: Pool, now: datetime) -> None:
    """Measures again how fast the engines are: every quarter of an hour with requests, sooner if the last measurement
    had few of them."""
    last = replicas.latest(pool.slug)
    every = RECALIBRATE if last is None or last.requests >= ENOUGH else RECALIBRATE_SOON
    if last is None or now - last.at >= every:
        replicas.recalibrate(pool, now - CALIBRATION_WINDOW, now)


# --- the canary


def _watch(
    pool: Pool, trial: Trial, settings: LoopSettings, oldest_waits_s: Mapping[str, float], leader: str, now: datetime
) -> str:
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
    tiers = recent.tiers_of({*lately, *oldest_waits_s})
    promised_s = {tier.name: tier.slo.ttlt_s for tier in tiers if tier.slo.ttlt_s is not None}
    rails = watch(before, lately, oldest_waits_s, settings, promised_s)
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
    since = window_since(pool, settings, now)
    if trial.setting is not None or trial.window_from < trial.window_until:
        return _judge_draft(pool, trial, settings, since, now)
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


def window_since(pool: Pool, settings: LoopSettings, now: datetime) -> datetime:
    """From when on traffic is replayed where nobody chose a window."""
    begins = now - timedelta(seconds=settings.window_s)
    return max(begins, _changed(pool) or begins)


def traffic_so_far(pool: Pool, now: datetime) -> tuple[datetime, int]:
    """What a replay of the latest traffic would have now: from when on, and how many requests; no more are counted than
    it needs."""
    settings = tuning.tuning_of(pool).loop
    since = window_since(pool, settings, now)
    rows = recent.record(pool.slug, since, now, most=2 * settings.least_requests, unended=()).rows
    return since, min(settings.least_requests, sum(1 for row in rows if row.ran or row.turned_away))


def _judge_draft(pool: Pool, trial: Trial, settings: LoopSettings, since: datetime, now: datetime) -> str:
    """A draft of any change, on the window that was chosen or else on the latest traffic. Whether it is worth a trial
    is the person's decision; only what hurts somebody is rejected."""
    chosen = trial.window_from < trial.window_until
    if chosen:
        since, now = trial.window_from, trial.window_until
    judged = drafts.judge(pool, trial, settings, since, now)
    if judged is None:
        reason = f"the chosen window has fewer than {settings.least_requests} requests"
        return _close(trial, TrialState.REJECTED, reason) if chosen else ""
    Trial.objects.filter(pk=trial.pk, state=TrialState.PROPOSED).update(
        gate=judged, reason=judged["reason"][:300], requests=judged.get("requests", 0), window_from=since,
        window_until=now,
    )  # fmt: skip
    trial.refresh_from_db()
    return _close(trial, TrialState.REJECTED, judged["reason"]) if judged["hurts"] else "proposed"


# --- queues


def _repartition(pool: Pool, settings: LoopSettings, automatic: bool, now: datetime) -> str:
    """Cuts the queues anew where there are none yet, or where prompts have changed; empty when neither is so."""
    if pool.policy != CUTS:
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
    tuning.stop_study(actor=tuning.OPTIMISER, pool=pool, reason="the queue boundaries were recomputed")
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
    pool: Pool,
    base: PolicyVersion,
    params: dict[str, Any],
    values: dict[str, Any],
    why: str,
    now: datetime,
    settings: LoopSettings,
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
    study = Study.objects.filter(pool=pool, state=StudyState.RUNNING).first()
    if study is not None and (why := _outdated(study, base, now)):
        tuning.stop_study(actor=tuning.OPTIMISER, pool=pool, reason=why)
        study = None
    at, moved = now if study is None else study.at, None
    if study is None and not due(now.timestamp(), _studied_s(pool), _seconds(_drifted(pool)), settings.every_s):
        moved = _moved(pool, settings, now)
        if moved is None:
            return "not due"
    since = at - timedelta(seconds=settings.window_s)
    changed = max((moment for moment in (moved, _changed(pool)) if moment is not None), default=None)
    if study is not None:
        since = study.window_from
    elif changed is not None:
        since = max(since, changed)  # what came before is not what comes now
    # A study reads its window again in every call, and has to find the same each time, on the same engines.
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
    began_s = time.thread_time()
    search = Search(traffic, replicas.serving_of(base), settings, seed, () if study is None else study.replays)
    study = study or _begin(pool, base, since, at, traffic, search.total, packed(unended))
    if study is None:
        return "another worker is at it"
    return _go_on(pool, study, search, settings, automatic, began_s)


def _moved(pool: Pool, settings: LoopSettings, now: datetime) -> datetime | None:
    """When the last study began, if prompts have changed since: lengths are no longer those of its window."""
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


def _go_on(pool: Pool, study: Study, search: Search, settings: LoopSettings, automatic: bool, began_s: float) -> str:
    """Replays until its share of a processor is used up for now, and concludes when there is nothing left to replay."""
    before, budget_s = study.done, settings.cpu_share * RING_S
    while (step := search.step()) is not None:
        search.run(step)
        if time.thread_time() - began_s > budget_s:
            break
    took_s = study.cpu_s + time.thread_time() - began_s
    done = len(search.replays)
    mine = Study.objects.filter(pk=study.pk, state=StudyState.RUNNING, done=before)
    if not mine.update(replays=search.replays, done=done, cpu_s=took_s, heard_at=timezone.now()):
        return "another worker was quicker"
    if search.step() is not None:
        return f"replayed {done} of at most {study.total}"
    return _conclude(pool, study, search, settings if automatic else None)


def _conclude(pool: Pool, study: Study, search: Search, automatic: LoopSettings | None) -> str:
    """What served and what came into the last round are kept as trials; the winner waits, or becomes a canary."""
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
            return "another worker was quicker"
        if winner is not None:
            for older in Trial.objects.filter(pool=pool, state=TrialState.PROPOSED).exclude(reward=None):
                later = "a later study proposes another"
                tuning.close(actor=tuning.OPTIMISER, trial=older, state=TrialState.ABORTED, reason=later)
        proposed = None
        for candidate in search.candidates():
            if candidate.round == LAST:
                trial = _keep(pool, study, candidate, candidate == winner)
                proposed = trial if candidate == winner else proposed
        old = Study.objects.filter(pool=pool).exclude(state=StudyState.RUNNING).values_list("pk", flat=True)[KEPT:]
        Study.objects.filter(pk__in=list(old)).delete()
    if proposed is None:
        return result
    return "proposed" if automatic is None else _start(proposed, why, automatic, timezone.now())


def _start(trial: Trial, why: str, settings: LoopSettings, now: datetime) -> str:
    """A winner serves, unless the simulation that it won in is too far from what happens: then it waits and says so."""
    doubt = replicas.doubt(trial.pool.slug, settings.most_error, now)
    if not doubt:
        tuning.start_canary(actor=tuning.OPTIMISER, trial=trial, reason=why)
        return "canary"
    waits = f"it waits to be started: {doubt}"
    reason = f"{waits}; {why}"[:300]
    Trial.objects.filter(pk=trial.pk, state=TrialState.PROPOSED).exclude(reason=reason).update(reason=reason)
    return "proposed"


def _start_waiting(pool: Pool, settings: LoopSettings, now: datetime) -> str:
    """The last study's winner, which waited because of how far simulated figures were from live ones. Empty where it
    goes on waiting, or none does."""
    trials = Trial.objects.filter(pool=pool, state=TrialState.PROPOSED, base__number=pool.policy_version)
    trial = trials.exclude(reward=None).select_related("base", "pool").order_by("-study").first()
    if trial is None or now - trial.study > STALE:
        return ""
    started = _start(trial, str(trial.gate.get("reason", "")), settings, now)
    return started if started == "canary" else ""


def _keep(pool: Pool, study: Study, candidate: Candidate, won: bool) -> Trial:
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


def _studied_s(pool: Pool) -> float | None:
    """When the last study began; those of earlier releases are known by their trials."""
    last = Study.objects.filter(pool=pool).order_by("-at").values_list("at", flat=True).first()
    trial = Trial.objects.filter(pool=pool).exclude(reward=None).order_by("-study").first()
    moments = [at for at in (last, trial.study if trial else None) if at is not None]
    return _seconds(max(moments, default=None))


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _changed(pool: Pool) -> datetime | None:
    """From when on traffic is compared: since prompts changed, or new queue boundaries were advised."""
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


def gate(judge: Gate, serving: Serving, params: dict[str, float | int | str]) -> tuple[bool, str, dict[str, object]]:
    """Whether parameters win on recent traffic without starving anybody, why, and the figures."""
    try:
        verdict = judge.judge(replace(serving, params=params))
    except PolicyError as error:
        return False, f"invalid policy: {error}", {"passed": False}
    return verdict.passed, verdict.reason, verdict.as_json()


def _values_now(pool: Pool, version: PolicyVersion) -> dict[str, float]:
    """The knobs of EWSJF's queues. How they were cut is not a parameter; it is what the last kept trial says."""
    values = values_of(SPACES[pool.policy], version.policy_params)
    kept = Trial.objects.filter(pool=pool, state=TrialState.PROMOTED, version__number__lte=version.number)
    last = kept.order_by("-version__number").first()
    if last is not None:
        for name in ("split_alpha", "max_queues"):
            value = last.values.get(f"{pool.policy}.{name}", last.values.get(name))
            values[name] = values[name] if value is None else value
    return values
