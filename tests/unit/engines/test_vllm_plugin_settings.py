"""Where the plugin may run, and what it can be told."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from scheduling.engines.vllm_plugin.settings import Settings, settings_of
from scheduling.engines.vllm_plugin.versions import METHODS, supported, unlike
from tests.support.vllm_stand_in import StandIn


@pytest.mark.parametrize(
    ("version", "yes"),
    [("0.32.0", True), ("0.32.4+cpu", True), ("0.31.9", False), ("0.33.0", False), ("1.32.0", False), ("dev", False)],
)
def test_it_acts_in_the_versions_it_was_tried_with_only(version: str, yes: bool) -> None:
    assert supported(version) is yes


def test_an_interface_that_is_not_the_expected_one_is_found() -> None:
    assert set(METHODS) <= set(dir(StandIn))
    assert unlike(StandIn) == ""

    class Other(StandIn):
        def schedule(self, budget: int) -> Any:  # type: ignore[override]
            return None

    assert unlike(Other) == "its schedule takes self, budget, not self, throttle_prefills"
    assert unlike(object) == "its scheduler has no schedule"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"polcy": "edf"}, "has no 'polcy'; there are: policy"),
        ({"policy": "edff"}, "did you mean 'edf'"),
        ({"most": "7"}, "most must be int"),
        ({"most": True}, "most must be int"),
        ({"margin": 0.5}, "margin must be at least 1"),
        ({"most": 5}, "most must be 0 or at least as large as least"),
        ({"preset": "abacus"}, "unknown engine preset"),
        ({"step_time": {"t0": 1, "z": 2}}, "step_time"),
        ({"port": 70_000}, "port must be within"),
        ([], "must be an object"),
    ],
)
def test_a_setting_that_is_wrong_is_named(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings_of({"quartermaster": given})


def test_no_setting_is_needed() -> None:
    assert settings_of({}) == settings_of(None) == Settings()


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "vllm-plugin.md").read_text()
    said = {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(Settings)} <= said


def test_on_a_gpu_host_nothing_of_the_product_but_the_core_is_imported() -> None:
    code = (
        "import sys\n"
        "import scheduling.engines.vllm_plugin.deciding, scheduling.engines.vllm_plugin.export\n"
        "from scheduling.engines.vllm_plugin.settings import settings_of\n"
        "settings_of({})\n"
        "ours = {'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('scheduling.')}\n"
        "assert ours == {'scheduling.core', 'scheduling.engines'}, ours\n"
        "others = {'django', 'redis', 'celery', 'httpx', 'aiohttp', 'msgspec', 'tenants', 'controlplane'}\n"
        "assert not others & set(sys.modules), others & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
