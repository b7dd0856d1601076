"""The hot swap of queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies.partition import parse_partition, place
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import BackendView, PoolView
from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.workload import Belief, make_request

pytestmark = pytest.mark.django_db


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(0, 60))
def test_a_repartition_loses_nothing_and_keeps_the_order_within_each_new_queue(lengths: list[int], before: int):
    scheduler = Scheduler(make_ordering("ewsjf", {"partition": "1-5000"}), make_routing("least_work"), max_grants=1)
    after = "1-100,101-1000,1001-5000"
    requests = [
        make_request(n, float(n), length, 5, SHIPPED[0], Belief(5.0, 5)).queued for n, length in enumerate(lengths)
    ]
    granted = []
    for number, request in enumerate(requests):
        if number == before:
            scheduler.swap(make_ordering("ewsjf", {"partition": after}), make_routing("least_work"), float(number))
        scheduler.offer(request, float(number))
    swapped = before < len(requests)
    while len(scheduler):
        view = PoolView({"a": BackendView("a", 1, 10_000)})
        granted += [grant.request for grant in scheduler.step(view, float(len(requests)))]
    assert sorted(request.id for request in granted) == sorted(request.id for request in requests)
    queues = parse_partition(after if swapped else "1-5000")
    for queue in queues:
        mine = [request.arrival_s for request in granted if place(request.input_tokens, queues) == queue]
        assert mine == sorted(mine)
