"""Which fault comes when: follows from the seed and the minutes alone."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

QUIET_S = 5.0  # load runs undisturbed for so long, at the beginning and at the end
GAP_S = (2.0, 7.0)  # from one fault's begin to the next one's
PROCESSES = ("worker", "web", "web-1", "engine-0", "engine-1", "redis")
# What the engine that tests control may do (tests/chaos/run.py, BAD).
BAD_ENGINES = ("401", "404", "429", "500", "503", "html", "garbage", "cut", "hang", "hang-in-stream", "refuse")


@dataclass(frozen=True, slots=True)
class Fault:
    """``at_s`` after the load began. ``for_s`` 0: it is over at once, and the supervisor does the rest."""

    at_s: float
    kind: str  # kill | stop | flush | restart-redis | bad-engine
    target: str
    for_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, minutes: float, *, flush: bool | None = None) -> list[Fault]:
    """The faults of a run. ``flush``: whether Redis' data may be lost in it; every second seed by itself."""
    rng = random.Random(seed)
    may_flush = rng.random() < 0.5
    if flush is not None:
        may_flush = flush
    kinds = ["kill"] * 4 + ["stop"] * 4 + ["bad-engine"] * 4 + ["restart-redis"]
    faults, at_s = [], QUIET_S
    flushed = False
    while at_s < minutes * 60 - QUIET_S:
        kind = rng.choice(kinds)
        if may_flush and (not flushed or rng.random() < 0.1):
            kind, flushed = "flush", True
        for_s = 0.0
        if kind in ("kill", "stop"):
            target = rng.choice(PROCESSES)
            if kind == "stop":
                # an instance's lease is 10 s, a leader's 6 s: shorter and longer than both
                for_s = round(rng.choice((rng.uniform(0.5, 5), rng.uniform(5, 14))), 1)
        elif kind == "bad-engine":
            target, for_s = rng.choice(BAD_ENGINES), round(rng.uniform(3, 12), 1)
        else:
            target = "redis"
        faults.append(Fault(round(at_s, 1), kind, target, for_s))
        at_s += rng.uniform(*GAP_S)
    return faults
