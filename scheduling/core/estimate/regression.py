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
from operator import mul
from typing import Any, Protocol

from scheduling.core.estimate.contracts import Prediction, PromptFacts, ascending
from scheduling.core.estimate.distribution import distribution
from scheduling.core.estimate.others import KINDS, Heard, Others

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
IN_VAIN = 64  # scored answers, one after the other, to which no similar prompts were found: they are hardly looked for
LOOK_EVERY = 7  # answers: after each so many they are looked for all the same
MARGIN = 0.7  # a prediction goes no further than this [of the logarithm] beyond what was seen


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

    def mixed(self, own: float, other: float) -> float:
        return own + self.share * (other - own)

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
    __slots__ = (
        "answers", "everything", "highest", "in_vain", "kinds", "loss", "lowest", "other_loss", "regression", "scored",
    )  # fmt: skip

    def __init__(self, regression: Regression) -> None:
        self.regression = regression
        self.kinds = tuple(_Kind() for _ in range(KINDS))
        self.everything = _Kind()
        self.answers = 0
        self.scored = 0
        self.loss = self.other_loss = 0.0  # mean error of the logarithm
        self.in_vain = 0  # answers since similar prompts were found
        self.lowest = self.highest = 0.0  # logarithms of the lengths that were seen

    @property
    def speaks(self) -> bool:
        return self.scored >= MIN_SCORED and self.loss < TOLERATED * self.other_loss

    @property
    def looks(self) -> bool:
        """Whether to look for similar prompts: where none are ever found only now and then, so that it is noticed
        when there are some."""
        return self.in_vain < IN_VAIN or self.answers % LOOK_EVERY == 0

    def own(self, facts: PromptFacts) -> float | None:
        """The logarithm of the regression's length, near what was seen."""
        own = self.regression.predict(facts.embedding, facts.features)
        return None if own is None else min(self.highest + MARGIN, max(self.lowest - MARGIN, own))

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

    def looks(self, facts: PromptFacts) -> bool:
        """Whether similar prompts are likely enough to be found to look for them."""
        application = self._applications.get(facts.application)
        return application is None or application.looks

    def predict(self, facts: PromptFacts, heard: Heard) -> Prediction | None:
        """``heard``: what the others say. Not cut at any bound; None where they know better."""
        if not self.speaks(facts):
            return None
        application = self._applications[facts.application]
        own = application.own(facts)
        kind = application.kinds[heard.kind]
        shape = application.shape(kind)
        if own is None or shape is None:
            return None
        scale = exp(kind.mixed(own, log(max(1.0, heard.mean))))
        scaled = [scale * ratio for ratio in shape.lengths]
        if scaled[0] < 1.0:
            scaled = [max(1.0, length) for length in scaled]
        lengths, probabilities = ascending(scaled, shape.probabilities)
        mean = sum(map(mul, lengths, probabilities))
        return Prediction(lengths, probabilities, SOURCE, mean, shape.support)

    def scoring(self, facts: PromptFacts) -> bool:
        """Whether the next answer of that application is scored: then ``observe`` wants to know what others said."""
        if not facts.features or facts.embedding is None:
            return False
        application = self._applications.get(facts.application)
        if application is None:
            return False
        return application.scored < SCORE_ALL or application.answers % SCORE_EVERY == 0

    def observe(
        self, facts: PromptFacts, actual: int, *, cut: bool = False, others: Others | None = None
    ) -> Regression | None:
        """An answer had ``actual`` tokens; ``others``: what the others had said. The regression, where it should be
        fitted."""
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
        own = application.own(facts)
        if others is not None:
            application.in_vain = 0 if others.kind else application.in_vain + 1
        if own is not None and others is not None:
            _score(application, own, length, cut, others)
        application.lowest = min(application.lowest, length)
        application.highest = max(application.highest, length)
        if not cut or own is None or own < length:  # an answer cut short says nothing where more was expected
            application.regression.add(facts.embedding, facts.features, float(actual))
        return application.regression if application.regression.due else None


def _score(application: _Application, own: float, length: float, cut: bool, others: Others) -> None:
    """``own`` and ``length`` are logarithms."""
    kind = application.kinds[others.kind]
    others_mean = log(max(1.0, others.mean))
    mixed = kind.mixed(own, others_mean)
    shape = application.shape(kind)
    if shape is not None and not (cut and length <= mixed):
        application.scored += 1
        counts = max(1.0 - SCORE_KEEP, 1.0 / application.scored)
        error = abs(length - mixed - log(shape.quantile(0.5)))
        others_error = abs(length - log(max(1.0, others.median)))
        application.loss += counts * (error - application.loss)
        application.other_loss += counts * (others_error - application.other_loss)
    ratio = exp(length - mixed)
    kind.learn(ratio, cut)
    application.everything.learn(ratio, cut)
    if not cut:
        kind.mix(own, others_mean, length)
