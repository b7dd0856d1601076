"""A canary: the trial that serves, watched until its interval ends or a guard rail stops it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from controlplane.tuning import recent
from controlplane.tuning.partitions import traffic_changed_at
from scheduling.tuning.guard_rails import Tally, tally, watch
from scheduling.tuning.settings import LoopSettings
from telemetry.ledger.spans import SPANS
from telemetry.models import LedgerEntry
from tenants import tuning
from tenants.models import Pool, Trial, TrialState

log = logging.getLogger(__name__)

BLIND = timedelta(seconds=60)  # a canary that nothing has watched for this long is ended


def watch_canary(
    pool: Pool, trial: Trial, settings: LoopSettings, oldest_waits_s: Mapping[str, float], leader: str, now: datetime
) -> str:
    """Compares what the canary serves with what was served before; keeps it, rolls it back, or goes on watching.
    Returns which."""
    assert trial.canary_at is not None
    assert trial.canary_until is not None
    if trial.version is not None and pool.policy_version != trial.version.number:
        return close(trial, TrialState.ABORTED, "the policy was changed during the trial")
    if trial.watched_at is None or now - trial.watched_at > BLIND:
        return close(trial, TrialState.ABORTED, "it was not checked for a minute: no worker or leader was available")
    watcher = trial.guard.get("leader") or leader
    if leader and leader != watcher:
        return close(trial, TrialState.ABORTED, f"its leader {watcher} was replaced")
    since = trial.canary_at - timedelta(seconds=settings.window_s)
    since = max(since, traffic_changed_at(pool) or since)  # prompts of before a change compare with nothing
    before, lately = _tally(pool.slug, since, trial.canary_at), _tally(pool.slug, trial.canary_at, now)
    tiers = recent.tiers_of({*lately, *oldest_waits_s})
    promised_s = {tier.name: tier.slo.ttlt_s for tier in tiers if tier.slo.ttlt_s is not None}
    rails = watch(before, lately, oldest_waits_s, settings, promised_s)
    if rails.stop:
        return close(trial, TrialState.ROLLED_BACK, rails.reason, rails.as_json())
    if now >= trial.canary_until:
        if not rails.enough:
            return close(trial, TrialState.ROLLED_BACK, "too few requests arrived to judge it", rails.as_json())
        return close(trial, TrialState.PROMOTED, "it completed its interval within the guard rails", rails.as_json())
    guard = {**rails.as_json(), "leader": watcher}
    Trial.objects.filter(pk=trial.pk, state=TrialState.CANARY).update(watched_at=now, guard=guard)
    return "watched"


def close(trial: Trial, state: TrialState, reason: str, guard: dict[str, object] | None = None) -> str:
    tuning.close(actor=tuning.OPTIMISER, trial=trial, state=state, reason=reason, guard=guard)
    log.info("pool %s: trial %s is %s: %s", trial.pool.slug, trial.number, state, reason)
    return str(state)


def _tally(pool: str, since: datetime, until: datetime) -> dict[str, Tally]:
    rows = LedgerEntry.objects.filter(pool=pool, received_at__gte=since, received_at__lt=until)
    return tally(list(rows.values_list("tier", "slo_met", SPANS["waited"])))
