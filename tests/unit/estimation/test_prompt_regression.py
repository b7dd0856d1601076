"""What prompts ask for, learned per application: does it tell long answers from short ones, for whom, at what price?"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.estimate.category import classify
from scheduling.core.estimate.chain import TENANTS_KEPT, Chain
from scheduling.core.estimate.contracts import PromptFacts
from scheduling.core.estimate.features import COUNT, features
from scheduling.core.estimate.regression import MODELS_KEPT
from scheduling.estimation.embedding import Embedder
from scheduling.estimation.evaluation.metrics import spearman
from scheduling.estimation.regression import FIRST_FIT, RidgeRegression
from scheduling.estimation.window import RingWindow

EMBEDDER = Embedder()
THINGS = (
    "harbour river engine violin budget market garden bridge comet glacier orchard kettle lantern quarry saddle "
    "turbine walnut zeppelin anchor beacon canal dairy easel falcon granite hammock island jungle kiosk ladder meadow"
).split()
LONG = ("Write a detailed essay about the {0} and the {1}", "Explain in depth how a {0} works, with {1}s as examples")
SHORT = ("Is a {0} older than a {1}? Answer with yes or no only", "Name just one {0} near the {1}")


def facts(text: str, tenant: str = "acme", key: str = "key", **changes: Any) -> PromptFacts:
    category = classify(text).value
    made = PromptFacts(key, tenant, "llama", category, 20.0, None, EMBEDDER.embed(text), features(text, category))
    return replace(made, **changes)


def prompts(count: int, seed: int) -> Iterator[tuple[str, int, bool]]:
    """Prompts that are all different, the length [tokens] of their answers, and whether they ask for much."""
    rng = random.Random(seed)
    for _ in range(count):
        long = rng.random() < 0.5
        text = rng.choice(LONG if long else SHORT).format(*rng.sample(THINGS, 2))
        yield text, max(1, round((600 if long else 30) * rng.lognormvariate(0.0, 0.4))), long


def teach(chain: Chain, text: str, actual: int, *, cut: bool = False, **changes: Any) -> None:
    """As a gateway would: predicted first, told with what was predicted."""
    asked = facts(text, **changes)
    said = chain.predict(asked)
    chain.observe(asked, actual, cut=cut, source=said.prediction.source, raw_p90=said.raw_p90)
    chain.fit()


def taught(count: int = 150, seed: int = 1, **changes: Any) -> Chain:
    chain = Chain(None, RidgeRegression, **changes)
    for text, actual, _ in prompts(count, seed):
        teach(chain, text, actual)
    return chain


TEXTS = st.lists(
    st.sampled_from(
        "write an essay c++ c page12 12 page 2b b2b json? JSON! explain 300 words 300words 9-line case9 9 how to many "
        "show as a was act as show that answer with no explanation ``` </ step by step 3pages page's lines_".split()
    ),
    max_size=600,
).map(" ".join)


class TestSigns:
    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=6_000), st.sampled_from(["", "short_qa", "report"]))
    def test_any_text_has_as_many_and_each_is_bounded(self, text: str, category: str) -> None:
        signs = features(text, category)
        assert len(signs) == COUNT
        assert max(signs) <= 127

    @settings(max_examples=400, deadline=None)
    @given(st.text(max_size=1_700) | st.text("ab1 c7+?\n\u212a\u00e9\u0130", max_size=300) | TEXTS)
    def test_an_embedder_that_counts_the_words_on_its_way_sees_the_same(self, text: str) -> None:
        _, counted = EMBEDDER.read(text)
        assert features(text, "report", counted) == features(text, "report")

    def test_they_tell_what_is_asked_for(self) -> None:
        plain = features("Tell me about the harbour", "report")
        for other in (
            "Tell me briefly about the harbour",
            "Tell me about the harbour in 50 words",
            "Tell me about the harbour?",
        ):
            assert features(other, "report") != plain
        assert features("Tell me in 900 words", "") != features("Tell me in 50 words", "")
        assert features("Tell me about the harbour", "summary") != plain

    @pytest.mark.parametrize(
        ("text", "digest"),
        [
            ("Explain in depth how a heat pump works, in 300 words or 2 pages", "efefbf1b4b0c92d9"),
            ("a123456 lines, _12 lines, \u00e912 pages, 55555 tokens?", "177368d37b41216a"),
            ("def f():\n    return 1\n```\nWhy does this fail? " * 40, "218c6dece51bce7e"),
        ],
    )
    def test_they_are_the_same_in_every_release(self, text: str, digest: str) -> None:
        """Gateways of two releases learn from one stream."""
        assert hashlib.sha256(features(text, "report")).hexdigest()[:16] == digest

    @pytest.mark.parametrize(
        ("text", "asks"),
        [("in 300 words", True), ("300-word text", True), ("(12 lines)", True), ("a12 lines", False),
         ("_12 lines", False), ("\u00e912 lines", False), ("123456 lines", False), ("12 lined", False)],
    )  # fmt: skip
    def test_a_length_is_asked_for_by_a_number_that_begins_a_word(self, text: str, asks: bool) -> None:
        assert (features(text, "")[-2] > 0) is asks

    def test_what_lies_beyond_the_end_that_is_looked_at_changes_nothing(self) -> None:
        body = "word " * 2_000
        assert features(body, "") == features(body + "and an essay", "")


class TestRanking:
    def test_prompts_of_one_application_that_are_all_different_are_told_apart(self) -> None:
        chain = taught()
        without = Chain(None)
        for text, actual, _ in prompts(150, 1):
            teach(without, text, actual)
        asked = list(prompts(100, 2))
        said = [chain.predict(facts(text)) for text, _, _ in asked]
        actual = np.array([float(length) for _, length, _ in asked])
        assert {one.prediction.source for one in said} == {"regression"}
        rank = spearman(np.array([one.prediction.mean for one in said]), actual)
        assert rank is not None
        assert rank > 0.75
        error = np.abs(np.array([one.prediction.mean for one in said]) - actual).mean()
        constant = np.array([without.predict(facts(text)).prediction.mean for text, _, _ in asked])
        assert error < 0.6 * np.abs(constant - actual).mean()
        covered = np.mean([length <= one.p90 for one, length in zip(said, actual, strict=True)])
        assert 0.82 <= covered <= 0.97  # 100 draws of 90 %: 2.7 standard deviations

    def test_a_new_application_is_predicted_from_its_history_until_enough_is_known(self) -> None:
        chain = taught(FIRST_FIT + 8)
        assert chain.predict(facts("Name just one kettle near the anchor")).prediction.source == "application"
        assert taught(80).predict(facts("Name just one kettle near the anchor")).prediction.source == "regression"

    def test_where_prompts_say_nothing_it_is_hardly_worse_than_the_history(self) -> None:
        rng = random.Random(3)
        chain, without = Chain(None, RidgeRegression), Chain(None)
        error = constant = 0.0
        for number, (text, _, _) in enumerate(prompts(500, 3)):
            actual = max(1, round(100 * rng.lognormvariate(0.0, 0.5)))
            if number >= 200:
                error += abs(chain.predict(facts(text)).prediction.mean - actual)
                constant += abs(without.predict(facts(text)).prediction.mean - actual)
            teach(chain, text, actual)
            teach(without, text, actual)
        assert error < 1.08 * constant

    def test_an_application_that_changes_is_followed(self) -> None:
        chain = taught()
        for text, actual, _ in prompts(400, 4):
            teach(chain, text, actual * 3)
        said = {long: chain.predict(facts(text)).prediction.mean for text, _, long in prompts(20, 5)}
        assert said[True] == pytest.approx(1_950, rel=0.4)
        assert said[False] == pytest.approx(98, rel=0.5)

    def test_answers_that_a_bound_cut_short_do_not_teach_that_answers_are_short(self) -> None:
        chain = taught()
        asked = facts("Write a detailed essay about the walnut and the comet")
        before = chain.predict(asked).prediction.mean
        for text, actual, _ in prompts(200, 6):
            teach(chain, text, min(actual, 50), cut=actual >= 50)
        assert chain.predict(asked).prediction.mean > 0.6 * before

    def test_a_bound_cuts_it(self) -> None:
        said = taught().predict(facts("Write a detailed essay about the walnut and the comet", output_bound=90))
        assert said.prediction.source == "regression"
        assert said.prediction.lengths[-1] <= 90
        assert said.p90 <= 90

    def test_answers_of_a_token_or_two_are_an_order_that_queues_can_use(self) -> None:
        """Several ratios to a length of one token are all one token, and a cost distribution has each cost once."""
        rng, chain = random.Random(7), Chain(None, RidgeRegression)
        for text, _, long in prompts(150, 7):
            teach(chain, text, rng.choice((2, 3, 4)) if long else rng.choice((1, 1, 1, 2)))
        said = [chain.predict(facts(text)).prediction for text, _, _ in prompts(40, 8)]
        assert {one.source for one in said} == {"regression"}
        assert all(a < b for one in said for a, b in pairwise(one.lengths))
        assert all(sum(one.probabilities) == pytest.approx(1.0) for one in said)

    def test_a_prompt_of_extremes_is_predicted_within_what_was_seen(self) -> None:
        chain = taught()
        longest = max(actual for _, actual, _ in prompts(150, 1))
        for text in ("essay detailed explain write list story " * 600, "?" * 4_000, "9" * 4_000, "\n" * 4_000):
            said = chain.predict(facts(text)).prediction
            assert 1.0 <= said.lengths[0] <= said.mean <= 20 * longest

    def test_repeated_prompts_are_known_better_than_any_line_could(self) -> None:
        """Answers that contradict what their prompts ask for: the regression alone would be wrong."""
        chain, without = Chain(RingWindow, RidgeRegression), Chain(RingWindow)
        rng = random.Random(7)
        fixed = [
            (text, rng.choice([20, 200, 2_000]) if number % 2 else 50)
            for number, (text, _, _) in enumerate(prompts(30, 7))
        ]
        for _ in range(20):
            for text, actual in fixed:
                teach(chain, text, actual)
                teach(without, text, actual)
        error, best = (
            sum(abs(each.predict(facts(text)).prediction.quantile(0.5) - actual) for text, actual in fixed)
            for each in (chain, without)
        )
        assert error <= 1.05 * best + 30


class TestNoninterference:
    def test_answers_of_one_tenant_change_nothing_for_another_under_the_same_key_name(self) -> None:
        quiet, stormy = Chain(None, RidgeRegression), Chain(None, RidgeRegression)
        for text, actual, _ in prompts(120, 1):
            for chain in (quiet, stormy):
                teach(chain, text, actual)
        for text, actual, _ in prompts(600, 8):
            teach(stormy, text, 5_000 - 4 * min(actual, 1_000), tenant="storm")
        for text, _, _ in prompts(20, 9):
            mine = quiet.predict(facts(text))
            assert mine.prediction.source == "regression"
            assert stormy.predict(facts(text)) == mine

    def test_keys_of_a_storm_push_out_no_other_tenants_regression(self) -> None:
        chain = taught(80, models=4)
        for number in range(40):
            teach(chain, "Name just one kettle", 9, tenant="storm", key=f"key {number}")
        assert chain.models == 4
        assert chain.predict(facts("Name just one kettle near the anchor")).prediction.source == "regression"
        storm = chain.of("storm")
        assert storm is not None
        assert storm.regression is not None
        assert len(storm.regression) == 3

    def test_they_are_bounded_and_a_forgotten_tenant_takes_its_own_along(self) -> None:
        chain = Chain(None, RidgeRegression)
        for number in range(MODELS_KEPT + 20):
            teach(chain, "Name just one kettle", 9, key=f"key {number}")
        assert chain.models == MODELS_KEPT
        for number in range(TENANTS_KEPT + 1):
            chain.observe(facts("", f"t{number}", features=b"", embedding=None), 9)
        assert chain.of("acme") is None
        assert chain.models == 0

    def test_a_reset_forgets_them(self) -> None:
        chain = taught()
        chain.reset()
        assert chain.models == 0
        asked = facts("Name just one kettle near the anchor")
        assert chain.predict(asked).prediction.source == "application"
        for text, actual, _ in prompts(80, 10):
            teach(chain, text, actual)
        assert chain.predict(asked).prediction.source == "regression"


def test_weights_are_those_of_the_normal_equations_with_fading() -> None:
    """Against the closed form on all answers at once."""
    from scheduling.estimation.regression import KEEP, LEVEL_RIDGE, RIDGE, WIDTH, inputs

    regression = RidgeRegression()
    rows, lengths = [], []
    for text, actual, _ in prompts(150, 11):
        asked = facts(text)
        regression.add(asked.embedding, asked.features, float(actual))
        rows.append(inputs(asked.embedding, asked.features).astype(float))
        lengths.append(np.log(actual))
        if regression.due:
            regression.fit()
    regression.fit()
    x, y = np.array(rows), np.array(lengths)
    fading = KEEP ** np.arange(len(y) - 1, -1, -1)
    penalty = np.diag([RIDGE] * (WIDTH - 1) + [LEVEL_RIDGE])
    weights = np.linalg.solve((x.T * fading) @ x + penalty, (x.T * fading) @ y)
    asked = facts("Explain in depth how a kiosk works, with islands as examples")
    expected = float(inputs(asked.embedding, asked.features) @ weights)
    assert regression.predict(asked.embedding, asked.features) == pytest.approx(expected, abs=1e-3)


def test_signs_of_another_version_are_an_error() -> None:
    asked = facts("Name just one kettle")
    with pytest.raises(ValueError, match="signs"):
        RidgeRegression().add(asked.embedding, b"abc", 5.0)
