"""A replica's prefix cache: blocks of prompts it has computed, the least recently used one leaves first.

What an engine finds there of a prompt's beginning it does not compute again. A prompt's blocks are chained ids, as
vLLM's and Mooncake's are: equal ids mean that everything up to the end of the block is equal.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from scheduling.core.placement.rule import NAME_CHARS, SKEW_TOKENS, write_points
from scheduling.simulator.workload import BLOCK_TOKENS


class BlockCache:
    """Blocks of prompts. ``blocks``: how many it holds."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached(self, ids: Sequence[int]) -> int:
        """How many blocks from the beginning are known. It changes nothing."""
        return next((at for at, block in enumerate(ids) if block not in self._blocks), len(ids))

    def drop(self, ids: Sequence[int]) -> None:
        """These were not computed after all."""
        for block in ids:
            self._blocks.pop(block, None)

    def take(self, ids: Sequence[int]) -> int:
        """How many blocks from the beginning are known; all of them are from now on."""
        cached, going = 0, True
        for block in ids:
            going = going and block in self._blocks
            cached += going
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return cached


class Turns:
    """The prompts of a trace, in order of arrival: where the turn before one of them ended."""

    def __init__(self) -> None:
        self._ends: set[int] = set()  # last whole blocks of prompts; ids are chained

    def prefixes_of(self, ids: Sequence[int], tokens: int, skew: float = SKEW_TOKENS) -> str:
        """What the gateway would say of the next prompt: of one that goes on it knows where the last turn ended, and a
        conversation that begins has no answer in it."""
        whole = min(len(ids), tokens // BLOCK_TOKENS)
        last = next((n for n in range(whole, 0, -1) if ids[n - 1] in self._ends), 0)
        if whole:
            self._ends.add(ids[whole - 1])
        return prefixes_of(ids, tokens, skew, also=(last, whole), goes_on=last > 0)


def prefixes_of(
    ids: Sequence[int], tokens: int, skew: float = SKEW_TOKENS, *, also: Sequence[int] = (), goes_on: bool = True
) -> str:
    """What the gateway would say of a prompt of token ids: a point after 1, 2, 4, 8 ... blocks, at its end, and
    ``also`` after so many."""
    stops = {len(ids), *also}
    stops |= {1 << power for power in range(len(ids).bit_length())}
    points, chain = [], hashlib.sha1(usedforsecurity=False)
    for stop, block in enumerate(ids, 1):
        chain.update(b"%d " % block)
        if stop in stops:
            points.append((chain.hexdigest()[:NAME_CHARS], min(tokens, stop * BLOCK_TOKENS)))
    return write_points(skew, points, goes_on) if points else ""
