"""The last prompts of one tenant: embeddings and lengths, first in, first out, searched among those that are alike.

Rows lie in cells of up to 128 that point in about the same direction (an inverted file, as FAISS and SPANN have it). A
prompt is compared with the sites of all cells, then with every row of the nearest ones, some 512 rows: all of 10,000
do not fit into a core's cache. A window of up to 512 is searched exactly. A cell that is full is split in two along the
line on which its rows differ most, and one that has lost nearly all gives the rest to its neighbours. A cell's site
follows its rows, so that new kinds of prompts come to have cells of their own. Nothing else is ever rebuilt, and no
chance is involved: gateways that read the same answers in the same order have the same cells. How many of the most
similar are missed is measured (``docs/internals/estimates.md``).

Memory follows what is held: rings and cells double when they are full and halve when three quarters are empty, so that
a pool's 10,000 prompts take some 8 MB, however many tenants share them.

A prompt that came before, word for word, is answered without a search: a service's fixed prompts are the most frequent
and the best known.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.semantic import WINDOW
from scheduling.estimation.embedding import DIMENSIONS, Vector, pack

REPEATS = 32  # answers kept of one prompt that repeats
KNOWN_BY_HEART = 8  # answers to the very same prompt from which no others are asked
MIN_ROWS = 16  # of a ring, of a cell's memory
CELL = 128  # rows of a cell at most
SPARSE = CELL // 8  # rows under which a cell gives them to its neighbours
SEARCHED = 512  # rows that a prompt is compared with at least, where there are as many
SHARE = CELL // 4  # rows that each part of a split cell has at least
FOLLOW = 8  # rows added to a cell after which its site is the mean of its rows again
SPLIT_ROUNDS = 3  # of two means


class _Cell:
    """Rows that are alike, in no order."""

    __slots__ = ("_entries", "_vectors", "added", "entries", "number", "used", "vectors")

    def __init__(self, number: int, rows: int = MIN_ROWS) -> None:
        self.number = number  # among the cells
        self.added = 0  # rows so far
        self.used = 0
        self._lay_out(rows)

    def fill(self, vectors: Vector, entries: NDArray[np.int32]) -> None:
        """Takes so many at once into an empty cell that has the memory."""
        self.used = len(entries)
        self._vectors[: self.used], self._entries[: self.used] = vectors, entries
        self._show()

    def _lay_out(self, rows: int) -> None:
        vectors: Vector = np.empty((rows, DIMENSIONS), np.float32)
        entries: NDArray[np.int32] = np.empty(rows, np.int32)
        if self.used:
            vectors[: self.used], entries[: self.used] = self.vectors, self.entries
        self._vectors, self._entries = vectors, entries
        self._show()

    def _show(self) -> None:
        self.vectors: Vector = self._vectors[: self.used]  # used x DIMENSIONS
        self.entries: NDArray[np.int32] = self._entries[: self.used]  # their places in the ring

    @property
    def rows(self) -> int:
        """There is memory for."""
        return len(self._entries)

    def add(self, vector: Vector, entry: int) -> int:
        """The row it has now."""
        row = self.used
        if row == len(self._entries):
            self._lay_out(2 * row)
        self._vectors[row] = vector
        self._entries[row] = entry
        self.used += 1
        self._show()
        return row

    def remove(self, row: int) -> int | None:
        """Which entry has that row now; None where nobody has."""
        last = self.used - 1
        moved = None
        if row != last:
            self._vectors[row] = self._vectors[last]
            moved = int(self._entries[last])
            self._entries[row] = moved
        self.used = last
        self._show()
        if MIN_ROWS < len(self._entries) >= 4 * last:
            self._lay_out(len(self._entries) // 2)
        return moved


class _Cells:
    """All rows of a window. An entry is a place in its ring."""

    def __init__(self, entries: int) -> None:
        self.all = [_Cell(0)]
        self._sites: Vector = np.zeros((0, DIMENSIONS), np.float32)  # a unit vector per cell, once there are two
        self._cell_of: list[_Cell] = self.all * entries
        self._row_of = [0] * entries

    @property
    def rows(self) -> int:
        """There is memory for."""
        return sum(cell.rows for cell in self.all)

    def add(self, entry: int, vector: Vector) -> None:
        cell = self._nearest(vector)
        if cell.used == CELL:
            self._split(cell)
            cell = self._nearest(vector)
        self._cell_of[entry] = cell
        self._row_of[entry] = cell.add(vector, entry)
        cell.added += 1
        if cell.added % FOLLOW == 0 and len(self.all) > 1:
            self._sites[cell.number] = _unit(np.add.reduce(cell.vectors))

    def remove(self, entry: int) -> None:
        cell, row = self._cell_of[entry], self._row_of[entry]
        moved = cell.remove(row)
        if moved is not None:
            self._row_of[moved] = row
        if cell.used < SPARSE and len(self.all) > 1:
            self._dissolve(cell)

    def lay_out(self, entries: int, first: int, before: int) -> None:
        """A ring of ``before`` places became one of ``entries``, whose first is what was ``first``."""
        kept = [(first + number) % before for number in range(min(before, entries))]
        missing = entries - len(kept)
        self._cell_of = [self._cell_of[place] for place in kept] + self.all[:1] * missing
        self._row_of = [self._row_of[place] for place in kept] + [0] * missing
        for cell in self.all:
            cell.entries[:] = (cell.entries - first) % before

    def like(self, vector: Vector, rows: int) -> list[_Cell]:
        """Where at least so many rows are that are like ``vector``; all, where there are no more."""
        cells = self.all
        if len(cells) == 1:
            return cells
        found = []
        for number in self._sites[: len(cells)].dot(vector).argsort()[: -2 - rows // SPARSE : -1].tolist():
            cell = cells[number]
            found.append(cell)
            rows -= cell.used
            if rows <= 0:
                break
        return found

    def _nearest(self, vector: Vector) -> _Cell:
        cells = self.all
        return cells[0] if len(cells) == 1 else cells[int(self._sites[: len(cells)].dot(vector).argmax())]

    def _split(self, cell: _Cell) -> None:
        """Two means from the two rows that are least alike; both parts are at least ``SHARE``, so that as many more
        have to come before the next split, whatever the rows are."""
        vectors = cell.vectors
        one = vectors[(vectors @ np.add.reduce(vectors)).argmin()]
        other = vectors[(vectors @ one).argmin()]
        for _ in range(SPLIT_ROUNDS):
            nearer = vectors @ (one - other)  # > 0: to one
            order = nearer.argsort(kind="stable")
            middle = min(CELL - SHARE, max(SHARE, int(np.count_nonzero(nearer <= 0.0))))
            one, other = _unit(np.add.reduce(vectors[order[middle:]])), _unit(np.add.reduce(vectors[order[:middle]]))
        number = len(self.all)
        if number + 1 > len(self._sites):
            sites: Vector = np.zeros((max(MIN_ROWS, 2 * number), DIMENSIONS), np.float32)
            sites[:number] = self._sites[:number] if number > 1 else other
            self._sites = sites
        self._sites[cell.number], self._sites[number] = other, one
        entries = cell.entries
        for place, rows in ((cell.number, order[:middle]), (number, order[middle:])):
            part = _Cell(place, CELL)
            part.fill(vectors[rows], entries[rows])
            for row, entry in enumerate(entries[rows].tolist()):
                self._cell_of[entry] = part
                self._row_of[entry] = row
            self.all[place : place + 1] = [part]

    def _dissolve(self, cell: _Cell) -> None:
        last = self.all.pop()
        if last is not cell:
            self._sites[cell.number] = self._sites[last.number]
            self.all[cell.number] = last
            last.number = cell.number
        count = len(self.all)
        if MIN_ROWS < len(self._sites) >= 4 * count:
            self._sites = self._sites[: len(self._sites) // 2].copy()
        for entry, vector in zip(cell.entries.tolist(), cell.vectors, strict=True):
            self.add(entry, vector)


def _unit(vector: Vector) -> Vector:
    """Of the same direction; zeros stay zeros."""
    return vector / np.float32(sqrt(vector @ vector) or 1.0)


class RingWindow:
    """First in, first out. Implements ``scheduling.core.estimate.semantic.PastPrompts``."""

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._first = 0  # place of the oldest entry
        self._count = 0
        self._repeats: dict[bytes, list[tuple[float, bool]]] = {}  # the last answers per prompt, oldest first
        self._entries: dict[bytes, int] = {}  # entries of the ring per prompt
        self._often = 0  # prompts that are known by heart
        places = min(size, MIN_ROWS)
        self._cells = _Cells(places)
        self._lengths: NDArray[np.float32] = np.zeros(places, np.float32)
        self._cut: NDArray[np.bool_] = np.zeros(places, np.bool_)
        self._keys = [b""] * places

    def _lay_out(self, places: int) -> None:
        """A ring of so many places, with what the present one holds from the first on."""
        count, before = self._count, len(self._keys)
        old = (np.arange(count) + self._first) % before
        lengths, cut = np.zeros(places, np.float32), np.zeros(places, bool)
        lengths[:count], cut[:count] = self._lengths[old], self._cut[old]
        self._keys = [self._keys[place] for place in old] + [b""] * (places - count)
        self._lengths, self._cut = lengths, cut
        self._cells.lay_out(places, self._first, before)
        self._first = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> int:
        """Embeddings there is memory for."""
        return self._cells.rows

    def add(self, embedding: Vector, actual: int, cut: bool) -> None:
        """Takes the place of the oldest entry when the window is full. Constant time, taken over many."""
        if self._count == self._size:
            self._drop_first()
        elif self._count == len(self._keys):
            self._lay_out(min(self._size, 2 * self._count))
        at = (self._first + self._count) % len(self._keys)
        self._count += 1
        key = pack(embedding)
        self._cells.add(at, embedding)
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
        places = len(self._keys)
        if places > MIN_ROWS and self._count <= places // 4:
            self._lay_out(max(MIN_ROWS, places // 2))

    def nearest(self, embedding: Vector, count: int, least: float = -2.0) -> tuple[Vector, Vector, NDArray[np.bool_]]:
        """Cosines, lengths and whether each was cut, of the ``count`` most similar whose cosine is above ``least``."""
        known = self.by_heart(embedding)
        if known is not None:
            return np.ones(len(known[0]), np.float32), *known
        cells = self._cells.like(embedding, SEARCHED)
        products = np.concatenate([cell.vectors.dot(embedding) for cell in cells])
        if len(products) > count and (last := np.partition(products, -count)[-count]) > least:
            near = (products >= last).nonzero()[0][:count]
        else:
            near = (products > least).nonzero()[0]
        at = np.concatenate([cell.entries for cell in cells]).take(near)
        return products.take(near), self._lengths.take(at), self._cut.take(at)

    def by_heart(self, embedding: Vector) -> tuple[Vector, NDArray[np.bool_]] | None:
        """Lengths and whether each was cut, of a prompt that came ``KNOWN_BY_HEART`` times; else None."""
        if not self._often:
            return None
        same = self._repeats.get(pack(embedding))
        if same is None or len(same) < KNOWN_BY_HEART:
            return None
        answers = np.array(same, np.float32)
        return answers[:, 0], answers[:, 1] > 0.0

    def _drop_first(self) -> None:
        key = self._keys[self._first]
        self._cells.remove(self._first)
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
