"""What engines find in their caches, as the leader counts it."""

from __future__ import annotations

from math import nan

import pytest

from scheduling.core.cached_prompts import ENOUGH
from scheduling.dispatch.prompt_caches import PromptCaches


def test_what_an_engine_counts_anew_or_cannot_have_found_says_nothing():
    caches = PromptCaches()
    caches.look(0, 0)
    for found, asked in ((900, 1000), (10, 20), (-5, 30), (10**18, 40), (10**18, 10**18 + 40), (nan, nan), (50, 100)):
        caches.count("a", found, asked)
    caches.look(100 * ENOUGH, 100 * ENOUGH)
    assert caches.per_mille(1.0) == 0
    caches.count("a", 50 + 95_000, 100 + 100_000)
    caches.look(200 * ENOUGH, 200 * ENOUGH)
    assert caches.per_mille(0.9) == pytest.approx(0.9 * caches.per_mille(1.0), abs=1)
    assert 900 < caches.per_mille(1.0) <= 1000


def test_hits_that_nobody_expected_bear_out_nothing_later():
    caches = PromptCaches()
    caches.look(0, 0)
    for second in range(3600):
        caches.count("a", 2000.0 * second, 2100.0 * second)
        caches.look(0, 0)
    for n in range(1, 4):  # the engine has lost its cache
        caches.count("a", 2000.0 * 3599, 2100.0 * 3599 + 20_000 * n)
        caches.look(20_000 * n, 20_000 * n)
    assert caches.per_mille(1.0) == 0
