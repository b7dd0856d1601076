"""What the regression hears of the other predictors: told with an answer, and looked for where it can be found."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from scheduling.core.estimate.category import classify
from scheduling.core.estimate.chain import Chain
from scheduling.core.estimate.contracts import Prediction, PromptFacts
from scheduling.core.estimate.features import features
from scheduling.core.estimate.others import Alike, Heard, Others
from scheduling.core.estimate.regression import IN_VAIN, LOOK_EVERY
from scheduling.estimation.embedding import Embedder, Vector
from scheduling.estimation.regression import RidgeRegression
from scheduling.estimation.window import KNOWN_BY_HEART, RingWindow
from scheduling.state.history import Observation

EMBEDDER = Embedder()
WIDER = Prediction((50.0, 150.0), (0.5, 0.5), "application", 100.0)


class Counting(RingWindow):
    """Says how often it was searched."""

    searches = 0

    def nearest(self, embedding: Vector, count: int, least: float = -2.0) -> tuple[Vector, Vector, NDArray[np.bool_]]:
        Counting.searches += 1
        return super().nearest(embedding, count, least)


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    Counting.searches = 0


def facts(text: str) -> PromptFacts:
    category = classify(text).value
    return PromptFacts("key", "acme", "llama", category, 20.0, 400, EMBEDDER.embed(text), features(text, category))


def unlike(number: int) -> str:
    """A prompt that resembles no other."""
    rng = random.Random(number)
    return " ".join("".join(rng.choices("bcdfghklmnprstvw", k=rng.randrange(4, 9))) for _ in range(12))


def answered(chain: Chain, text: str, actual: int, *, told: bool = True) -> None:
    """As a gateway would: predicted first, told with what was said."""
    asked = facts(text)
    said = chain.predict(asked)
    others = said.heard.scored_by() if told else None
    chain.observe(asked, actual, source=said.prediction.source, raw_p90=said.raw_p90, others=others)
    chain.fit()


def searched(chain: Chain, text: str) -> bool:
    before = Counting.searches
    chain.predict(facts(text))
    return Counting.searches > before


class TestTold:
    def test_learning_searches_nothing_that_its_estimate_has_searched(self) -> None:
        chain = Chain(Counting, RidgeRegression)
        for number in range(60):
            answered(chain, f"Describe ship {number} of the fleet", 40 + number % 5)
        assert Counting.searches == 59  # one for each estimate; the first window was empty

    def test_an_answer_told_without_it_is_scored_all_the_same(self) -> None:
        told, asked = Chain(RingWindow, RidgeRegression), Chain(RingWindow, RidgeRegression)
        for number in range(80):
            answered(told, f"Describe ship {number} of the fleet", 40 + number % 5)
            answered(asked, f"Describe ship {number} of the fleet", 40 + number % 5, told=False)
        scores = [tenant.regression.scores() for chain in (told, asked) for _, tenant in chain.tenants()]  # type: ignore[union-attr]
        assert scores[0] == scores[1]
        assert scores[0][0][3] > 0.0

    def test_gateways_of_the_release_before_read_it_and_are_read(self) -> None:
        fields = [(name, Observation.__annotations__[name]) for name in Observation.__struct_fields__[:-2]]
        before = msgspec.defstruct(
            "Before", [*fields, ("features", "bytes", b"")], array_like=True, namespace=globals()
        )
        own = ("k", "t", "m", "report", 5, 50, True, "prior", 400.0, b"abc", b"def")
        encoded = msgspec.msgpack.encode(Observation(*own, (2, 40.0, 38.0)))
        assert msgspec.structs.astuple(msgspec.msgpack.decode(encoded, type=before)) == own
        old = msgspec.msgpack.decode(msgspec.msgpack.encode(before(*own)), type=Observation)
        assert old == Observation(*own)
        assert old.others is None


class TestLookedFor:
    def test_prompts_that_resemble_none_are_looked_up_only_now_and_then(self) -> None:
        chain = Chain(Counting, RidgeRegression)
        for number in range(IN_VAIN + 40):
            answered(chain, unlike(number), 50)
        before = Counting.searches
        for number in range(1_000, 1_000 + 10 * LOOK_EVERY):
            answered(chain, unlike(number), 50)
        assert Counting.searches - before == 10

    def test_they_are_looked_for_again_once_some_are_found(self) -> None:
        chain = Chain(Counting, RidgeRegression)
        for number in range(IN_VAIN + 40):
            answered(chain, unlike(number), 50)
        for number in range(2 * LOOK_EVERY):
            answered(chain, f"Describe ship {number} of the fleet", 300)
        assert all(searched(chain, f"Describe ship {number} of the fleet") for number in range(100, 100 + LOOK_EVERY))

    def test_a_prompt_known_by_heart_is_recalled_without_a_search(self) -> None:
        chain = Chain(Counting, RidgeRegression)
        fixed = "What does the harbour master do?"
        for _ in range(KNOWN_BY_HEART):
            answered(chain, fixed, 33)
        number = 0
        while searched(chain, unlike(5_000)):
            answered(chain, unlike(number), 200)
            number += 1
            assert number < 3 * IN_VAIN
        heard = chain.predict(facts(fixed)).heard
        assert heard.alike is not None
        assert heard.alike.support == KNOWN_BY_HEART
        assert heard.mean < 50


class TestAlike:
    @pytest.mark.parametrize("cut", [False, True])
    def test_its_mean_is_that_of_its_distribution(self, cut: bool) -> None:
        rng = random.Random(3)
        for _ in range(200):
            count = rng.randint(1, 64)
            lengths = [float(rng.randrange(1, 900)) for _ in range(count)]
            short = [cut and rng.random() < 0.3 for _ in range(count)]
            alike = Alike(lengths, short, [rng.uniform(0.01, 1.0) for _ in range(count)], WIDER)
            assert alike.mean == pytest.approx(alike.prediction().mean, rel=1e-5)

    def test_the_regression_is_scored_by_what_was_heard(self) -> None:
        alike = Alike([10.0, 20.0, 30.0], [False] * 3, [1.0] * 3, None)
        assert Heard(alike, WIDER).scored_by() == Others(3, 20.0, 20.0)
        assert Heard(None, WIDER).scored_by() == Others(0, 100.0, 50.0)
