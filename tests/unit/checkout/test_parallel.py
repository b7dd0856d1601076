"""`tests.support.parallel`: what several processes of pytest run between them is what one would have run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    "test_one": "def test_a(): pass\ndef test_b(): pass\n",
    "test_two": "import pytest\ndef test_c(): pytest.skip('not here')\ndef test_d(): pass\n",
    "test_three": "def test_e(): assert FALSE\n",
}


def run(folder: Path, *arguments: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "tests.support.parallel", "-j", "2", "-p", "no:randomly", "-ra", *arguments]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which cost seconds
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=250)
    return done.returncode, done.stdout + done.stderr


def closing(output: str) -> str:
    return re.sub(r" in [0-9.]+s.*", "", output.splitlines()[-1])


def test_every_test_runs_once_and_one_line_counts_them_all(tmp_path):
    code, output = run(tmp_path, **FILES | {"test_three": f"def test_e(): open({str(tmp_path / 'ran')!r}, 'x')\n"})
    assert code == 0, output
    assert closing(output) == "=== 4 passed, 1 skipped"
    assert "test_one.py: 2 passed" in output
    assert (tmp_path / "ran").exists()


def test_a_failure_in_any_process_fails_the_run_and_is_shown(tmp_path):
    code, output = run(tmp_path, **FILES)
    assert code == 1, output
    assert closing(output) == "=== 1 failed, 3 passed, 1 skipped"
    assert "FAILED test_three.py::test_e" in output
    assert "NameError: name 'FALSE'" in output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name'"),
        ("import os\ndef test_e(): os._exit(0)\n", "the processes collected"),
    ],
    ids=["a file that cannot be imported", "a process that ends as if all were well"],
)
def test_a_test_that_was_not_run_fails_the_run(tmp_path, text, said):
    code, output = run(tmp_path, **FILES | {"test_three": text})
    assert code != 0, output
    assert said in output


def test_what_was_not_asked_for_is_left_out(tmp_path):
    code, output = run(tmp_path, "-k", "test_a or test_d", **FILES)
    assert code == 0, output
    assert closing(output) == "=== 2 passed, 3 deselected"
