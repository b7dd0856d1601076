"""The methods that are compared, each as it would run: asked before an answer, told its length afterwards.

``words`` and ``tokens`` are DriftSched's two ways of measuring a prompt. They say one number; what learns also gets a
90 % limit from its own past errors, by the calibration the product uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from scheduling.core.estimate.chain import Chain, FirstThatKnows
from scheduling.core.estimate.conformal import Calibrator
from scheduling.core.estimate.contracts import Prediction, Predictor, PromptFacts
from scheduling.core.estimate.distribution import distribution
from scheduling.core.estimate.drift import CategoryBaseline, Drift
from scheduling.core.estimate.history import ApplicationHistory, PooledHistory
from scheduling.core.estimate.semantic import SimilarPrompts
from scheduling.estimation.evaluation.data import Example
from scheduling.estimation.evaluation.metrics import LEVELS
from scheduling.estimation.regression import RidgeRegression
from scheduling.estimation.window import RingWindow

PRODUCT = "product (regression, similar, application, category)"
WITHOUT = "product without regression"
TOGETHER = "product, all tenants in one history"  # what the isolation of tenants costs

Predicted = tuple[float, tuple[float, ...]]  # mean, and quantiles in the order of LEVELS


@dataclass(frozen=True, slots=True)
class Case:
    """An example as the predictors see it."""

    example: Example
    facts: PromptFacts  # with tokens as size
    words: int  # of the prompt


class Method(Protocol):
    name: str

    def say(self, case: Case) -> Predicted | None:
        """None where the method has nothing to say: the case is not counted for it."""

    def expect(self, case: Case) -> Prediction | None:
        """What ordering is told."""

    def learn(self, case: Case) -> None: ...


class Crude:
    """``T_base * B * F`` (DriftSched): one number. ``ema`` off: ``B`` stays 1 and nothing is learned."""

    def __init__(self, name: str, *, words: bool, ema: bool, category: Callable[[Case], str] | None = None) -> None:
        self.name = name
        self.drift = Drift(on=ema)
        self._words = words
        self._category = category or (lambda case: case.facts.category)
        self._calibrator = Calibrator() if ema else None

    def point(self, case: Case) -> float:
        size = float(case.words) if self._words else case.facts.input_tokens
        return self.drift.expected(self._category(case), size)

    def say(self, case: Case) -> Predicted:
        point = self.point(case)
        upper = point if self._calibrator is None else point * self._calibrator.factor("")
        return point, (point, point, upper)

    def expect(self, case: Case) -> Prediction:
        point = max(1.0, self.point(case))
        return Prediction((point,), (1.0,), self.name, point)

    def learn(self, case: Case) -> None:
        actual = case.example.output_tokens
        if self._calibrator is not None:
            self._calibrator.observe("", self.point(case), actual)
        self.drift.learn(self._category(case), actual)


class Distributional:
    """A predictor with a prior behind it and the product's calibration."""

    def __init__(self, name: str, predictor: Predictor) -> None:
        self.name = name
        self._predictor = FirstThatKnows(predictor, CategoryBaseline(Drift(on=False)))
        self._calibrator = Calibrator()

    def expect(self, case: Case) -> Prediction:
        prediction = self._predictor.predict(case.facts)
        assert prediction is not None  # the baseline always speaks
        return prediction

    def say(self, case: Case) -> Predicted:
        prediction = self.expect(case)
        return prediction.mean, (*(prediction.quantile(q) for q in LEVELS[:-1]), self._limit(prediction))

    def _limit(self, prediction: Prediction) -> float:
        return self._calibrator.upper(prediction.source, prediction.quantile(self._calibrator.level))

    def learn(self, case: Case) -> None:
        prediction = self.expect(case)
        self._calibrator.observe(prediction.source, prediction.quantile(LEVELS[-1]), case.example.output_tokens)
        self._predictor.observe(case.facts, case.example.output_tokens)


class Product:
    """What a pool uses. ``together``: as if all tenants were one, so that each learns from all; ``regression`` False:
    without that predictor."""

    def __init__(self, name: str, *, together: bool = False, regression: bool = True) -> None:
        self.name = name
        self.chain = Chain(RingWindow, RidgeRegression if regression else None)
        self._together = together

    def _facts(self, case: Case) -> PromptFacts:
        return replace(case.facts, tenant="") if self._together else case.facts

    def expect(self, case: Case) -> Prediction:
        return self.chain.predict(self._facts(case)).prediction

    def say(self, case: Case) -> Predicted:
        forecast = self.chain.predict(self._facts(case))
        return forecast.prediction.mean, (*(forecast.prediction.quantile(q) for q in LEVELS[:-1]), forecast.p90)

    def learn(self, case: Case) -> None:
        facts = self._facts(case)
        forecast = self.chain.predict(facts)
        self.chain.observe(
            facts, case.example.output_tokens, source=forecast.prediction.source, raw_p90=forecast.raw_p90,
            others=forecast.heard.scored_by(),
        )  # fmt: skip
        self.chain.fit()


class Oracle:
    """Who has seen the other answers to the very same prompt: of the same model where there are some, else of others.

    It is not fair: it reads answers of the test set. It says how much of the error is the model's own chance.
    """

    def __init__(self, name: str, examples: Iterable[Example]) -> None:
        self.name = name
        self._answers: dict[str, list[tuple[int, str, float]]] = defaultdict(list)
        for example in examples:
            self._answers[example.prompt].append((id(example), example.model, float(example.output_tokens)))

    @property
    def any(self) -> bool:
        return any(len(answers) > 1 for answers in self._answers.values())

    def expect(self, case: Case) -> Prediction | None:
        others = [a for a in self._answers[case.example.prompt] if a[0] != id(case.example)]
        same = [a for a in others if a[1] == case.example.model] or others
        if not same:
            return None
        return distribution([(length, False, 1.0) for _, _, length in same], "oracle", float(len(same)))

    def say(self, case: Case) -> Predicted | None:
        prediction = self.expect(case)
        return None if prediction is None else (prediction.mean, tuple(prediction.quantile(q) for q in LEVELS))

    def learn(self, case: Case) -> None:
        return None


class PerModel:
    """One instance of a method per model: a pool serves one, and what one says teaches nothing about another."""

    def __init__(self, name: str, make: Callable[[str], Any]) -> None:
        self.name = name
        self._make = make
        self.instances: dict[str, Any] = {}

    def _of(self, case: Case) -> Any:
        model = case.example.model
        if model not in self.instances:
            self.instances[model] = self._make(self.name)
        return self.instances[model]

    def say(self, case: Case) -> Predicted | None:
        answer: Predicted | None = self._of(case).say(case)
        return answer

    def expect(self, case: Case) -> Prediction | None:
        expected: Prediction | None = self._of(case).expect(case)
        return expected

    def learn(self, case: Case) -> None:
        self._of(case).learn(case)


def application_history() -> PerModel:
    """The last answers of the application: the same for each of its prompts."""
    return PerModel("application history", lambda name: Distributional(name, ApplicationHistory()))


def similar(window: int, *, hard: bool = False) -> Callable[[str], Distributional]:
    """Similar prompts alone, filled up from the pool's answers as a whole; no application is known."""

    def make(name: str) -> Distributional:
        everything = PooledHistory()
        prompts = SimilarPrompts(RingWindow(window), everything, hard=hard)
        return Distributional(name, FirstThatKnows(prompts, everything))

    return make


def all_methods(examples: Sequence[Example]) -> list[Method]:
    """In the order of the table."""
    methods: list[Method] = [
        PerModel("words", lambda name: Crude(name, words=True, ema=False)),
        PerModel("tokens", lambda name: Crude(name, words=False, ema=False)),
        PerModel("words + EMA", lambda name: Crude(name, words=True, ema=True)),
        PerModel("tokens + EMA", lambda name: Crude(name, words=False, ema=True)),
        application_history(),
        PerModel("semantic history 1k", similar(1_000)),
        PerModel("semantic history 10k", similar(10_000)),
        PerModel("semantic history 10k, cosine >= 0.8", similar(10_000, hard=True)),
        PerModel(TOGETHER, partial(Product, together=True)),
        PerModel(WITHOUT, partial(Product, regression=False)),
        PerModel(PRODUCT, Product),
    ]
    oracle = Oracle("oracle of repeated samples", examples)
    return [*methods, oracle] if oracle.any else methods
