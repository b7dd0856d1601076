"""Predictors of output length: who speaks, what it says, and how it learns."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from scheduling.core.estimate.category import BASE_TOKENS, Category, classify
from scheduling.core.estimate.chain import Chain
from scheduling.core.estimate.conformal import Calibrator
from scheduling.core.estimate.contracts import Prediction, PromptFacts
from scheduling.core.estimate.distribution import distribution, log_normal
from scheduling.core.estimate.drift import CategoryBaseline, Drift
from scheduling.core.estimate.history import MIN_OBSERVED, ApplicationHistory
from scheduling.estimation.embedding import Embedder, pack, unpack
from scheduling.estimation.window import KNOWN_BY_HEART, RingWindow

FACTS = PromptFacts("key-1", "acme", "llama", Category.SUMMARY, 100.0)


class TestCategories:
    @pytest.mark.parametrize(
        ("text", "category"),
        [
            ("What is the capital of France?", Category.SHORT_QA),
            ("Summarize the following article:\n\nThe council met on Monday.", Category.SUMMARY),
            ("Write a Python function that reverses a list", Category.TECHNICAL),
            ("Write a detailed report on the state of the oceans", Category.REPORT),
            ("", Category.SHORT_QA),
        ],
    )
    def test_rules_read_the_bare_prompt(self, text: str, category: Category) -> None:
        assert classify(text) is category

    def test_an_instruction_after_long_material_is_found(self) -> None:
        assert classify("The tide rose. " * 200 + "Please summarise the text above.") is Category.SUMMARY

    def test_a_label_that_a_load_generator_would_leak_says_nothing(self) -> None:
        assert classify("[report] What is the capital of France?") is classify("What is the capital of France?")


class TestDistribution:
    def test_a_cut_answer_moves_mass_to_longer_ones(self) -> None:
        plain = distribution([(64.0, False, 1.0), (200.0, False, 1.0), (300.0, False, 1.0)], "x", 3)
        cut = distribution([(64.0, True, 1.0), (200.0, False, 1.0), (300.0, False, 1.0)], "x", 3)
        assert plain.lengths == (64.0, 200.0, 300.0)
        assert cut.lengths == (200.0, 300.0)
        assert cut.probabilities == pytest.approx((0.5, 0.5))

    def test_where_only_cut_answers_were_that_long_they_count_as_they_are(self) -> None:
        found = distribution([(10.0, False, 1.0), (64.0, True, 1.0)], "x", 2)
        assert found.lengths == (10.0, 64.0)
        assert found.probabilities == pytest.approx((0.5, 0.5))

    def test_nothing_to_go_by_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="at least one sample"):
            distribution([], "x", 0)

    def test_whatever_the_weights_lengths_increase_and_shares_add_up(self) -> None:
        for seed in range(3_000):
            rng = random.Random(seed)
            power, lengths = rng.choice([1, 4, 9, 40]), (1.0, 53.0, 297.0, 336.0, math.nextafter(510.0, 0.0), 510.0)
            samples = [
                (rng.choice(lengths), rng.random() < 0.2, rng.random() ** power) for _ in range(rng.randint(2, 40))
            ]
            found = distribution(samples, "x", 1.0)
            assert all(a < b for a, b in pairwise(found.lengths)), seed
            assert min(found.probabilities) > 0.0, seed
            assert sum(found.probabilities) == pytest.approx(1.0), seed

    def test_a_bound_cuts_a_distribution_and_its_mean(self) -> None:
        found = Prediction((10.0, 100.0, 1000.0), (0.5, 0.25, 0.25), "x", 280.0)
        cut = found.truncated(100)
        assert cut.lengths == (10.0, 100.0)
        assert cut.probabilities == (0.5, 0.5)
        assert cut.mean == 55.0
        assert found.truncated(5).lengths == (5.0,)
        assert found.truncated(None) is found

    def test_quantiles_and_ranks_agree(self) -> None:
        found = Prediction((10.0, 20.0, 30.0, 40.0), (0.25, 0.25, 0.25, 0.25), "x", 25.0)
        assert [found.quantile(q) for q in (0.0, 0.25, 0.26, 0.9, 1.0)] == [10.0, 10.0, 20.0, 40.0, 40.0]
        assert found.rank(5) == 0.0
        assert found.rank(20) == pytest.approx(0.375)
        assert found.rank(50) == pytest.approx(1.0)


class TestDrift:
    def test_it_converges_to_a_constant_ratio_at_the_ema_rate(self) -> None:
        drift = Drift()
        for _ in range(60):
            drift.learn(Category.REPORT, 0.8 * BASE_TOKENS[Category.REPORT])
        assert drift.bias(Category.REPORT) == pytest.approx(0.8 + 0.2 * 0.9**60)

    def test_it_can_grow_past_its_base(self) -> None:
        drift = Drift()
        for _ in range(100):
            drift.learn(Category.SHORT_QA, 160, cut=True)
        assert drift.expected(Category.SHORT_QA, 0) == pytest.approx(160, rel=0.01)

    def test_a_cut_answer_does_not_teach_that_answers_are_short(self) -> None:
        drift = Drift()
        drift.learn(Category.REPORT, 16, cut=True)
        assert drift.bias(Category.REPORT) == 1.0

    def test_one_observation_is_clipped(self) -> None:
        drift = Drift()
        drift.learn(Category.SHORT_QA, 64_000)
        assert drift.bias(Category.SHORT_QA) == pytest.approx(0.9 + 0.1 * 3.0)

    def test_a_model_that_differs_gets_its_own_bias(self) -> None:
        drift = Drift()
        for _ in range(200):
            drift.learn(Category.SUMMARY, 128, model="brief")
            drift.learn(Category.SUMMARY, 512, model="wordy")
        brief, wordy = (drift.expected(Category.SUMMARY, 0, model=name) for name in ("brief", "wordy"))
        assert brief < 180
        assert wordy > 440

    def test_a_prior_stands_in_and_fades_with_own_answers(self) -> None:
        drift = CategoryBaseline().drift
        assert drift.bias(Category.SUMMARY, prior=2.0) == 2.0
        found = []
        for _ in range(20):
            drift.learn(Category.SUMMARY, 256, prior=2.0)
            found.append(drift.bias(Category.SUMMARY, prior=2.0))
        assert found == sorted(found, reverse=True)
        assert found[0] == pytest.approx(2.0 ** (0.25 / 1.25))
        assert found[-1] == pytest.approx(2.0 ** (0.25 / 20.25))

    def test_reset_forgets_one_category_or_all(self) -> None:
        drift = Drift()
        drift.learn(Category.SUMMARY, 512, model="llama")
        drift.learn(Category.REPORT, 100)
        drift.reset(Category.SUMMARY)
        assert drift.bias(Category.SUMMARY, model="llama") == 1.0
        assert drift.bias(Category.REPORT) < 1.0
        drift.reset()
        assert drift.factors() == []

    def test_switched_off_it_learns_nothing(self) -> None:
        drift = Drift(on=False)
        drift.learn(Category.SUMMARY, 10)
        assert drift.bias(Category.SUMMARY) == 1.0

    def test_safety_scales_a_budget_only_where_asked_and_long_prompts_count_half_more_at_most(self) -> None:
        drift = Drift()
        assert drift.expected(Category.SUMMARY, 0) == 256
        assert drift.expected(Category.SUMMARY, 0, safety=1.2) == pytest.approx(307.2)
        assert drift.expected(Category.SUMMARY, 9_000) == 384


class TestHistory:
    def test_it_says_nothing_before_it_knows_an_application(self) -> None:
        history = ApplicationHistory()
        for _ in range(MIN_OBSERVED - 1):
            history.observe(FACTS, 50)
        assert history.predict(FACTS) is None
        history.observe(FACTS, 50)
        found = history.predict(FACTS)
        assert found is not None
        assert found.mean == 50
        assert history.predict(replace(FACTS, application="other")) is None


class TestSimilarPrompts:
    def test_equal_tasks_are_nearer_than_other_tasks(self) -> None:
        embedder = Embedder()
        a, b, c = (
            embedder.embed(text)
            for text in (
                "Write a Python function that adds two numbers",
                "Write a Python function which adds three numbers",
                "Translate this letter into German, please",
            )
        )
        assert a is not None
        assert b is not None
        assert c is not None
        assert float(a @ b) > 0.8
        assert float(a @ c) < 0.4

    def test_an_embedding_is_the_same_in_every_process(self) -> None:
        first, second = Embedder(), Embedder()
        second.embed("something else came before")
        one, two = first.embed("Hello there, world"), second.embed("Hello there, world")
        assert one is not None
        assert two is not None
        assert pack(one) == pack(two)
        assert float(one @ one) == pytest.approx(1.0, abs=1e-5)

    def test_a_packed_embedding_comes_back_nearly_the_same_and_packs_alike(self) -> None:
        vector = Embedder().embed("Explain how a heat pump works in winter")
        assert vector is not None
        back = unpack(pack(vector))
        assert float(back @ vector) > 0.9999
        assert pack(back) == pack(vector)
        with pytest.raises(ValueError, match="96 bytes"):
            unpack(b"short")

    def test_a_text_without_words_has_no_embedding(self) -> None:
        assert Embedder().embed(" \n\t") is None

    def test_the_window_forgets_the_oldest_first(self) -> None:
        embedder, window = Embedder(), RingWindow(size=20)
        vectors = [embedder.embed(f"prompt about topic{i} and matter{i * 7}") for i in range(30)]
        for i, vector in enumerate(vectors):
            assert vector is not None
            window.add(vector, i + 1, False)
        assert len(window) == 20
        _, lengths, _ = window.nearest(vectors[29], 20)
        assert sorted(lengths) == [float(i + 1) for i in range(10, 30)]

    def test_repeats_that_left_the_window_are_not_known_by_heart(self) -> None:
        embedder, window = Embedder(), RingWindow(size=KNOWN_BY_HEART)
        same, other = embedder.embed("the same prompt again"), embedder.embed("entirely different words here")
        assert same is not None
        assert other is not None
        for _ in range(KNOWN_BY_HEART):
            window.add(same, 5, False)
        assert window.nearest(same, 64)[0].tolist() == [1.0] * KNOWN_BY_HEART
        for _ in range(KNOWN_BY_HEART - 1):
            window.add(other, 9, False)
        _, lengths, _ = window.nearest(same, 64)
        assert sorted(lengths) == [5.0] + [9.0] * (KNOWN_BY_HEART - 1)


class TestCalibration:
    def test_ninety_percent_means_ninety_percent_for_a_predictor_that_is_wrong(self) -> None:
        rng = random.Random(7)
        calibrator = Calibrator()
        said = log_normal(100.0, 0.3, "narrow")  # the truth is three times as long and far wider
        covered = total = 0
        for number in range(4_000):
            actual = 300.0 * rng.lognormvariate(0.0, 0.9)
            if number >= 500:
                covered += actual <= calibrator.upper(said.source, said.quantile(0.9))
                total += 1
            calibrator.observe("narrow", said.quantile(0.9), actual)
        assert covered / total == pytest.approx(0.9, abs=0.02)

    def test_the_limit_never_exceeds_the_bound(self) -> None:
        assert Calibrator().upper("x", 190.0, 20) == 20.0

    def test_each_source_has_its_own_factor(self) -> None:
        calibrator = Calibrator()
        for _ in range(50):
            calibrator.observe("a", 100.0, 50.0)
        assert calibrator.factor("a") == 0.5
        assert calibrator.factor("b") == 1.0


class TestChain:
    def test_the_first_that_knows_speaks(self) -> None:
        embedder = Embedder()
        chain = Chain(RingWindow)
        facts = replace(FACTS, embedding=embedder.embed("Summarise the minutes of Monday's meeting"))
        assert chain.predict(facts).prediction.source == "prior"
        chain.observe(replace(facts, application="else", embedding=None), 80)
        assert chain.predict(facts).prediction.source == "category"
        for _ in range(MIN_OBSERVED):
            chain.observe(replace(facts, embedding=None), 80)
        assert chain.predict(facts).prediction.source == "application"
        chain.observe(replace(facts, application="another"), 20)
        found = chain.predict(facts)
        assert found.prediction.source == "similar"
        assert found.prediction.mean < 80

    def test_a_bound_cuts_whoever_speaks(self) -> None:
        chain = Chain(None)
        facts = replace(FACTS, output_bound=32)
        for _ in range(MIN_OBSERVED + 1):
            found = chain.predict(facts)
            assert found.prediction.lengths[-1] <= 32
            assert found.p90 <= 32
            chain.observe(facts, 500)

    def test_without_learning_the_table_stays_as_it_came(self) -> None:
        chain = Chain(None, learning=False)
        before = chain.predict(FACTS).prediction
        for _ in range(50):
            chain.observe(FACTS, 5, source="prior", raw_p90=before.quantile(0.9))
        assert chain.predict(FACTS).prediction == before

    def test_reset_takes_back_what_drift_learned(self) -> None:
        chain = Chain(None)
        before = chain.predict(replace(FACTS, application="new")).prediction.mean
        for _ in range(100):
            chain.observe(FACTS, 2_000)
        assert chain.predict(replace(FACTS, application="new")).prediction.mean > 2 * before
        chain.reset(Category.SUMMARY)
        assert chain.predict(replace(FACTS, application="new")).prediction.mean == pytest.approx(before)
