"""The last prompts of one tenant: embeddings and lengths in a ring, searched exactly.

numpy's product, not FAISS: at 10,000 x 96 both need some 60 us (``docs/internals/estimates.md``), and a ring is
overwritten in place where an index would have to be rebuilt. A ring is as large as what it holds: it doubles when it is
full and halves when three quarters are empty, so that a pool's 10,000 prompts take 4 to 15 MB, however many tenants
share them.

A prompt that came before, word for word, is answered without a search: a service's fixed prompts are the most frequent
and the best known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.semantic import WINDOW
from scheduling.estimation.embedding import DIMENSIONS, Vector, pack

REPEATS = 32  # answers kept of one prompt that repeats
KNOWN_BY_HEART = 8  # answers to the very same prompt from which no others are asked
MIN_ROWS = 16  # of a ring


class RingWindow:
    """First in, first out. Implements ``scheduling.core.estimate.semantic.PastPrompts``."""

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._first = 0  # row of the oldest entry
        self._count = 0
        self._repeats: dict[bytes, list[tuple[float, bool]]] = {}  # the last answers per prompt, oldest first
        self._entries: dict[bytes, int] = {}  # entries of the ring per prompt
        self._often = 0  # prompts that are known by heart
        rows = min(size, MIN_ROWS)
        self._vectors: Vector = np.zeros((rows, DIMENSIONS), np.float32)
        self._lengths: NDArray[np.float32] = np.zeros(rows, np.float32)
        self._cut: NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self._keys = [b""] * rows
        self._products: Vector = np.empty(rows, np.float32)

    def _lay_out(self, rows: int) -> None:
        """A ring of so many rows, with what the present one holds from the first on."""
        count = self._count
        old = (np.arange(count) + self._first) % len(self._keys)
        vectors, lengths, cut = (
            np.zeros((rows, DIMENSIONS), np.float32),
            np.zeros(rows, np.float32),
            np.zeros(rows, bool),
        )
        vectors[:count], lengths[:count], cut[:count] = self._vectors[old], self._lengths[old], self._cut[old]
        self._keys = [self._keys[row] for row in old] + [b""] * (rows - count)
        self._vectors, self._lengths, self._cut = vectors, lengths, cut
        self._products = np.empty(rows, np.float32)
        self._first = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> int:
        """Entries there is memory for."""
        return len(self._keys)

    def add(self, embedding: Vector, actual: int, cut: bool) -> None:
        """Overwrites the oldest entry when the window is full. Constant time, taken over many."""
        if self._count == self._size:
            self._drop_first()
        elif self._count == len(self._keys):
            self._lay_out(min(self._size, 2 * self._count))
        at = (self._first + self._count) % len(self._keys)
        self._count += 1
        key = pack(embedding)
        self._vectors[at] = embedding
        self._lengths[at] = actual
        self._cut[at] = cut
        self._keys[at] = key
        self._entries[key] = self._entries.get(key, 0) + 1
        repeats = self._repeats.setdefault(key, [])
        repeats.append((float(actual), cut))
        self._often += len(repeats) == KNOWN_BY_HEART
        if len(repeats) > REPEATS:
            del repeats[0]

    def forget_oldest(self) -> None:
        """Gives the oldest entry's place back. Raises IndexError where there is none."""
        if not self._count:
            raise IndexError("the window is empty")
        self._drop_first()
        rows = len(self._keys)
        if rows > MIN_ROWS and self._count <= rows // 4:
            self._lay_out(max(MIN_ROWS, rows // 2))

    def nearest(
        self, embedding: Vector, count: int, least: float = -2.0
    ) -> tuple[Sequence[float], Sequence[float], Sequence[bool]]:
        """Cosines, lengths and whether each was cut, of the ``count`` most similar whose cosine is above ``least``."""
        known = self.by_heart(embedding)
        if known is not None:
            return [1.0] * len(known[0]), *known
        n, rows = self._count, len(self._keys)
        products = self._products
        if n == rows:  # in whatever order: all are looked at
            np.dot(self._vectors, embedding, out=products)
            start = 0
        else:
            start = self._first
            straight = min(n, rows - start)
            np.dot(self._vectors[start : start + straight], embedding, out=products[:straight])
            if straight < n:
                np.dot(self._vectors[: n - straight], embedding, out=products[straight:n])
        near = (products[:n] > least).nonzero()[0]  # few are: to order all of them would cost as much as the search
        if len(near) > count:
            near = near[products[near].argpartition(len(near) - count)[len(near) - count :]]
        at = (near + start) % rows if start else near
        return products[near].tolist(), self._lengths[at].tolist(), self._cut[at].tolist()

    def by_heart(self, embedding: Vector) -> tuple[Sequence[float], Sequence[bool]] | None:
        """Lengths and whether each was cut, of a prompt that came ``KNOWN_BY_HEART`` times; else None."""
        if not self._often:
            return None
        same = self._repeats.get(pack(embedding))
        if same is None or len(same) < KNOWN_BY_HEART:
            return None
        return [length for length, _ in same], [cut for _, cut in same]

    def _drop_first(self) -> None:
        key = self._keys[self._first]
        self._first = (self._first + 1) % len(self._keys)
        self._count -= 1
        left = self._entries[key] - 1
        if left:
            self._entries[key] = left
            repeats = self._repeats[key]
            was_known = len(repeats) >= KNOWN_BY_HEART
            del repeats[: max(0, len(repeats) - left)]
            self._often -= was_known and len(repeats) < KNOWN_BY_HEART
        else:
            del self._entries[key], self._repeats[key]
