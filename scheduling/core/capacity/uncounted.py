"""Beginnings of prompts in flight on one replica that do not count against its prefill credit.

What is expected to be cached may not be there (:mod:`scheduling.core.placement.cached_prompts`), so only so many tokens
of it are in flight at once, or one beginning alone. One that several prompts share counts once: if it is not cached, an
engine computes it once, for all of them.

Same in Lua: ``scripts/shared/credit.lua``. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Beginnings:
    """By their points (:mod:`scheduling.core.placement.rule`), until the first tokens of their prompts have come."""

    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of how many prompts, and tokens

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return sum([tokens for _, tokens in self.held.values()])

    def uncounted(self, point: str, tokens: int, most: int) -> int:
        """How many of ``tokens`` of one more prompt need not count, where at most ``most`` may be in flight."""
        if point in self.held or not self.held:
            return tokens
        return max(0, min(tokens, most - self.tokens))

    def with_one(self, point: str, tokens: int) -> Beginnings:
        """These with one more prompt, of which ``tokens`` do not count."""
        prompts, before = self.held.get(point, (0, tokens))
        return Beginnings({**self.held, point: (prompts + 1, before)})

    def without_one(self, point: str) -> Beginnings:
        """Without one that has its first token, or has ended."""
        prompts, tokens = self.held.get(point, (0, 0))
        others = {name: kept for name, kept in self.held.items() if name != point}
        return Beginnings({**others, point: (prompts - 1, tokens)} if prompts > 1 else others)


NO_BEGINNINGS = Beginnings()
