"""From past output lengths to a distribution: weights, answers that were cut short, and few enough values.

An answer that reached its bound says only "at least this long". Its mass goes to the longer ones that were seen
(Kaplan-Meier's estimator), so that the small ``max_tokens`` of one client does not teach that answers are short.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from statistics import NormalDist

from scheduling.core.estimate.contracts import Prediction, ascending

BINS = 16  # values a distribution is kept to: the Gittins index costs little, and a queue entry stays small

Sample = tuple[float, bool, float]  # length [tokens], cut by its bound, weight


def distribution(samples: Iterable[Sample], source: str, support: float, bins: int = BINS) -> Prediction:
    """The distribution of weighted samples, in about ``bins`` values of equal mass; each is the mean of its share.

    Raises ValueError where the weights do not add up to anything.
    """
    ordered = sorted(samples)
    at_risk = sum([weight for _, _, weight in ordered])
    if at_risk <= 0.0:
        raise ValueError("a distribution needs at least one sample with a weight")
    lengths: list[float] = []
    masses: list[float] = []
    step = 1.0 / bins - 1e-9
    survival = 1.0
    mass = moment = length = 0.0
    for value, cut, weight in ordered:
        if cut or weight <= 0.0:
            at_risk -= weight
            continue
        if mass >= step and value > length:
            lengths.append(moment / mass)
            masses.append(mass)
            mass = moment = 0.0
        ends = survival * weight / at_risk if at_risk > weight else survival
        survival -= ends
        at_risk -= weight
        length = value
        mass += ends
        moment += ends * value
    if survival > 1e-12:  # only cut answers were that long: nothing is known beyond them
        value = ordered[-1][0]
        if mass >= step and value > length:
            lengths.append(moment / mass)
            masses.append(mass)
            mass = moment = 0.0
        mass += survival
        moment += survival * value
    if mass > 0.0:  # what has next to no weight may leave nothing
        lengths.append(moment / mass)
        masses.append(mass)
    values, probabilities = ascending(lengths, masses)
    mean = sum([v * p for v, p in zip(values, probabilities, strict=True)])
    return Prediction(values, probabilities, source, mean, support)


def log_normal(median: float, sigma: float, source: str, bins: int = BINS) -> Prediction:
    """A distribution of that median [tokens] whose logarithm has the standard deviation ``sigma``, in equal shares."""
    normal = NormalDist(0.0, sigma)
    lengths = tuple(max(1.0, median) * exp(normal.inv_cdf((i + 0.5) / bins)) for i in range(bins))
    return Prediction(lengths, (1.0 / bins,) * bins, source, sum(lengths) / bins)


def as_samples(prediction: Prediction, weight: float) -> list[Sample]:
    """A distribution as samples of that total weight, to fill up what is known from elsewhere."""
    return [(v, False, p * weight) for v, p in zip(prediction.lengths, prediction.probabilities, strict=True)]
