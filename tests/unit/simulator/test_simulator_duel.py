"""The default policy against the papers' best, and what is known of the limit."""

from __future__ import annotations

import json
import math
from datetime import date
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab import unified
from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.registry import make_ordering, orderings
from scheduling.core.types import Slo
from scheduling.simulator import duel
from scheduling.simulator.batches import make_engine
from scheduling.simulator.duel import Bout, fight, load_match, match_names, paired, parse_match, verdicts_of
from scheduling.simulator.lab import ScenarioError
from scheduling.simulator.oracle import Truth
from scheduling.simulator.result import mean, outcomes_of
from scheduling.simulator.setups import engine_config, requests_of
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

SMALL = {
    "id": "U-0",
    "title": "small",
    "paper": "none",
    "seeds": [1],
    "engine": {"preset": "llama-3-8b-a100"},
    "workload": {"kind": "poisson", "lengths": "azure-code", "rate": 2.0, "count": 40},
    "tier": [{"name": "Q1", "ttft_s": 6.0, "tbt_s": 0.05}],
    "told_truth": ["limit"],
    "run": [{"name": n, "policy": "fifo"} for n in ("ours", "a", "b", "limit")],
    "duel": [{"name": "d", "metric": "x", "unit": "s", "ours": "ours", "rivals": ["a", "b"], "limits": ["limit"]}],
}
MODEL = StepTime(t0=0.01, a=1e-4, b=1e-4, c=1e-7, e=0.0, knee=500.0, a2=1e-5)


def judged(ours: list[float], a: list[float], b: list[float], **changes: object) -> duel.MatchResult:
    match = parse_match("small", {**SMALL, "duel": [{**SMALL["duel"][0], **changes}]})  # type: ignore[index]
    columns = {"ours": ours, "a": a, "b": b, "limit": [1.0] * len(ours)}
    figures = {Bout("small", run, seed + 1): {"x": v} for run, row in columns.items() for seed, v in enumerate(row)}
    return verdicts_of(match, figures, len(ours))[0]


def request(index: int, arrival_s: float, tokens: int, ttlt_s: float | None = None, out: int = 1) -> SimRequest:
    return make_request(index, arrival_s, tokens, out, Tier("t", Slo(ttlt_s=ttlt_s)), Belief(50.0, 512))


def test_the_rival_is_the_one_with_the_best_mean():
    assert judged([5.0, 6.0, 7.0], [9.0, 9.1, 9.2], [8.0, 8.1, 8.2]).best == "b"
    assert judged([5.0, 6.0, 7.0], [9.0, 9.1, 9.2], [8.0, 8.1, 8.2], higher=True).best == "a"


@pytest.mark.parametrize(
    ("ours", "higher", "word"),
    [
        ([8.0, 8.1, 8.2], False, "as good"),
        ([7.0, 9.0, 8.5], False, "as good"),
        ([7.0, 7.1, 7.3], False, "better"),
        ([9.0, 9.1, 9.3], False, "worse"),
        ([9.6, 9.8, 9.9], True, "better"),
        ([7.0, 7.1, 7.3], True, "worse"),
    ],
)
def test_a_verdict_needs_a_difference_beyond_the_noise(ours: list[float], higher: bool, word: str):
    row = judged(ours, [9.0, 9.1, 9.2], [8.0, 8.1, 8.2], higher=higher, note="why")
    assert row.verdict == word
    assert row.note == ("why" if word == "worse" else "")


def test_seeds_are_compared_one_by_one():
    spread = [1.0, 10.0, 100.0, 1000.0]
    middle, low, high = paired([v + 1.0 for v in spread], spread)
    assert middle == pytest.approx(1.0) == pytest.approx(low) == pytest.approx(high)
    _, low, high = paired([0.0, 2.0], [0.0, 0.0])
    assert (high - low) / 2 == pytest.approx(12.706)  # one degree of freedom, standard error 1
    with pytest.raises(ValueError, match="two seeds"):
        paired([1.0], [1.0])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"duel": [{**SMALL["duel"][0], "rivals": ["nobody"]}]}, "nobody"),  # type: ignore[index]
        ({"duel": [{**SMALL["duel"][0], "limits": ["a"]}]}, "know the truth"),  # type: ignore[index]
        ({"duel": [{**SMALL["duel"][0], "rivals": ["limit"]}]}, "know the truth"),  # type: ignore[index]
        ({"duel": [{**SMALL["duel"][0], "colour": "red"}]}, "colour"),  # type: ignore[index]
    ],
)
def test_a_match_that_cannot_be_judged_is_refused(changes: dict[str, object], problem: str):
    with pytest.raises(ScenarioError, match=problem):
        parse_match("small", {**SMALL, **changes})


@pytest.mark.parametrize("name", match_names())
def test_every_match_shipped_can_be_read_and_uses_all_its_runs(name: str):
    match = load_match(name)
    used = {run for entry in match.duels for run in (entry.ours, *entry.rivals, *entry.limits)}
    assert used == set(match.runs)
    assert {*match.told_truth, *match.counted} <= used
    for entry in match.duels:
        assert match.runs[entry.ours].policy == "unified"
        settings = {json.dumps([match.runs[r].workload, match.runs[r].engine]) for r in (entry.ours, *entry.rivals)}
        assert len(settings) == 1, f"{entry.name}: different conditions"
    for run in match.runs.values():
        engine_config(run.engine)


def test_a_bout_is_repeatable_and_a_limit_is_told_the_truth():
    plain, told = Bout("sagesched", "SageSched at 4/s", 1), Bout("sagesched", "shortest true cost at 4/s", 1)
    assert duel.bout_name(plain) != duel.bout_name(told)
    small = {**load_match("sagesched").runs["shortest true cost at 4/s"].workload, "count": 60, "rate": 40.0}
    requests = requests_of(small, 1)
    config = engine_config(load_match("sagesched").runs["shortest true cost at 4/s"].engine)

    def mean_s(estimator: Truth | None) -> float:
        engine = make_engine(config, make_ordering("mean_cost", {"remaining": 1}), estimator=estimator)
        return mean([o.ttlt_s for o in outcomes_of(engine.run(requests))])

    assert mean_s(Truth()) < mean_s(None)


def test_counted_limits_and_runs_come_from_one_workload():
    figures = fight(Bout("qoserve", "limit at 6/s", 1))
    assert set(figures) == {"late"}
    assert 0 < figures["late"] < 15


def test_no_registered_policy_is_told_the_truth():
    assert not {name for name, cls in orderings().items() if cls.__module__.startswith("scheduling.simulator")}


def test_the_page_says_what_is_worse_and_why():
    match = parse_match("small", SMALL)
    worse = judged([9.0, 9.1, 9.3], [9.0, 9.1, 9.2], [8.0, 8.1, 8.2], note="it would take foresight")
    text = unified.section(
        [(match, [worse, judged([8.0, 8.1, 8.2], [8.0, 8.1, 8.2], [9.0, 9.1, 9.2])])], 3, date(2026, 11, 20)
    )
    assert "1 of 2 figures are as good or better" in text
    assert "**worse by 12.8 %**" in text
    assert "d: it would take foresight." in text
    assert text.count("| as good |") == 1


def test_the_command_prints_rows_and_refuses_one_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: object
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    monkeypatch.setattr("controlplane.lab.actions.papers.match_names", lambda: ["small"])
    small = parse_match("small", SMALL)
    monkeypatch.setattr("controlplane.lab.actions.papers.load_match", lambda name: small)
    monkeypatch.setattr(duel, "load_match", lambda name: small)
    monkeypatch.setattr("controlplane.lab.actions.papers.fight", lambda bout: {"x": 1.0 + bout.seed})
    out = StringIO()
    call_command("lab", "--processes", "1", "unified", "--seeds", "2", "--json", stdout=out)
    (row,) = json.loads(out.getvalue())
    assert (row["verdict"], row["ours"], row["paper"]) == ("as good", 2.5, "a: 2.5")
    assert math.isclose(row["difference"], 0.0)
    call_command("lab", "--processes", "1", "unified", "--seeds", "2", stdout=out)
    assert "as good" in out.getvalue()
    with pytest.raises(CommandError, match="at least 2"):
        call_command("lab", "unified", "--seeds", "1")
