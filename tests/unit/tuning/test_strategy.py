"""The strategic loop: queues cut anew, studies on recent traffic, the gate, canaries, and the way back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.tuning import loop, replicas
from scheduling.core.partition import parse_partition, place
from scheduling.core.registry import make_ordering, make_routing
from scheduling.core.scheduler import Scheduler
from scheduling.core.step_time import load_preset
from scheduling.core.types import BackendView, PoolView
from scheduling.simulator.compare import SHIPPED
from scheduling.simulator.replay import Replica
from scheduling.simulator.workload import Belief, make_request
from scheduling.tuning import study
from scheduling.tuning.calibrate import Timed, calibrate
from scheduling.tuning.gate import Gate
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Serving
from telemetry.ledger import writer
from telemetry.models import Calibration, LedgerEntry
from tenants import services, tuning
from tenants.audit import Actor
from tenants.models import AuditEntry, Author, Backend, PolicyVersion, Pool, Trial, TrialState
from tenants.versions import Note, because
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db
ANN = Actor("ann", "cli")
FAST = {"trials": 3, "pairs": 3, "least_requests": 100, "most_requests": 600, "interval_s": 60, "window_s": 3600}


@pytest.fixture
def pool() -> Pool:
    made = services.save(
        actor=ANN, instance=Pool(slug="llama", model="llama", policy="ewsjf", policy_params={"partition": "1-9000"})
    )
    services.save(
        actor=ANN,
        instance=Backend(slug="gpu-1", pool=made, url="http://10.0.0.1:8000", slots=4, kv_tokens=100_000),
    )
    return made


def traffic(
    count: int, until: datetime, *, wait: Callable[[int], float] = lambda n: 0.5, met: float = 1.0, first: int = 0,
    rate: float = 8.0, long_share: float = 0.2,
) -> None:  # fmt: skip
    """A mix of short and long prompts that ended by ``until``, as the ledger has it."""
    draw, rows, at = random.Random(first), [], until.timestamp() - count / rate
    for n in range(first, first + count):
        at += 1 / rate
        given = draw.randint(2000, 4000) if draw.random() < long_share else draw.randint(20, 200)
        out, waited = draw.randint(20, 60), wait(n)
        rows.append(
            record(
                n, pool="llama", tier="premium", tenant="acme", entitlement="", input_tokens=given, output_tokens=out,
                output_tokens_est=40.0, output_bound=64, received_s=at, queued_s=at, granted_s=at + waited,
                first_token_s=at + waited + 0.1, done_s=at + waited + 1.0, slo_met=draw.random() < met,
            )
        )  # fmt: skip
    writer.write(rows)


def tuned(pool: Pool, mode: str = "automatic", **settings: float) -> Pool:
    tuning.set_tuning(actor=ANN, pool=pool, mode=mode, settings={**FAST, **settings})
    pool.refresh_from_db()
    return pool


def candidate(pool: Pool, **params: float) -> Trial:
    """A proposed trial, as a study leaves it in advise mode."""
    now = timezone.now()
    return Trial.objects.create(
        pool=pool, at=now, study=now, number=1, base=tuning.version_now(pool), values={}, reward=0.9,
        params={**pool.policy_params, **params}, window_from=now, window_until=now, gate={"passed": True},
    )  # fmt: skip


def canary(pool: Pool, **params: float) -> Trial:
    return tuning.start_canary(actor=ANN, trial=candidate(pool, **(params or {"urgency": 7.0})), reason="try it")


# --- versions


def test_whoever_changes_a_policy_makes_a_version_that_says_who_and_what(pool: Pool):
    services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={"partition": "1-9000", "urgency": 2.0})
    second, first = PolicyVersion.objects.filter(pool=pool)
    assert (first.number, second.number, second.parent) == (1, 2, first)
    assert (second.author, second.author_kind) == ("ann", Author.PERSON)
    assert second.changes == {"policy_params.urgency": [None, 2.0]}
    assert second.partition == "1-9000"


def test_a_version_is_never_changed(pool: Pool):
    version = tuning.version_now(pool)
    version.reason = "another"
    with pytest.raises(ValueError, match="never changed"):
        version.save()


def test_another_change_of_a_pool_is_no_version(pool: Pool):
    pool.queue_limit = 5
    services.save(actor=ANN, instance=pool)
    assert PolicyVersion.objects.count() == 1


def test_a_pool_older_than_its_versions_gets_the_one_before_with_the_next_change(pool: Pool):
    PolicyVersion.objects.all().delete()
    services.set_policy(actor=ANN, pool=pool, policy="fifo", params={})
    assert [(v.number, v.policy) for v in PolicyVersion.objects.filter(pool=pool)] == [(2, "fifo"), (1, "ewsjf")]


def test_one_call_goes_back_to_an_earlier_version_as_a_new_one(pool: Pool):
    services.set_policy(actor=ANN, pool=pool, policy="fifo", params={})
    pool = tuning.rollback(actor=ANN, pool=pool, number=1)
    assert (pool.policy, pool.policy_version, pool.policy_params) == ("ewsjf", 3, {"partition": "1-9000"})
    assert tuning.version_now(pool).restores == 1
    with pytest.raises(ValidationError, match="no version 9"):
        tuning.rollback(actor=ANN, pool=pool, number=9)


# --- canaries


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


def test_a_canary_under_which_somebody_waits_for_ages_is_taken_back(pool: Pool):
    traffic(400, timezone.now())
    canary(pool)
    assert loop.tend("llama", oldest_wait_s=500.0) == "rolled_back"


def test_a_canary_that_too_few_met_is_not_kept(pool: Pool):
    trial = canary(pool)
    Trial.objects.filter(pk=trial.pk).update(watched_at=trial.canary_until)
    assert loop.tend("llama", now=trial.canary_until) == "rolled_back"


def test_a_canary_that_nobody_watched_is_aborted_and_what_was_before_serves(pool: Pool):
    trial = canary(pool)
    assert loop.tend("llama", now=trial.canary_at + timedelta(seconds=61)) == "aborted"
    pool.refresh_from_db()
    assert "urgency" not in pool.policy_params
    assert loop.tend("llama") == "off", "and it stays ended"


def test_a_canary_whose_watcher_was_killed_is_aborted_however_soon_another_one_looks(pool: Pool):
    trial = canary(pool)
    assert loop.tend("llama", leader="worker-1") == "watched"
    assert loop.tend("llama", leader="worker-1") == "watched"
    assert loop.tend("llama", leader="worker-2") == "aborted"
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
    with because(Note(f"{loop.DRIFT} (Kolmogorov-Smirnov 0.40, p 1e-9)", Author.OPTIMISER)):
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


# --- what a person proposes


def asked(pool: Pool, **params: float | str) -> Trial:
    return tuning.propose(actor=ANN, pool=pool, params={**pool.policy_params, **params}, reason="what if")


def test_what_a_person_proposes_is_tried_on_recent_traffic_in_any_mode(pool: Pool):
    tuned(pool, "off")
    trial = asked(pool, partition="1-300,1900-4100", urgency=0.01, urgency_slope=-10.0, base=100.0)
    assert loop.tend("llama") == "off", "there is nothing to try it on yet"
    traffic(600, timezone.now(), rate=7.0)
    assert loop.tend("llama") == "rejected"
    trial.refresh_from_db()
    assert "starves premium, long" in trial.reason
    assert trial.gate["waits"]
    with pytest.raises(ValidationError, match="only a proposed one"):
        tuning.start_canary(actor=ANN, trial=trial, reason="anyway")
    assert loop.tend("llama") == "off"


def test_what_a_person_proposes_and_wins_waits_for_that_person(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    tuned(pool)
    monkeypatch.setattr(loop, "gate", lambda *_: (True, "it wins", {"passed": True}))
    traffic(300, timezone.now())
    trial = asked(pool, urgency=2.0)
    assert loop.tend("llama") == "proposed"
    trial.refresh_from_db()
    assert (trial.state, trial.reason) == (TrialState.PROPOSED, "it wins")
    pool.refresh_from_db()
    assert pool.policy_version == 1, "whoever proposed it starts it"


# --- the loop


def test_nothing_is_tuned_unless_somebody_wants_it(pool: Pool):
    traffic(300, timezone.now())
    assert loop.tend("llama") == "off"
    assert loop.tend("nothing") == "no such pool"
    tuned(services.set_policy(actor=ANN, pool=pool, policy="fifo", params={}))
    assert "nothing to tune" in loop.tend("llama")
    assert not Trial.objects.exists()


def test_with_too_little_traffic_nothing_is_tried(pool: Pool):
    tuned(pool)
    traffic(50, timezone.now())
    assert loop.tend("llama") == "too little traffic"


def test_a_study_tries_what_serves_first_and_ends_with_a_verdict(pool: Pool):
    tuned(pool, "advise")
    traffic(500, timezone.now())
    said = loop.tend("llama")
    trials = list(Trial.objects.filter(pool=pool).order_by("number"))
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert trials[0].params == pool.policy_params
    assert all(0.0 <= trial.reward <= 1.0 and trial.parts for trial in trials)
    assert said == "proposed" or said.startswith(("rejected", "nothing better"))
    assert sum(trial.state == TrialState.PROPOSED for trial in trials) == (said == "proposed")
    pool.refresh_from_db()
    assert pool.policy_version == 1, "advice changes nothing"
    assert loop.tend("llama") == "not due"


def test_a_study_that_was_interrupted_goes_on_as_if_it_had_not_been(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    now = timezone.now()
    tuned(pool, "advise")
    traffic(500, now)
    loop.tend("llama", now=now)
    whole = list(Trial.objects.order_by("number").values_list("values", "reward"))
    Trial.objects.all().delete()
    monkeypatch.setattr(loop, "BUDGET_S", 0.0)
    assert loop.tend("llama", now=now) == "tried 1 of 4"
    while loop.tend("llama", now=now + timedelta(seconds=5)).startswith("tried"):
        pass
    assert list(Trial.objects.order_by("number").values_list("values", "reward")) == whole


def test_a_winner_becomes_a_canary_by_itself_only_in_automatic_mode(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    traffic(500, timezone.now())
    tuned(pool)
    monkeypatch.setattr(loop, "gate", lambda *_: (True, "it wins", {"passed": True}))
    assert loop.tend("llama") in ("canary", "nothing better was found")
    trial = Trial.objects.filter(state=TrialState.CANARY).first()
    pool.refresh_from_db()
    assert (trial is not None) == (pool.policy_version == 2)
    if trial is not None:
        assert tuning.version_now(pool).author_kind == Author.OPTIMISER


def test_where_the_best_trial_starves_somebody_the_next_best_has_its_turn(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    tuned(pool, "advise")
    traffic(500, timezone.now(), rate=9.0)
    seen: list[dict[str, Any]] = []

    def second(held: Gate, serving: Serving, params: dict[str, Any]) -> tuple[bool, str, dict[str, Any]]:
        seen.append(params)
        return len(seen) == 2, f"verdict {len(seen)}", {"passed": len(seen) == 2}

    monkeypatch.setattr(loop, "gate", second)
    assert loop.tend("llama") == "proposed"
    rewards = [Trial.objects.get(params=params).reward for params in seen]
    assert rewards == sorted(rewards, reverse=True)
    kept = Trial.objects.get(state=TrialState.PROPOSED)
    assert (kept.params, kept.reason) == (seen[1], "verdict 2")
    assert Trial.objects.get(params=seen[0]).reason == "verdict 1"


def test_studies_come_soon_after_prompts_changed_and_then_at_twice_the_distance():
    times, last = [], 50.0
    for now in range(100, 4000, 10):
        if study.due(float(now), last, 100.0, 1800.0):
            times.append(now)
            last = float(now)
    assert times[:6] == [100, 110, 120, 140, 180, 260]
    assert max(b - a for a, b in pairwise(times)) <= 1800
    assert not study.due(1000.0, 900.0, None, 1800.0)
    assert study.due(3000.0, 900.0, None, 1800.0)


def test_queues_that_are_old_are_cut_anew_though_nothing_changed(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "_study", lambda *_: "not due")
    tuned(services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={}), recut_s=600.0)
    now = timezone.now()
    traffic(400, now)
    assert "the first queues" in loop.tend("llama", now=now)
    later = now + timedelta(seconds=300)
    traffic(400, later, first=1000)
    assert loop.tend("llama", now=later) == "not due"
    assert "older than 600 s" in loop.tend("llama", now=now + timedelta(seconds=700))


def test_a_candidate_that_starves_long_prompts_is_rejected_by_the_replay(pool: Pool):
    """Poisoned: short prompts always go first, and long ones gain nothing by waiting."""
    now = timezone.now()
    traffic(600, now, rate=7.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    settings = tuning.tuning_of(tuned(pool)).loop
    serving = replicas.serving_of(pool)
    poison = {"partition": "1-300,1900-4100", "urgency": 0.01, "urgency_slope": -10.0, "base": 100.0}
    passed, reason, told = loop.gate(Gate(found, serving, settings), serving, poison)
    assert not passed
    assert "starves premium, long" in reason
    assert told["waits"]["premium, long"][1] > told["waits"]["premium, long"][0]
    assert told["gain"] > 0, "most would have been glad of it"


def test_trials_are_served_in_front_of_the_pools_own_replicas_with_its_headroom(pool: Pool):
    now = timezone.now()
    traffic(100, now)
    pool.headroom_slots = 1
    services.save(actor=ANN, instance=pool)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    assert found is not None
    replay = found.replay(replicas.serving_of(pool))
    assert (found.headroom, replay.headroom) == (1, 1)
    assert [(b.slots, b.kv_tokens) for b in replay.view.backends.values()] == [
        (row.slots, row.kv_tokens) for row in pool.backends.all()
    ]
    assert found.signal_s == replicas.GRANT_DELAY_S


@pytest.mark.parametrize("credit", [None, 0, 3000])
def test_what_gives_advice_grants_by_the_pools_own_prefill_credit(pool: Pool, credit: int | None):
    now = timezone.now()
    traffic(100, now)
    pool.prefill_credit = credit
    services.save(actor=ANN, instance=pool)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    assert found is not None
    assert {(r.prefill_tokens, r.token_budget, r.order) for r in found.replicas} == {(credit, 2048, "priority")}
    begun = {b.prefill_credit for b in found.replay(replicas.serving_of(pool)).view.backends.values()}
    assert begun == {1024 if credit is None else credit}, "what is found while it serves begins with half a step"


def test_a_candidate_that_is_no_policy_is_rejected(pool: Pool):
    now = timezone.now()
    traffic(100, now)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    serving = replicas.serving_of(pool)
    passed, reason, _ = loop.gate(Gate(found, serving, LoopSettings()), serving, {"urgency": -1.0})
    assert not passed
    assert "invalid policy" in reason


def test_the_first_queues_are_cut_from_the_long_run_and_new_ones_when_prompts_change(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop, "_study", lambda *_: "not due")
    pool = tuned(services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={}))
    now = timezone.now()
    traffic(400, now)
    assert "the first queues" in loop.tend("llama", now=now)
    pool.refresh_from_db()
    cut = pool.policy_params["partition"]
    assert cut
    assert tuning.version_now(pool).author_kind == Author.OPTIMISER
    assert loop.tend("llama", now=now) == "not due", "nothing has changed since"
    later = now + timedelta(hours=2)
    traffic(400, later, first=1000, long_share=0.9)
    assert "prompts have changed" in loop.tend("llama", now=later)
    pool.refresh_from_db()
    assert pool.policy_params["partition"] != cut


def test_advice_to_cut_queues_anew_is_said_once_and_can_be_followed(pool: Pool):
    pool = tuned(services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={}), "advise")
    traffic(400, timezone.now())
    assert "the first queues" in loop.tend("llama")
    assert "the first queues" not in loop.tend("llama")
    trial = Trial.objects.filter(reason__startswith="repartition").get()
    tuning.start_canary(actor=ANN, trial=trial, reason="ann agrees")
    pool.refresh_from_db()
    assert pool.policy_params["partition"]


def test_advice_that_is_followed_is_held_against_what_came_since_it_was_given(pool: Pool):
    pool = tuned(services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={}), "advise")
    now = timezone.now()
    traffic(400, now - timedelta(seconds=100), met=1.0)
    assert "the first queues" in loop.tend("llama", now=now - timedelta(seconds=60))
    traffic(300, now - timedelta(seconds=1), met=0.5, first=1000)
    trial = tuning.start_canary(actor=ANN, trial=Trial.objects.get(), reason="ann agrees")
    later = trial.canary_at + timedelta(seconds=30)
    traffic(200, later, met=0.5, first=2000)
    assert loop.tend("llama", now=later) == "watched"
    Trial.objects.filter(pk=trial.pk).update(at=now - timedelta(seconds=1000))
    assert loop.tend("llama", now=later) == "rolled_back", "the whole window says that it is worse"


@pytest.mark.parametrize("wrong", [{"nonsense": 1}, {"pairs": 2}, {"interval_s": 0}, {"drop": 0.9}, {"seed": 1.5}])
def test_a_wrong_setting_is_refused(pool: Pool, wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        tuning.set_tuning(actor=ANN, pool=pool, mode="advise", settings=wrong)


# --- how fast engines are


def test_engines_are_calibrated_from_the_ledger_and_a_lab_then_says_what_happened(pool: Pool):
    now = timezone.now()
    traffic(800, now, rate=2.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time.slowed(1.7)

    ran = replace(found, replicas=(Replica(truth, 4, 100_000),)).serve(Serving("ewsjf", pool.policy_params))
    start = now.timestamp() - 3000
    LedgerEntry.objects.all().delete()
    writer.write(
        [
            record(
                5000 + o.index, pool="llama", tier="premium", entitlement="", input_tokens=o.input_tokens,
                output_tokens=o.output_tokens, output_bound=64, output_tokens_est=40.0,
                received_s=start + o.arrival_s, queued_s=start + o.arrival_s,
                granted_s=start + o.arrival_s + o.wait_s, first_token_s=start + o.arrival_s + o.ttft_s + 0.004,
                done_s=start + o.arrival_s + o.ttlt_s + 0.004,
            )
            for o in ran
        ]
    )  # fmt: skip
    made = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert made is not None
    assert made.trust == {}, "there was no calibration before"
    told = replicas.trust(pool, now - timedelta(hours=1), now)
    assert told is not None
    assert told.worst < replicas.TRUSTED
    again = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert again.trust["trusted"]
    assert Calibration.objects.count() == 2


def test_calibration_finds_how_many_tokens_a_step_takes(pool: Pool):
    now = timezone.now()
    traffic(800, now, rate=2.0, long_share=0.5)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time
    timed = []
    for budget in (512, 8192):
        ran = replace(found, replicas=(Replica(truth, 8, 200_000, budget),)).serve(Serving("fifo"))
        timed.append(
            [
                Timed("a", o.arrival_s + o.wait_s, o.arrival_s + o.ttft_s, o.arrival_s + o.ttlt_s, o.input_tokens,
                      o.output_tokens)
                for o in ran
            ]
        )  # fmt: skip
    small, large = (calibrate(rows) for rows in timed)
    assert small.token_budget <= 512
    assert large.token_budget >= 4096
    assert calibrate(timed[0][:20]) is None, "too few to tell"


def test_tokens_that_were_held_up_and_came_in_a_heap_do_not_spoil_a_calibration(pool: Pool):
    now = timezone.now()
    traffic(400, now, rate=2.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time
    ran = replace(found, replicas=(Replica(truth, 8, 200_000),)).serve(Serving("fifo"))
    rows = [
        Timed(
            "a", o.arrival_s + o.wait_s, o.arrival_s + o.ttft_s, o.arrival_s + o.ttlt_s, o.input_tokens, o.output_tokens
        )
        for o in ran
    ]
    heaps = [replace(row, first_s=row.done_s - 1e-3) if n % 20 == 0 else row for n, row in enumerate(rows)]
    clean, spoilt = calibrate(rows), calibrate(heaps)
    assert spoilt.step_time.step(0, 8, 4000) == pytest.approx(clean.step_time.step(0, 8, 4000), rel=0.1)


def test_the_command_tells_simulated_against_live_or_why_it_cannot(pool: Pool):
    with pytest.raises(CommandError, match="no calibration yet"):
        call_command("lab", "trust", "--pool", "llama")
    with pytest.raises(CommandError, match="no pool"):
        call_command("lab", "trust", "--pool", "nothing")
    with pytest.raises(CommandError, match="is not a time"):
        call_command("lab", "trust", "--pool", "llama", "--until", "yesterday")
    traffic(300, timezone.now(), rate=1.0)
    step = {"t0": 0.015, "a": 8e-5, "b": 1e-4, "c": 1e-7, "e": 0.0, "knee": 0.0, "a2": 0.0}
    Calibration.objects.create(
        pool="llama", at=timezone.now(), step_time=step, overhead_s=0.01, error=0.1, requests=100, token_budget=2048
    )
    out = StringIO()
    call_command("lab", "trust", "--pool", "llama", "--json", stdout=out)
    told = json.loads(out.getvalue())
    assert set(told["figures"]) == {"ttft p50", "ttft p95", "ttlt p50", "ttlt p95"}
    live, simulated = told["figures"]["ttft p50"]
    assert live == pytest.approx(0.6, abs=0.01)
    assert simulated > 0
    assert not told["trusted"], "these timings are no engine's"
    with pytest.raises(CommandError, match="no requests in that time"):
        call_command("lab", "trust", "--pool", "llama", "--until", "2020-01-01T12:00")


# --- the hot swap


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(0, 60))
def test_a_repartition_loses_nothing_and_keeps_the_order_within_each_new_queue(lengths: list[int], before: int):
    scheduler = Scheduler(make_ordering("ewsjf", {"partition": "1-5000"}), make_routing("least_work"), max_grants=1)
    after = "1-100,101-1000,1001-5000"
    requests = [
        make_request(n, float(n), length, 5, SHIPPED[0], Belief(5.0, 5)).queued for n, length in enumerate(lengths)
    ]
    granted = []
    for number, request in enumerate(requests):
        if number == before:
            scheduler.swap(make_ordering("ewsjf", {"partition": after}), make_routing("least_work"), float(number))
        scheduler.offer(request, float(number))
    swapped = before < len(requests)
    while len(scheduler):
        view = PoolView({"a": BackendView("a", 1, 10_000)})
        granted += [grant.request for grant in scheduler.step(view, float(len(requests)))]
    assert sorted(request.id for request in granted) == sorted(request.id for request in requests)
    queues = parse_partition(after if swapped else "1-5000")
    for queue in queues:
        mine = [request.arrival_s for request in granted if place(request.input_tokens, queues) == queue]
        assert mine == sorted(mine)
