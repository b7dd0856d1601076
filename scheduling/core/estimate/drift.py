"""Estimates that correct themselves by what happened: DriftSched's bias, per category and model.

``T_out = T_base(category) * B(category) * S(tier) * F(prompt)``, ``F = min(1.5, 1 + n/1000)`` with the prompt's size
``n``, and after the answer ``B <- 0.9 B + 0.1 clip(actual / T_base, 0.25, 3)`` (DriftSched eq. 2 and section II-E).

Not copied from the original: its ``max_tokens`` equals ``T_base``, so that ``B`` can never exceed 1; here a bound never
is a base, and an answer that its bound cut short may raise ``B`` but not lower it. Its ``S`` makes shortest-first serve
premium later; here ``S`` is 1 but where the paper's own system is simulated: tiers have none, since budgets are bounds.

In a pool every tenant has a :class:`Drift` of its own: what one tenant's answers teach is never another's bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.core.estimate.category import BASE_TOKENS, Category
from scheduling.core.estimate.contracts import Prediction, PromptFacts
from scheduling.core.estimate.distribution import log_normal

GAMMA = 0.9
SLOW_GAMMA = 0.98  # of our own use: real answers of one category scatter so much that a tenth of each is mostly noise
LEAST_RATIO, MOST_RATIO = 0.25, 3.0  # clip of one observation (DriftSched)
WIDEST = 16.0  # clip of our own use: real answers differ from the table's bases by more than three times
PROMPT_SCALE = 1000.0  # n at which F would be 2
PROMPT_MOST = 1.5
SPREAD = 0.8  # standard deviation of the logarithm of a category's lengths, before any was seen
SHRINK = 20.0  # observations at which a model's own bias counts as much as the category's
PRIOR_ANSWERS = 0.25  # of our own use: answers that what the pool tells counts for, beside a tenant's own
SCOPES_KEPT = 256  # models are names from outside: bounded, the oldest go first


def prompt_factor(size: float) -> float:
    """``F``: longer prompts get longer answers. ``size`` in the mode's unit: words or tokens."""
    return min(PROMPT_MOST, 1.0 + size / PROMPT_SCALE)


@dataclass(frozen=True, slots=True)
class Bias:
    """``B`` of one scope and how many answers taught it."""

    value: float = 1.0
    observed: int = 0


class Drift:
    """The biases of one tenant. ``clip``: bounds of one observation's ratio to the base; ``on`` False learns nothing.

    ``averaging``: a scope's first observations are averaged alike, so that it does not begin as a slow walk from 1.
    ``prior_answers``: how many observations a prior counts for; 0: it only stands in until there are any.
    """

    def __init__(
        self, *, on: bool = True, gamma: float = GAMMA, clip: tuple[float, float] = (LEAST_RATIO, MOST_RATIO),
        averaging: bool = False, prior_answers: float = 0.0,
    ) -> None:  # fmt: skip
        self.on = on
        self._prior_answers = prior_answers
        self._gamma = gamma
        self._averaging = averaging
        self._least, self._most = clip
        self._biases: dict[tuple[str, str, str], Bias] = {}

    def bias(self, category: str, *, model: str = "", prior: float = 1.0) -> float:
        """``B``: the category's, moved towards the model's own as that becomes known. ``prior``: ``B`` before any
        answer."""
        biases = self._biases
        shared = biases.get(("category", "", category))
        if shared is None or not shared.observed:
            return prior
        value = shared.value
        if self._prior_answers:  # factors are averaged as factors: by their logarithms
            value *= (prior / value) ** (self._prior_answers / (shared.observed + self._prior_answers))
        own = biases.get(("model", model, category)) if model else None
        if own is not None:
            value += (own.value - value) * own.observed / (own.observed + SHRINK)
        return value

    def expected(
        self, category: str, size: float, *, base: float | None = None, safety: float = 1.0, model: str = "",
        prior: float = 1.0,
    ) -> float:  # fmt: skip
        """``T_out`` for a prompt of ``size``. ``base``: another ``T_base`` than the table's; ``safety``: ``S``."""
        tokens = BASE_TOKENS.get(category, BASE_TOKENS[Category.SUMMARY]) if base is None else base
        return tokens * self.bias(category, model=model, prior=prior) * safety * prompt_factor(size)

    def learn(
        self, category: str, actual: float, *, base: float | None = None, cut: bool = False, model: str = "",
        prior: float = 1.0,
    ) -> None:  # fmt: skip
        """An answer of this category had ``actual`` (same unit as the base). ``cut``: it was at least that long, and
        says nothing where ``B`` (before any answer: ``prior``) is above it."""
        if not self.on:
            return
        tokens = BASE_TOKENS.get(category, BASE_TOKENS[Category.SUMMARY]) if base is None else base
        seen = min(self._most, max(self._least, actual / tokens))
        for scope, name in (("category", ""), ("model", model)):
            if not name and scope != "category":
                continue
            key = (scope, name, category)
            bias = self._biases.get(key)
            if bias is None:
                while len(self._biases) >= SCOPES_KEPT:
                    del self._biases[next(iter(self._biases))]
                bias = Bias(prior)
            if cut and seen < bias.value:
                continue
            keep = self._gamma if not self._averaging else min(self._gamma, bias.observed / (bias.observed + 1.0))
            self._biases[key] = Bias(keep * bias.value + (1.0 - keep) * seen, bias.observed + 1)

    def reset(self, category: str | None = None) -> None:
        """Forgets what was learned, of one category or of all: every ``B`` is 1 again."""
        if category is None:
            self._biases.clear()
        else:
            self._biases = {key: bias for key, bias in self._biases.items() if key[2] != category}

    def observed(self, category: str) -> int:
        """How many answers taught the category's bias."""
        bias = self._biases.get(("category", "", category))
        return 0 if bias is None else bias.observed

    def factors(self) -> list[tuple[str, str, str, Bias]]:
        """``(scope, name, category, bias)`` of everything that was learned, to be shown."""
        return [(*key, bias) for key, bias in sorted(self._biases.items())]


class CategoryBaseline:
    """A category's base with one tenant's drift, as a predictor: a log-normal around it. ``prior``: what the pool tells
    of a category, where the tenant's own answers are few."""

    def __init__(self, drift: Drift | None = None, prior: Callable[[str], float] | None = None) -> None:
        self.drift = drift or Drift(
            gamma=SLOW_GAMMA, clip=(1.0 / WIDEST, WIDEST), averaging=True, prior_answers=PRIOR_ANSWERS
        )
        self._prior = prior or _no_correction

    def predict(self, facts: PromptFacts) -> Prediction:
        drift = self.drift
        prior = self._prior(facts.category)
        mean = drift.expected(facts.category, facts.input_tokens, model=facts.model, prior=prior)
        scale = max(1.0, mean) / _SHAPE.mean
        observed = drift.observed(facts.category)
        lengths = tuple([v * scale for v in _SHAPE.lengths])
        source = "category" if observed else "prior"
        return Prediction(lengths, _SHAPE.probabilities, source, mean, observed)

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        self.drift.learn(facts.category, actual, cut=cut, model=facts.model, prior=self._prior(facts.category))


def _no_correction(category: str) -> float:
    return 1.0


_SHAPE = log_normal(1.0, SPREAD, "category")
