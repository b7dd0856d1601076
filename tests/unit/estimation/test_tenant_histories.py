"""What one tenant's answers may change for another: nothing, but for one coarse factor that moves within a bound."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.estimate.category import Category
from scheduling.core.estimate.chain import TENANTS_KEPT, Chain
from scheduling.core.estimate.contracts import PromptFacts
from scheduling.core.estimate.history import APPLICATIONS_KEPT
from scheduling.core.estimate.prior import (
    FULL_TENANTS,
    MAX_MOVED,
    MIN_ANSWERS,
    MIN_TENANTS,
    WIDEST,
    PoolPrior,
)
from scheduling.core.estimate.shares import Shares
from scheduling.estimation.embedding import DIMENSIONS, Embedder, Vector
from scheduling.estimation.window import MIN_ROWS, RingWindow

EMBEDDER = Embedder()


def facts(tenant: str, text: str = "Summarise the minutes of the harbour committee", key: str = "") -> PromptFacts:
    return PromptFacts(key or f"key of {tenant}", tenant, "llama", Category.SUMMARY, 100.0, None, EMBEDDER.embed(text))


def told(chain: Chain, tenant: str, text: str = "", **changes: object) -> tuple[str, float, float]:
    found = chain.predict(replace(facts(tenant, text or "What did the harbour committee say?"), **changes))  # type: ignore[arg-type]
    return found.prediction.source, found.prediction.mean, found.p90


class TestNoninterference:
    def test_a_prompt_of_one_tenant_is_never_similar_to_anothers(self) -> None:
        chain = Chain(RingWindow)
        for _ in range(12):
            chain.observe(facts("neighbour", "Write the letter to the project codenamed Bluefin"), 160)
        asked = "Write the letter to the project codenamed Redfin"
        assert told(chain, "neighbour", asked)[0] == "similar"
        source, mean, p90 = told(chain, "other", asked)
        fresh = Chain(RingWindow)
        assert (source, mean, p90) == told(fresh, "other", asked), "as if the neighbour had never been there"

    def test_ten_thousand_answers_of_one_tenant_do_not_move_anothers_estimate(self) -> None:
        quiet, stormy = Chain(RingWindow), Chain(RingWindow)
        for chain in (quiet, stormy):
            for number in range(30):
                chain.observe(facts("own", f"Describe ship {number} of the fleet"), 650, source="prior", raw_p90=700.0)
        for number in range(10_000):
            stormy.observe(
                facts("storm", f"Describe ship {number % 97} of the fleet"), 4_000, source="prior", raw_p90=5.0
            )
        for text in ("Describe ship 7 of the fleet", "Name a fish"):
            for key in ("key of own", "a new key"):
                assert told(stormy, "own", text, application=key) == told(quiet, "own", text, application=key)

    def test_a_storm_takes_no_place_from_a_tenant_with_less_than_an_equal_share(self) -> None:
        chain = Chain(RingWindow, prompts=100)
        for number in range(40):
            chain.observe(facts("small", f"prompt number {number} of mine"), number + 1)
        for number in range(500):
            chain.observe(facts("storm", f"storm {number}", key=f"key {number}"), 9)
        for number in range(500):
            chain.observe(facts("second", f"gale {number}"), 9)
        held = {name: len(tenant.similar or ()) for name, tenant in chain.tenants()}
        assert sum(held.values()) == chain.prompts == 100
        assert held["small"] == 33, "an equal share of three; before the second came it had all of its 40"
        small = chain.of("small")
        assert small is not None
        assert small.similar is not None

    def test_keys_of_a_storm_push_out_no_other_tenants_application(self) -> None:
        chain = Chain(None)
        for _ in range(10):
            chain.observe(facts("small"), 70)
        for number in range(APPLICATIONS_KEPT + 50):
            chain.observe(facts("storm", key=f"key {number}"), 9)
        assert told(chain, "small", application="key of small")[0] == "application"
        assert sum(len(tenant.history) for _, tenant in chain.tenants()) == APPLICATIONS_KEPT

    def test_tenants_are_bounded_and_the_longest_unheard_of_goes_with_all_it_held(self) -> None:
        chain = Chain(RingWindow)
        for number in range(TENANTS_KEPT + 3):
            chain.observe(facts(f"t{number}"), 50)
        assert len(list(chain.tenants())) == TENANTS_KEPT
        assert chain.prompts == TENANTS_KEPT
        assert chain.of("t0") is None
        assert told(chain, "t0")[0] == "prior"

    def test_each_tenant_has_its_own_calibration(self) -> None:
        chain = Chain(None)
        for _ in range(40):
            chain.observe(facts("wrong"), 1_000, source="application", raw_p90=100.0)
        for _ in range(40):
            chain.observe(facts("right"), 100, source="application", raw_p90=100.0)
        assert told(chain, "right", application="key of right")[2] == pytest.approx(100.0)


votes = st.lists(st.floats(1e-3, 1e3), min_size=0, max_size=FULL_TENANTS + 10)


class TestPoolPrior:
    @settings(max_examples=300, deadline=None)
    @given(others=votes, before=st.one_of(st.none(), st.floats(1e-6, 1e6)), after=st.floats(1e-6, 1e6))
    def test_no_tenant_moves_the_factor_beyond_the_stated_bound(
        self, others: list[float], before: float | None, after: float
    ) -> None:
        prior = PoolPrior()
        for number, bias in enumerate(others):
            prior.vote(f"t{number}", "summary", bias, MIN_ANSWERS)
        if before is not None:
            prior.vote("one", "summary", before, 10_000)
        first = prior.factor("summary")
        prior.vote("one", "summary", after, 10_000)
        assert abs(math.log(prior.factor("summary") / first)) <= math.log(MAX_MOVED) + 1e-9
        assert MAX_MOVED < 1.15
        prior.withdraw("one")
        assert 1.0 / WIDEST <= prior.factor("summary") <= WIDEST

    def test_nothing_is_told_of_fewer_than_five_tenants_or_twenty_answers(self) -> None:
        prior = PoolPrior()
        for number in range(MIN_TENANTS - 1):
            prior.vote(f"t{number}", "summary", 0.25, MIN_ANSWERS)
        prior.vote("late", "summary", 0.25, MIN_ANSWERS - 1)
        assert prior.factor("summary") == 1.0
        assert prior.shared_factors() == []
        prior.vote("late", "summary", 0.25, MIN_ANSWERS)
        assert prior.factor("summary") < 1.0
        assert [tenants for _, _, tenants in prior.shared_factors()] == [MIN_TENANTS]

    def test_a_newcomer_to_a_pool_of_many_begins_with_what_they_have_in_common(self) -> None:
        chain = Chain(None)
        for number in range(FULL_TENANTS):
            for _ in range(MIN_ANSWERS):
                chain.observe(facts(f"t{number}"), 64)
        mean = told(chain, "newcomer")[1]
        assert mean == pytest.approx(64, rel=0.45)
        before = chain.predict(facts("newcomer")).prediction.mean
        for _ in range(10_000):
            chain.observe(facts("t0"), 4_000)
        assert before / MAX_MOVED <= chain.predict(facts("newcomer")).prediction.mean <= before * MAX_MOVED

    def test_votes_are_coarse_small_changes_of_a_tenant_are_not_seen(self) -> None:
        prior = PoolPrior()
        for number in range(FULL_TENANTS):
            prior.vote(f"t{number}", "summary", 0.5, 99)
        before = prior.factor("summary")
        prior.vote("t0", "summary", 0.55, 99)
        assert prior.factor("summary") == before


class TestShares:
    def test_the_largest_is_always_one_that_holds_most(self) -> None:
        rng = random.Random(3)
        shares, held = Shares(), dict.fromkeys("abcdef", 0)
        for _ in range(3_000):
            owner = rng.choice("abcdef")
            if rng.random() < 0.45 and held[owner]:
                shares.remove(owner)
                held[owner] -= 1
            elif rng.random() < 0.02:
                shares.drop(owner)
                held[owner] = 0
            else:
                shares.add(owner)
                held[owner] += 1
            assert shares.total == sum(held.values())
            if shares.total:
                assert held[shares.largest()] == max(held.values())


class TestWindow:
    def test_a_ring_that_gives_places_back_finds_what_a_plain_list_would(self) -> None:
        rng = np.random.default_rng(5)
        window, plain = RingWindow(size=200), []

        def one() -> Vector:
            vector = rng.normal(size=DIMENSIONS).astype(np.float32)
            return vector / np.float32(np.sqrt(vector @ vector))

        for number in range(2_000):
            if plain and rng.random() < (0.2 if number % 600 < 300 else 0.7):
                window.forget_oldest()
                plain.pop(0)
            else:
                vector = one()
                window.add(vector, number, False)
                plain.append((vector, float(number)))
                plain = plain[-200:]
            assert len(window) == len(plain)
            assert window.rows <= max(MIN_ROWS, 4 * len(window))
            if number % 20 == 0 and plain:
                asked = one()
                cosines, lengths, _ = window.nearest(asked, 5)
                best = sorted(plain, key=lambda entry: -float(entry[0] @ asked))[:5]
                assert sorted(lengths) == sorted(length for _, length in best)
                assert sorted(cosines) == pytest.approx(sorted(float(v @ asked) for v, _ in best), abs=1e-5)

    def test_nothing_to_forget_is_an_error(self) -> None:
        with pytest.raises(IndexError):
            RingWindow().forget_oldest()
