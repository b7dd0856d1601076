"""The default against everything shipped: what is run, what is not run again, and what makes the bar fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab import bar
from scheduling.core.policies.registry import modifiers, orderings
from scheduling.simulator.compare import Case, CompareError, parse_policy

TIERS = ("premium", "standard", "batch")
SLO = {"unified": 90.0, "hybrid": 89.0, "edf": 60.0, "priority": 70.0, "fifo": 30.0}


def figures(case: Case, slo: float = 80.0, ttlt: float = 10.0) -> dict[str, float]:
    reached = SLO.get(case.policy, slo)
    found = {"ttlt.mean": ttlt, "tokens_per_s": 20_000.0}
    for name in ("", *(f".{tier}" for tier in TIERS)):
        found |= {f"kept{name}": reached, f"bound{name}": 95.0, f"of_bound{name}": 100 * reached / 95}
    return found


def recorded(seconds: Iterable[int]) -> str:
    """A trace as Azure publishes them, with a request at each of these seconds."""
    rows = (f"2023-11-16 18:{at // 60:02}:{at % 60:02}.0000000,{100 + at % 7},{10 + at % 5}" for at in seconds)
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""])


@pytest.fixture
def asked(tmp_path: Path) -> bar.BarPlan:
    trace = tmp_path / "code.csv"
    trace.write_text(recorded(range(0, 30 * 60, 5)))
    return bar.BarPlan((str(trace),), "", (1.0, 1.3), 4, 5, 101)


def everything(asked: bar.BarPlan) -> dict[Case, dict[str, float]]:
    found = {case: figures(case) for case in bar.first_cases(asked, bar.shipped())}
    found |= {case: figures(case) for case in bar.unpromised_cases(asked)}
    return found | {case: figures(case) for case in bar.further_cases(asked, bar.shipped(), found)}


def test_every_ordering_and_every_modifier_takes_part_and_the_default_is_first():
    names = bar.shipped()
    assert names[0] == "unified"
    assert set(orderings()) <= set(names)
    assert set(modifiers()) <= {part for name in names for part in name.split("+")[:-1]}
    for name in names:
        parse_policy(name)


def test_draws_have_seeds_and_parts_of_the_recording_of_their_own(asked: bar.BarPlan):
    draws = asked.draws(asked.traces[0], 1.0)
    assert [case.seed for case in draws] == [101, 102, 103, 104, 105]
    assert len({case.from_minute for case in draws}) == 5


def test_a_draw_in_whose_part_nothing_arrives_is_left_out_and_counted(asked: bar.BarPlan):
    trace = Path(asked.traces[0])
    assert bar.with_silent_draws(asked) == asked
    bar.prepare.cache_clear()
    second = range(5 * 60, 9 * 60)  # of the draws, four minutes each, three apart
    trace.write_text(recorded(at for at in range(0, 30 * 60, 5) if at not in second))
    heard = bar.with_silent_draws(asked)
    assert [case.seed for case in heard.draws(asked.traces[0], 1.3)] == [101, 103, 104, 105]
    text = bar.section(
        bar.result_of(heard, bar.shipped(), everything(heard)), heard, bar.shipped(), date(2026, 1, 1), "c"
    )
    assert "too little arrives in their part: 1 draws" in text
    assert "5 draws (seeds 101 to 105) of 240 s" in text
    bar.prepare.cache_clear()
    trace.write_text(recorded(range(0, 5 * 60, 5)))
    with pytest.raises(CompareError, match="nothing arrives"):
        bar.with_silent_draws(asked)


def test_limits_count_where_something_is_promised_and_have_a_section_of_their_own(asked: bar.BarPlan):
    limited = replace(asked, limits=True)
    assert all(case.limits for case in limited.draws(asked.traces[0], 1.0))
    assert not any(case.limits for case in limited.draws(asked.traces[0], 1.0, promises=False))
    found = everything(limited)
    text = bar.section(bar.result_of(limited, bar.shipped(), found), limited, bar.shipped(), date(2026, 1, 1), "c")
    assert text.startswith("## code at 1 and 1.3 of capacity, with limits\n")
    assert "a refused request counts as late" in text


def test_what_is_far_behind_after_the_first_draws_is_not_run_again_but_rivals_are(asked: bar.BarPlan):
    lines = {line.policy: line for line in bar.result_of(asked, bar.shipped(), everything(asked)).lines}
    assert lines["fifo"].draws == bar.FIRST
    assert {lines[name].draws for name in ("unified", "hybrid", "edf", "priority")} == {5}


def test_what_was_dropped_everywhere_is_one_sentence_and_where_it_was_run_on_its_draws_are_told(asked: bar.BarPlan):
    found = everything(asked)
    near = {case: figures(case) | {"kept": 88.0} for case in found if case.policy == "gittins" and case.load == 1.0}
    further = [case for case in bar.further_cases(asked, bar.shipped(), found | near) if case.policy == "gittins"]
    found = found | near | {case: figures(case) | {"kept": 88.0} for case in further}
    text = bar.section(bar.result_of(asked, bar.shipped(), found), asked, bar.shipped(), date(2026, 1, 1), "c")
    (row,) = [line for line in text.splitlines() if line.startswith("| `gittins`")]
    assert "-2.0 (-2.0 to -2.0) |" in row
    assert "-10.0 (-10.0 to -10.0), 3 draws |" in row
    assert "| `fifo`" not in text
    assert "not run further [points]: " in text
    assert "`fifo` -60.0, -60.0" in text


def test_a_bar_that_holds_says_nothing_and_each_of_three_ways_to_miss_it_is_told(asked: bar.BarPlan):
    found = everything(asked)
    held = bar.result_of(asked, bar.shipped(), found)
    assert held.failures() == []
    assert held.geometric()["unified"] == pytest.approx(90.0)

    better = found | {case: figures(case) | {"kept": 91.5} for case in found if case.policy == "bands+hybrid"}
    (told,) = bar.result_of(asked, bar.shipped(), better | at_load_1(found)).failures()
    assert told == "bands+hybrid is 1.5 points above the default on code at 1.3"

    slower = {
        case: figures(case, ttlt=11.0 + 0.01 * case.seed)
        for case in found
        if case.policy == "unified" and not case.promises and case.load == 1.0
    }
    (told,) = bar.result_of(asked, bar.shipped(), found | slower).failures()
    assert told.startswith("without SLOs unified takes 20.3 % longer")

    ahead = found | {case: figures(case) | {"kept": 90.5} for case in found if case.policy == "edf" and case.promises}
    (told,) = bar.result_of(asked, bar.shipped(), ahead).failures()
    assert told.startswith("edf is ahead of the default in the geometric mean")


def at_load_1(found: dict[Case, dict[str, float]]) -> dict[Case, dict[str, float]]:
    return {case: row for case, row in found.items() if case.load == 1.0}


def test_the_command_writes_its_section_keeps_the_others_and_goes_on_where_it_was(
    tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch, asked: bar.BarPlan
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    ran: list[Case] = []

    def run(case: Case) -> dict[str, float]:
        if len(ran) == 40:
            raise KeyboardInterrupt
        ran.append(case)
        return figures(case)

    monkeypatch.setattr("controlplane.lab.actions.bar.run_case", run)
    page = tmp_path / "compare.md"
    own = bar.heading(replace(asked, loads=(1.0, 1.3)))
    page.write_text(f"# Policies\n\n## {own}\n\nOUTDATED\n\n## Inside every engine\n\nkept\n")
    ask = ["lab", "--processes", "1", "bar", "--trace", asked.traces[0], "--seeds", "3", "--output", str(page)]
    with pytest.raises(CommandError, match="interrupted"):
        call_command(*ask, stdout=StringIO(), stderr=StringIO())
    assert "OUTDATED" in page.read_text()
    first = ran.copy()
    ran.clear()
    monkeypatch.setattr("controlplane.lab.actions.bar.run_case", lambda case: ran.append(case) or figures(case))
    call_command(*ask, stdout=StringIO(), stderr=StringIO())
    assert len(first) == 40
    assert not set(first) & set(ran)
    text = page.read_text()
    assert text.startswith(f"# Policies\n\n## {own}\n")
    assert "OUTDATED" not in text
    assert text.endswith("## Inside every engine\n\nkept\n")
    assert "| code at 1 | 90.0 | 90.0 to 90.0 | 95.0 | 94.7 | 90.0 (95.0) | 90.0 (95.0) | 90.0 (95.0) |" in text
    assert "| `hybrid` | -1.0 (-1.0 to -1.0) | 89.0 | 89.0 | -1.0" in text
    assert text.count("| `fifo` | -60.0") == 1
    with pytest.raises(CommandError, match="at least 3"):
        call_command(*ask[:-4], "--seeds", "2")


def test_the_default_is_not_compared_with_itself(asked: bar.BarPlan):
    with pytest.raises(CommandError, match="unified is what others are compared with"):
        call_command("lab", "bar", "--trace", asked.traces[0], "--policies", "unified", stdout=StringIO())


def test_a_policy_has_parameters_of_every_kind(asked: bar.BarPlan):
    case = bar.with_policy(asked.draws(asked.traces[0], 1.0)[0], "unified:alpha_ms=0.5,relegate=0")
    assert (case.policy, case.params) == ("unified", (("alpha_ms", 0.5), ("relegate", 0)))
