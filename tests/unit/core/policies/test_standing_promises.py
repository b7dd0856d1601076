"""What a standing is worth beside promises of different lengths."""

from __future__ import annotations

from math import log

import pytest

from scheduling.core.policies.queues.standing import StandingQueue
from scheduling.core.policies.registry import make_ordering
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PoolView, QueuedRequest, ServiceClass, Standing
from tests.support.scheduling_world import waiting

LOUD = Standing(1.0, share=2.0)


def due(number: int, entitlement: str, promise_s: float) -> QueuedRequest:
    return waiting(number, entitlement, ttft_deadline_s=1000.0 + number + promise_s, input_tokens=1, output_tokens=1.0)


def queue(unit: float = 5.0) -> StandingQueue:
    def promised_s(request: QueuedRequest) -> float:
        assert request.ttft_deadline_s is not None
        return round(request.ttft_deadline_s - request.arrival_s, 3)

    return StandingQueue(lambda request: (request.ttft_deadline_s or 0.0,), lambda _: "", unit, promised_s)


def shift(world: StandingQueue, now_s: float = 0.0) -> float:
    """By how many units who had twice its share goes later."""
    world.peek(Round(PoolView({}, standings={"loud": LOUD}), lambda _: False))
    return -world.shift("loud") / log(2.0)


@pytest.mark.parametrize("promise_s", [0.5, 1.0, 5.0, 600.0])
def test_where_all_are_promised_the_same_it_is_worth_the_whole_unit(promise_s: float) -> None:
    world = queue()
    for number, name in enumerate(("loud", "quiet")):
        world.push(due(number, name, promise_s), 0.0)
    assert shift(world) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("short_s", "long_s", "worth_s"), [(1.0, 5.0, 1.0), (1.0, 600.0, 1.0), (1.0, 2.0, 2.5), (30.0, 600.0, 5.0)]
)
def test_a_shorter_promise_makes_it_less_up_to_the_unit(short_s: float, long_s: float, worth_s: float) -> None:
    for first, second in ((short_s, long_s), (long_s, short_s)):
        world = queue()
        world.push(due(1, "loud", first), 0.0)
        assert shift(world) == pytest.approx(5.0)
        world.push(due(2, "quiet", second), 0.0)
        assert shift(world) == pytest.approx(worth_s), "those that wait already follow"


def test_it_is_whole_again_once_nobody_of_the_other_tier_waits() -> None:
    world = queue()
    world.push(due(1, "quiet", 1.0), 0.0)
    world.push(due(2, "loud", 5.0), 0.0)
    assert shift(world) == pytest.approx(1.0)
    for number in (1, 2):
        assert world.discard(due(number, "", 1.0).id)
    world.push(due(3, "loud", 5.0), 0.0)
    assert shift(world) == pytest.approx(5.0)


def test_a_tier_with_a_tight_promise_is_not_late_for_having_had_more_than_its_share() -> None:
    """It is served in time while the other one is late, so it always had more."""
    tight = waiting(1, "loud", 1, service_class=ServiceClass.ELASTIC, ttft_deadline_s=1002.0)
    loose = waiting(2, "quiet", 1, service_class=ServiceClass.ELASTIC, ttft_deadline_s=1007.0)
    made = make_ordering("unified", {}).queue()
    for request in (tight, loose):
        made.push(request, 1000.0)
    standings = {"loud": Standing(1.0, share=2.0), "quiet": Standing(1.0, share=0.5)}
    chosen = made.select(Round(PoolView({}, standings=standings), lambda _: True), 1000.0)
    assert chosen is not None
    assert chosen.entitlement == "loud"
