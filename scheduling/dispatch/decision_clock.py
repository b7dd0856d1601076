"""When a pool's next decision is due, and how long decisions take. Times are of one monotonic clock [s]; pure."""

from __future__ import annotations

TICK_S = 0.25  # between two decisions at most, while requests wait
CREDIT_TICK_S = 0.005  # likewise after grants, while a request lacks prefill credit, whose return nothing announces
TO_ENGINE_S = 0.02  # from a grant to its engine's step, and a first token back, until measured (``core/engine/lag.py``)
LEAST_TO_ENGINE_S = 0.002
MAX_DECISION_S = 0.05
NEWEST = 0.05  # share of the last decision in the mean of what they take
MEASURED = 40  # decisions after which the assumed value makes up an eighth of the mean


class DecisionClock:
    """``credit_falls_s``: seconds until a replica counts less of its prefill credit as used, where a request waits for
    that; 0: none does, or it is not known."""

    def __init__(self) -> None:
        self.credit_falls_s = 0.0
        self._to_engine_s = TO_ENGINE_S
        self._due_s = 0.0
        self._takes_s = CREDIT_TICK_S  # from when a decision is due to its grants, on average
        self._decided = 0  # grants written

    @property
    def turnaround_s(self) -> float:
        """Seconds from a first token until the request that is granted in its place is in its engine."""
        return self._takes_s + self._to_engine_s

    @property
    def measured_s(self) -> float | None:
        """The turnaround, once :data:`MEASURED` decisions outweigh the value assumed at the start; None before."""
        return self.turnaround_s if self._decided >= MEASURED else None

    def measured_lag(self, lag_s: float) -> None:
        """:attr:`scheduling.core.engine.lag.EngineLag.lag_s` of the pool."""
        self._to_engine_s = max(LEAST_TO_ENGINE_S, lag_s)

    def wait(self, now_s: float, *, for_credit: bool) -> float:
        """Seconds until the next decision if nothing happens before."""
        tick_s = min(TICK_S, self.credit_falls_s or TICK_S) if for_credit else TICK_S
        self._due_s = now_s + tick_s
        return tick_s

    def due(self, now_s: float) -> None:
        """Something happened: the next decision is due now, if it was not due earlier."""
        self._due_s = min(self._due_s, now_s)

    def granted(self, now_s: float) -> None:
        """A decision was written."""
        took_s = min(MAX_DECISION_S, max(0.0, now_s - self._due_s))
        self._takes_s += NEWEST * (took_s - self._takes_s)
        self._decided += 1
        self.credit_falls_s = CREDIT_TICK_S
