"""What did this application's last answers look like? (QoServe 3.4: one history per application.)

An application is whoever sends alike requests; here it is an API key. Only lengths are kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from scheduling.core.estimate.contracts import Prediction, PromptFacts
from scheduling.core.estimate.distribution import distribution

WINDOW = 256  # answers of one application: old habits are forgotten
APPLICATIONS_KEPT = 4_096  # of one tenant, and of a pool
MIN_OBSERVED = 8  # under this many a category says more
REFRESH = 8  # answers after which a distribution is made anew


class _Application:
    __slots__ = ("answers", "due", "made")

    def __init__(self) -> None:
        self.answers: deque[tuple[float, bool]] = deque(maxlen=WINDOW)
        self.made: Prediction | None = None
        self.due = 0


class ApplicationHistory:
    """Lengths of each application's last answers; the applications longest unheard of are forgotten first."""

    source = "application"

    def __init__(self) -> None:
        self._held: dict[str, _Application] = {}

    def __len__(self) -> int:
        return len(self._held)

    def forget_oldest(self) -> None:
        """Forgets the application longest unheard of. Raises StopIteration where there is none."""
        del self._held[next(iter(self._held))]

    def predict(self, facts: PromptFacts) -> Prediction | None:
        held = self._held.get(facts.application)
        if held is None or len(held.answers) < MIN_OBSERVED:
            return None
        if held.made is None or held.due <= 0:
            samples = [(length, cut, 1.0) for length, cut in held.answers]
            held.made = distribution(samples, self.source, float(len(samples)))
            held.due = REFRESH
        return held.made.truncated(facts.output_bound)

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        held = self._held.pop(facts.application, None)
        if held is None:
            while len(self._held) >= APPLICATIONS_KEPT:
                self.forget_oldest()
            held = _Application()
        self._held[facts.application] = held  # the last in order is the one heard of last
        held.answers.append((float(actual), cut))
        held.due -= 1


class PooledHistory:
    """Everything the pool answered lately, whoever asked: what fills up a history that is still short."""

    def __init__(self, source: str = "prior") -> None:
        self._inner = ApplicationHistory()
        self._source = source

    def predict(self, facts: PromptFacts) -> Prediction | None:
        made = self._inner.predict(replace(facts, application=""))
        return None if made is None else replace(made, source=self._source)

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        self._inner.observe(replace(facts, application=""), actual, cut=cut)
