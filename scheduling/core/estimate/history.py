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
    __slots__ = ("answers", "due", "prediction")

    def __init__(self) -> None:
        self.answers: deque[tuple[float, bool]] = deque(maxlen=WINDOW)
        self.prediction: Prediction | None = None
        self.due = 0


class ApplicationHistory:
    """Lengths of each application's last answers; the applications longest unheard of are forgotten first."""

    source = "application"

    def __init__(self) -> None:
        self._applications: dict[str, _Application] = {}

    def __len__(self) -> int:
        return len(self._applications)

    def forget_oldest(self) -> None:
        """Forgets the application longest unheard of. Raises StopIteration where there is none."""
        del self._applications[next(iter(self._applications))]

    def predict(self, facts: PromptFacts) -> Prediction | None:
        application = self._applications.get(facts.application)
        if application is None or len(application.answers) < MIN_OBSERVED:
            return None
        if application.prediction is None or application.due <= 0:
            samples = [(length, cut, 1.0) for length, cut in application.answers]
            application.prediction = distribution(samples, self.source, float(len(samples)))
            application.due = REFRESH
        return application.prediction

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        application = self._applications.pop(facts.application, None)
        if application is None:
            while len(self._applications) >= APPLICATIONS_KEPT:
                self.forget_oldest()
            application = _Application()
        self._applications[facts.application] = application  # the last in order is the one heard of last
        application.answers.append((float(actual), cut))
        application.due -= 1


class PooledHistory:
    """Everything the pool answered lately, whoever asked: what fills up a history that is still short."""

    def __init__(self, source: str = "prior") -> None:
        self._inner = ApplicationHistory()
        self._source = source

    def predict(self, facts: PromptFacts) -> Prediction | None:
        prediction = self._inner.predict(replace(facts, application=""))
        return None if prediction is None else replace(prediction, source=self._source)

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        self._inner.observe(replace(facts, application=""), actual, cut=cut)
