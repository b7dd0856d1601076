"""The distribution for GPU hosts: what it holds, and that it says the same as the product."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from scheduling.engines.vllm_plugin.versions import BELOW, LOWEST, SUPPORTED

ROOT = Path(__file__).resolve().parents[3]
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())
ALONE = tomllib.loads((ROOT / "deploy" / "vllm-plugin" / "pyproject.toml").read_text())


def test_it_has_the_products_version_and_no_requirement() -> None:
    assert ALONE["project"]["version"] == OURS["project"]["version"]
    assert "dependencies" not in ALONE["project"]


def test_the_supported_vllm_is_one_and_the_same_everywhere() -> None:
    assert OURS["dependency-groups"]["vllm-plugin"] == [SUPPORTED] == ALONE["project"]["optional-dependencies"]["vllm"]
    lowest, below = (".".join(map(str, version)) for version in (LOWEST, BELOW))
    assert Requirement(SUPPORTED).specifier == Requirement(f"vllm>={lowest},<{below}").specifier


def test_it_holds_the_whole_core_and_the_plugin_and_nothing_else() -> None:
    def packages(folder: Path) -> set[str]:
        found = (path.parent for path in folder.rglob("__init__.py"))
        return {".".join(path.relative_to(ROOT).parts) for path in found}

    held = set(ALONE["tool"]["setuptools"]["packages"])
    inside = packages(ROOT / "scheduling" / "core") | packages(ROOT / "scheduling" / "engines" / "vllm_plugin")
    assert held == inside | {"scheduling", "scheduling.engines"}
    for part in ("scheduling", "scheduling/engines"):
        assert (ROOT / part / "__init__.py").read_text() == "", "what stands here is imported on a GPU host, too"
