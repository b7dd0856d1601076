"""How much of a prompt its engine will find in its prefix cache: what does not count against a prefill credit.

Question: does the next prompt of a long beginning that is known have to wait until the last one is prefilled?
An engine computes only what it has not cached, so many such prompts fit into one step of it, and one at a time would
leave most of the step empty. What is believed to be cached is what the index of prompts says
(:mod:`scheduling.core.placement`), as far as engines were found to bear it out: they count the tokens that they found
in their caches, and their share of all prompts, beside the share that was expected, is how much of an expectation
counts. So what counts of all prompts is the share that engines compute. An engine that caches nothing, evicts what was
expected, or does not count, leaves every prompt counted whole.

Off unless a pool's routing says ``uncounted``, since expectations can fail at once and trust falls seconds later: a
replica that lost its cache, one where the prompt never was (what counts is decided at admission, by the replica that
has most of it), or a prompt made to look known (the index samples long texts). A credit then lets in up to
1 / (1 - ``uncounted``) times as much work, within slots and KV cache, and all of the pool's tenants wait for it.

Same in Lua: ``charged`` in ``scheduling/state/scripts/shared/prefixes.lua``. Source: ours. Measured:
``docs/results/front.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

PER_MILLE = 1000
ENOUGH = 8_192  # expected tokens that say how far expectations are borne out
KEPT = 0.8  # of what was known of that, at each further look


def counted_as_cached(input_tokens: int, expected: int, trust: int) -> int:
    """How many tokens of a prompt do not count, of those ``expected`` to be cached; ``trust`` per mille of them."""
    return max(0, min(input_tokens - 1, expected * trust // PER_MILLE))


@dataclass(slots=True)
class CacheTrust:
    """How far expectations were borne out in one pool: the share of prompts' tokens that engines found in their caches,
    beside the share that was expected. Shares, since engines count in their own tokens, and expectations are estimates.
    Fed with what is new, about once a second [tokens]."""

    expected: float = 0.0  # all of them fade
    prompts: float = 0.0
    found: float = 0.0
    asked: float = 0.0

    def per_mille_of(self, uncounted: float) -> int:
        """Of an expectation, where a pool's routing lets at most ``uncounted`` of it not count."""
        return int(uncounted * self.per_mille)

    def seen(self, expected: float, prompts: float, found: float, asked: float) -> None:
        """What was ``expected`` of the ``prompts`` granted since the last look, and what engines ``found`` of those
        they were ``asked`` for meanwhile."""
        if expected > 0:
            self.expected = KEPT * self.expected + expected
            self.prompts = KEPT * self.prompts + prompts
            self.found = KEPT * self.found + max(0.0, found)
            self.asked = KEPT * self.asked + max(0.0, asked)

    @property
    def per_mille(self) -> int:
        """Of an expectation; 0 until enough is known."""
        if self.expected < ENOUGH or self.prompts <= 0 or self.asked <= 0:
            return 0
        borne_out = (self.found / self.asked) / (self.expected / self.prompts)
        return max(0, min(PER_MILLE, int(PER_MILLE * borne_out)))
