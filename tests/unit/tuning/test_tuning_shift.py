"""The strategic loop on a simulated pool whose prompts change, and how it is told when it is as good again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab import hindsight, shift
from scheduling.core.engine.step_time import load_preset
from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.replica import Replica
from scheduling.tuning.rehearsal import Loop, attainment
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Room, Serving, Traffic

SHIFT_S, END_S = 120.0, 300.0
QUICK = LoopSettings(every_s=1e6, trials=2, pairs=3, least_requests=100, most_requests=300, window_s=600, interval_s=30)
JOB = shift.Job("same", "ewsjf", "off", 1, 900.0)


def loop(mode: str, shift_s: float = SHIFT_S) -> Loop:
    """Of a pool that cuts queues."""
    preset = load_preset("llama-3-8b-a100")
    replicas = (Replica(preset.step_time, 16, preset.kv_tokens, preset.token_budget),)
    pool = Traffic(shift.rows_of("same", 1, END_S, shift_s), SHIPPED, replicas)
    seen = [row.input_tokens for row in shift.rows_of("same", 2, SHIFT_S, math.inf)]
    return Loop(pool, shift.starting("ewsjf", seen), seen, QUICK, mode)


def test_a_loop_that_is_off_changes_nothing():
    off = loop("off")
    before = off.serving
    outcomes = off.run()
    assert off.done == []
    assert outcomes == loop("off").run_with_change(END_S + 60, before)
    assert len(outcomes) == len(off.pool.rows)


def test_queues_are_cut_anew_soon_after_prompts_changed_and_not_before():
    changed, same = loop("automatic"), loop("automatic", shift_s=math.inf)
    for one in (changed, same):
        assert len(one.run()) == len(one.pool.rows), "nobody was lost in a swap"
    cuts = [step.at_s for step in changed.done if step.what == "repartition"]
    assert cuts
    assert SHIFT_S < cuts[0] < SHIFT_S + 60
    assert not [step for step in same.done if step.what == "repartition"]


def test_advice_serves_only_once_somebody_follows_it():
    alone, followed = loop("advise"), replace(loop("advise"), follows_s=20.0)
    before = alone.serving
    alone.run()
    followed.run()
    assert alone.serving == before
    assert "proposed" in [step.what for step in alone.done]
    told = [step for step in followed.done if step.what in ("proposed", "canary")][:2]
    assert [step.what for step in told] == ["proposed", "canary"]
    assert told[1].at_s - told[0].at_s == pytest.approx(20.0)


def test_attainment_is_of_those_that_arrived_in_a_stretch():
    outcomes = loop("off").run()
    half = [o for o in outcomes if 50 <= o.arrival_s < 150]
    assert attainment(outcomes, 50, 150) == 100.0 * sum(not o.late for o in half) / len(half)
    assert attainment(outcomes, 5000, 6000) == 100.0


@pytest.mark.parametrize(
    ("gaps", "back"),
    [
        ({}, 0.0),
        ({0: 5.0, 30: 5.0}, 60.0),
        ({0: 5.0, 300: 2.1}, 330.0),
        ({0: 1.9, 300: 1.9}, 0.0),
        ({"last": 3.0}, math.nan),
        ({-60: 9.0}, 0.0),
    ],
)
def test_a_pool_is_back_from_the_moment_on_that_no_window_is_more_than_two_points_below(
    gaps: dict[float | str, float], back: float
):
    places = shift.places()
    oracle = {f"slo.{n}": 80.0 for n in range(len(places))}
    mine = {f"slo.{n}": 80.0 - gaps.get(at, 0.0) for n, at in enumerate(places)}
    mine[f"slo.{len(places) - 1}"] -= gaps.get("last", 0.0)
    assert shift.back_s(mine, oracle) == pytest.approx(back, nan_ok=True)


def test_the_command_tells_the_modes_that_were_asked_for_and_draws_them(
    tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    for name, value in (("BEFORE_S", 20.0), ("AFTER_S", 30.0), ("WINDOW_S", 20.0), ("SETTINGS", QUICK)):
        monkeypatch.setattr(shift, name, value)
    out = StringIO()
    plot = tmp_path / "shift.svg"
    modes = ("automatic", "off")
    call_command(
        "lab", "--processes", "1", "shift", "--seeds", "1", "--kind", "documents", "--json", "--plot", str(plot),
        *(part for mode in modes for part in ("--mode", mode)), stdout=out,
    )  # fmt: skip
    rows = json.loads(out.getvalue())
    assert [(row["workload"], row["mode"]) for row in rows] == [("documents", mode) for mode in modes]
    assert all(0 <= row["after"][0] <= 100 for row in rows)
    assert all(row["refused"] == [0.0] for row in rows), "without limits everybody is let in"
    assert "loop automatic" in plot.read_text(encoding="utf-8")
    with pytest.raises(CommandError, match="--seeds"):
        call_command("lab", "shift", "--seeds", "0")
    with pytest.raises(CommandError, match="unknown"):
        call_command("lab", "shift", "--policy", "fofi")


def test_a_settled_comparison_measures_on_what_comes_after_the_study(
    tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    quick = replace(QUICK, window_s=60.0)
    for name, value in (("BEFORE_S", 10.0), ("AFTER_S", 80.0), ("SETTINGS", quick)):
        monkeypatch.setattr(shift, name, value)
    seen: list[Traffic] = []
    monkeypatch.setattr(shift, "study", lambda traffic, *_: (seen.append(traffic), (None, "nothing better"))[1])
    out = StringIO()
    ask = ("lab", "--processes", "1", "shift", "--seeds", "1", "--settled", "--kind", "documents", "--json")
    call_command(*ask, "--mode", "automatic", "--mode", "off", stdout=out)
    automatic, off = json.loads(out.getvalue())
    assert (automatic["mode"], off["mode"]) == ("automatic", "off")
    assert automatic["after"] == off["after"], "nothing was proposed"
    assert automatic["proposed"] == 0
    (window,) = seen
    assert window.rows[0].arrival_s >= 10.0
    assert window.rows[-1].arrival_s < 70.0


def test_hindsight_is_the_best_setting_on_what_is_measured_under_which_nobody_pays(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("BEFORE_S", 10.0), ("AFTER_S", 80.0), ("SETTINGS", replace(QUICK, window_s=50.0))):
        monkeypatch.setattr(shift, name, value)
    chosen = {"priority": Serving("priority"), "edf": Serving("edf"), "fifo": Serving("fifo")}
    monkeypatch.setattr(hindsight, "tried", lambda *_: iter(chosen.values()))
    job = replace(JOB, kind="documents", policy="unified", settled=True)
    off, best = (shift.run_job(replace(job, mode=mode)) for mode in ("off", "hindsight"))
    assert off["after"] <= best["after"] <= best["bound"]
    assert "bound" not in off
    pool = loop("off").pool
    served = {name: pool.serve(serving) for name, serving in chosen.items()}
    kept = {name: sum(not outcome.late for outcome in outcomes) for name, outcomes in served.items()}
    worst, *_, strongest = sorted(kept, key=lambda name: kept[name])
    assert kept[worst] < kept[strongest]
    assert hindsight.best_of(pool, chosen[worst], drop=1.0, seed=1) == chosen[strongest]
    premium = {name: sum(not o.late for o in rows if o.tier == "premium") for name, rows in served.items()}
    monkeypatch.setattr(hindsight, "tried", lambda *_: iter([chosen[min(premium, key=lambda name: premium[name])]]))
    most = chosen[max(premium, key=lambda name: premium[name])]
    assert hindsight.best_of(pool, most, drop=0.01, seed=1) == most, "premium would pay"


def test_hindsight_needs_what_was_measured():
    with pytest.raises(CommandError, match="only with --settled"):
        call_command("lab", "shift", "--mode", "hindsight")


def test_a_setting_that_serves_from_a_moment_on_brings_its_room_with_it():
    one = loop("off")
    chosen = replace(one.serving, policy="fifo", params={}, room=Room(4096, 3))
    one.run_with_change(50.0, chosen)
    assert one.pool.room_of(chosen) == (3, 0, (4096,))
    replay = one.pool.replay(one.serving)
    replay.give_room(*one.pool.room_of(chosen))
    assert replay.headroom == 3
    assert [backend.prefill_credit for backend in replay.view.backends.values()] == [4096]
    replay.give_room(*one.pool.room_of(replace(chosen, room=Room())))
    begins = [replica.token_budget // 2 for replica in one.pool.replicas]
    assert [backend.prefill_credit for backend in replay.view.backends.values()] == begins, "half a step"


def test_with_limits_a_mode_is_judged_by_what_was_refused_as_well(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("BEFORE_S", 60.0), ("AFTER_S", 120.0), ("WINDOW_S", 60.0), ("SETTINGS", QUICK)):
        monkeypatch.setattr(shift, name, value)
    free, limited = (shift.run_job(job) for job in (JOB, replace(JOB, limits=True)))
    assert free["refused"] == 0.0
    assert limited["refused"] > 1.0
    assert limited["after"] <= 100.0 - limited["refused"], "what was refused was not in time"
    assert shift.kept_name(JOB) != shift.kept_name(replace(JOB, limits=True))
