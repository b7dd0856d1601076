"""How a pool's strategic loop goes about it: the numbers an operator may set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

LONGEST_S = 1_000_000_000  # 31 years: a moment so far back still is one, and "never" can be said
MOST_OF_EACH = 1_000_000  # candidates, requests, pairs
RETIRED = frozenset({"compactness", "balance", "queues", "penalty"})  # of earlier releases: read, and without effect


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Times in seconds. Raises ValueError that names the setting."""

    every_s: float = 1800.0  # between two studies
    window_s: float = 3600.0  # of recent traffic that candidates are tried on
    interval_s: float = 300.0  # of a canary
    trials: int = 24  # candidates of one study's first round, beside what serves and what a new pool has
    cpu_share: float = 0.2  # of one processor, that a study may take while it goes on
    least_requests: int = 300  # in the window; with fewer nothing is tried
    most_requests: int = 2000  # of the window that one replay serves
    pairs: int = 5  # replays on which a candidate has to win, the same for both
    least_gain: float = 0.005  # of the reward: less is not worth a change, nor a loss when more comes
    starvation: float = 1.5  # times the p99 wait of now, of any tier and length class, that a candidate may cause
    starvation_s: float = 5.0  # waits up to this are no starvation
    drop: float = 0.05  # of SLO attainment, that a canary must not bring
    alarm: float = 0.05  # chance that a canary as good as what was before is stopped
    miss: float = 0.1  # chance that one that brings ``drop`` is not
    wait_factor: float = 1.5  # times the p95 wait of before, of any tier, that a canary may cause
    least_canary: int = 30  # requests, of a tier and in all, without which nothing is said
    drift_p: float = 0.001  # a difference of lengths with a smaller chance than this is drift, if it is
    drift_gap: float = 0.1  # as large as this as well: the largest gap between the two distributions
    most_error: float = 0.25  # of simulated against live figures, with which a winner may still start by itself
    recut_s: float = 7200.0  # queues older than this are cut anew from recent prompts, drift or not
    seed: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{field.name} must be at least 0")
            if field.type == "int" and value != int(value):
                raise ValueError(f"{field.name} must be a whole number")
        for name in ("every_s", "window_s", "interval_s", "recut_s", "starvation", "wait_factor", "most_error"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("trials", "least_requests", "most_requests", "least_canary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("every_s", "window_s", "interval_s", "recut_s", "starvation_s"):
            if getattr(self, name) > LONGEST_S:
                raise ValueError(f"{name} must be at most {LONGEST_S} (31 years)")
        for name in ("trials", "least_requests", "most_requests", "least_canary", "pairs"):
            if getattr(self, name) > MOST_OF_EACH:
                raise ValueError(f"{name} must be at most {MOST_OF_EACH}")
        if self.pairs < 3:
            raise ValueError("pairs must be at least 3: two differences say nothing about their spread")
        for name in ("drop", "alarm", "miss", "drift_p", "drift_gap"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} must lie between 0 and 0.5")
        if not 0 < self.cpu_share <= 1:
            raise ValueError("cpu_share must lie above 0 and be at most 1")


def read_settings(raw: object) -> LoopSettings:
    """Settings by name; what is not named is the default. Raises ValueError that says what is wrong."""
    if not isinstance(raw, Mapping):
        raise ValueError('write settings by name, such as {"interval_s": 600}')
    types = {field.name: field.type for field in fields(LoopSettings)}
    for name, value in raw.items():
        if name not in types and name not in RETIRED:
            raise ValueError(f"there is no {name!r}; there are: {', '.join(types)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, not {value!r}")
    return LoopSettings(**{name: value for name, value in raw.items() if name not in RETIRED})
