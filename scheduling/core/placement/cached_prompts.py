"""How much of a prompt its engine will find in its prefix cache: what does not count against a prefill credit.

Question: does the next prompt of a long beginning that is known have to wait until the last one is prefilled?
An engine computes only what it has not cached, so many such prompts fit into one step of it, and one at a time would
leave most of the step empty. What is believed to be cached on a replica is what the index of prompts says of it
(:mod:`scheduling.core.placement.rule`), as far as its engine was found to bear it out: engines count the tokens that
they found in their caches, and their share of all prompts, beside the share that was expected there, is how much of an
expectation counts. So what counts of all prompts is about the share that the engine computes. An engine that caches
nothing, evicts what was expected, or does not count, leaves every prompt counted whole.

**Bound.** Expectations can fail at once, and trust falls seconds later: a cache is cleared, or others fill it. So what
does not count is bounded, on each replica, by what its engine computes in ``uncounted_s`` seconds, or one beginning
alone (:class:`scheduling.core.capacity.uncounted.Beginnings`): however wrong all of it is, nobody waits inside an
engine for longer than that, or one prompt, beside what the credit itself lets in. What prompts in flight share counts
once: what is before a point. What is expected behind it counts whole, since each may have its own there.

Same in Lua: ``believed`` in ``scheduling/state/scripts/shared/prefixes.lua``, ``uncounted_of`` in ``credit.lua``.
Source: ours. Measured: ``docs/results/prefill-credit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduling.core.placement.rule import Warmth
from scheduling.core.types import BackendView, QueuedRequest

PER_MILLE = 1000
ENOUGH = 8_192  # expected tokens that say how far expectations are borne out
KEPT = 0.8  # of what was known of that, at each further look


def believed(tokens: int, before: int, expected: int, trust: int) -> int:
    """How many of a prompt's ``tokens`` are believed to be cached: ``trust`` per mille of those ``expected``, and none
    behind the point that is known, ``before`` which so many are. Something of every prompt is computed."""
    return max(0, min(tokens - 1, before, expected * trust // PER_MILLE))


def uncounted_of(backend: BackendView, tokens: int, warmth: Warmth | None) -> tuple[str, int]:
    """The point up to which a prompt of so many ``tokens`` is believed to be cached on a replica, and how many of its
    tokens need not count against the replica's prefill credit."""
    if warmth is None or not backend.prefill_credit or not backend.cache_trust:
        return "", 0
    point, before = warmth.points.get(backend.id, ("", 0))
    found = believed(tokens, before, warmth.cached(backend.id), backend.cache_trust)
    return (point, backend.uncounted.uncounted(point, found, backend.uncounted_most)) if found else ("", 0)


def counted_of(backend: BackendView, tokens: int, warmth: Warmth | None) -> int:
    """What such a prompt would take of the replica's prefill credit."""
    return tokens - uncounted_of(backend, tokens, warmth)[1]


def counted_on(backend: BackendView, request: QueuedRequest, warmth: Warmth | None) -> QueuedRequest:
    """The request as it runs there: with what of its prompt does not count."""
    point, tokens = uncounted_of(backend, request.input_tokens, warmth)
    return replace(request, uncounted_point=point, uncounted_tokens=tokens) if tokens else request


def counted_whole(request: QueuedRequest) -> QueuedRequest:
    """It runs nowhere, so all of its prompt counts."""
    return replace(request, uncounted_point="", uncounted_tokens=0) if request.uncounted_tokens else request


@dataclass(slots=True)
class CacheTrust:
    """How far expectations were borne out on one replica: the share of prompts' tokens that its engine found in its
    cache, beside the share that was expected. Shares, since engines count in their own tokens, and expectations are
    estimates. Fed with what is new, about once a second [tokens]."""

    expected: float = 0.0  # all of them fade
    prompts: float = 0.0
    found: float = 0.0
    asked: float = 0.0

    def seen(self, expected: float, prompts: float, found: float, asked: float) -> None:
        """What was ``expected`` of the ``prompts`` granted since the last look, and what the engine ``found`` of those
        it was ``asked`` for meanwhile."""
        if expected > 0:
            self.expected = KEPT * self.expected + expected
            self.prompts = KEPT * self.prompts + prompts
            self.found = KEPT * self.found + max(0.0, found)
            self.asked = KEPT * self.asked + max(0.0, asked)

    def ended(self, found: float, asked: float) -> None:
        """Likewise, of prompts granted before the last look: engines count them at their ends."""
        self.found += max(0.0, found)
        self.asked += max(0.0, asked)

    @property
    def per_mille(self) -> int:
        """Of an expectation; 0 until enough is known."""
        if self.expected < ENOUGH or self.prompts <= 0 or self.asked <= 0:
            return 0
        borne_out = (self.found / self.asked) / (self.expected / self.prompts)
        return max(0, min(PER_MILLE, int(PER_MILLE * borne_out)))
