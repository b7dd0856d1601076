"""The last prompts of a pool: embeddings and lengths in a ring, searched exactly.

numpy's product, not FAISS: at 10,000 x 96 both need some 60 us (``docs/estimates.md``), and a ring is overwritten in
place where an index would have to be rebuilt. 4 MB a pool.

A prompt that came before, word for word, is answered without a search: a service's fixed prompts are the most frequent
and the best known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling.core.estimate.semantic import WINDOW
from scheduling.estimation.embedding import DIMENSIONS, Vector, pack

REPEATS = 32  # answers kept of one prompt that repeats
KNOWN_BY_HEART = 8  # answers to the very same prompt from which no others are asked


class RingWindow:
    """First in, first out. Implements ``scheduling.core.estimate.semantic.PastPrompts``."""

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._vectors = np.zeros((size, DIMENSIONS), np.float32)
        self._lengths = np.zeros(size, np.float32)
        self._cut = np.zeros(size, np.bool_)
        self._keys: list[bytes] = [b""] * size
        self._repeats: dict[bytes, list[tuple[float, bool]]] = {}  # the last answers per prompt, oldest first
        self._held: dict[bytes, int] = {}  # entries of the ring per prompt
        self._next = 0
        self._count = 0
        self._products = np.empty(size, np.float32)

    def __len__(self) -> int:
        return self._count

    def add(self, embedding: Vector, actual: int, cut: bool) -> None:
        """Overwrites the oldest entry when full. O(1)."""
        at = self._next
        if self._count == self._size:
            self._forget(self._keys[at])
        else:
            self._count += 1
        key = pack(embedding)
        self._vectors[at] = embedding
        self._lengths[at] = actual
        self._cut[at] = cut
        self._keys[at] = key
        self._held[key] = self._held.get(key, 0) + 1
        repeats = self._repeats.setdefault(key, [])
        repeats.append((float(actual), cut))
        if len(repeats) > REPEATS:
            del repeats[0]
        self._next = (at + 1) % self._size

    def nearest(self, embedding: Vector, count: int) -> tuple[Sequence[float], Sequence[float], Sequence[bool]]:
        """Cosines, lengths and whether each was cut, of the ``count`` most similar."""
        same = self._repeats.get(pack(embedding))
        if same is not None and len(same) >= KNOWN_BY_HEART:
            return [1.0] * len(same), [length for length, _ in same], [cut for _, cut in same]
        n = self._count
        products = self._products[:n]
        np.dot(self._vectors[:n], embedding, out=products)
        found = np.argpartition(products, n - count)[n - count :] if n > count else np.arange(n)
        return products[found].tolist(), self._lengths[found].tolist(), self._cut[found].tolist()

    def _forget(self, key: bytes) -> None:
        left = self._held[key] - 1
        if left:
            self._held[key] = left
            repeats = self._repeats[key]
            del repeats[: max(0, len(repeats) - left)]
        else:
            del self._held[key], self._repeats[key]
