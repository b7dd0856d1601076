"""The predictor a pool uses: similar prompts, else the application's history, else the category, else the prior.

Each says nothing where it knows too little, and the next one is asked. Whoever speaks is named in ``source``; its 90 %
limit is calibrated by its own past errors. The last one always speaks.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.estimate.calibrate import Calibrator
from scheduling.core.estimate.contracts import Prediction, Predictor, PromptFacts
from scheduling.core.estimate.drift import CategoryBaseline, Drift
from scheduling.core.estimate.history import ApplicationHistory
from scheduling.core.estimate.semantic import PastPrompts, SimilarPrompts


class FirstThatKnows:
    """The first of several predictors that has something to say."""

    def __init__(self, *predictors: Predictor) -> None:
        self._predictors = predictors

    def predict(self, facts: PromptFacts) -> Prediction | None:
        for predictor in self._predictors:
            found = predictor.predict(facts)
            if found is not None:
                return found
        return None

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        for predictor in self._predictors:
            predictor.observe(facts, actual, cut=cut)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction and its calibrated 90 % limit [tokens]."""

    prediction: Prediction
    p90: float
    raw_p90: float  # the prediction's own, which the calibration learns from


@dataclass(frozen=True, slots=True)
class Outlook:
    """What was known and believed of one request, kept until it ends."""

    facts: PromptFacts
    forecast: Forecast


class Chain:
    """All predictors of one pool. ``window`` None: similar prompts are not looked for. ``learning`` False: only the
    table of categories is asked, as it came."""

    def __init__(self, window: PastPrompts | None, *, learning: bool = True) -> None:
        self.baseline = CategoryBaseline() if learning else CategoryBaseline(Drift(on=False))
        self.history = ApplicationHistory()
        self.calibrator = Calibrator()
        wider = FirstThatKnows(self.history, self.baseline)
        self.similar = None if window is None else SimilarPrompts(window, wider)
        self._wider = wider
        self._learning = learning

    def predict(self, facts: PromptFacts) -> Forecast:
        found = None if self.similar is None else self.similar.predict(facts)
        if found is None:
            found = self._wider.predict(facts)
            assert found is not None  # the baseline always speaks
        level = self.calibrator.level
        return Forecast(found, self.calibrator.upper(found, facts.output_bound), found.quantile(level))

    def observe(
        self, facts: PromptFacts, actual: int, *, cut: bool = False, source: str = "", raw_p90: float = 0.0
    ) -> None:
        """An answer had ``actual`` tokens. ``source`` and ``raw_p90``: who had predicted it, and its 90 % length."""
        if not self._learning:
            return
        if source:
            self.calibrator.observe(source, raw_p90, actual)
        self._wider.observe(facts, actual, cut=cut)
        if self.similar is not None:
            self.similar.observe(facts, actual, cut=cut)

    def reset(self, category: str | None = None) -> None:
        """Forgets the drift of one category, or of all with what the calibration knows."""
        self.baseline.drift.reset(category)
        if category is None:
            self.calibrator = Calibrator()
