"""What were the answers to similar prompts? (SageSched 3.1: semantic-aware history-based prediction.)

The last 10,000 prompts are kept as embeddings with the lengths of their answers, first in, first out; no text. A new
prompt is compared with all of them (exact inner products), and the answers to the similar ones are its distribution.
In a pool every tenant has a window of its own, and the 10,000 are shared fairly (``chain.py``).

Different from the paper, and measured (``docs/internals/estimates.md``): a past prompt's weight grows with its
similarity instead of jumping from 0 to 1 at 0.8, since our embedding, unlike the paper's, puts prompts of one task
between 0.5 and 0.8. Where the weights add up to too little, the next predictor speaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.contracts import Prediction, Predictor, PromptFacts
from scheduling.core.estimate.others import SIMILAR as SOURCE
from scheduling.core.estimate.others import Alike

WINDOW = 10_000  # past prompts (SageSched 3.1)
SIMILAR = 0.8  # cosine at which the paper takes a past prompt in
MIN_SIMILAR = 0.5  # cosine at which a past prompt begins to count here
NEIGHBOURS = 64  # most similar prompts that are asked for
ENOUGH = 0.5  # weight of similar prompts from which this predictor speaks


Numbers = NDArray[np.float32]
Flags = NDArray[np.bool_]


class PastPrompts(Protocol):
    """A bounded first-in-first-out window of embeddings with lengths; a large one may be searched in part
    (``scheduling.estimation``)."""

    def nearest(self, embedding: Any, count: int, least: float) -> tuple[Numbers, Numbers, Flags]:
        """Cosines, output lengths and whether each was cut, of the ``count`` most similar whose cosine is above
        ``least``; in no order. Of a prompt that is known by heart, only its own."""

    def by_heart(self, embedding: Any) -> tuple[Numbers, Flags] | None:
        """Lengths and whether each was cut, where the very same prompt came often enough to be known without a
        search."""

    def add(self, embedding: Any, actual: int, cut: bool) -> None:
        """Takes one in; the oldest leaves when the window is full."""

    def forget_oldest(self) -> None:
        """Gives the oldest one's place back. Only where there is one."""

    def __len__(self) -> int: ...


def weights(cosines: Numbers) -> Numbers:
    """How much past prompts whose cosines are above ``MIN_SIMILAR`` count: from 0 there to 1 at identity, quadratic
    between."""
    parts = cosines - np.float32(MIN_SIMILAR)
    parts *= parts
    parts *= np.float32(1.0 / (1.0 - MIN_SIMILAR) ** 2)
    return parts


def thresholds(cosines: Numbers) -> Numbers:
    """The paper's rule: a prompt is similar or it is not."""
    return (cosines >= SIMILAR).astype(np.float32)


class SimilarPrompts:
    """Answers to similar prompts, filled up from ``filler`` (a wider history, or a prior) where they are few."""

    source = SOURCE

    def __init__(self, window: PastPrompts, filler: Predictor, *, hard: bool = False) -> None:
        """``hard``: the paper's threshold instead of growing weights."""
        self._window = window
        self._filler = filler
        self._weigh: Callable[[Numbers], Numbers] = thresholds if hard else weights

    def __len__(self) -> int:
        return len(self._window)

    def forget_oldest(self) -> None:
        self._window.forget_oldest()

    def predict(self, facts: PromptFacts) -> Prediction | None:
        alike = self.look(facts, self._filler.predict(facts))
        return None if alike is None else alike.prediction()

    def look(self, facts: PromptFacts, filler: Prediction | None) -> Alike | None:
        """What similar prompts say, filled up with ``filler``; None where there are too few."""
        if facts.embedding is None or not len(self._window):
            return None
        cosines, lengths, cut = self._window.nearest(facts.embedding, NEIGHBOURS, MIN_SIMILAR)
        counts = self._weigh(cosines)
        support = float(np.add.reduce(counts))
        return Alike(lengths, cut, counts, filler, support) if support >= ENOUGH else None

    def recall(self, facts: PromptFacts, filler: Prediction | None) -> Alike | None:
        """The same for a prompt that is known by heart, without a search; None for any other."""
        known = None if facts.embedding is None else self._window.by_heart(facts.embedding)
        return None if known is None else Alike(*known, np.ones(len(known[0]), np.float32), filler)

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        if facts.embedding is not None:
            self._window.add(facts.embedding, actual, cut)
