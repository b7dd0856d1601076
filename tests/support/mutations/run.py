"""Formulas broken on purpose, to see that a test notices: ``python -m tests.support.mutations [NAME...] [--sample N]``.

Each mutation is applied to a copy of the tree in a temporary folder, and the tests that are to notice it run there; the
checkout is never touched. A mutant *survives* when they pass: then the exit status is 1, as it is when the text to
replace is not there any more or the tests fail without the mutation. One mutation takes a few seconds; ``--sample``
takes that many, another choice each day, for a pipeline that has no time for all.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.mutations.catalog import MUTATIONS
from tests.support.mutations.mutation import Mutation

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("controlplane", "scheduling", "telemetry", "tenants", "tests")
TIMEOUT_S = 300


def copy_tree(to: Path) -> None:
    """What the tests need, without what they write."""
    for name in COPIED:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name in ("pyproject.toml", "manage.py"):
        shutil.copy2(ROOT / name, to / name)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """pytest's exit status and the tests that failed."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    done = subprocess.run(
        command, cwd=tree, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, ", ".join(failed) or done.stdout[-400:]


def apply(tree: Path, mutation: Mutation) -> str:
    """Breaks the formula; the file's text as it was. Raises LookupError when the formula is not there exactly once."""
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise LookupError(f"{mutation.file} has {mutation.old!r} {text.count(mutation.old)} times, expected once")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(m.name for m in MUTATIONS)}")
    parser.add_argument("--sample", type=int, default=0, help="only so many, another choice each day")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not options.names or mutation.name in options.names]
    if options.sample:
        chosen = random.Random(datetime.date.today().isoformat()).sample(chosen, min(options.sample, len(chosen)))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        sound, output = run_tests(tree, tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests)))
        if sound != 0:
            print(f"the tests fail without any mutation: {output}")
            return 1
        for mutation in chosen:
            started = time.monotonic()
            text = apply(tree, mutation)
            status, output = run_tests(tree, mutation.tests)
            (tree / mutation.file).write_text(text, encoding="utf-8")
            caught = status == 1
            survived += not caught
            verdict, spent = "caught" if caught else "SURVIVED", time.monotonic() - started
            print(f"{mutation.name:14} {verdict:9} {spent:4.1f} s  {mutation.what}")
            print(f"{'':14} {mutation.file}: {mutation.new}\n{'':14} {output if caught else ''}".rstrip(), flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    return 1 if survived else 0
