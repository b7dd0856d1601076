"""The loop: when studies come, what the gate rejects, queues cut anew, and advice."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.tuning import loop, replicas
from scheduling.simulator.compare import GRANT_DELAY_S
from scheduling.tuning import study
from scheduling.tuning.gate import Gate
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Serving
from tenants import services, tuning
from tenants.models import Author, Pool, Trial, TrialState
from tests.support.tuning_world import ANN, traffic, tuned

pytestmark = pytest.mark.django_db


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
    assert found.pool is not None
    assert (found.pool.headroom_slots, replay.headroom) == (1, 1)
    assert [(b.slots, b.kv_tokens) for b in replay.view.backends.values()] == [
        (row.slots, row.kv_tokens) for row in pool.backends.all()
    ]
    assert found.signal_s == GRANT_DELAY_S


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


def test_advice_on_first_queues_brings_no_studies_before_their_time(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """It was taken for a change of prompts, after which studies come at once and again and again."""
    pool = tuned(services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={}), "advise", every_s=100_000)
    now = timezone.now()
    traffic(400, now)
    assert "the first queues" in loop.tend("llama", now=now)
    traffic(120, now + timedelta(seconds=100), first=1000)
    monkeypatch.setattr(loop, "BUDGET_S", 600.0)
    made: list[int] = []
    monkeypatch.setattr(loop, "_conclude", lambda *_: made.append(1) or "concluded")
    for minute in (2, 5, 10, 30):
        later = now + timedelta(minutes=minute)
        said = loop.tend("llama", now=later)
        for trial in Trial.objects.exclude(reward=None).filter(state=TrialState.PROPOSED):
            tuning.close(actor=tuning.OPTIMISER, trial=trial, state=TrialState.REJECTED, reason="done")
        assert said == ("concluded" if minute == 2 else "not due")
    assert len(made) == 1


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
