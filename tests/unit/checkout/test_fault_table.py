"""The table of faults: what it reads of runs, and what it leaves of a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.table import BEGIN, END, HEAD, ROWS, figures, merged, of_run

ROOT = Path(__file__).resolve().parents[3]

REPORT = """<testsuites><testsuite>
<testcase name="test_one"><properties><property name="figure" value="3 of 300 failed"/></properties></testcase>
<testcase name="test_two"><properties><property name="other" value="x"/></properties><failure>no</failure></testcase>
<testcase name="test_three"><skipped/></testcase>
</testsuite></testsuites>"""

RUN = """
     at  fault         target             for  served again after
   5.0s  kill          engine-1          0.0s  0.2 s
  12.1s  stop          worker            3.5s  1.4 s
  18.0s  stop          redis             8.0s  -

seed 7: 702 requests, 3 faults, history in /tmp/x.jsonl
"""


def page(*lines: str) -> str:
    return "\n".join(["before", BEGIN, "", *lines, "", END, "after"])


def row(key: str, now: str) -> dict[str, str]:
    return dict.fromkeys(HEAD, "-") | {"row": key, "now": now}


def test_every_row_is_there_once_and_has_tests_or_a_seed() -> None:
    assert len({each.key for each in ROWS}) == len(ROWS)
    assert all(bool(each.tests) != bool(each.seed) for each in ROWS)


@pytest.mark.timeout(700)
def test_pytest_finds_every_test_of_the_table() -> None:
    named = [test for each in ROWS for test in each.tests]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *named]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_report_gives_its_figures_and_whatever_did_not_pass() -> None:
    assert figures(REPORT) == (["3 of 300 failed"], ["test_two", "test_three"])


@pytest.mark.parametrize(
    ("output", "cell"),
    [
        (RUN, "702 requests, 3 faults; no law broken; served again after 0.2 to 1.4 s (median 1.4)"),
        (RUN + "BROKEN: 2 leases are held\n", "**1 laws broken: 2 leases are held**"),
        ("Traceback", "**did not run**"),
    ],
)
def test_a_run_of_random_faults_is_one_cell(output: str, cell: str) -> None:
    assert cell in of_run(output)


def test_measured_rows_take_the_place_of_older_ones_and_the_rest_of_the_page_stays() -> None:
    first, second = ROWS[0].key, ROWS[1].key
    was = merged(page(), [row(second, "stale")])
    found = merged(was, [row(first, "0 fail"), row(second, "1 fails")])
    lines = [text for text in found.splitlines() if text.startswith("| ")]
    assert [text.split(" | ")[0].strip("| ") for text in lines] == [HEAD[0], first, second]
    assert "1 fails" in found
    assert "stale" not in found
    assert found.startswith("before\n")
    assert found.endswith("\nafter")
    assert merged(found, []) == found


def test_a_row_that_is_no_fault_of_ours_any_more_is_dropped() -> None:
    assert "gone" not in merged(page("| gone | - | - | - | - | - | - |"), [])


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="put them where the table shall stand"):
        merged("no table", [])
