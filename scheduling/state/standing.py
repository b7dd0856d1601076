"""How an entitlement's standing is kept in Redis: a field of the hash ``standing`` (``docs/internals/state.md``)."""

from __future__ import annotations

from scheduling.core.types import Standing


def standing_words(s: Standing) -> str:
    """A standing the way it is kept: weight, debt and burst."""
    return f"{s.weight:.9f} {s.debt:.6f} {s.burst:.6f}"


def read_standing(words: str) -> Standing:
    return Standing(*map(float, words.split()))
