"""Limits of keys and users: what is refused, when to come back, and what is remembered."""

from __future__ import annotations

import pytest

from scheduling.core.admission.key_limits import (
    MINUTE_MS,
    Limited,
    Scope,
    Standing,
    first_over,
    read_limits,
    write_limits,
)
from scheduling.core.outcomes import Reason
from scheduling.core.types import RateLimits

KEY = Scope("~acme:k:abcdefghijkl", RateLimits(60, 1000, 2))
USER = Scope("~acme:uk:abcdefghijkl:00ff", RateLimits(6, 0, 1))


def test_what_is_written_is_read_again() -> None:
    for limited in (Limited(0, ()), Limited(150, (KEY,)), Limited(150, (KEY, USER))):
        assert read_limits(write_limits(limited)) == (limited if limited.scopes else Limited(0, ()))


def test_the_rest_of_the_users_is_a_scope_of_the_same_owner() -> None:
    assert USER.rest.name == "~acme:uk:abcdefghijkl:-"
    assert (USER.of_user, USER.rest.of_user, KEY.of_user) == (True, True, False)
    assert {scope.owner for scope in (KEY, USER, USER.rest)} == {"~acme"}


@pytest.mark.parametrize(
    ("standing", "charge", "what", "retry_ms"),
    [
        (Standing(1.0, 1000.0), 1000, None, 0),
        (Standing(0.5, 1000.0), 10, "requests", 1000),  # 0.5 s, and nobody is told less than a second
        (Standing(-4.0, 1000.0), 10, "requests", 5000),
        (Standing(60.0, 400.0), 500, "tokens", 6000),
        (Standing(60.0, 1000.0), 1001, "tokens", None),
        (Standing(60.0, 1000.0, 2), 10, "concurrency", 4000),
        (Standing(60.0, 1000.0, 1), 10, None, 0),
    ],
)
def test_a_limit_refuses_and_says_when_it_would_pass(
    standing: Standing, charge: int, what: str | None, retry_ms: int | None
) -> None:
    over = first_over([KEY], [standing], charge, service_ms=8000)
    assert (over and over.what) == what
    if over is not None:
        assert (over.reason, over.retry_ms) == (Reason.KEY_LIMIT, retry_ms)
        assert (over.told_ms is None) == (retry_ms is None)


def test_the_first_of_several_scopes_that_is_over_refuses() -> None:
    full = Standing.full(KEY.limits)
    over = first_over([KEY, USER], [full, Standing(0.0, 0.0)], 10, 2000)
    assert over is not None
    assert (over.scope, over.reason) == (1, Reason.USER_LIMIT)


def test_each_refused_client_is_told_a_later_time() -> None:
    first = first_over([KEY], [Standing(0.0, 1000.0)], 10, 2000)
    assert first is not None
    assert first.told_ms is not None
    second = first_over([KEY], [Standing(0.0, 1000.0, told_ms=first.told_ms)], 10, 2000)
    assert second is not None
    assert (first.retry_ms, second.retry_ms) == (1000, 4000)  # three services apart, at one a second


def test_what_never_ran_is_given_back_whole_and_what_ran_pays_what_it_used() -> None:
    full = Standing.full(KEY.limits)
    taken = full.taken(KEY.limits, 300)
    assert taken.settled(KEY.limits, 300, 0, ran=False) == full
    ran = taken.settled(KEY.limits, 300, 120, ran=True)
    assert (ran.requests, ran.tokens) == (59.0, 880.0)
    more = taken.settled(KEY.limits, 300, 1500, ran=True)
    assert more.tokens == -500.0


def test_a_bucket_is_remembered_until_it_is_full() -> None:
    assert Standing.full(KEY.limits).kept_ms(KEY.limits) == MINUTE_MS
    assert Standing(60.0, -1000.0).kept_ms(KEY.limits) == 2 * MINUTE_MS
    for ms in (0, 30_000, 90_000, 119_999):
        assert Standing(60.0, -1000.0).refilled(KEY.limits, 0, ms).tokens < 1000
    assert Standing(60.0, -1000.0).refilled(KEY.limits, 0, 120_000) == Standing.full(KEY.limits)
