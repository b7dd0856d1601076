"""How long is the answer to a prompt like this one, in this application? A regression on what can be seen of prompts.

Similar prompts answer for what came before; an application's history answers for its level. Neither ranks prompts that
are all different: there a regression of the length's logarithm on the prompt's embedding and signs does
(``features.py``), one per application, learned from its answers alone.

It speaks on top of what the others say (``other``): the two are mixed by a share that makes the error least, found per
application and per how much stands behind similar prompts. Its distribution is that of its own past ratios of actual to
predicted length, each taken before its answer was learned from. And it speaks only where, lately, its error was no
larger than that of the others; both are scored on the same answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import exp, log
from typing import Any, Protocol

from scheduling.core.estimate.contracts import Prediction, PromptFacts, ascending
from scheduling.core.estimate.distribution import distribution

SOURCE = "regression"
MODELS_KEPT = 128  # of one tenant, and of a pool: some 100 KB each
MIN_SCORED = 24  # answers on which both were scored, before this one speaks
RATIOS = 128  # past ratios a distribution is made of: a level that changed is followed within twice as many answers
MIN_RATIOS = 16  # of one kind; of fewer, those of all kinds are taken
REFRESH = 8  # answers after which a distribution is made anew
TOLERATED = 1.05  # its error, of the others': an equal one that tells prompts apart serves the order better
SCORE_KEEP = 0.99  # of the errors so far, after one more: the last few hundred count
SCORE_ALL = 256  # answers of which each is scored; after them one in ``SCORE_EVERY``: a score costs a search
SCORE_EVERY = 2
MIX_AGAINST = 1.0  # squared error [of the logarithm] that speaks for not mixing, before anything was seen
MARGIN = 0.7  # a prediction goes no further than this [of the logarithm] beyond what was seen
KINDS = 4  # of what the others say: no similar prompts, a few, some, many
_STEPS = (1.0, 3.0)  # weight of similar prompts between the last three


class Regression(Protocol):
    """Learns lengths from prompts (``scheduling.estimation.regression``)."""

    @property
    def due(self) -> bool:
        """Whether ``fit`` is worth its time."""

    def predict(self, embedding: Any, features: bytes) -> float | None:
        """The natural logarithm of the length [tokens]; None where too little is known."""

    def add(self, embedding: Any, features: bytes, length: float) -> None:
        """An answer of ``length`` tokens, at least 1."""

    def fit(self) -> None:
        """Learns from what was added. May run in another thread than ``predict``."""


def kind_of(other: Prediction) -> int:
    """How much stands behind what the others say, 0 to ``KINDS`` - 1."""
    if other.source != "similar":
        return 0
    return 1 + sum(other.support >= step for step in _STEPS)


class _Kind:
    """Errors where the others knew about as much."""

    __slots__ = ("due", "mix_error", "mix_gain", "ratios", "shape")

    def __init__(self) -> None:
        self.ratios: deque[tuple[float, bool]] = deque(maxlen=RATIOS)
        self.shape: Prediction | None = None
        self.due = 0
        self.mix_gain = self.mix_error = 0.0

    @property
    def share(self) -> float:
        """What the others count for, 0 to 1."""
        return min(1.0, max(0.0, self.mix_gain / (self.mix_error + MIX_AGAINST)))

    def learn(self, ratio: float, cut: bool) -> None:
        self.ratios.append((ratio, cut))
        self.due -= 1

    def mix(self, own: float, other: float, actual: float) -> None:
        apart = other - own
        self.mix_gain = SCORE_KEEP * self.mix_gain + (actual - own) * apart
        self.mix_error = SCORE_KEEP * self.mix_error + apart * apart

    def distribution(self) -> Prediction:
        """Of the ratios of actual to predicted length."""
        if self.shape is None or self.due <= 0:
            samples = [(ratio, cut, 1.0) for ratio, cut in self.ratios]
            self.shape = distribution(samples, SOURCE, float(len(samples)))
            self.due = REFRESH
        return self.shape


class _Application:
    __slots__ = ("answers", "everything", "highest", "kinds", "loss", "lowest", "other_loss", "regression", "scored")

    def __init__(self, regression: Regression) -> None:
        self.regression = regression
        self.kinds = tuple(_Kind() for _ in range(KINDS))
        self.everything = _Kind()
        self.answers = 0
        self.scored = 0
        self.loss = self.other_loss = 0.0  # mean error of the logarithm
        self.lowest = self.highest = 0.0  # logarithms of the lengths that were seen

    @property
    def speaks(self) -> bool:
        return self.scored >= MIN_SCORED and self.loss < TOLERATED * self.other_loss

    def center(self, facts: PromptFacts, kind: _Kind, other: float) -> tuple[float, float] | None:
        """The logarithms of the regression's length and of the mixed one; ``other``: of the others' mean."""
        own = self.regression.predict(facts.embedding, facts.features)
        if own is None:
            return None
        own = min(self.highest + MARGIN, max(self.lowest - MARGIN, own))
        return own, own + kind.share * (other - own)

    def shape(self, kind: _Kind) -> Prediction | None:
        chosen = kind if len(kind.ratios) >= MIN_RATIOS else self.everything
        return chosen.distribution() if chosen.ratios else None


class PromptRegression:
    """The regressions of one tenant; the applications longest unheard of are forgotten first."""

    source = SOURCE

    def __init__(self, make: Callable[[], Regression]) -> None:
        self._make = make
        self._applications: dict[str, _Application] = {}

    def __len__(self) -> int:
        return len(self._applications)

    def forget_oldest(self) -> None:
        """Forgets the application longest unheard of. Raises StopIteration where there is none."""
        del self._applications[next(iter(self._applications))]

    def clear(self) -> None:
        self._applications.clear()

    def scores(self) -> list[tuple[str, int, float, float, bool]]:
        """By application: answers, its own mean error of the logarithm and that of the others, and whether it
        speaks."""
        return [(name, a.answers, a.loss, a.other_loss, a.speaks) for name, a in self._applications.items()]

    def speaks(self, facts: PromptFacts) -> bool:
        """Whether there is something to say of such a request."""
        application = self._applications.get(facts.application)
        return application is not None and bool(facts.features) and facts.embedding is not None and application.speaks

    def predict(self, facts: PromptFacts, other: Prediction) -> Prediction | None:
        """``other``: what the others say, not cut at any bound. None where they know better."""
        if not self.speaks(facts):
            return None
        application = self._applications[facts.application]
        kind = application.kinds[kind_of(other)]
        center = application.center(facts, kind, log(max(1.0, other.mean)))
        shape = application.shape(kind)
        if center is None or shape is None:
            return None
        scale = exp(center[1])
        lengths, probabilities = ascending([max(1.0, scale * ratio) for ratio in shape.lengths], shape.probabilities)
        mean = sum([v * p for v, p in zip(lengths, probabilities, strict=True)])
        said = Prediction(lengths, probabilities, SOURCE, mean, shape.support)
        return said.truncated(facts.output_bound)

    def scoring(self, facts: PromptFacts) -> bool:
        """Whether the next answer of that application is scored: then ``observe`` wants to know what others said."""
        if not facts.features or facts.embedding is None:
            return False
        application = self._applications.get(facts.application)
        if application is None:
            return False
        return application.scored < SCORE_ALL or application.answers % SCORE_EVERY == 0

    def observe(
        self, facts: PromptFacts, actual: int, *, cut: bool = False, other: Prediction | None = None
    ) -> Regression | None:
        """An answer had ``actual`` tokens; ``other``: what the others would have said, not cut at any bound. The
        regression, where it should be fitted."""
        if not facts.features or facts.embedding is None or actual < 1:
            return None
        application = self._applications.pop(facts.application, None)
        if application is None:
            while len(self._applications) >= MODELS_KEPT:
                self.forget_oldest()
            application = _Application(self._make())
            application.lowest = application.highest = log(actual)
        self._applications[facts.application] = application  # the last in order is the one heard of last
        application.answers += 1
        length = log(actual)
        own = application.regression.predict(facts.embedding, facts.features)
        if own is not None and other is not None:
            _score(application, facts, length, cut, other)
        application.lowest = min(application.lowest, length)
        application.highest = max(application.highest, length)
        if not cut or own is None or own < length:  # an answer cut short says nothing where more was expected
            application.regression.add(facts.embedding, facts.features, float(actual))
        return application.regression if application.regression.due else None


def _score(application: _Application, facts: PromptFacts, length: float, cut: bool, other: Prediction) -> None:
    kind = application.kinds[kind_of(other)]
    others_mean = log(max(1.0, other.mean))
    center = application.center(facts, kind, others_mean)
    assert center is not None
    own, mixed = center
    shape = application.shape(kind)
    if shape is not None and not (cut and length <= mixed):
        application.scored += 1
        counts = max(1.0 - SCORE_KEEP, 1.0 / application.scored)
        error = abs(length - mixed - log(shape.quantile(0.5)))
        others_error = abs(length - log(max(1.0, other.quantile(0.5))))
        application.loss += counts * (error - application.loss)
        application.other_loss += counts * (others_error - application.other_loss)
    ratio = exp(length - mixed)
    kind.learn(ratio, cut)
    application.everything.learn(ratio, cut)
    if not cut:
        kind.mix(own, others_mean, length)
