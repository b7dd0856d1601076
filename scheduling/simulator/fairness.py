"""How evenly tenants that wait are served: Jain's index of tokens per weight.

Over a whole run every policy serves the same tokens, so the index is taken where policies differ: window by window,
over the tenants that have requests waiting both when the window begins and when it ends. A tenant that gets all it asks
for has nothing to be compared. 1 means that tokens went in proportion to weights, 1/n that one of n tenants got all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduling.simulator.result import Outcome, mean

WINDOW_S = 10.0


class Service(NamedTuple):
    """A request that was served, and whose it was."""

    tenant: str
    outcome: Outcome


def jain(values: Iterable[float]) -> float:
    """``(sum x)^2 / (n * sum x^2)``; 1 for equal values and where all are 0, nan without values."""
    numbers = list(values)
    squares = math.fsum(x * x for x in numbers)
    if not numbers:
        return math.nan
    return math.fsum(numbers) ** 2 / (len(numbers) * squares) if squares > 0 else 1.0


def jain_of_backlogged(served: Iterable[Service], weights: Mapping[str, float], window_s: float = WINDOW_S) -> float:
    """The mean over all windows in which at least two tenants wait; nan when there is none.

    A prompt's tokens are counted evenly between its start and its first token, the others evenly after that.
    """
    waiting: dict[str, dict[int, int]] = {}  # tenant -> edge of a window -> requests that wait there
    tokens: dict[str, dict[int, float]] = {}
    for tenant, outcome in served:
        arrival, start = outcome.arrival_s, outcome.arrival_s + outcome.wait_s
        edges = waiting.setdefault(tenant, {})
        for edge in range(math.ceil(arrival / window_s), math.ceil(start / window_s)):
            edges[edge] = edges.get(edge, 0) + 1
        first, last = arrival + outcome.ttft_s, arrival + outcome.ttlt_s
        row = tokens.setdefault(tenant, {})
        _spread(row, start, first, outcome.input_tokens + 1.0, window_s)
        _spread(row, first, last, outcome.output_tokens - 1.0, window_s)
    indexes = []
    for window in sorted({edge for edges in waiting.values() for edge in edges}):
        backlogged = [name for name, edges in waiting.items() if window in edges and window + 1 in edges]
        if len(backlogged) > 1:
            indexes.append(jain(tokens[name].get(window, 0.0) / weights[name] for name in backlogged))
    return mean(indexes)


def _spread(row: dict[int, float], start: float, end: float, tokens: float, window_s: float) -> None:
    """Adds ``tokens`` evenly over [start, end] to the windows that it touches."""
    if tokens <= 0:
        return
    window = int(start / window_s)
    if end <= start:
        row[window] = row.get(window, 0.0) + tokens
        return
    rate = tokens / (end - start)
    while start < end:
        edge = min(end, (window + 1) * window_s)
        row[window] = row.get(window, 0.0) + rate * (edge - start)
        start, window = edge, window + 1
