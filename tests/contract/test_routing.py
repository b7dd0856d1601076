"""What every routing policy promises, judged over the registry itself."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from scheduling.core.policies.registry import make_routing, routings
from tests.support.scheduling_world import backend_view, waiting

NAMES = sorted(routings())
every_policy = pytest.mark.parametrize("name", NAMES)


@every_policy
def test_only_a_replica_with_room_is_chosen(name: str):
    backends = [
        backend_view("full", slots=1, running=1),
        backend_view("no-kv", kv_tokens=100),
        backend_view("away", ready=False),
        backend_view("right", work_tokens=1e9, running=3),
    ]
    chosen = make_routing(name).router().choose(waiting(1), backends)
    assert chosen is not None
    assert chosen.id == "right"


@every_policy
def test_without_room_nothing_is_chosen(name: str):
    assert make_routing(name).router().choose(waiting(1), [backend_view("away", ready=False)]) is None
    assert make_routing(name).router().choose(waiting(1), []) is None


@every_policy
def test_an_attempt_does_not_return_to_the_replica_where_it_failed(name: str):
    backends = [backend_view("b1"), backend_view("b2", work_tokens=1e9)]
    chosen = make_routing(name).router().choose(waiting(1, exclude_backend="b1"), backends)
    assert chosen is not None
    assert chosen.id == "b2"


@every_policy
def test_the_choice_does_not_depend_on_the_order_of_replicas(name: str):
    backends = [backend_view(f"b{n}", work_tokens=float(n % 3), running=n % 2) for n in range(6)]
    first = make_routing(name).router().choose(waiting(1), backends)
    assert first is make_routing(name).router().choose(waiting(1), backends[::-1])


def test_least_work_prefers_less_work_then_fewer_running_then_the_name():
    policy = make_routing("least_work").router()
    cases = [
        ([("a", 10.0, 0), ("b", 5.0, 3)], "b"),
        ([("a", 5.0, 2), ("b", 5.0, 1)], "b"),
        ([("b", 5.0, 1), ("a", 5.0, 1)], "a"),
    ]
    for rows, expected in cases:
        chosen = policy.choose(waiting(1), [backend_view(n, work_tokens=w, running=r) for n, w, r in rows])
        assert chosen is not None
        assert chosen.id == expected


def test_policy_page_names_exactly_the_registered_routings():
    page = (Path(__file__).parents[2] / "docs" / "guide" / "policies.md").read_text()
    table = page[page.index("## Routing policies") : page.index("## Add a policy")]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == NAMES
    for name, cls in routings().items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{field.name}`" in row for field in fields(cls))
