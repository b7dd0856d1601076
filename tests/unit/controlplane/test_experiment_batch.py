"""The experiment of a large batch: what is counted, and what a run that goes on knows of the one before."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from controlplane.experiments.batch import (
    AFTER_KILL_S,
    SIDES,
    TURNS,
    RunState,
    Slice,
    figures,
    line,
    of_the_batch,
    reconciled,
)
from controlplane.experiments.clients import Sent
from controlplane.experiments.instance import ExperimentError
from controlplane.experiments.processors import between, burners, children


def _row(sent_s: float, ttft_s: float | None = 0.1, reason: str = "") -> Sent:
    return Sent("premium", sent_s, 200 if not reason else 503, reason, ttft_s, sent_s + 1.0)


def _slice(side: str, rows: list[Sent], kills: list[float] | None = None) -> Slice:
    one = Slice(side, 1.0)
    one.add(rows, kills or [])
    return one


def test_each_line_has_its_result_once_or_the_count_says_which_way_it_differs() -> None:
    whole = [f"item-{n}" for n in range(4)]
    assert reconciled(whole, [200] * 4, 4) == {
        "lines": 4, "results": 4, "missing": 0, "double": 0, "foreign": 0, "not_answered": 0,
    }  # fmt: skip
    broken = reconciled(["item-0", "item-0", "item-9"], [200, None, 400], 3)
    assert (broken["missing"], broken["double"], broken["foreign"], broken["not_answered"]) == (2, 1, 1, 2)


def test_custom_ids_of_lines_are_those_that_results_are_compared_with() -> None:
    assert reconciled([line(n, "m")["custom_id"] for n in range(20)], [200] * 20, 20)["missing"] == 0


def test_what_a_kill_touched_is_counted_apart() -> None:
    rows = [_row(1.0, 0.1), _row(10.0, 9.0), _row(11.0 + AFTER_KILL_S, 0.3), _row(11.0, None, "reset")]
    told = figures([_slice("paused", [_row(0.0, 0.2)]), _slice("beside", rows, kills=[10.5])])
    assert (told["beside"]["requests"], told["beside"]["ttft_p95_s"]) == (2, 0.3)
    assert (told["beside_kills"]["requests"], told["beside_kills"]["failed"]) == (2, 1)
    assert told["ratio"] == pytest.approx(1.5)


def test_without_the_batch_is_before_it_after_it_and_while_it_is_paused() -> None:
    told = figures([_slice(side, [_row(0.0)]) for side in SIDES])
    assert told["without"]["requests"] == 3


def test_the_batch_is_compared_with_the_half_minutes_in_between_and_the_machine_apart():
    told = figures(
        [_slice(side, [_row(0.0, ttft_s)]) for side, ttft_s in zip(SIDES, (0.1, 0.33, 0.3, 0.36, 0.1), strict=True)]
    )
    assert (told["ratio"], told["ratio_machine"]) == (pytest.approx(1.1), pytest.approx(1.2))
    assert told["ratio_all"] == pytest.approx(1.1)


def _used(side: str, lines: int, **seconds: float) -> Slice:
    return Slice(side, 1.0, [[0.1, "", False]], 10.0, lines, seconds)


def test_what_a_line_costs_is_what_processes_take_beside_it_and_not_without():
    slices = [_used("paused", 0, web=2.0, tasks=0.0), _used("beside", 100, web=3.0, tasks=5.0, redis=0.5)]
    assert of_the_batch(slices) == {"redis": 0.05, "tasks": 0.5, "web": pytest.approx(0.1)}
    assert figures(slices)["cpu_ms_per_line"] == {"redis": 5.0, "tasks": 50.0, "web": 10.0}
    assert of_the_batch(slices[1:]) == {}  # not known


def test_turns_have_the_batch_as_often_as_not():
    assert TURNS.count("beside") * 2 == len(TURNS)
    assert set(TURNS) < set(SIDES)


def test_a_process_that_began_in_between_counts_with_all_it_took():
    before = {("web", 1): 5.0, ("tasks", 2): 3.0}
    assert between(before, {("web", 1): 6.0, ("tasks", 3): 0.5}) == {"web": 1.0, "tasks": 0.5}


def test_burners_take_their_share_and_are_gone_afterwards():
    mine = os.getpid()
    known = set(children(mine))
    with burners({"web": 0.1, "tasks": 0.05, "redis": 0.0}):
        burning = set(children(mine)) - known
        assert len(burning) == 2
        deadline = time.monotonic() + 60
        while any(psutil.Process(pid).cpu_times().user < 0.1 for pid in burning):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert not set(children(mine)) - known


def test_a_ratio_without_one_of_its_sides_is_unknown() -> None:
    assert figures([_slice("before", [_row(0.0)])])["ratio"] is None
    assert figures([_slice("beside", [_row(0.0)])])["ratio"] is None


def test_a_run_goes_on_with_what_its_file_says_and_another_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    kept = RunState.read(path, 100, 3)
    kept.batch_id = "batch_1"
    kept.slices.append(_slice("beside", [_row(0.0)]))
    kept.write(path)
    again = RunState.read(path, 100, 3)
    assert (again.batch_id, again.count("beside"), again.slices) == ("batch_1", 1, kept.slices)
    with pytest.raises(ExperimentError, match="100 lines and seed 3"):
        RunState.read(path, 200, 3)
