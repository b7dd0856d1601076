"""A run by the clock: who waits, and how long first tokens take, in each of 48 equal windows of its makespan.

* ``window`` [s], the length of one;
* ``depth.<tier>.<k>``: requests of the tier that wait in the middle of window k;
* ``first.<tier>.<k>`` [s]: 99th percentile of the time to the first token of the tier's important requests that arrive
  in window k; nan where none does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from scheduling.core.percentiles import interpolated
from scheduling.simulator.result import Outcome, by_tier, makespan_s

WINDOWS = 48


def timeline(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures above; none without requests that take time."""
    span = makespan_s(outcomes)
    if span <= 0:
        return {}
    begin, window = min(o.arrival_s for o in outcomes), span / WINDOWS
    figures = {"window": window}
    for tier, rows in by_tier(outcomes).items():
        changes = [0] * (WINDOWS + 1)
        first: list[list[float]] = [[] for _ in range(WINDOWS)]
        for row in rows:
            at = row.arrival_s - begin
            # waits in the middle (k + 1/2) * window of every k between these two
            changes[min(WINDOWS, math.ceil(at / window - 0.5))] += 1
            changes[min(WINDOWS, math.ceil((at + row.wait_s) / window - 0.5))] -= 1
            if row.important:
                first[min(WINDOWS - 1, int(at / window))].append(row.ttft_s)
        for k, depth in enumerate(accumulate(changes[:WINDOWS])):
            figures[f"depth.{tier}.{k}"] = float(depth)
            figures[f"first.{tier}.{k}"] = interpolated(first[k], 0.99)
    return figures
