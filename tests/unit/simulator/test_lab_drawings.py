"""Drawings of a scenario: runs by the clock, figures in the order of the axis, and what a wrong entry says."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from controlplane.lab import tables
from scheduling.simulator import lab
from scheduling.simulator.drawings import Curve, parse_drawing
from scheduling.simulator.lab import ScenarioError, load_scenario, parse_scenario, scenario_names
from scheduling.simulator.result import Outcome
from scheduling.simulator.timeline import WINDOWS, timeline
from tests.unit.simulator.test_simulator_lab import SMALL

FIGURE = {
    "file": "small-1",
    "title": "small",
    "panel": [
        {
            "title": "late",
            "y_label": "%",
            "xs": ["one", "two"],
            "metrics": "late",
            "series": [{"name": "fifo", "runs": ["one", "two"]}, {"name": "change", "runs": "two", "versus": "one"}],
        },
        {
            "title": "depth",
            "y_label": "waiting",
            "over_time": True,
            "series": [{"name": "Q1", "runs": "one", "metrics": "depth.Q1.*"}],
        },
    ],
}


def outcome(arrival: float, wait: float, whole: float, *, important: bool = True) -> Outcome:
    return Outcome(0, "t", "", important, False, 10, 2, arrival, wait, wait + 0.5, whole, False)


def test_depth_counts_who_waits_in_the_middle_of_each_window():
    figures = timeline([outcome(0, 0.0, WINDOWS), outcome(1.0, 2.0, 4.0), outcome(2.2, 0.1, 4.0)])
    assert figures["window"] == pytest.approx(1.0)
    assert [figures[f"depth.t.{k}"] for k in range(4)] == [0, 1, 1, 0]
    assert sum(figures[f"depth.t.{k}"] for k in range(WINDOWS)) == 2


def test_first_tokens_are_those_of_important_requests_that_arrive_in_the_window():
    rows = [outcome(0, 0.0, WINDOWS), outcome(5.2, 1.5, 4.0), outcome(5.4, 30.0, 31.0, important=False)]
    figures = timeline(rows)
    assert figures["first.t.5"] == pytest.approx(2.0)
    assert figures["first.t.0"] == pytest.approx(0.5)
    assert figures["first.t.6"] != figures["first.t.6"]


def test_a_curve_looks_up_each_place_and_the_change_against_another_run():
    known = {("a", "x"): 2.0, ("b", "x"): 3.0, ("a", "w.1"): 7.0, ("a", "w.0"): 6.0}
    look = lambda run, metric: known[run, metric]  # noqa: E731
    assert Curve("c", ("a", "b"), ("x",)).values(2, look) == (2.0, 3.0)
    assert Curve("c", ("b",), ("x",), ("a",)).values(1, look) == (pytest.approx(50.0),)
    assert Curve("c", ("a",), ("w.*",)).values(2, look) == (6.0, 7.0)


def test_time_is_in_minutes_at_the_middle_of_each_window():
    assert Curve("c", ("a",), ("w.*",)).minutes(lambda run, metric: 120.0)[:2] == (1.0, 3.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"panel": []}, "needs panels"),
        ({"panel": [{"title": "t", "y_label": "y", "xs": [1.0], "series": []}]}, "needs series"),
        ({"panel": [{**FIGURE["panel"][0], "xs": ["one", "two", "three"]}]}, "2 names for 3 places"),  # type: ignore[dict-item,index]
        ({"panel": [{**FIGURE["panel"][0], "colour": "red"}]}, "colour"),  # type: ignore[dict-item,index]
        ({"panel": [{**FIGURE["panel"][1], "series": [{"name": "n", "runs": "six", "metrics": "x"}]}]}, "six"),  # type: ignore[dict-item,index]
    ],
)
def test_a_figure_with_a_fault_says_which_and_where(change: dict[str, object], told: str):
    with pytest.raises(ScenarioError, match=told) as caught:
        parse_scenario("small", {**SMALL, "figure": [{**FIGURE, **change}]})
    assert "small-1" in str(caught.value)


def test_drawings_come_from_figures_that_are_kept_and_stand_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scenario = parse_scenario("small", {**SMALL, "figure": [FIGURE]})
    monkeypatch.setattr(lab, "load_scenario", lambda name: scenario)
    bench = tables.Lab(tmp_path, processes=1)
    made = bench.tables([scenario])
    monkeypatch.setattr(tables, "perform", lambda task: pytest.fail("it was kept"))
    images = bench.images([scenario])
    ElementTree.fromstring(images["small-1"])
    assert images == bench.images([scenario])
    assert "![small](images/papers/small-1.svg)" in tables.report(made, date(2026, 11, 20))


def test_every_drawing_shipped_has_a_file_of_its_own():
    drawings = [drawing for name in scenario_names() for drawing in load_scenario(name).drawings]
    assert len({drawing.file for drawing in drawings}) == len(drawings) >= 11
    assert parse_drawing(FIGURE).runs == {"one", "two"}
