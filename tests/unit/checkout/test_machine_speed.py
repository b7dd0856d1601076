"""CI on a slow machine: a part of the tests, and each test is in one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.instance import ROOT
from tests.support.machine_speed import MOST, ROOM, USUAL_S, parts


@pytest.mark.parametrize(
    ("slower", "expected"), [(0.3, 1), (1.0, 1), (ROOM, 1), (1.6, 2), (2.0, 2), (2.9, 3), (50.0, MOST)]
)
def test_a_machine_takes_as_many_parts_as_it_is_times_slower(slower: float, expected: int) -> None:
    assert parts(USUAL_S * slower) == expected


def test_each_test_is_in_one_of_the_parts() -> None:
    def collected(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:randomly", __file__, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if f"{Path(__file__).name}::" in line]

    in_parts = [collected("--sample", f"{part}/2") for part in range(2)]
    assert all(in_parts)
    assert sorted(in_parts[0] + in_parts[1]) == sorted(collected())
