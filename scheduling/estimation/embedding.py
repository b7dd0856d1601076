"""A prompt as 96 numbers whose cosine says how alike two prompts ask: hashed words and pieces, no model.

Every word has a fixed pseudo-random direction, mixed with those of its three- and four-letter pieces (so that
"summarise" and "summarising" are neighbours). A prompt is the sum of its words (a repeated word counts by its root,
function words and punctuation a little less), plus its first words once more (that is where people say what they want),
plus its length. The directions are rows of one table of +-1 from a fixed generator, chosen by CRC-32: the same on every
machine and in every process, nothing to download, nothing to train. Johnson and Lindenstrauss: inner products survive.

A prompt of 50 words costs some 30 us (``docs/internals/estimates.md``); SageSched reports 220 us for its model.
"""

from __future__ import annotations

import re
from math import log2, sqrt
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

DIMENSIONS = 96
BUCKETS = 8192  # rows of the table; two words in one row are told apart by their pieces
SEED = 1
WORDS_KEPT = 20_000  # directions of words seen lately (8 MB); more are made again when they come back
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


class Embedder:
    """Embeds texts. One owner; keeps the directions of recent words."""

    def __init__(self) -> None:
        bits = np.random.PCG64(SEED).random_raw(BUCKETS * DIMENSIONS // 64).view(np.uint8)
        signs = np.unpackbits(bits).astype(np.float32) * 2.0 - 1.0
        self._table: Vector = signs.reshape(BUCKETS, DIMENSIONS) / np.float32(np.sqrt(DIMENSIONS))
        self._words: Vector = np.empty((WORDS_KEPT, DIMENSIONS), np.float32)
        self._hashes: list[int] = []  # of the words, in the order of their rows
        self._rows: dict[str, int] = {}
        self._sizes: dict[int, Vector] = {}  # by number of words, at most WORDS of them

    def embed(self, text: str) -> Vector | None:
        """A unit vector, or None for a text without words."""
        words = _WORD.findall(text[:CHARACTERS].lower())[:WORDS]
        if not words:
            return None
        rows = self._rows
        if len(rows) + len(words) > WORDS_KEPT:
            rows.clear()
            self._hashes.clear()
        counts: dict[str, int] = {}
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        at = [rows[word] if word in rows else self._learn(word) for word in counts]
        whole: Vector = np.sqrt(np.array([*counts.values()], np.float32)) @ self._words.take(at, axis=0)
        whole /= _norm(whole)
        begins = [rows[word] for word in words[:HEAD_WORDS]]
        first = sum([self._hashes[row] for row in begins[:2]]) * 7 % BUCKETS
        head: Vector = np.add.reduce(self._words.take(begins, axis=0))
        head += self._table[first]
        head *= HEAD_WEIGHT / _norm(head)
        whole += head
        whole += self._size(len(words))
        whole /= _norm(whole)
        return whole

    def _size(self, words: int) -> Vector:
        """The direction of a prompt of so many words."""
        found = self._sizes.get(words)
        if found is None:
            size = log2(1.0 + words)
            step = int(size)
            part = np.float32(size - step)
            found = LENGTH_WEIGHT * ((1.0 - part) * self._table[step] + part * self._table[step + 1])
            self._sizes[words] = found
        return found

    def _learn(self, word: str) -> int:
        row = len(self._rows)
        raw = word.encode(errors="surrogatepass")
        own = self._table[crc32(raw) % BUCKETS]
        if len(word) > 3:
            framed = b"<%b>" % raw  # ASCII: what is not is a word of one character
            pieces = [crc32(framed[i : i + n], _PIECE) % BUCKETS for n in (3, 4) for i in range(len(framed) - n + 1)]
            own = (own + np.add.reduce(self._table.take(pieces, axis=0)) / np.sqrt(len(pieces))) / np.sqrt(2.0)
        light = word in _FUNCTION_WORDS or (len(word) == 1 and not word.isalnum())
        self._words[row] = own * (FUNCTION_WEIGHT if light else 1.0)
        self._hashes.append(crc32(b"~" + raw))
        self._rows[word] = row
        return row


def _norm(vector: Vector) -> float:
    return sqrt(vector @ vector) or 1.0


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
