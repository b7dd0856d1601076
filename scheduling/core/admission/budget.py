"""What a token bucket lacks, from what was taken of it.

A bucket that begins full holds, at any moment, the least of ``depth + rate x (now - s) - used since s`` over all
earlier moments ``s`` (its min-plus form); the moments that matter are those at which something was taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def debts(taken: Iterable[tuple[str, float, int]], budgets: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """``taken``: (entitlement, how long ago [s], tokens), the latest first."""
    used: dict[str, float] = {}
    lacks: dict[str, float] = {}
    for name, ago_s, tokens in taken:
        if name not in budgets or tokens <= 0:
            continue
        rate, depth = budgets[name]
        used[name] = used.get(name, 0.0) + tokens
        lack = min(used[name] - rate * max(0.0, ago_s), depth)
        if lack > lacks.get(name, 0.0):
            lacks[name] = lack
    return lacks
