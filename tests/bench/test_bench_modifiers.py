"""How long one decision takes with 64,000 requests waiting inside modifiers; set up as ``test_bench_decision.py``.

``pytest -m bench -s tests/bench/test_bench_modifiers.py`` prints a table. Everything waits far beyond its deadline, so
that in every step as many requests are relegated as one step may relegate.
"""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing, modifiers
from scheduling.core.scheduler.loop import Scheduler
from tests.bench.test_bench_decision import decide_among_64000

pytestmark = pytest.mark.bench

AROUND = [*((name,) for name in modifiers()), tuple(modifiers())]


@pytest.mark.parametrize("tenants", [20, 1000])
@pytest.mark.parametrize("around", AROUND, ids="+".join)
@pytest.mark.parametrize("policy", ["fifo", "hybrid", "unified"])
def test_a_decision_among_64000_inside_modifiers(policy: str, around: tuple[str, ...], tenants: int, capsys: Any):
    scheduler = Scheduler(make_policy(policy, None, {name: {} for name in around}), make_routing("prefix_affinity"))
    decide_among_64000(scheduler, tenants, capsys, changing=False)
