"""What every ordering policy promises, judged over the registry itself: a new one is tested the day it is added."""

from __future__ import annotations

import random
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from scheduling.core.policies.contracts import RequestQueue
from scheduling.core.policies.registry import make_ordering, make_routing, orderings
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import PoolView, QueuedRequest
from tests.support.random_life import live
from tests.support.scheduling_world import backend_view, crowd, ids, pool_view, waiting

ROOT = Path(__file__).parents[2]
NAMES = sorted(orderings())
every_policy = pytest.mark.parametrize("name", NAMES)
every_seed = pytest.mark.parametrize("seed", [1, 2, 3])

HEADINGS = ("Question:", "Key:", "Formula:", "Inputs:", "Cost:", "Who starves:", "Source:")


def roomy() -> PoolView:
    return pool_view(backend_view(slots=10_000, kv_tokens=10**9))


def filled(name: str, requests: list[QueuedRequest]) -> RequestQueue:
    queue = make_ordering(name).queue()
    for request in requests:
        queue.push(request, request.arrival_s)
    return queue


def drain(queue: RequestQueue, view: PoolView, blocked: frozenset[str] = frozenset()) -> list[QueuedRequest]:
    def fits(request: QueuedRequest) -> bool:
        return request.entitlement not in blocked

    out, one_round = [], Round(view, fits)
    while (request := queue.select(one_round, 5000.0)) is not None:
        out.append(request)
    return out


@every_policy
@every_seed
def test_each_offered_request_comes_out_exactly_once(name: str, seed: int):
    requests = crowd(seed)
    assert sorted(ids(drain(filled(name, requests), roomy()))) == sorted(ids(requests))


@every_policy
@every_seed
def test_the_same_arrivals_come_out_in_the_same_order(name: str, seed: int):
    requests = crowd(seed)
    assert ids(drain(filled(name, requests), roomy())) == ids(drain(filled(name, requests), roomy()))


@every_policy
@every_seed
def test_a_discarded_request_never_comes_out(name: str, seed: int):
    requests = crowd(seed)
    queue = filled(name, requests)
    gone = random.Random(seed).sample(ids(requests), 60)
    assert all(queue.discard(request_id) for request_id in gone)
    assert not any(queue.discard(request_id) for request_id in gone)
    assert sorted(ids(drain(queue, roomy()))) == sorted(set(ids(requests)) - set(gone))


@every_policy
def test_iteration_and_length_are_the_contents(name: str):
    requests = crowd(4)
    queue = filled(name, requests)
    left = {request.id: request for request in requests}
    rng = random.Random(4)
    view = roomy()
    while left:
        assert len(queue) == len(left)
        assert sorted(ids(queue)) == sorted(left)
        if rng.random() < 0.5:
            out = queue.select(Round(view, lambda request: True), 5000.0)
            assert out is not None
            del left[out.id]
        else:
            victim = rng.choice(sorted(left))
            assert queue.discard(victim)
            del left[victim]
    assert queue.select(Round(view, lambda request: True), 5000.0) is None


@every_policy
def test_a_request_pushed_again_is_replaced(name: str):
    queue = filled(name, crowd(5, 20))
    again = replace(crowd(5, 20)[7], attempt=2, input_tokens=7)
    queue.push(again, 5000.0)
    out = {request.id: request for request in drain(queue, roomy())}
    assert len(out) == 20
    assert out[again.id] == again


@every_policy
@every_seed
def test_an_entitlement_without_room_blocks_nobody_and_comes_out_when_it_has_room(name: str, seed: int):
    requests = crowd(seed)
    queue = filled(name, requests)
    view = roomy()
    view.running_by_entitlement["t1"] = 1000
    out = drain(queue, view, frozenset({"t1"}))
    assert sorted(ids(out)) == sorted(r.id for r in requests if r.entitlement != "t1")
    view.running_by_entitlement["t1"] = 0
    assert sorted(ids(drain(queue, view))) == sorted(r.id for r in requests if r.entitlement == "t1")


@every_policy
def test_many_requests_without_room_do_not_hide_one_that_has_it(name: str):
    queue = filled(name, [waiting(n, "acme") for n in range(20)] + [waiting(99, "globex", input_tokens=50)])
    small = queue.select(Round(roomy(), lambda request: request.entitlement == "globex"), 5000.0)
    assert small is not None
    assert small.id == "req_000099"


@every_policy
def test_explanation_is_one_short_line(name: str):
    requests = crowd(6, 10)
    queue = filled(name, requests)
    for request in requests:
        text = queue.explain(request)
        assert text
        assert "\n" not in text
        assert len(text) <= 120


@every_policy
@every_seed
def test_laws_hold_after_every_step_of_a_random_life(name: str, seed: int):
    scheduler = Scheduler(make_ordering(name), make_routing("least_work"), max_grants=8, patience_s=3.0)
    assert live(scheduler, seed=seed, count=300) == 300


@every_policy
def test_parameters_are_frozen_and_have_defaults(name: str):
    policy = make_ordering(name)
    assert policy.name == name
    for field in fields(policy):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(policy, field.name, getattr(policy, field.name))


@every_policy
def test_module_says_what_a_reader_asks(name: str):
    text = __import__(orderings()[name].__module__, fromlist=["x"]).__doc__ or ""
    missing = [h for h in HEADINGS if not re.search(rf"^{h}", text, re.MULTILINE)]
    assert missing in (["Key:"], ["Formula:"]), missing


def test_policy_page_names_exactly_the_registered_policies():
    page = (ROOT / "docs" / "guide" / "policies.md").read_text()
    table = page[page.index("## Ordering policies") : page.index("## Modifiers")]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == NAMES
    for name, cls in orderings().items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{field.name}`" in row for field in fields(cls))
