"""The prefix caches of a simulated pool's replicas: what prompts find there, and how far it is expected.

As the leader does, expectations of what is cached (:mod:`scheduling.core.placement.cached_prompts`) are trusted as far
as they were borne out. Requests without blocks share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.placement.cached_prompts import CacheTrust
from scheduling.core.placement.rule import Warmth
from scheduling.core.types import PoolView
from scheduling.simulator.prefix_cache import BlockCache
from scheduling.simulator.replica import Replica
from scheduling.simulator.workload import BLOCK_TOKENS, SimRequest


class PromptCaches:
    """Of all replicas by their numbers, and of those that answer by their names in ``view``."""

    def __init__(self, replicas: Sequence[Replica], view: PoolView) -> None:
        self._view = view
        self._caches = [BlockCache((replica.cache_tokens or replica.kv_tokens) // BLOCK_TOKENS) for replica in replicas]
        self._trusts = {name: CacheTrust() for name in view.backends}
        # since the last second: expected tokens, prompts' tokens, found, asked for
        self._since: dict[str, tuple[int, int, int, int]] = {}
        self._warmths: dict[str, Warmth] = {}  # of requests that have not begun
        self.found_tokens = 0  # of all prompts

    def expect(self, request_id: str, warmth: Warmth) -> None:
        """What replicas are believed to have of a prompt that arrives."""
        self._warmths[request_id] = warmth

    def find(self, request: SimRequest, number: int, answering: str) -> int:
        """How many of its tokens are found on the replica that computes its prompt, which has them all from now on.
        ``answering``: the one that it was granted to."""
        if not request.blocks:
            return 0
        found = min(self._caches[number].take(request.blocks) * BLOCK_TOKENS, request.input_tokens - 1)
        self.found_tokens += found
        warmth = self._warmths.pop(request.queued.id, None)
        more = (0 if warmth is None else warmth.cached(answering), request.input_tokens, found, request.input_tokens)
        expected, prompts, before, asked = map(sum, zip(self._since.get(answering, (0, 0, 0, 0)), more, strict=True))
        self._since[answering] = expected, prompts, before, asked
        return found

    def forget_from(self, request: SimRequest, number: int, computed: int) -> None:
        """Only so many tokens of its prompt were computed there."""
        self._caches[number].drop(request.blocks[computed // BLOCK_TOKENS :])

    def trust(self, most_s: float) -> None:
        """Once a second: expected hits are trusted as far as they were found. ``most_s``: how much of them may be in
        flight on a replica without counting against its prefill credit [seconds of its prefill]; 0: nothing."""
        for name, backend in self._view.backends.items():
            self._trusts[name].seen(*self._since.pop(name, (0, 0, 0, 0)))
            backend.cache_trust = self._trusts[name].per_mille if most_s else 0
            backend.uncounted_most = int(most_s * backend.prefill_per_s)
