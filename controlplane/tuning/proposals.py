"""Proposals by people: each is replayed against what serves, once there is traffic to replay."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from controlplane.tuning import drafts, recent, replicas
from controlplane.tuning.canary import close
from controlplane.tuning.partitions import traffic_changed_at
from scheduling.core.policies.registry import PolicyError
from scheduling.tuning.gate import Gate
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Serving
from tenants import tuning
from tenants.models import Pool, Trial, TrialState


def judge_proposal(pool: Pool, settings: LoopSettings, now: datetime) -> str:
    """Replays the oldest open proposal against what serves, once there is traffic for it. Returns what became of it;
    empty if there is nothing to do."""
    trials = Trial.objects.filter(pool=pool, state=TrialState.PROPOSED, reward=None, values={}, gate={})
    trial = trials.select_related("base", "pool").order_by("at").first()
    if trial is None:
        return ""
    if trial.base.number != pool.policy_version:
        return close(trial, TrialState.ABORTED, "the policy has changed since")
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
    return "proposed" if passed else close(trial, TrialState.REJECTED, why)


def window_since(pool: Pool, settings: LoopSettings, now: datetime) -> datetime:
    """Start of the window that is replayed by default."""
    begins = now - timedelta(seconds=settings.window_s)
    return max(begins, traffic_changed_at(pool) or begins)


def traffic_so_far(pool: Pool, now: datetime) -> tuple[datetime, int]:
    """The window that a replay of the latest traffic would have now: its start, and how many requests, counted up to as
    many as a replay needs."""
    settings = tuning.tuning_of(pool).loop
    since = window_since(pool, settings, now)
    rows = recent.record(pool.slug, since, now, most=2 * settings.least_requests, unended=()).rows
    return since, min(settings.least_requests, sum(1 for row in rows if row.ran or row.turned_away))


def _judge_draft(pool: Pool, trial: Trial, settings: LoopSettings, since: datetime, now: datetime) -> str:
    """Replays a draft of any change, on the chosen window or the latest traffic. A person decides whether it is worth a
    trial; only a draft that hurts a tier is rejected."""
    chosen = trial.window_from < trial.window_until
    if chosen:
        since, now = trial.window_from, trial.window_until
    judged = drafts.judge(pool, trial, settings, since, now)
    if judged is None:
        reason = f"the chosen window has fewer than {settings.least_requests} requests"
        return close(trial, TrialState.REJECTED, reason) if chosen else ""
    Trial.objects.filter(pk=trial.pk, state=TrialState.PROPOSED).update(
        gate=judged, reason=judged["reason"][:300], requests=judged.get("requests", 0), window_from=since,
        window_until=now,
    )  # fmt: skip
    trial.refresh_from_db()
    return close(trial, TrialState.REJECTED, judged["reason"]) if judged["hurts"] else "proposed"


def gate(judge: Gate, serving: Serving, params: dict[str, float | int | str]) -> tuple[bool, str, dict[str, object]]:
    """Whether parameters win on recent traffic without starving any request, why, and the figures."""
    try:
        verdict = judge.judge(replace(serving, params=params))
    except PolicyError as error:
        return False, f"invalid policy: {error}", {"passed": False}
    return verdict.passed, verdict.reason, verdict.as_json()
