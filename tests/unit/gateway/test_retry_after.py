"""Retry-After knows about overload: who is refused comes back when it can be served, not with everybody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.admission import rule as admission
from scheduling.core.admission.rule import MAX_TOLD_MS, MIN_RETRY_MS, SERVED_PER_RETURN, come_back
from scheduling.core.types import OverLimit, ServiceClass
from scheduling.gateway.errors import Refusal, render
from scheduling.gateway.headers import MAX_RETRY_S
from tests.support.overload_world import Job, Overload, team
from tests.support.state_world import tier

SECONDS = 20.0


def open_loop(load: float, **changes: object) -> Overload:
    """``load`` x what the pool can serve, by clients that send again twice, as the OpenAI SDK does; then nothing new,
    until the last of them has come back."""
    world = Overload()
    world.arrivals(team(**changes), load * world.capacity, 0, SECONDS)
    world.run(1000)
    return world


@pytest.mark.parametrize(
    "changes",
    [{}, {"concurrency": 100, "tier": tier(queue_limit=20)}, {"tier": tier(over_limit=OverLimit.WAIT, queue_limit=20)}],
    ids=["refused at its concurrency", "refused at its queue", "refused where it may wait"],
)
def test_at_ten_times_the_load_clients_are_told_to_wait_five_times_as_long_at_least(changes: dict[str, object]):
    once, tenfold = open_loop(1, **changes), open_loop(10, **changes)
    assert tenfold.told_p50() >= 5 * once.told_p50()
    assert tenfold.goodput(4, SECONDS) >= 0.95 * once.goodput(4, SECONDS)


@pytest.mark.parametrize("load", [1, 5, 10])
def test_a_request_is_sent_one_and_a_half_times_at_most_by_clients_that_wait_as_told(load: float):
    world = open_loop(load)
    assert world.attempts_each() <= 1.5


def too_many_attempts(load: float, seed: int) -> float:
    """Attempts for each request beyond the least that any rule needs and the third of the services that is left to
    those who come back, under ``load``."""
    world = Overload(seed=seed)
    world.arrivals(team(), load * world.capacity, 0, SECONDS)
    world.run(1000)
    return world.attempts_each() - (1 + world.refused_at_least(SECONDS)) - 1 / (3 * load)


LOADS = (1, 1.5, 2, 2.5, 3, 4, 5, 7, 10)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("load", LOADS)
def test_from_one_to_ten_times_the_load_hardly_more_attempts_are_made_than_any_rule_needs(load: float, seed: int):
    """At twice the load half of the requests cannot be served at once: one and a half attempts are the least while all
    are asked to come back. What is above that is a third of what is served, whatever the load."""
    assert too_many_attempts(load, seed) <= 0.03


@pytest.mark.parametrize("load", [2, 3, 5])
def test_without_room_left_for_newcomers_many_more_attempts_are_made(load: float, monkeypatch: pytest.MonkeyPatch):
    """The broken variant: the refused come back as fast as requests are served."""
    monkeypatch.setattr(admission, "SERVED_PER_RETURN", 1)
    assert too_many_attempts(load, 1) > 0.1


@pytest.mark.parametrize("load", [1, 1.5, 2, 2.5])
def test_up_to_two_and_a_half_times_the_load_all_are_served_in_the_end(load: float):
    """Longer times would save attempts, and turn away for good who is served here."""
    assert open_loop(load).served_share() >= 0.95


@pytest.mark.parametrize("times", [1, 2, 10])
def test_clients_that_send_until_they_are_served_are_all_served_at_one_and_a_half_attempts(times: int):
    """A crowd of so many times the clients that the pool holds, each with one request at a time."""
    world = Overload()
    world.crowd(team(), times * 26, 30)
    world.run(1000)
    assert all(job.served_s is not None for job in world.jobs)
    assert world.attempts_each() <= 1.5
    assert world.goodput(4, 30) >= 0.95 * world.capacity


@pytest.mark.parametrize("obeys", [True, False])
def test_what_is_served_holds_whatever_the_load_and_whether_or_not_clients_wait_as_told(obeys: bool):
    served = []
    for load in (1, 2, 5, 10):
        world = Overload()
        world.arrivals(team(), load * world.capacity, 0, SECONDS, obeys=obeys)
        world.run(SECONDS)
        served.append(world.goodput(4, SECONDS))
    assert min(served) >= 0.95 * served[0]


def test_returns_as_fast_as_refusals_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    """The broken variant: each refused client is told when there is room for one, as if it were alone."""
    monkeypatch.setattr(admission, "SERVED_PER_RETURN", 0)
    world = Overload()
    world.crowd(team(), 52, 10)
    world.run(1000)
    assert world.attempts_each() > 2
    assert world.told_p50() < 1.5


def test_when_an_overload_ends_its_clients_are_served_without_another_storm():
    world = Overload()
    world.crowd(team(), 60, 30)
    world.run(1000)
    last_s = max(at for at, _ in world.served)
    assert last_s < 60
    late = [wait for at, wait in world.told_s if at > 30]
    assert len(late) <= 60


def burst(times: int) -> Overload:
    """A second before, others took all slots; then a team sends ``times`` as many as it may have in flight at once."""
    world, gold = Overload(), team("gold", tier=tier(service_class=ServiceClass.GUARANTEED))
    world.arrivals(team("others"), 2 * world.capacity, 0, 3)
    for _ in range(times * 16):
        world.at(3, lambda: world.send(Job(gold, world.now_s, retries=7)))
    world.run(1000)
    return world


@pytest.mark.parametrize("times", [2, 3, 5])
def test_a_burst_that_comes_before_any_of_it_runs_is_told_times_at_which_there_is_room(times: int):
    """A team that sends on the minute: none of its requests runs when those beyond its limit are refused. They return
    at a third of the rate at which it can be served, not one by one."""
    world = burst(times)
    mine = [job for job in world.jobs if job.spec.id == "gold"]
    assert all(job.served_s is not None for job in mine)
    assert max(job.served_s or 0.0 for job in mine) - 3 <= 3 * 1.25 * 2 * times  # a slot takes 2 s, as far as is known
    assert sum(job.attempts for job in mine) / len(mine) <= 3


def test_who_asks_for_many_answers_at_once_is_told_to_come_back_as_seldom_as_places_for_them_get_free():
    """One such request fills a team's 16 places, as 16 of one answer do."""
    sent = {}
    for sequences in (16, 1):
        world = Overload(slots=32, sequences=sequences, service_s=4.0)
        owner = team(tier=tier(service_class=ServiceClass.GUARANTEED, queue_limit=0))
        world.arrivals(owner, world.capacity / sequences, 0, 60, retries=1000)  # twice what its places can serve
        world.run(1000)
        sent[sequences] = world.attempts_each()
    assert sent[16] <= 1.25 * sent[1], f"requests are sent {sent} times"


def test_refused_clients_of_one_team_do_not_make_another_wait():
    world = Overload(slots=32)
    loud, calm = team("loud"), team("calm")
    world.arrivals(loud, 160, 0, 30)
    world.arrivals(calm, 8, 0, 30)
    world.run(1000)
    mine = [job for job in world.jobs if job.spec is calm]
    assert sum(job.attempts for job in mine) / len(mine) <= 1.1


@given(first=st.floats(0, 1e6), served=st.floats(0.1, 1e6), told=st.integers(0, MAX_TOLD_MS), more=st.integers(1, 50))
def test_each_is_told_a_later_time_than_the_one_before_it_and_never_less_than_a_second(
    first: float, served: float, told: int, more: int
):
    last = 0
    for _ in range(more):
        retry_ms, following = come_back(first, served, told)
        assert retry_ms >= max(MIN_RETRY_MS, first, last)
        assert min(MAX_TOLD_MS, told + SERVED_PER_RETURN * served) <= following <= MAX_TOLD_MS
        last, told = retry_ms, following


def test_a_clock_that_went_back_makes_nobody_wait_for_it():
    assert come_back(100.0, 50.0, 3_600_000) == (MAX_TOLD_MS + 100, MAX_TOLD_MS)


def test_a_wait_that_is_longer_than_the_sdk_honours_says_not_to_send_again():
    def headers(seconds: float) -> dict[bytes, bytes]:
        return dict(render(Refusal(admission.Reason.CONCURRENCY, retry_s=seconds, inflight=1, limit=1)).headers)

    assert b"x-should-retry" not in headers(MAX_RETRY_S - 1)
    assert headers(MAX_RETRY_S)[b"x-should-retry"] == b"false"
    assert int(headers(MAX_RETRY_S)[b"retry-after"]) >= 90
