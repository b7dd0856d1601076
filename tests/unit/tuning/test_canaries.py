"""Canaries: watched, kept, or taken back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db.models import F
from django.utils import timezone

from controlplane.tuning import loop, partitions
from telemetry.models import LedgerEntry
from tenants import services, tuning
from tenants.models import AuditEntry, Author, PolicyVersion, Pool, Trial, TrialState
from tenants.versions import Note, because
from tests.support.tuning_world import ANN, canary, candidate, traffic, tuned

pytestmark = pytest.mark.django_db


def test_a_canary_serves_and_is_watched(pool: Pool):
    trial = canary(pool)
    pool.refresh_from_db()
    assert pool.policy_params["urgency"] == 7.0
    assert trial.version == tuning.version_now(pool)
    assert loop.tend("llama") == "watched"
    assert AuditEntry.objects.filter(action="canary").count() == 1


def test_a_canary_without_complaint_is_kept_at_the_end_of_its_interval(pool: Pool):
    tuned(pool)
    traffic(400, timezone.now())
    trial = canary(pool)
    now = trial.canary_at + timedelta(seconds=59)
    traffic(200, now, first=1000)
    assert loop.tend("llama", now=now) == "watched"
    assert loop.tend("llama", now=trial.canary_until) == "promoted"
    pool.refresh_from_db()
    assert pool.policy_params["urgency"] == 7.0


@pytest.mark.parametrize(
    ("bad", "told"),
    [({"met": 0.5}, "SLO of premium"), ({"wait": lambda n: 20.0}, "p95 wait of premium")],
)
def test_a_canary_that_is_bad_live_is_taken_back_within_its_interval(pool: Pool, bad: dict, told: str):
    tuned(pool)
    traffic(400, timezone.now())
    trial = canary(pool)
    now = trial.canary_at + timedelta(seconds=40)
    traffic(200, now, first=1000, **bad)
    assert loop.tend("llama", now=now) == "rolled_back"
    trial.refresh_from_db()
    pool.refresh_from_db()
    assert trial.ended_at < trial.canary_until
    assert told in trial.reason
    assert "urgency" not in pool.policy_params
    assert tuning.version_now(pool).restores == trial.base.number


def test_who_gave_up_waiting_counts_against_a_canary_as_well_as_who_was_served(pool: Pool):
    """One in two is served at once and leaves no wait to be seen; the others' clients leave the queue after 20 s."""
    tuned(pool)
    traffic(400, timezone.now())
    now = canary(pool).canary_at + timedelta(seconds=40)
    traffic(200, now, first=1000)
    begun = LedgerEntry.objects.filter(received_at__gte=now - timedelta(seconds=30))
    gone = begun.filter(pk__in=list(begun.values_list("pk", flat=True)[::2]))
    left = {"outcome": "cancelled", "reason": "client_left", "granted_at": None, "slo_met": None}
    gone.update(**left, done_at=F("queued_at") + timedelta(seconds=20))
    assert loop.tend("llama", now=now) == "rolled_back"
    assert "p95 wait of premium 20.0 s" in Trial.objects.get().reason


def test_a_canary_under_which_somebody_waits_for_ages_is_taken_back(pool: Pool):
    traffic(400, timezone.now())
    begun = canary(pool).canary_at
    promised = loop.tend("llama", oldest_waits_s={"batch": 200.0}, now=begun + timedelta(seconds=1))
    assert promised == "watched", "it is promised its answer within 600 s"
    both = {"batch": 200.0, "premium": 200.0}
    assert loop.tend("llama", oldest_waits_s=both, now=begun + timedelta(seconds=2)) == "rolled_back"


def test_a_canary_that_too_few_met_is_not_kept(pool: Pool):
    trial = canary(pool)
    Trial.objects.filter(pk=trial.pk).update(watched_at=trial.canary_until)
    assert loop.tend("llama", now=trial.canary_until) == "rolled_back"


def test_a_canary_that_nobody_watched_is_aborted_and_what_was_before_serves(pool: Pool):
    trial = canary(pool)
    assert loop.tend("llama", now=trial.canary_at + timedelta(seconds=61)) == "aborted"
    pool.refresh_from_db()
    assert "urgency" not in pool.policy_params
    assert loop.tend("llama") == "not due", "and it stays ended"


def test_a_canary_whose_watcher_was_killed_is_aborted_however_soon_another_one_looks(pool: Pool):
    trial = canary(pool)
    at = [trial.canary_at + timedelta(seconds=seconds) for seconds in (1, 2, 3)]
    assert loop.tend("llama", leader="worker-1", now=at[0]) == "watched"
    assert loop.tend("llama", leader="worker-1", now=at[1]) == "watched"
    assert loop.tend("llama", leader="worker-2", now=at[2]) == "aborted"
    pool.refresh_from_db()
    assert pool.policy_params == {"partition": "1-9000"}
    assert "worker-1" in Trial.objects.get(pk=trial.pk).reason


def test_a_canary_that_begins_while_the_engines_are_calibrated_is_watched(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "_recalibrate", lambda *_: canary(pool))
    assert loop.tend("llama") == "watched"


def test_a_person_who_changes_the_policy_ends_the_canary_and_keeps_the_change(pool: Pool):
    trial = canary(pool)
    services.set_policy(actor=ANN, pool=pool, policy="fifo", params={})
    assert loop.tend("llama") == "aborted"
    pool.refresh_from_db()
    trial.refresh_from_db()
    assert pool.policy == "fifo"
    assert "changed" in trial.reason


def test_switching_tuning_off_takes_a_canary_back(pool: Pool):
    tuned(pool)
    trial = canary(pool)
    tuned(pool, "off")
    trial.refresh_from_db()
    assert trial.state == TrialState.ROLLED_BACK
    assert "urgency" not in pool.policy_params


def test_only_a_proposed_trial_of_the_serving_version_can_be_started_and_one_at_a_time(pool: Pool):
    late, other = candidate(pool), candidate(pool)
    canary(pool)
    with pytest.raises(ValidationError, match="Another canary"):
        tuning.start_canary(actor=ANN, trial=late, reason="")
    loop.tend("llama", now=timezone.now() + timedelta(minutes=5))
    with pytest.raises(ValidationError, match="has changed since"):
        tuning.start_canary(actor=ANN, trial=other, reason="")


def test_closing_a_trial_twice_changes_nothing(pool: Pool):
    trial = canary(pool)
    assert tuning.close(actor=ANN, trial=trial, state=TrialState.ABORTED, reason="a")
    version = PolicyVersion.objects.count()
    assert not tuning.close(actor=ANN, trial=trial, state=TrialState.PROMOTED, reason="b")
    assert PolicyVersion.objects.count() == version
    assert Trial.objects.get(pk=trial.pk).state == TrialState.ABORTED


def test_a_canary_after_prompts_changed_is_held_against_what_came_since(pool: Pool):
    """Before the change nearly all was in time; since then every second request, and the canary is no worse."""
    tuned(pool)
    now = timezone.now()
    with because(Note(f"{partitions.DRIFT} (Kolmogorov-Smirnov 0.40, p 1e-9)", Author.OPTIMISER)):
        services.set_policy(actor=tuning.OPTIMISER, pool=pool, policy="ewsjf", params={"partition": "1-300,301-9000"})
    cut = PolicyVersion.objects.filter(pool=pool).first()
    traffic(400, now - timedelta(seconds=70), met=1.0)
    PolicyVersion.objects.filter(pk=cut.pk).update(at=now - timedelta(seconds=60))
    traffic(300, now - timedelta(seconds=1), met=0.5, first=1000)
    pool.refresh_from_db()
    trial = canary(pool)
    later = trial.canary_at + timedelta(seconds=30)
    traffic(200, later, met=0.5, first=2000)
    assert loop.tend("llama", now=later) == "watched"
    PolicyVersion.objects.filter(pk=cut.pk).update(reason="somebody's own choice")
    assert loop.tend("llama", now=later) == "rolled_back", "the whole window says that it is worse"
