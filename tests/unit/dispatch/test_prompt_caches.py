"""What engines find in their caches, as the leader counts it."""

from __future__ import annotations

from math import inf, nan

from scheduling.core.placement.cached_prompts import ENOUGH
from scheduling.dispatch.replicas.prompt_caches import TOKENS_STEP, TRUST_STEP, PromptCaches


def seen(caches: PromptCaches, replica: str, found: float, asked: float, looks: int = 4) -> None:
    """Its engine finds so much of each thousand tokens that all were expected."""
    for n in range(looks):
        caches.count(replica, found * ENOUGH * n, asked * ENOUGH * n)
        caches.look(replica, ENOUGH * n, ENOUGH * n)


def test_each_replica_is_believed_as_far_as_its_own_engine_bears_out():
    caches = PromptCaches()
    seen(caches, "a", 1.0, 1.0)
    seen(caches, "b", 0.5, 1.0)
    assert [caches.per_mille(name) for name in "abc"] == [1000, 500, 0]
    caches.keep_only({"b": None})
    assert [caches.per_mille(name) for name in "ab"] == [0, 500]


def test_what_an_engine_cannot_have_found_says_nothing():
    caches = PromptCaches()
    caches.look("a", 0, 0)
    for found, asked in ((10, 20), (50, 40), (10**18, 10**18 + 40), (nan, nan), (inf, inf), (10**19, 10**19 + 1)):
        caches.count("a", found, asked)
    caches.look("a", 100 * ENOUGH, 100 * ENOUGH)
    assert caches.per_mille("a") == 0


def test_an_engine_that_counts_anew_has_nothing_in_its_cache():
    caches = PromptCaches()
    seen(caches, "a", 1.0, 1.0)
    seen(caches, "b", 1.0, 1.0)
    caches.count("a", 10.0, 20.0)
    assert [caches.per_mille(name) for name in "ab"] == [0, 1000]
    for n in range(1, 4):
        caches.count("a", 10.0 + ENOUGH * n, 20.0 + ENOUGH * n)
        caches.look("a", ENOUGH * (3 + n), ENOUGH * (3 + n))
    assert caches.per_mille("a") == 1000, "it is believed again as it fills"


def test_hits_that_nobody_expected_bear_out_nothing_later():
    caches = PromptCaches()
    caches.look("a", 0, 0)
    for second in range(3600):
        caches.count("a", 2000.0 * second, 2100.0 * second)
        caches.look("a", 0, 0)
    for n in range(1, 4):  # the engine has lost its cache
        caches.count("a", 2000.0 * 3599, 2100.0 * 3599 + 20_000 * n)
        caches.look("a", 20_000 * n, 20_000 * n)
    assert caches.per_mille("a") == 0


def test_prompts_that_take_long_bear_out_what_was_expected_of_them_at_their_ends():
    """Long ones, seldom: an engine counts each three looks after its grant, when nothing new is expected."""
    caches, granted, counted = PromptCaches(), 0, 0.0
    caches.look("a", 0, 0)
    for second in range(60):
        granted += 12_000 * (second % 6 == 0)
        counted += 12_000.0 * (second % 6 == 3)
        caches.count("a", 0.9 * counted, counted)
        caches.look("a", granted, granted)
    assert 880 <= caches.per_mille("a") <= 900


def test_a_small_change_is_not_told():
    caches = PromptCaches()
    seen(caches, "a", 0.777, 1.0)
    trust, most = caches.bound("a", 8_500.0)
    assert (trust % TRUST_STEP, most % TOKENS_STEP) == (0, 0)
    assert 760 <= trust <= 777
    assert 8_500 - TOKENS_STEP < most <= 8_500
    assert caches.bound("a", 8_501.0) == (trust, most)
    assert caches.bound("a", 0.0) == (trust, 0), "how fast it computes is not known"
    assert caches.bound("another", inf)[0] == 0
