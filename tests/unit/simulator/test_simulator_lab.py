"""The lab: scenarios as files, figures from runs, verdicts, and what is kept between runs."""

from __future__ import annotations

import json
import re
from datetime import date
from io import StringIO
from math import isfinite, nan
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab import tables
from scheduling.simulator import lab
from scheduling.simulator.lab import ScenarioError, Task, lines_of, load_scenario, parse_scenario, scenario_names
from scheduling.simulator.setups import SetupError, engine_config, requests_of

SMALL = {
    "id": "T-1",
    "title": "small",
    "paper": "none",
    "engine": {"preset": "llama-3-8b-a100"},
    "workload": {"kind": "poisson", "lengths": "azure-code", "rate": 2.0, "count": 60},
    "tier": [{"name": "Q1", "ttft_s": 6.0, "tbt_s": 0.05}, {"name": "Q2", "ttlt_s": 600.0}],
    "run": [{"name": "one", "policy": "fifo"}, {"name": "two", "policy": "edf", "seeds": [1, 2]}],
    "row": [{"name": "late", "run": "one", "metric": "late", "unit": "%", "paper": "0", "low": 0, "high": 5}],
}


def small(**changes: object) -> lab.Scenario:
    return parse_scenario("small", {**SMALL, **changes})


def row(**changes: object) -> dict[str, object]:
    return {"name": "r", "metric": "x", "unit": "s", "paper": "1", **changes}


def judged(entry: dict[str, object], **figures: float) -> lab.Line:
    scenario = small(row=[entry])
    known = {Task("small", "one", 1): {"x": figures["one"]}}
    known[Task("small", "two", 1)] = known[Task("small", "two", 2)] = {"x": figures.get("two", 0.0)}
    return lines_of(scenario, known)[0]


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_shipped_can_be_read_and_its_first_requests_be_made(name: str):
    scenario = load_scenario(name)
    assert scenario.rows
    assert load_scenario(scenario.id) is scenario
    used = {r for entry in scenario.rows for r in (entry.run, entry.versus, *entry.runs)} - {""}
    used |= {run for drawing in scenario.drawings for run in drawing.runs}
    assert used == set(scenario.runs), "a run that no row and no drawing is about"
    for run in scenario.runs.values():
        engine_config(run.engine)
        if run.workload["kind"] not in ("driftsched", "pool", "weights"):
            rate = {"rate": 1.0} if run.goodput else {}
            assert len(requests_of({**run.workload, **rate, "count": 3}, 1)) == 3


def test_ids_are_unique():
    ids = [load_scenario(name).id for name in scenario_names()]
    assert len(set(ids)) == len(ids)


def test_an_unknown_scenario_is_named_with_those_that_exist():
    with pytest.raises(ScenarioError, match="qoserve-table5"):
        load_scenario("qoserve-table-5")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"colour": "red"}, "colour"),
        ({"run": [{"name": "one", "policy": "fifo", "seed": 1}]}, "seed"),
        ({"run": [{"name": "one", "policy": "fifo"}, {"name": "one", "policy": "edf"}]}, "two runs"),
        ({"row": [row(run="three")]}, "three"),
        ({"row": [row(runs=["one", "two"], order="up")]}, "rising"),
    ],
)
def test_a_scenario_with_a_fault_says_where_it_is(changes: dict[str, object], told: str):
    with pytest.raises(ScenarioError, match=told):
        small(**changes)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kind": "waves", "rate": 1.0, "count": 3}, "waves"),
        ({"kind": "poisson", "rate": 1.0, "count": 3}, "lengths"),
        ({"kind": "poisson", "lengths": "azure-code", "rate": 1.0, "count": 3, "speed": 2}, "speed"),
    ],
)
def test_a_workload_with_a_fault_says_what_it_is(settings: dict[str, object], told: str):
    with pytest.raises(SetupError, match=told):
        requests_of(settings, 1)


def test_an_engine_without_a_preset_or_with_an_unknown_setting_is_refused():
    with pytest.raises(SetupError, match="preset"):
        engine_config({})
    with pytest.raises(SetupError, match="wheels"):
        engine_config({"preset": "llama-3-8b-a100", "wheels": 4})


def test_a_slower_truth_leaves_the_planner_with_what_it_believed():
    config = engine_config({"preset": "llama-3-8b-a100", "slow": 1.5})
    assert config.planner is not None
    assert config.truth.t0 == pytest.approx(1.5 * config.planner.t0)


def test_a_figure_holds_inside_its_interval_and_differs_outside():
    assert judged(row(run="one", low=1, high=2), one=1.5).verdict == "holds"
    against = row(run="one", low=1, high=2, paper="30", contradicts=True)
    assert judged(against, one=1.5).verdict == "contradicts the paper, as expected"
    assert judged(against, one=2.5).verdict == "differs"
    assert judged(row(run="one", low=1, high=2), one=nan).verdict == "differs", "what is not known does not hold"
    assert judged(row(run="one", low=1, high=2), one=2.5).verdict == "differs"
    assert judged(row(run="one"), one=2.5).verdict == "shown"


def _number(paper: str) -> float | None:
    """The one figure that a paper prints, if it is one: not an order, an interval or a word."""
    found = re.fullmatch(r"([<~+-]?) ?([0-9.]+)[+]?", paper)
    return None if found is None else float(found[2]) * (-1.0 if found[1] == "-" else 1.0)


def _rows_with_a_printed_figure() -> list[tuple[str, lab.Row, float]]:
    rows = [(name, row) for name in scenario_names() for row in load_scenario(name).rows if not row.runs]
    return [(name, row, value) for name, row in rows if (value := _number(row.paper)) is not None]


def test_a_figure_that_a_paper_prints_is_judged():
    rows = _rows_with_a_printed_figure()
    assert len(rows) > 50
    assert not [(name, row.name) for name, row, _ in rows if not (isfinite(row.low) or isfinite(row.high))]


def test_a_papers_figure_lies_in_the_interval_unless_we_say_that_it_cannot_be():
    odd = [(n, r.name) for n, r, value in _rows_with_a_printed_figure() if (r.low <= value <= r.high) == r.contradicts]
    assert not odd


def test_a_change_is_in_percent_of_the_other_run():
    assert judged(row(run="one", versus="two", low=40, high=60), one=3.0, two=2.0).ours == pytest.approx(50.0)


def test_an_order_holds_only_if_every_step_goes_its_way():
    rising = row(runs=["one", "two"], order="rising")
    assert judged(rising, one=1.0, two=2.0).verdict == "holds"
    assert judged(rising, one=2.0, two=2.0).verdict == "differs"
    least = row(runs=["one", "two"], order="least", values=[8.0, 16.0], low=4, high=10)
    assert judged(least, one=1.0, two=2.0).ours == 8.0
    assert judged(least, one=3.0, two=2.0).verdict == "differs"


def test_an_order_as_json_can_be_judged_again_by_its_own_numbers():
    rising = row(runs=["one", "two"], order="rising")
    right, wrong = judged(rising, one=1.0, two=2.0).as_json(), judged(rising, one=2.0, two=1.0).as_json()
    assert (right["low"], right["ours"], right["high"], right["verdict"]) == (1, 1, 1, "holds")
    assert (wrong["low"], wrong["ours"], wrong["high"], wrong["verdict"]) == (1, 0, 1, "differs")


@pytest.mark.parametrize(
    ("printed", "paper"), [("60.4", 60.4), ("-28.7", -28.7), ("0", 0.0), ("-", None), ("~95", "~95"), ("2-3", "2-3")]
)
def test_a_number_of_a_paper_is_a_number_in_json(printed: str, paper: float | str | None):
    told = judged(row(run="one", paper=printed), one=float("nan")).as_json()
    assert told["paper"] == paper
    assert type(told["paper"]) is type(paper)
    assert told["ours"] is None  # NaN is no JSON


def test_a_figure_that_no_run_has_is_named():
    with pytest.raises(ScenarioError, match="'y'"):
        judged(row(run="one", metric="y"), one=1.0)


def test_the_same_task_gives_the_same_figures_and_another_seed_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lab, "load_scenario", lambda name: small())
    first, again, other = (lab.perform(Task("small", "two", seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {"late", "late.Q1", "p99.Q2", "ttft.p50", "makespan"} <= set(first)


def test_figures_are_kept_and_a_damaged_file_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lab, "load_scenario", lambda name: small())
    performed: list[Task] = []

    def perform(task: Task) -> dict[str, float]:
        performed.append(task)
        return lab.perform(task)

    monkeypatch.setattr(tables, "perform", perform)
    bench = tables.Lab(tmp_path, processes=1)
    seen: list[Task] = []
    first = bench.tables([small()], seen.append)
    assert len(performed) == len(seen) == 3
    assert bench.tables([small()])[0][1] == first[0][1]
    assert len(performed) == 3
    next(tmp_path.glob("*.json")).write_text('{"late": 1')
    assert bench.tables([small()])[0][1] == first[0][1]
    assert len(performed) == 4


def test_a_page_shows_what_differs(tmp_path: Path):
    scenario = small(row=[row(run="one", low=1, high=2, note="a reason")])
    figures = {Task("small", "one", 1): {"x": 3.0}}
    page = tables.report([(scenario, lines_of(scenario, figures))], date(2026, 11, 20))
    assert "0 of 1 figures hold, 0 contradict the paper as expected, 1 differ." in page
    assert f"| [{scenario.id}: {scenario.title}](#{tables._anchor(f'{scenario.id}: {scenario.title}')}) | " in page
    assert " |  |  | 1 |" in page
    assert "| r | s | 1 | 3 | 1 to 2 | **differs**: a reason |" in page


def test_a_table_that_is_computed_again_leaves_the_other_sections_and_says_when():
    def made(name: str, ours: float, day: date, before: str = "") -> str:
        scenario = parse_scenario("small", {**SMALL, "id": name, "row": [row(run="one", low=1, high=2)]})
        figures = {Task("small", "one", 1): {"x": ours}}
        return tables.report([(scenario, lines_of(scenario, figures))], day, before)

    one = made("B-2", 3.0, date(2026, 11, 20))
    both = made("A-1", 1.5, date(2026, 11, 21), one) + "\n## The default policy\n\nAs it was.\n"
    again = made("B-2", 1.2, date(2026, 11, 22), both)
    assert "0 of 1 figures hold" in one
    assert "1 of 2 figures hold" in both
    assert "2 of 2 figures hold" in again
    assert again.index("## A-1") < again.index("## B-2") < again.index("As it was.")
    assert [day for day in ("2026-11-20", "2026-11-21", "2026-11-22") if day in again] == ["2026-11-21", "2026-11-22"]


def test_the_page_that_is_shipped_is_what_its_tables_say():
    text = (Path(__file__).parents[3] / "docs" / "results" / "papers.md").read_text()
    parts = tables.sections(text)
    assert text == tables.page(parts)
    assert {load_scenario(name).id for name in scenario_names()} < set(parts)


def test_the_command_prints_rows_as_json(settings: object, tmp_path: Path):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    out = StringIO()
    call_command("lab", "--processes", "1", "run", "DS-3", "--json", stdout=out)
    rows = json.loads(out.getvalue())
    assert {"scenario", "row", "metric", "unit", "paper", "ours", "low", "high", "verdict"} <= set(rows[0])
    assert {entry["verdict"] for entry in rows} == {"holds"}


def test_the_command_lists_what_there_is_and_refuses_what_there_is_not(tmp_path: Path):
    out = StringIO()
    call_command("lab", "list", stdout=out)
    assert all(load_scenario(name).id in out.getvalue() for name in scenario_names())
    with pytest.raises(CommandError, match="unknown scenario"):
        call_command("lab", "run", "nothing")
    with pytest.raises(CommandError, match="no folder"):
        call_command("lab", "report", "--output", str(tmp_path / "absent" / "papers.md"))
