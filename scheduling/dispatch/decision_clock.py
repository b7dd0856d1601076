"""When a pool's next decision is due, and how long decisions take. Times are of one monotonic clock [s]; pure."""

from __future__ import annotations

TICK_S = 0.25  # while anyone waits, a decision is tried at least so often
CREDIT_TICK_S = 0.005  # after grants that left somebody waiting for prefill credit: when it is there must be asked
TO_ENGINE_S = 0.02  # from a grant to its engine's step, and a first token back, until measured (``core/engine_lag.py``)
LEAST_TO_ENGINE_S = 0.002
MAX_DECISION_S = 0.05
NEWEST = 0.05  # share of the last decision in the mean of what they take
MEASURED = 40  # decisions after which the first assumption has an eighth of the mean


class DecisionClock:
    """``credit_falls_s``: in how long a replica counts less of its prefill credit, for which somebody waits; 0: nobody
    does, or it is not known."""

    def __init__(self) -> None:
        self.credit_falls_s = 0.0
        self._to_engine_s = TO_ENGINE_S
        self._due_s = 0.0
        self._takes_s = CREDIT_TICK_S  # from when a decision is due to its grants, on average
        self._decided = 0  # grants written

    @property
    def turnaround_s(self) -> float:
        """How long it takes from when a first token comes until what is granted in its place is in its engine."""
        return self._takes_s + self._to_engine_s

    @property
    def measured_s(self) -> float | None:
        """The same, once so many decisions were measured that the assumption at the start counts for little."""
        return self.turnaround_s if self._decided >= MEASURED else None

    def measured_lag(self, lag_s: float) -> None:
        """:attr:`scheduling.core.engine_lag.EngineLag.lag_s` of the pool."""
        self._to_engine_s = max(LEAST_TO_ENGINE_S, lag_s)

    def wait(self, now_s: float, *, for_credit: bool) -> float:
        """For how long the next decision may wait if nothing happens until then."""
        tick_s = min(TICK_S, self.credit_falls_s or TICK_S) if for_credit else TICK_S
        self._due_s = now_s + tick_s
        return tick_s

    def due(self, now_s: float) -> None:
        """Something happened: the next decision is due now, unless it was before."""
        self._due_s = min(self._due_s, now_s)

    def granted(self, now_s: float) -> None:
        """What was decided is written."""
        took_s = min(MAX_DECISION_S, max(0.0, now_s - self._due_s))
        self._takes_s += NEWEST * (took_s - self._takes_s)
        self._decided += 1
        self.credit_falls_s = CREDIT_TICK_S
