"""What were the answers to similar prompts? (SageSched 3.1: semantic-aware history-based prediction.)

The last 10,000 prompts are kept as embeddings with the lengths of their answers, first in, first out; no text. A new
prompt is compared with all of them (exact inner products), and the answers to the similar ones are its distribution.
In a pool every tenant has a window of its own, and the 10,000 are shared fairly (``chain.py``).

Different from the paper, and measured (``docs/internals/estimates.md``): a past prompt's weight grows with its
similarity instead of jumping from 0 to 1 at 0.8, since our embedding, unlike the paper's, puts prompts of one task
between 0.5 and 0.8. Where the weights add up to too little, the next predictor speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduling.core.estimate.contracts import Prediction, Predictor, PromptFacts
from scheduling.core.estimate.distribution import Sample, as_samples, distribution

WINDOW = 10_000  # past prompts (SageSched 3.1)
SIMILAR = 0.8  # cosine at which the paper takes a past prompt in
MIN_SIMILAR = 0.5  # cosine at which a past prompt begins to count here
NEIGHBOURS = 64  # most similar prompts that are asked for
FILL = 1.0  # weight of what the next predictor says beside them
ENOUGH = 0.5  # weight of similar prompts from which this predictor speaks


class PastPrompts(Protocol):
    """A bounded first-in-first-out window of embeddings with lengths, searched exactly (``scheduling.estimation``)."""

    def nearest(
        self, embedding: Any, count: int, least: float
    ) -> tuple[Sequence[float], Sequence[float], Sequence[bool]]:
        """Cosines, output lengths and whether each was cut, of the ``count`` most similar whose cosine is above
        ``least``; in no order."""

    def add(self, embedding: Any, actual: int, cut: bool) -> None:
        """Takes one in; the oldest leaves when the window is full."""

    def forget_oldest(self) -> None:
        """Gives the oldest one's place back. Only where there is one."""

    def __len__(self) -> int: ...


def weight(cosine: float, least: float = MIN_SIMILAR) -> float:
    """How much a past prompt counts: 0 up to ``least``, 1 at identity, quadratic between."""
    if cosine <= least:
        return 0.0
    x = min(1.0, (cosine - least) / (1.0 - least))
    return x * x


def threshold(cosine: float) -> float:
    """The paper's rule: a prompt is similar or it is not."""
    return 1.0 if cosine >= SIMILAR else 0.0


class SimilarPrompts:
    """Answers to similar prompts, filled up from ``filler`` (a wider history, or a prior) where they are few."""

    source = "similar"

    def __init__(self, window: PastPrompts, filler: Predictor, *, hard: bool = False) -> None:
        """``hard``: the paper's threshold instead of growing weights."""
        self._window = window
        self._filler = filler
        self._weight = threshold if hard else weight

    def __len__(self) -> int:
        return len(self._window)

    def forget_oldest(self) -> None:
        self._window.forget_oldest()

    def predict(self, facts: PromptFacts) -> Prediction | None:
        if facts.embedding is None or not len(self._window):
            return None
        weigh = self._weight
        samples: list[Sample] = []
        mass = 0.0
        for cosine, length, cut in zip(*self._window.nearest(facts.embedding, NEIGHBOURS, MIN_SIMILAR), strict=True):
            counts = weigh(cosine)
            if counts > 0.0:
                samples.append((length, cut, counts))
                mass += counts
        if mass < ENOUGH:
            return None
        filler = self._filler.predict(facts)
        if filler is not None:
            samples += as_samples(filler, FILL)
        return distribution(samples, self.source, mass).truncated(facts.output_bound)

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        if facts.embedding is not None:
            self._window.add(facts.embedding, actual, cut)
