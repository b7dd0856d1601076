"""The floors of the house: what may import what (pyproject.toml), checked on every module there is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("controlplane", "tenants", "scheduling", "telemetry")


@pytest.fixture(scope="module")
def linted():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def test_every_import_rule_is_kept(linted):
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_rules_were_checked_against_the_whole_tree(linted):
    """A linter that scanned nothing finds nothing."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    files, dependencies = map(int, re.search(r"Analyzed (\d+) files, (\d+) dependencies", linted.stdout).groups())
    there = [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
    assert len(contracts) >= 4
    assert f"Contracts: {len(contracts)} kept, 0 broken" in linted.stdout
    assert files >= 0.95 * len(there) > 50
    assert dependencies > 100


def test_the_simulator_imports_the_core_and_the_standard_library_only():
    """Stricter than the rule in pyproject.toml: what is not named there is not allowed either. The bound on what can be
    in time is a linear program, which a solver solves; no model of an engine or policy needs one."""
    solvers = {"bound.py": {"numpy", "scipy"}}
    folder, seen = ROOT / "scheduling" / "simulator", 0
    allowed = {"scheduling.core", "scheduling.simulator"}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name} imports relatively"
                names = [str(node.module)]
            for name in names:
                seen += 1
                ours = ".".join(name.split(".")[:2]) in allowed
                known = sys.stdlib_module_names | solvers.get(path.name, set())
                assert ours or name.split(".")[0] in known, f"{path.name} imports {name}"
    assert seen > 100


def cycle_in(imports: Mapping[str, Set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first again at the end; empty where none do."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others():
    """Imports inside functions and those for types only count too: hiding a circle does not cut it."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 400
    assert cycle_in(imports) == []
    assert cycle_in(imports | {"scheduling.core.types": {"scheduling.core.scheduler.loop"}}) != []
