"""What every modifier promises, judged over the registry itself: around every policy, alone and all together."""

from __future__ import annotations

import random
import re
from dataclasses import FrozenInstanceError, fields, replace
from itertools import combinations
from pathlib import Path

import pytest

from scheduling.core.policies.compose import Composed, compose, make_policy
from scheduling.core.policies.contracts import RequestQueue
from scheduling.core.policies.registry import make_modifier, make_ordering, make_routing, modifiers, orderings
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import PoolView, QueuedRequest
from tests.support.random_life import live
from tests.support.scheduling_world import backend_view, crowd, ids, pool_view, waiting

ROOT = Path(__file__).parents[2]
NAMES = list(modifiers())  # outermost first
SETS = [names for size in range(1, len(NAMES) + 1) for names in combinations(NAMES, size)]
every_modifier = pytest.mark.parametrize("name", NAMES)
every_composition = pytest.mark.parametrize(
    ("policy", "around"),
    [(policy, names) for policy in sorted(orderings()) for names in SETS],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
HEADINGS = ("Question:", "Formula:", "Inputs:", "Cost:", "Who starves:", "Source:")


def composed(policy: str, around: tuple[str, ...]) -> RequestQueue:
    return make_policy(policy, None, {name: {} for name in around}).queue()


def filled(policy: str, around: tuple[str, ...], requests: list[QueuedRequest]) -> RequestQueue:
    queue = composed(policy, around)
    for request in requests:
        queue.push(request, request.arrival_s)
    return queue


def roomy() -> PoolView:
    return pool_view(backend_view(slots=10_000, kv_tokens=10**9))


def drain(queue: RequestQueue, view: PoolView, blocked: frozenset[str] = frozenset()) -> list[QueuedRequest]:
    def fits(request: QueuedRequest) -> bool:
        return request.entitlement not in blocked

    out, one_round = [], Round(view, fits)
    while (request := queue.select(one_round, 1100.0)) is not None:
        out.append(request)
    return out


@every_composition
def test_each_offered_request_comes_out_exactly_once_and_always_in_the_same_order(policy: str, around: tuple[str, ...]):
    requests = crowd(1)
    out = ids(drain(filled(policy, around, requests), roomy()))
    assert sorted(out) == sorted(ids(requests))
    assert out == ids(drain(filled(policy, around, requests), roomy()))


@every_composition
def test_a_discarded_request_never_comes_out(policy: str, around: tuple[str, ...]):
    requests = crowd(2)
    queue = filled(policy, around, requests)
    gone = random.Random(2).sample(ids(requests), 60)
    assert all(queue.discard(request_id) for request_id in gone)
    assert not any(queue.discard(request_id) for request_id in gone)
    assert sorted(ids(drain(queue, roomy()))) == sorted(set(ids(requests)) - set(gone))


@every_composition
def test_iteration_and_length_are_the_contents(policy: str, around: tuple[str, ...]):
    requests = crowd(4, 120)
    queue = filled(policy, around, requests)
    left = {request.id: request for request in requests}
    rng = random.Random(4)
    view = roomy()
    while left:
        assert len(queue) == len(left)
        assert sorted(ids(queue)) == sorted(left)
        now_s = rng.uniform(1000, 1900)
        what = rng.random()
        if what < 0.5:
            out = queue.select(Round(view, lambda request: True), now_s)
            assert out is not None
            if rng.random() < 0.2:  # it found no room after all
                queue.push(out, now_s)
            else:
                del left[out.id]
        elif what < 0.8:
            victim = rng.choice(sorted(left))
            assert queue.discard(victim)
            del left[victim]
        else:
            again = replace(left[rng.choice(sorted(left))], concurrency=500)
            queue.push(again, now_s)
    assert queue.select(Round(view, lambda request: True), 5000.0) is None


@every_composition
def test_a_request_pushed_again_is_replaced_even_under_another_class(policy: str, around: tuple[str, ...]):
    queue = filled(policy, around, crowd(5, 20))
    other = waiting(7, "somebody-else", 2, input_tokens=7, id=crowd(5, 20)[7].id)
    queue.push(other, 1100.0)
    out = {request.id: request for request in drain(queue, roomy())}
    assert len(out) == 20
    assert out[other.id] == other


@every_composition
def test_an_entitlement_without_room_blocks_nobody_and_comes_out_when_it_has_room(policy: str, around: tuple[str, ...]):
    requests = crowd(3)
    queue = filled(policy, around, requests)
    view = roomy()
    view.running_by_entitlement["t1"] = 1000
    out = drain(queue, view, frozenset({"t1"}))
    assert sorted(ids(out)) == sorted(r.id for r in requests if r.entitlement != "t1")
    view.running_by_entitlement["t1"] = 0
    assert sorted(ids(drain(queue, view))) == sorted(r.id for r in requests if r.entitlement == "t1")


@every_composition
def test_many_requests_without_room_do_not_hide_one_that_has_it(policy: str, around: tuple[str, ...]):
    queue = filled(policy, around, [waiting(n, "acme") for n in range(20)] + [waiting(99, "globex", input_tokens=50)])
    small = queue.select(Round(roomy(), lambda request: request.entitlement == "globex"), 1100.0)
    assert small is not None
    assert small.id == "req_000099"


@every_composition
def test_explanation_is_one_short_line_before_and_after_the_decision(policy: str, around: tuple[str, ...]):
    requests = crowd(6, 30)
    queue = filled(policy, around, requests)
    texts = [queue.explain(request) for request in requests]
    while (request := queue.select(Round(roomy(), lambda request: True), 1100.0)) is not None:
        texts.append(queue.explain(request))
    assert len(texts) == 60
    for text in texts:
        assert text
        assert "\n" not in text
        assert len(text) <= 160


@every_composition
def test_laws_hold_after_every_step_of_a_random_life(policy: str, around: tuple[str, ...]):
    ordering = make_policy(policy, None, {name: {} for name in around})
    scheduler = Scheduler(ordering, make_routing("least_work"), max_grants=8, patience_s=3.0)
    assert live(scheduler, seed=5, count=300, unruly=True) == 300


@every_modifier
def test_parameters_are_frozen_and_have_defaults(name: str):
    modifier = make_modifier(name)
    assert modifier.name == name
    for field in fields(modifier):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(modifier, field.name, getattr(modifier, field.name))


@every_modifier
def test_module_says_what_a_reader_asks(name: str):
    text = __import__(modifiers()[name].__module__, fromlist=["x"]).__doc__ or ""
    assert [h for h in HEADINGS if not re.search(rf"^{h}", text, re.MULTILINE)] == []


def test_the_order_in_which_modifiers_are_written_means_nothing():
    one = compose(make_ordering("edf"), {name: {} for name in NAMES})
    other = compose(make_ordering("edf"), {name: {} for name in reversed(NAMES)})
    assert one == other
    assert isinstance(one, Composed)
    assert one.name == "+".join([*NAMES, "edf"])
    assert len({modifier.layer for modifier in one.modifiers}) == len(NAMES)


def test_no_modifiers_are_the_policy_itself():
    policy = make_ordering("hybrid")
    assert compose(policy, {}) is policy


def test_two_queues_of_one_composition_share_nothing():
    policy = make_policy("fifo", None, {name: {} for name in NAMES})
    one, other = policy.queue(), policy.queue()
    one.push(waiting(1, "a", weight=1.0), 1001.0)
    assert one.select(Round(roomy(), lambda request: True), 1001.0) is not None
    one.push(waiting(2, "a", weight=1.0), 1002.0)
    other.push(waiting(2, "a", weight=1.0), 1002.0)
    assert "served 200 per weight" in one.explain(waiting(2, "a", weight=1.0))
    assert "served 0 per weight" in other.explain(waiting(2, "a", weight=1.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bnads": {}}, "unknown modifier 'bnads', did you mean 'bands'?; there are: relegate, bands, fair"),
        ({"fair": {"output": 2}}, "modifier 'fair' has no parameter 'output', did you mean 'output_weight'?; its"),
        ({"fair": {"output_weight": "2"}}, "parameter 'output_weight' of modifier 'fair' must be float, not '2'"),
        ({"fair": {"output_weight": -1}}, "'output_weight' of modifier 'fair' must be at least 0, not -1"),
        ({"relegate": {"low_class": "cheap"}}, "must be dedicated, guaranteed, elastic, spot or preemptible, not"),
        ({"relegate": 3}, "write the parameters of modifier 'relegate' by name"),
        (["bands"], 'write modifiers by name with parameters, such as {"bands": {}}'),
    ],
)
def test_an_error_says_what_is_wrong_and_what_would_be_right(given: object, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        compose(make_ordering("fifo"), given)  # type: ignore[arg-type]


def test_policy_page_names_exactly_the_registered_modifiers():
    page = (ROOT / "docs" / "guide" / "policies.md").read_text()
    table = page[page.index("## Modifiers") : page.index("## Routing policies")]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == NAMES
    for name, cls in modifiers().items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{field.name}`" in row for field in fields(cls))
