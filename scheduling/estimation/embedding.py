"""A prompt as 96 numbers whose cosine says how alike two prompts ask: hashed words and pieces, no model.

Every word has a fixed pseudo-random direction, mixed with those of its three- and four-letter pieces (so that
"summarise" and "summarising" are neighbours). A prompt is the sum of its words (a repeated word counts by its root,
function words and punctuation a little less), plus its first words once more (that is where people say what they want),
plus its length. The directions are rows of one table of +-1 from a fixed generator, chosen by CRC-32: the same on every
machine and in every process, nothing to download, nothing to train. Johnson and Lindenstrauss: inner products survive.

Beside its direction, each word's row says what it is to the signs of a prompt (``scheduling.core.estimate.features``):
its group, its letters, whether it is a number. So one product of the rows of a prompt's words is its embedding and the
tally of its words.

A prompt of 60 words costs some 30 us (``docs/internals/estimates.md``); SageSched reports 220 us for its model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain, islice
from math import log2, sqrt
from typing import Generic, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.features import (
    ENDS_THAT_OPEN,
    GROUPS,
    HEAD,
    NAMED,
    PHRASES,
    UNITS,
    Tally,
    group_of,
    opens,
    split,
)

Vector = NDArray[np.float32]
Known = TypeVar("Known")

DIMENSIONS = 96
BUCKETS = 8192  # rows of the table; two words in one row are told apart by their pieces
SEED = 1
WORDS_KEPT = 20_000  # directions of words seen lately (10 MB); more are made again when they come back
CHUNKS_KEPT = 30_000  # what stood between blanks, with its words' rows (some 7 MB)
CHUNK_KEPT = 32  # characters of one that is kept
CHARACTERS = 4_000  # of a prompt that are looked at
WORDS = 512
HEAD_WORDS = 6  # the first ones, which count again
HEAD_WEIGHT = 2.0
LENGTH_WEIGHT = 1.0
FUNCTION_WEIGHT = 0.6
SCALE = 127.0  # of the packed form

_PIECE = crc32(b"#")  # so that a piece is not taken for a word
_WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")
_FUNCTION_WORDS = frozenset(
    "a an the of to in on for and or is are be was were it its this that with as at by from you your i my me we our "
    "they their he she his her will would can could should do does did not if then than so have has had but into over "
    "about such these those any all some more most other each per".split()
)


# Columns of a word's row after its direction: one per group of words, one per phrase (1: it may begin with this word),
# and what is counted.
_OPENINGS = DIMENSIONS + GROUPS
_PARTS = _OPENINGS + PHRASES  # words in the sense of ``features``: two of "page12", none of "?"
_LETTERS = _PARTS + 1  # and digits
_NUMBERS = _PARTS + 2  # how many of the parts are numbers
_UNITS = _PARTS + 3  # how many are units of length
_ALONE = _PARTS + 4  # 1 for a word that is its only part
_WIDTH = _PARTS + 5


# What the row of a word that comes so often is multiplied with each time, in four sums: so that it counts by the root
# of its number, in full (of the first words), in full, and once in all.
_SHARES: Vector = (1.0 / np.maximum(1, np.arange(WORDS + 1))).astype(np.float32)
_WEIGHTS: Vector = np.array([np.sqrt(_SHARES), np.ones_like(_SHARES), np.ones_like(_SHARES), _SHARES])


class _Known(dict[str, Known], Generic[Known]):
    """What was found out once. What is not there is found out."""

    def __init__(self, find_out: Callable[[str], Known]) -> None:
        self._find_out = find_out

    def __missing__(self, text: str) -> Known:
        return self._find_out(text)


class Embedder:
    """Embeds texts. One owner; keeps the directions of recent words."""

    def __init__(self) -> None:
        bits = np.random.PCG64(SEED).random_raw(BUCKETS * DIMENSIONS // 64).view(np.uint8)
        signs = np.unpackbits(bits).astype(np.int8) * 2 - 1
        self._table: NDArray[np.int8] = signs.reshape(BUCKETS, DIMENSIONS)  # 0.8 MB: a core's cache holds it
        self._words: Vector = np.empty((WORDS_KEPT, _WIDTH), np.float32)
        self._hashes: list[int] = []  # of the words, in the order of their rows
        self._rows = _Known(self._learn)  # of words
        self._chunks = _Known(self._rows_of)  # rows of the words of what stands between blanks, most often one
        self._parts: dict[int, list[str]] = {}  # of words that have several, by row
        self._sizes: dict[int, Vector] = {}  # by number of words, at most WORDS of them
        self._seen: NDArray[np.int64] = np.zeros(WORDS_KEPT, np.int64)  # how often a text has each word; else zeros

    def embed(self, text: str) -> Vector | None:
        """A unit vector, or None for a text without words."""
        return self.read(text)[0]

    def read(self, text: str) -> tuple[Vector | None, Tally | None]:
        """The same with the tally for ``features``; None where that looks at other words than these."""
        whole_text = text[:CHARACTERS].lower()
        if len(self._hashes) + 2 * WORDS > WORDS_KEPT or len(self._chunks) + WORDS > CHUNKS_KEPT:
            self._forget()
        rows = list(islice(chain.from_iterable(map(self._chunks.__getitem__, whole_text.split())), WORDS + 1))
        if not rows:
            return None, None
        tallied = len(rows) <= WORDS and len(text) <= HEAD
        del rows[WORDS:]
        count = len(rows)
        at = np.fromiter(rows, np.intp, count)
        seen = self._seen
        np.add.at(seen, at, 1)
        weights = _WEIGHTS.take(seen.take(at), axis=1)
        weights[1, HEAD_WORDS:] = 0.0
        seen[at] = 0
        sums: Vector = weights.dot(self._words.take(at, axis=0))
        whole, head = sums[0, :DIMENSIONS], sums[1, :DIMENSIONS]
        head += self._table[sum([self._hashes[row] for row in rows[:2]]) * 7 % BUCKETS]
        vector = whole * (1.0 / _norm(whole))
        head *= HEAD_WEIGHT / _norm(head)
        vector += head
        vector += self._size(count)
        vector *= 1.0 / _norm(vector)
        return vector, self._tally(sums, rows) if tallied else None

    def _forget(self) -> None:
        """All words: those that come back are learned again."""
        self._rows.clear()
        self._chunks.clear()
        self._parts.clear()
        self._hashes.clear()

    def _tally(self, sums: Vector, rows: list[int]) -> Tally:
        found = sums[2, DIMENSIONS:].tolist()
        parts, letters, numbers, units, alone = found[GROUPS + PHRASES :]
        different = round(sums.item(3, _ALONE))
        if parts != alone:
            mixed = {part for row in self._parts.keys() & rows for part in self._parts[row]}
            different += sum([self._rows.get(part) not in rows for part in mixed])
        groups = bytes([NAMED if group else 0 for group in found[:GROUPS]])
        return Tally(
            groups, found[GROUPS : GROUPS + PHRASES], int(parts), int(letters), int(numbers), int(units), different
        )

    def _size(self, words: int) -> Vector:
        """The direction of a prompt of so many words."""
        found = self._sizes.get(words)
        if found is None:
            size = log2(1.0 + words)
            step = int(size)
            part = np.float32(size - step)
            found = (1.0 - part) * self._table[step] + part * self._table[step + 1]
            found *= np.float32(LENGTH_WEIGHT / sqrt(DIMENSIONS))
            self._sizes[words] = found
        return found

    def _rows_of(self, chunk: str) -> tuple[int, ...]:
        rows = tuple([self._rows[word] for word in _WORD.findall(chunk)[: WORDS + 1]])
        if len(chunk) <= CHUNK_KEPT:
            self._chunks[chunk] = rows
        return rows

    def _learn(self, word: str) -> int:
        row = len(self._hashes)
        raw = word.encode(errors="surrogatepass")
        own = self._words[row]
        light = word in _FUNCTION_WORDS or (len(word) == 1 and not word.isalnum())
        if len(word) > 3:
            framed = b"<%b>" % raw  # ASCII: what is not is a word of one character
            places = [crc32(raw) % BUCKETS]
            places += [crc32(framed[i : i + n], _PIECE) % BUCKETS for n in (3, 4) for i in range(len(framed) - n + 1)]
            _shares(len(places)).dot(self._table.take(places, axis=0).astype(np.float32), out=own[:DIMENSIONS])
        else:
            own[:DIMENSIONS] = self._table[crc32(raw) % BUCKETS]
        if light:
            own[:DIMENSIONS] *= FUNCTION_WEIGHT
        self._count(word, row, own)
        self._hashes.append(crc32(b"~" + raw))
        self._rows[word] = row
        return row

    def _count(self, word: str, row: int, own: Vector) -> None:
        """What a word is to the tally."""
        own[DIMENSIONS:] = 0.0
        if word.endswith(ENDS_THAT_OPEN):
            own[_OPENINGS:_PARTS] = opens(word)
        parts = split(word)
        for part in parts:
            group = group_of(part)
            if group is not None:
                own[DIMENSIONS + group] = 1.0
        if parts == [word]:
            own[_PARTS:] = 1, len(word), word.isdigit(), word in UNITS, 1
        elif parts:
            self._parts[row] = parts
            numbers, units = sum(map(str.isdigit, parts)), sum(map(UNITS.__contains__, parts))
            own[_PARTS:] = len(parts), sum(map(len, parts)), numbers, units, 0


@lru_cache(maxsize=64)  # of 600 bytes most often
def _shares(places: int) -> Vector:
    """What a word and its pieces count in its direction: as much as each other."""
    shares = np.full(places, 1.0 / sqrt(2.0 * (places - 1)), np.float32)
    shares[0] = 1.0 / sqrt(2.0)
    return shares


def _norm(vector: Vector) -> float:
    return sqrt(vector.dot(vector)) or 1.0


def pack(vector: Vector) -> bytes:
    """96 bytes for shared state: one signed byte a dimension."""
    packed: NDArray[np.int8] = np.rint(vector * (SCALE / np.maximum.reduce(np.abs(vector)))).astype(np.int8)
    return packed.tobytes()


def unpack(packed: bytes) -> Vector:
    """The unit vector of a packed one. Raises ValueError for another size, or nothing but zeros."""
    if len(packed) != DIMENSIONS:
        raise ValueError(f"a packed embedding has {DIMENSIONS} bytes, not {len(packed)}")
    vector = np.frombuffer(packed, np.int8).astype(np.float32)
    length = _norm(vector)
    if not vector.any():
        raise ValueError("a packed embedding is not all zeros")
    return vector / np.float32(length)
