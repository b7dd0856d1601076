"""What all predictors but the regression say of a request, and what of it stays until its end.

The regression speaks on top of it (``regression.py``) and needs hardly more than its mean, so that answers to similar
prompts become a distribution only where somebody wants one. What the regression is scored by is told with the answer:
who learns from it does not ask again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        self, lengths: ArrayLike, cut: ArrayLike, weights: ArrayLike, filler: Prediction | None,
        support: float | None = None,
    ) -> None:  # fmt: skip
        """``support``: the sum of the weights, where it is known."""
        self._filler = filler
        self._lengths: NDArray[np.float32] = np.asarray(lengths, np.float32)  # small: it waits for its request's end
        self._weights: NDArray[np.float32] = np.asarray(weights, np.float32)
        self._cut: NDArray[np.bool_] = np.asarray(cut, np.bool_)
        self._said: Prediction | None = None
        # about how many similar prompts there are
        self.support = float(np.add.reduce(self._weights)) if support is None else support
        if np.count_nonzero(self._cut):
            self.mean = self.prediction().mean
        else:
            mass, moment = self.support, float(self._weights.dot(self._lengths))
            if filler is not None:
                mass, moment = mass + FILL, moment + FILL * filler.mean
            self.mean = moment / mass

    def prediction(self) -> Prediction:
        if self._said is None:
            lengths, cut, weights = self._lengths.tolist(), self._cut.tolist(), self._weights.tolist()
            samples: list[Sample] = list(zip(lengths, cut, weights, strict=True))
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
        self.kind = 0 if alike is None else 1 + bisect_right(_STEPS, alike.support)

    @property
    def mean(self) -> float:
        return self.wider.mean if self.alike is None else self.alike.mean

    def prediction(self) -> Prediction:
        return self.wider if self.alike is None else self.alike.prediction()

    def scored_by(self) -> Others:
        return Others(self.kind, self.mean, self.prediction().quantile(0.5))
