"""What all predictors but the regression say of a request, and what of it stays until its end.

The regression speaks on top of it (``regression.py``) and needs hardly more than its mean, so that answers to similar
prompts become a distribution only where somebody wants one. What the regression is scored by is told with the answer:
who learns from it does not ask again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from scheduling.core.estimate.contracts import Prediction
from scheduling.core.estimate.distribution import Sample, as_samples, distribution

SIMILAR = "similar"
FILL = 1.0  # weight of what the next predictor says beside similar prompts
KINDS = 4  # of what the others say: no similar prompts, a few, some, many
_STEPS = (1.0, 3.0)  # weight of similar prompts between a few, some and many


class Others(NamedTuple):
    """What the regression is scored by. Lengths in tokens, not cut at any bound."""

    kind: int  # how much stands behind it, 0 to ``KINDS`` - 1
    mean: float
    median: float


class Alike:
    """Answers to similar prompts with their weights, filled up with what the next predictor says."""

    __slots__ = ("_cut", "_filler", "_lengths", "_said", "_weights", "mean", "support")

    def __init__(
        self, lengths: Sequence[float], cut: Sequence[bool], weights: Sequence[float], filler: Prediction | None
    ) -> None:
        self.support = sum(weights)  # about how many similar prompts there are
        self._filler = filler
        self._lengths = array("f", lengths)  # small: it waits for the end of its request
        self._weights = array("f", weights)
        self._cut = bytes(cut)
        self._said: Prediction | None = None
        if any(cut):
            self.mean = self.prediction().mean
        else:
            mass, moment = self.support, sum(map(mul, lengths, weights))
            if filler is not None:
                mass, moment = mass + FILL, moment + FILL * filler.mean
            self.mean = moment / mass

    def prediction(self) -> Prediction:
        if self._said is None:
            samples: list[Sample] = list(zip(self._lengths, map(bool, self._cut), self._weights, strict=True))
            if self._filler is not None:
                samples += as_samples(self._filler, FILL)
            self._said = distribution(samples, SIMILAR, self.support)
        return self._said


class Heard:
    """What the others say of one request: similar prompts, where there are enough of them, else the wider history."""

    __slots__ = ("alike", "kind", "wider")

    def __init__(self, alike: Alike | None, wider: Prediction) -> None:
        self.alike = alike
        self.wider = wider
        self.kind = 0 if alike is None else 1 + sum([alike.support >= step for step in _STEPS])

    @property
    def mean(self) -> float:
        return self.wider.mean if self.alike is None else self.alike.mean

    def prediction(self) -> Prediction:
        return self.wider if self.alike is None else self.alike.prediction()

    def scored_by(self) -> Others:
        return Others(self.kind, self.mean, self.prediction().quantile(0.5))
