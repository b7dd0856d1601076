"""The loop: when studies come, what the gate rejects, queues cut anew, and advice."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.tuning import loop, proposals, replicas, studies
from scheduling.simulator.compare import GRANT_DELAY_S
from scheduling.tuning import study
from scheduling.tuning.gate import Gate
from scheduling.tuning.search import DEFAULT, SERVING, Search
from scheduling.tuning.settings import LONGEST_S, LoopSettings
from scheduling.tuning.traffic import Traffic
from telemetry.models import Calibration
from tenants import services, tuning
from tenants.models import Author, Backend, PolicyVersion, Pool, Study, StudyState, Trial, TrialState
from tests.support.tuning_world import ANN, traffic, trusted, tuned

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of these tests is written beforehand, with requests that end a little after "now"."""
    monkeypatch.setattr(studies, "WRITTEN", timedelta(seconds=-60))


def test_a_pool_of_which_nobody_said_anything_gets_advice_and_keeps_what_it_has(pool: Pool):
    traffic(300, timezone.now())
    said = loop.tend("llama")
    assert said == "proposed" or said.startswith(("replayed", "nothing better"))
    assert Study.objects.filter(pool=pool).exists()
    pool.refresh_from_db()
    assert pool.policy_version == 1
    assert not Trial.objects.filter(state=TrialState.CANARY).exists()


def test_nothing_is_tuned_where_somebody_switched_it_off(pool: Pool):
    tuned(pool, "off")
    traffic(300, timezone.now())
    assert loop.tend("llama") == "off"
    assert loop.tend("nothing") == "no such pool"
    assert not Trial.objects.exists()
    assert not Study.objects.exists()


def test_with_too_little_traffic_nothing_is_tried(pool: Pool):
    tuned(pool)
    traffic(50, timezone.now())
    assert loop.tend("llama") == "too little traffic"


def finished(**at: datetime) -> str:
    """Rings until the study under way is over."""
    while (said := loop.tend("llama", **at)).startswith("replayed"):
        pass
    return said


def test_a_study_keeps_what_serves_and_its_last_round_as_trials_and_changes_nothing(pool: Pool):
    tuned(pool, "advise")
    traffic(500, timezone.now())
    said = finished()
    study, trials = Study.objects.get(pool=pool), list(Trial.objects.filter(pool=pool).order_by("number"))
    assert (study.state, study.requests, study.done) == (StudyState.ENDED, 500, len(study.replays))
    assert [trial.number for trial in trials][:2] == [SERVING, DEFAULT]
    assert trials[0].params == pool.policy_params
    assert trials[1].setting["policy"] == "unified"
    assert all(trial.parts["attainment"] <= 1.0 and trial.reward is not None for trial in trials)
    assert sum(trial.state == TrialState.PROPOSED for trial in trials) == (said == "proposed")
    pool.refresh_from_db()
    assert pool.policy_version == 1, "advice changes nothing"
    assert loop.tend("llama") == "not due"


def test_a_study_that_was_interrupted_after_every_replay_goes_on_as_if_it_had_not_been(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    now = timezone.now()
    tuned(pool, "advise", cpu_share=1.0)
    traffic(500, now)
    finished(now=now)
    whole, rows = Study.objects.get().replays, list(Trial.objects.order_by("number").values_list("values", "reward"))
    Trial.objects.all().delete()
    Study.objects.all().delete()
    monkeypatch.setattr(studies, "RING_S", 0.0)
    assert loop.tend("llama", now=now).startswith("replayed 1 of at most")
    assert finished(now=now + timedelta(seconds=5)) != "not due"
    assert Study.objects.get().replays == whole
    assert list(Trial.objects.order_by("number").values_list("values", "reward")) == rows


def test_a_study_keeps_its_process_no_longer_where_others_have_the_processor(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """Each replay waits for the processor for half of what a call may take, and hardly computes."""
    tuned(pool, "advise", cpu_share=0.2)
    traffic(500, timezone.now())
    waited = [0.0]
    real = Search.run

    def run(search: Search, step: Any) -> None:
        waited[0] += 0.5 * 0.2 * studies.RING_S
        real(search, step)

    monkeypatch.setattr(Search, "run", run)
    monkeypatch.setattr(studies.time, "monotonic", lambda: waited[0])
    monkeypatch.setattr(studies.time, "thread_time", lambda: waited[0] / 100)
    assert loop.tend("llama").startswith("replayed 2 of at most")
    assert Study.objects.get().cpu_s == pytest.approx(0.02)


def test_what_a_killed_worker_had_not_stored_is_replayed_again_and_stored_once(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """Two workers at one study: the second one's replays are those of the first, and are not added to them."""
    now = timezone.now()
    tuned(pool, "advise")
    traffic(500, now)
    monkeypatch.setattr(studies, "RING_S", 0.0)
    loop.tend("llama", now=now)
    study = Study.objects.get()
    other = replicas.traffic_of(pool, study.window_from, study.at, most=600)
    search = Search(other, replicas.serving_of(study.base), tuning.tuning_of(pool).loop, 1, study.replays)
    loop.tend("llama", now=now)
    assert (
        studies._replay_share(pool, study, search, tuning.tuning_of(pool).loop, False, 0.0, 0.0)
        == "another worker was quicker"
    )
    assert Study.objects.get().done == 2


def test_requests_that_reach_the_ledger_during_a_study_are_not_in_it(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """One that ended later would move the window between two calls, and replays of others would be compared."""
    now = timezone.now()
    tuned(pool, "advise")
    monkeypatch.setattr(studies, "WRITTEN", timedelta(seconds=15))
    traffic(500, now - timedelta(seconds=30))
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(studies, "RING_S", 0.0)
    real = studies.Search

    def search(traffic: Traffic, *rest: Any) -> Search:
        seen.append(traffic.rows)
        return real(traffic, *rest)

    monkeypatch.setattr(studies, "Search", search)
    loop.tend("llama", now=now)
    traffic(50, now, first=1000)  # received before the study began, and written only now
    loop.tend("llama", now=now)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_all_replays_of_a_study_are_on_the_engines_that_it_began_with(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """A calibration, a backend that is drained or a leader that is not heard would compare candidates on other ones."""
    now = timezone.now()
    tuned(pool, "advise")
    traffic(500, now)
    monkeypatch.setattr(studies, "RING_S", 0.0)
    seen: list[Traffic] = []
    real = studies.Search

    def search(found: Traffic, *rest: Any) -> Search:
        seen.append(found)
        return real(found, *rest)

    monkeypatch.setattr(studies, "Search", search)
    loop.tend("llama", now=now)
    slower = {"t0": 0.9, "a": 8e-5, "b": 1e-4, "c": 1e-7, "e": 0.0, "knee": 0.0, "a2": 0.0}
    Calibration.objects.create(
        pool="llama", at=now, step_time=slower, overhead_s=0.0, error=0.1, requests=1000, token_budget=77
    )
    Backend.objects.filter(pool=pool).update(slots=3)
    assert replicas.traffic_of(pool, now - timedelta(hours=1), now).replicas != seen[0].replicas
    loop.tend("llama", now=now)
    assert len(seen) == 2
    assert seen[0].replicas == seen[1].replicas
    assert (seen[0].signal_s, seen[0].own_credits) == (seen[1].signal_s, seen[1].own_credits)
    Study.objects.update(engines={})  # begun by a release that did not keep them
    loop.tend("llama", now=now)
    assert seen[2].replicas[0].token_budget == 77
    tuning.stop_study(actor=ANN, pool=pool, reason="enough")
    assert Study.objects.get().engines == {}, "they are kept no longer than they are needed"


@pytest.mark.parametrize("how", ["asked", "off"])
def test_a_study_that_is_stopped_ends_without_a_result(pool: Pool, monkeypatch: pytest.MonkeyPatch, how: str):
    tuned(pool, "advise")
    traffic(500, timezone.now())
    monkeypatch.setattr(studies, "RING_S", 0.0)
    loop.tend("llama")
    if how == "off":
        tuned(pool, "off")
    else:
        assert tuning.stop_study(actor=ANN, pool=pool, reason="ann stopped it")
    study = Study.objects.get()
    assert (study.state, study.ended_at is not None) == (StudyState.STOPPED, True)
    assert loop.tend("llama") in ("off", "not due")
    assert not Trial.objects.exists()
    assert not tuning.stop_study(actor=ANN, pool=pool, reason="again")


def winning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new pool has wins each study."""
    monkeypatch.setattr(Search, "winner", lambda self: self.candidates()[DEFAULT])
    monkeypatch.setattr(Search, "verdict", lambda self: (None, "it wins"))


def test_a_winner_becomes_a_canary_by_itself_only_in_automatic_mode(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    traffic(500, timezone.now())
    winning(monkeypatch)
    trusted(tuned(pool))
    assert finished() == "canary"
    trial = Trial.objects.get(state=TrialState.CANARY)
    pool.refresh_from_db()
    assert (pool.policy_version, pool.policy) == (2, "unified")
    version = tuning.version_now(pool)
    assert (version.author_kind, version.changes["policy"]) == (Author.OPTIMISER, ["ewsjf", "unified"])
    assert trial.setting["policy_params"] == pool.policy_params


@pytest.mark.parametrize(
    ("worth", "why"),
    [
        (None, "no calibration has compared simulated figures with live ones yet"),
        ({"worst": 14.14}, "simulated latencies are 1414 % off live ones, more than most_error, 25 %"),
        ({"points": 31.0}, "simulated attainment is 31 points off"),
    ],
)
def test_a_winner_waits_while_simulated_figures_are_far_from_live_ones_and_starts_when_they_are_near(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, worth: dict[str, float] | None, why: str
):
    traffic(500, timezone.now())
    winning(monkeypatch)
    tuned(pool)
    if worth is not None:
        trusted(pool, **worth)
    assert finished() == "proposed"
    trial = Trial.objects.get(state=TrialState.PROPOSED)
    assert trial.reason.startswith("it waits to be started: ")
    assert why in trial.reason
    assert loop.tend("llama") == "not due", "it goes on waiting"
    trusted(pool)
    assert loop.tend("llama") == "canary"
    trial.refresh_from_db()
    pool.refresh_from_db()
    assert (trial.state, pool.policy) == (TrialState.CANARY, "unified")
    assert "waits" not in trial.reason


def test_what_waits_is_not_started_where_nobody_asked_for_it_or_when_its_study_is_old(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    now = timezone.now()
    traffic(500, now)
    winning(monkeypatch)
    tuned(pool)
    assert finished() == "proposed"
    trusted(pool, at=now + studies.STALE)
    tuned(pool, "advise")
    assert loop.tend("llama") == "not due"
    tuned(pool)
    assert loop.tend("llama", now=now + studies.STALE + timedelta(seconds=9)) != "canary"
    assert not Trial.objects.filter(state=TrialState.CANARY).exists()


def test_an_error_that_was_measured_long_ago_is_not_known(pool: Pool):
    now = timezone.now()
    trusted(pool, at=now - timedelta(minutes=59))
    assert replicas.doubt("llama", 0.25, now) == ""
    assert "more than an hour old" in replicas.doubt("llama", 0.25, now + timedelta(minutes=2))
    assert "4 % off" in replicas.doubt("llama", 0.01, now)


def test_a_trial_serves_its_whole_setting_and_what_it_replaced_comes_back(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    services.save(actor=ANN, instance=pool)
    pool.prefill_credit, pool.headroom_slots, pool.modifiers = 4096, 1, {"fair": {}}
    pool = services.save(actor=ANN, instance=pool)
    before = tuning.version_now(pool)
    assert before.room == {"prefill_credit": 4096, "headroom_slots": 1}
    traffic(500, timezone.now())
    winning(monkeypatch)
    tuned(pool, "advise")
    assert finished() == "proposed"
    trial = tuning.start_canary(actor=ANN, trial=Trial.objects.get(state=TrialState.PROPOSED), reason="ann agrees")
    pool.refresh_from_db()
    assert (pool.policy, pool.room, pool.modifiers) == (
        "unified", {"prefill_credit": None, "headroom_slots": None}, {},
    )  # fmt: skip
    tuning.close(actor=ANN, trial=trial, state=TrialState.ROLLED_BACK, reason="ann ended it")
    pool.refresh_from_db()
    assert (pool.policy, pool.room, pool.modifiers) == ("ewsjf", before.room, {"fair": {}})


def test_a_version_of_a_release_that_did_not_keep_the_room_leaves_it_as_it_is(pool: Pool):
    first = tuning.version_now(pool).number
    PolicyVersion.objects.filter(pool=pool).update(room=None)
    pool.prefill_credit = 512
    services.save(actor=ANN, instance=pool)
    tuning.rollback(actor=ANN, pool=pool, number=first)
    pool.refresh_from_db()
    assert pool.prefill_credit == 512


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


def test_old_queue_boundaries_are_computed_again_although_nothing_changed(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "continue_study", lambda *_: "not due")
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
    passed, reason, told = proposals.gate(Gate(found, serving, settings), serving, poison)
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
    passed, reason, _ = proposals.gate(Gate(found, serving, LoopSettings()), serving, {"urgency": -1.0})
    assert not passed
    assert "invalid policy" in reason


def test_the_first_queues_are_cut_from_the_long_run_and_new_ones_when_prompts_change(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop, "continue_study", lambda *_: "not due")
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


@pytest.mark.parametrize("policy", ["ewsjf", "unified"])
def test_however_long_every_s_is_there_is_one_study_in_it(pool: Pool, policy: str):
    """Advice on first queues was taken for a change of prompts, after which studies came again and again."""
    pool = tuned(services.set_policy(actor=ANN, pool=pool, policy=policy, params={}), "advise", every_s=100_000)
    now = timezone.now()
    traffic(400, now)
    if policy == "ewsjf":
        assert "the first queues" in loop.tend("llama", now=now)
    for number, minute in enumerate((2, 5, 10, 30, 120), 1):
        later = now + timedelta(minutes=minute)
        traffic(150, later, first=1000 * number)
        finished(now=later)
    assert Study.objects.count() == 1


def test_a_study_comes_before_its_time_where_prompts_are_others_than_those_of_the_last(pool: Pool):
    pool = tuned(services.set_policy(actor=ANN, pool=pool, policy="unified", params={}), "advise", every_s=100_000)
    now = timezone.now()
    traffic(400, now)
    finished(now=now)
    later = now + timedelta(minutes=10)
    traffic(150, later, first=1000, long_share=0.9)
    finished(now=later)
    finished(now=later + timedelta(seconds=10))
    first, second = Study.objects.order_by("at")
    assert second.window_from >= first.at, "what came before is not what comes now"
    assert second.requests == 150


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonsense": 1}, {"pairs": 2}, {"interval_s": 0}, {"drop": 0.9}, {"seed": 1.5}, {"window_s": 1e12},
        {"every_s": 1e308}, {"trials": 10**9},
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused(pool: Pool, wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        tuning.set_tuning(actor=ANN, pool=pool, mode="advise", settings=wrong)


@pytest.mark.parametrize("name", ["every_s", "window_s", "interval_s", "recut_s"])
def test_a_pool_with_the_longest_times_is_tended(pool: Pool, name: str):
    tuning.set_tuning(actor=ANN, pool=pool, mode="advise", settings={name: LONGEST_S, "least_requests": 1})
    traffic(3, timezone.now() - timedelta(seconds=5), met=1.0)
    loop.tend("llama")


def test_settings_that_an_earlier_release_has_taken_are_as_if_nothing_was_said(pool: Pool):
    row = tuning.set_tuning(actor=ANN, pool=pool, mode="advise")
    type(row).objects.filter(pk=row.pk).update(settings={"window_s": 1e12})
    traffic(3, timezone.now() - timedelta(seconds=5), met=1.0)
    loop.tend("llama")
    assert tuning.tuning_of(pool).loop == LoopSettings()
