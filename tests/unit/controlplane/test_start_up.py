"""What every process of ours does when it sets up Django."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.instance import ROOT

STARTED = """
import gc, json
from django.conf import settings
settings.INSTALLED_APPS
before = gc.get_stats()
import django
django.setup()
after = gc.get_stats()
looks = [new["collections"] - old["collections"] for old, new in zip(before, after)]
print(json.dumps({"looks": looks, "on": gc.isenabled(), "frozen": gc.get_freeze_count()}))
"""


def test_a_process_that_starts_collects_no_garbage_until_its_modules_are_loaded() -> None:
    run = subprocess.run(
        [sys.executable, "-c", STARTED], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    state = json.loads(run.stdout)
    assert state["looks"] == [0, 0, 0]
    assert state["on"], "and does so from then on"
    assert state["frozen"] > 50_000, "but not in what it has loaded"
