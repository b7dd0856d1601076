"""Which KV blocks are free, and for how many steps are there surely enough?

Decoding sequences are counted, not visited: all gain one token a step, so whether a sequence begins a block in a step
depends only on its place, ``(context - step) modulo block``, and that never changes while it decodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.capacity.kv import SharedBlocks


class KvBlocks:
    """The KV cache of one engine, in blocks. ``total`` 0: not limited, and nobody asks. ``shared``: tokens of a block
    whose id sequences may have in common."""

    __slots__ = ("_per_shared", "_shared", "block", "free", "places", "reserve", "total")

    def __init__(self, tokens: int, block: int, watermark: float, shared: int = 0) -> None:
        self._shared = SharedBlocks()
        self._per_shared = shared // block  # blocks of the cache
        self.total = tokens // block
        self.block = block
        self.free = self.total
        self.reserve = int(self.total * watermark)  # no new sequence may take these
        self.places = [0] * block  # decoding sequences by place

    @property
    def usage(self) -> float | None:
        """Of the cache, 0 to 1; None: it is not limited."""
        return 1.0 - self.free / self.total if self.total else None

    def of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block)

    def begun_in(self, step: int) -> int:
        """Blocks that the decoding sequences begin in this step."""
        return self.places[(1 - step) % self.block]

    def admit(self, tokens: int, step: int, ids: Sequence[int] = ()) -> bool:
        """Reserves a new sequence's prompt, but for those of its blocks with ``ids`` that others hold; False when only
        blocks are left that are not for it.

        What the decoding sequences begin in this very step is theirs already.
        """
        need = -(-tokens // self.block)
        if ids:
            need -= self._per_shared * self._shared.held(ids)
        if self.free - self.places[(1 - step) % self.block] - need < self.reserve:
            return False
        self.free -= need
        if ids:
            self._shared.hold(ids)
        return True

    def release(self, tokens: int, ids: Sequence[int] = ()) -> None:
        """Gives back what a sequence of so many tokens held; what others hold of its blocks with ``ids`` is theirs."""
        self.free += self.of(tokens)
        if ids:
            self.free -= self._per_shared * self._shared.let_go(ids)

    def advance(self, step: int, count: int, decodes: int) -> None:
        """Takes the blocks that ``decodes`` sequences begin in ``count`` steps from ``step`` on."""
        places, block = self.places, self.block
        if count == 1:
            self.free -= places[(1 - step) % block]
            return
        rounds, rest = divmod(count, block)
        taken = rounds * decodes
        if rest:
            low = (2 - step - rest) % block  # places of the rest: ``rest`` neighbours, downwards from (1 - step)
            high = low + rest
            taken += sum(places[low:high]) if high <= block else sum(places[low:]) + sum(places[: high - block])
        self.free -= taken

    def sure_steps(self, decodes: int) -> int:
        """Steps for which there are blocks wherever the sequences stand, at least 1: that one looks exactly."""
        return max(1, (self.free // decodes - 1) * self.block)
