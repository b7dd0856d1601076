"""Which beginnings of prompts does the engine know? vLLM's automatic prefix caching, with its ``cache_salt``.

A prompt's full blocks are hashed one after the other, each with what came before it; the first also with the request's
salt, so that only requests with the same salt find each other's blocks. Simpler than vLLM: a block is known as soon as
a prompt with it was taken in, and the least recently used one leaves when there are as many as the engine has blocks.
Of a prompt that is aborted before its end, the blocks stay that were computed.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence

from scheduling.core.capacity.kv import BLOCK_TOKENS


class PrefixCache:
    """Known blocks by hash."""

    def __init__(self, blocks: int) -> None:
        self.queried = 0  # tokens of prompts that were looked up
        self.hit = 0  # of these, found
        self._most = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, ids: Sequence[int], salt: str) -> tuple[int, list[int]]:
        """Tokens of a prompt that are known already, in whole blocks and never all, and the hashes of its blocks, which
        are known from now on."""
        self.queried += len(ids)
        mark = hash(("salt", salt)) if salt else 0
        cached, going, marks = 0, True, []
        for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            mark = hash((mark, *ids[start : start + BLOCK_TOKENS]))
            marks.append(mark)
            if going and mark in self._blocks:
                cached += BLOCK_TOKENS
            else:
                going = False
            self._blocks[mark] = None
            self._blocks.move_to_end(mark)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        cached = min(cached, max(0, len(ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        self.hit += cached
        return cached, marks

    def drop(self, marks: Sequence[int]) -> None:
        """These blocks were not computed."""
        for mark in marks:
            self._blocks.pop(mark, None)


def ids_of(texts: Sequence[str]) -> list[int]:
    """Stable numbers for the tokens of texts, with a boundary after each."""
    return [zlib.crc32(word) for text in texts for word in (*text.encode(errors="surrogatepass").split(), b"\0")]
