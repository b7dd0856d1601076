"""The simulated engine's tokenizer and its pseudo words.

A token is a word between white space; a word of more than 12 bytes counts a token per begun 4 bytes; a chat message
costs 4 more. An answer's text therefore has exactly as many tokens as its usage says.
"""

from __future__ import annotations

import math
import zlib
from statistics import NormalDist

CHAT_MESSAGE_TOKENS = 4
LONG_WORD_BYTES = 12

# Output lengths of prompts that end by themselves: half of the answers in Azure's 2023 conversation trace have at most
# 129 tokens, and a sigma of 1 gives its mean of about 211.
OUTPUT_MEDIAN = 129.0
OUTPUT_SIGMA = 1.0

_STANDARD = NormalDist()

_WORDS = (
    "the of and a to in is that it for as was with be by on not he this are or his from at which but have an had they "
    "you were there one all we can her has more if no so what time up about than into them other some could these two "
    "may then first do any my now such like our over man me even most made after also well before must through years "
    "where much your way down should because long each just state those people too little good world make very year "
    "still see own work men day get here between both life being under three never know same last while us off might "
    "great go come since against right came take used himself few house use place during high without again home small "
    "however found part once general say upon school every water queue token model batch window answer reason value "
    "matter number order point light table paper sound field river stone garden morning winter summer city road wind"
).split()

#: What a generation says: a fixed walk through the words, entered at a place that depends on the prompt.
VOCABULARY: tuple[bytes, ...] = tuple(b" " + _WORDS[(i * 7 + (i * i) // 3) % len(_WORDS)].encode() for i in range(1024))
VOCABULARY_MASK = 1023
WORD_LENGTHS = frozenset(map(len, VOCABULARY))


def count_tokens(text: str) -> int:
    """Tokens of a text."""
    words = text.encode().split()
    count = len(words)
    for word in words:
        if len(word) > LONG_WORD_BYTES:
            count += -(-len(word) // 4) - 1
    return count


def token_ids(text: str) -> list[int]:
    """One stable number per token, as ``/tokenize`` answers them."""
    ids: list[int] = []
    for word in text.encode().split():
        pieces = [word] if len(word) <= LONG_WORD_BYTES else [word[i : i + 4] for i in range(0, len(word), 4)]
        ids.extend(zlib.crc32(piece) & 0xFFFF for piece in pieces)
    return ids


def fingerprint(text: str, start: int = 0) -> int:
    """A stable 32-bit number of a text, continuing ``start``."""
    return zlib.crc32(text.encode(), start)


def natural_output_tokens(prompt: int, seed: int) -> int:
    """How long the answer to a prompt with this fingerprint is when nothing cuts it: lognormal, at least 1."""
    mixed = zlib.crc32(prompt.to_bytes(4, "little"), seed & 0xFFFFFFFF)
    z = _STANDARD.inv_cdf((mixed + 0.5) / 2**32)
    return max(1, round(OUTPUT_MEDIAN * math.exp(OUTPUT_SIGMA * z)))


def generated_text(start: int, tokens: int) -> str:
    """The text of a generation that entered the vocabulary at ``start``."""
    return b"".join(VOCABULARY[(start + i) & VOCABULARY_MASK] for i in range(tokens)).decode()
