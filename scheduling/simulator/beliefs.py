"""What a trace's own past says of the lengths to come."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from scheduling.simulator.trace import TraceRequest
from scheduling.simulator.workload import Belief

ENOUGH = 50  # requests of a tenant or of a length from which a distribution is made
VALUES = 20  # of a believed distribution
GROUPS = 4  # of prompts by length


class Beliefs:
    """What is believed of a request's output, learned from requests that came before."""

    def __init__(self, history: Sequence[TraceRequest]) -> None:
        ordered = sorted(row.input_tokens for row in history)
        self._edges = [ordered[len(ordered) * part // GROUPS] for part in range(1, GROUPS)]
        groups: dict[tuple[str, int], list[int]] = {}
        for row in history:
            for key in {(row.tenant, -1), ("", self._group(row)), ("", -1)}:
                groups.setdefault(key, []).append(row.output_tokens)
        self._bound = max(row.output_tokens for row in history) * 2
        self._beliefs = {
            key: _belief(outputs, self._bound)
            for key, outputs in groups.items()
            if len(outputs) >= ENOUGH or key == ("", -1)
        }

    def __call__(self, row: TraceRequest) -> Belief:
        own = self._beliefs.get((row.tenant, -1)) if row.tenant else None
        return own or self._beliefs.get(("", self._group(row))) or self._beliefs["", -1]

    def _group(self, row: TraceRequest) -> int:
        return bisect_right(self._edges, row.input_tokens)


def _belief(outputs: Sequence[int], bound: int) -> Belief:
    """Quantiles at the middle of equal shares."""
    ordered = sorted(outputs)
    shares: dict[float, float] = {}
    for value in range(VALUES):
        at = ordered[int((value + 0.5) / VALUES * len(ordered))]
        shares[float(at)] = shares.get(float(at), 0.0) + 1.0 / VALUES
    mean = math.fsum(length * share for length, share in shares.items())
    return Belief(mean, bound, tuple(shares), tuple(shares.values()))
