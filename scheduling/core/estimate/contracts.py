"""What a predictor is asked and what it answers: one interface for all of them.

A predictor says, before a request runs, how many tokens its answer will have, as a distribution; afterwards it is told
how many there were. Admission, ordering, routing and the ledger see only :class:`Prediction`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import lt, mul
from typing import Any, Protocol

from scheduling.core.frozen import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What is known of a request before it runs. Never its text."""

    application: str  # whose requests resemble each other: the API key
    tenant: str
    model: str
    category: str  # scheduling.core.estimate.category; "" where no text is known (token ids)
    input_tokens: float
    output_bound: int | None = None  # what ``max_tokens`` will say; None: no bound
    embedding: Any = None  # opaque here; None: similar prompts are not looked for
    features: bytes = b""  # ``features.py``; empty: what the prompt asks for is not looked at


@quickly_made
@dataclass(frozen=True, slots=True)
class Prediction:
    """Output lengths [tokens] in increasing order, with their probabilities and the source that predicted them."""

    lengths: tuple[float, ...]
    probabilities: tuple[float, ...]
    source: str
    mean: float
    support: float = 0.0  # about how many past requests stand behind it

    def quantile(self, q: float) -> float:
        """The smallest length that at least a share ``q`` of answers do not exceed."""
        reached = bisect_left(list(accumulate(self.probabilities)), q - 1e-9)
        return self.lengths[min(reached, len(self.lengths) - 1)]

    def rank(self, actual: float) -> float:
        """Share of answers expected to be shorter than ``actual``, half of the equally long ones included.

        Uniform on 0..1 over many requests where the distributions are right (probability integral transform).
        """
        below = bisect_left(self.lengths, actual)
        share = sum(self.probabilities[:below])
        if below < len(self.lengths) and self.lengths[below] == actual:
            share += self.probabilities[below] / 2.0
        return min(1.0, share)

    def truncated(self, bound: int | None) -> Prediction:
        """What remains when no answer can be longer than ``bound``: the mass above it moves onto it."""
        if bound is None or self.lengths[-1] <= bound:
            return self
        keep = bisect_left(self.lengths, bound)
        lengths = (*self.lengths[:keep], float(bound))
        probabilities = (*self.probabilities[:keep], sum(self.probabilities[keep:]))
        mean = sum(map(mul, lengths, probabilities))
        return Prediction(lengths, probabilities, self.source, mean, self.support)


def ascending(lengths: Sequence[float], probabilities: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lengths in order with their probabilities, none twice: neighbours that rounding or a bound has made equal, or has
    swapped, are one. What has no mass is left out."""
    if all(map(lt, lengths, lengths[1:])) and all(probabilities):
        return tuple(lengths), tuple(probabilities)
    values: list[float] = []
    masses: list[float] = []
    for value, mass in zip(lengths, probabilities, strict=True):
        if values and value <= values[-1]:
            masses[-1] += mass
        elif mass > 0.0:
            values.append(value)
            masses.append(mass)
    return tuple(values), tuple(masses)


class Predictor(Protocol):
    """Knows something about answers that are still to come. One owner, no locks."""

    def predict(self, facts: PromptFacts) -> Prediction | None:
        """The distribution, not cut at any bound; None where this predictor knows too little to say."""

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        """An answer had ``actual`` tokens. ``cut``: its bound ended it, so that it would have been at least as long."""
