"""What failed attempts say of a replica, and what only of the tenant whose requests fail everywhere."""

from __future__ import annotations

import pytest

from scheduling.gateway.engine import attempts
from scheduling.gateway.engine.attempts import OWN_S, AttemptCounts

POOL = "llama"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(attempts, "time", one)
    return one


def fail(counts: AttemptCounts, backend: str, tenant: str, *, misconfigured: bool = False) -> float:
    return counts.failed(POOL, backend, tenant, "answers 500", misconfigured=misconfigured)


def failures(counts: AttemptCounts) -> dict[str, int]:
    return {backend: told.failed for backend, told in counts.take().get(POOL, {}).items()}


def test_a_tenant_whose_requests_fail_everywhere_takes_no_replica_from_others(clock: Clock) -> None:
    counts = AttemptCounts()
    for _ in range(50):
        for backend in ("a", "b", "c"):
            fail(counts, backend, "odd")
            counts.succeeded(POOL, backend, "well")
    assert counts.is_own_fault(POOL, "odd")
    assert sum(failures(counts).values()) <= 3, "only those of before anybody else was served there"
    assert fail(counts, "a", "odd") == 0.0
    assert not counts.contradicted(POOL, "a", "odd"), "others' answers are no reason to try it four times"
    assert counts.contradicted(POOL, "a", "well")


def test_a_sick_replica_is_told_of_whoever_it_fails(clock: Clock) -> None:
    counts = AttemptCounts()
    for tenant in ("one", "two"):
        for _ in range(5):
            fail(counts, "sick", tenant)
            counts.succeeded(POOL, "well", tenant)
    assert failures(counts) == {"sick": 10, "well": 0}
    assert counts.contradicted(POOL, "sick", "one")


def test_two_sick_replicas_of_three_are_told_of_although_one_tenant_is_alone(clock: Clock) -> None:
    counts = AttemptCounts()
    for _ in range(5):
        fail(counts, "a", "one")
        fail(counts, "b", "one")
        counts.succeeded(POOL, "c", "one")
    assert failures(counts) == {"a": 5, "b": 5, "c": 0}


def test_where_nobody_is_served_all_replicas_are_told_of(clock: Clock) -> None:
    counts = AttemptCounts()
    for backend in ("a", "b"):
        counts.succeeded(POOL, backend, "well")
    for _ in range(5):
        for backend in ("a", "b"):
            for tenant in ("odd", "well"):
                fail(counts, backend, tenant)
    assert failures(counts) == {"a": 10, "b": 10}


def test_a_replica_that_fails_half_of_what_it_is_asked_is_told_of(clock: Clock) -> None:
    counts = AttemptCounts()
    for number in range(20):
        for tenant in ("one", "two"):
            if number % 2:
                fail(counts, "flaky", tenant)
            else:
                counts.succeeded(POOL, "flaky", tenant)
            counts.succeeded(POOL, "well", tenant)
    assert failures(counts)["flaky"] == 20


def test_a_stream_that_begins_and_is_cut_is_one_attempt_that_failed(clock: Clock) -> None:
    counts = AttemptCounts()
    for _ in range(3):
        counts.succeeded(POOL, "sick", "one")
        counts.failed(POOL, "sick", "one", "the stream was cut", began=True)
    counts.succeeded(POOL, "sick", "one")
    fail(counts, "sick", "one")
    told = counts.take()[POOL]["sick"]
    assert (told.failed, told.tried) == (4, 5)


def test_a_tenants_attempts_are_told_by_themselves_from_behind_its_first_failure_on(clock: Clock) -> None:
    counts = AttemptCounts()
    counts.succeeded(POOL, "b", "one")
    fail(counts, "a", "one")
    for backend in ("a", "b"):
        counts.succeeded(POOL, backend, "one")
        counts.succeeded(POOL, backend, "well")
    counts.failed(POOL, "a", "one", "the stream was cut", began=True)
    fail(counts, "a", "one")
    told = counts.take()[POOL]
    assert (told["a"].by_tenant, told["b"].by_tenant) == ({"one": (2, 2)}, {"one": (1, 0)})
    clock.now_s += OWN_S + 1.0
    counts.take()
    counts.succeeded(POOL, "a", "one")
    assert counts.take()[POOL]["a"].by_tenant == {}


def test_a_tenant_whose_streams_are_mostly_cut_wherever_they_run_is_the_cause(clock: Clock) -> None:
    counts = AttemptCounts()
    for number in range(10):
        for backend in ("a", "b"):
            counts.succeeded(POOL, backend, "odd")
            if number % 4:
                counts.failed(POOL, backend, "odd", "the stream was cut", began=True)
            counts.succeeded(POOL, backend, "well")
    assert counts.is_own_fault(POOL, "odd")


def test_what_no_request_can_be_the_cause_of_counts_always(clock: Clock) -> None:
    counts = AttemptCounts()
    for backend in ("a", "b"):
        fail(counts, backend, "odd")
        counts.succeeded(POOL, backend, "well")
    counts.take()
    assert counts.is_own_fault(POOL, "odd")
    assert fail(counts, "a", "odd", misconfigured=True) > 0.0
    assert failures(counts)["a"] == 1


def test_half_a_minute_without_a_failure_clears_a_tenant(clock: Clock) -> None:
    counts = AttemptCounts()
    for backend in ("a", "b"):
        fail(counts, backend, "odd")
        counts.succeeded(POOL, backend, "well")
    counts.take()
    clock.now_s += OWN_S + 1.0
    counts.take()
    assert not counts.is_own_fault(POOL, "odd")
    assert not counts._failing


def test_answers_without_content_are_told_by_tenant_and_are_no_failures(clock: Clock) -> None:
    counts = AttemptCounts()
    for _ in range(4):
        counts.succeeded(POOL, "mute", "one")
        counts.empty(POOL, "mute", "one")
        for tenant in ("one", "well"):
            counts.succeeded(POOL, "well", tenant)
    told = counts.take()[POOL]
    assert told["mute"].empty_by_tenant == {"one": (3, 3)}
    assert told["well"].empty_by_tenant == {"one": (4, 0), "well": (4, 0)}
    assert not told["mute"].by_tenant
    assert (told["mute"].failed, told["mute"].succeeded) == (0, 4)
    assert not counts.is_own_fault(POOL, "one")
    clock.now_s += OWN_S + 1.0
    counts.take()
    counts.succeeded(POOL, "mute", "one")
    assert counts.take()[POOL]["mute"].empty_by_tenant == {}
