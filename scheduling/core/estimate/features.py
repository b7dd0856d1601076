"""What of a prompt tells how long its answer will be: a few dozen signs, one byte each.

Words that ask for more or for less ("essay", "explain", "only", "json"), how long the prompt is, what it is made of and
whether it says how long the answer shall be. They say nothing by themselves: how much each counts is learned per
application (``regression.py``). Only the beginning and the end are looked at, and every sign is bounded, so that a
hostile prompt costs no more time and moves no weight further than any other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import log2
from typing import NamedTuple

from scheduling.core.estimate.category import Category

HEAD = 1_500  # characters of the beginning that are looked at
TAIL = 500  # and of the end
LOOKED_AT = 4_000  # characters whose number counts
SCALE = 64  # a sign of 1.0 as a byte; the largest is 127 / 64
NAMED = 26  # of a group of words: there are many, so that each counts less before anything is learned

_GROUPS: tuple[str, ...] = (
    "write create draft compose generate develop design build make produce prepare",
    "explain describe discuss elaborate teach tell",
    "how guide tutorial step steps instructions",
    "what who whom when where which",
    "why reason because",
    "code function script program implement class method module component app algorithm api loop array string",
    "python java javascript typescript rust golang c php ruby swift kotlin html css react sql bash matlab",
    "list example examples table ideas outline plan strategy itinerary proposal curriculum questions",
    "essay story stories article report blog letter email poem speech chapter scene dialogue review lyrics post",
    "short brief briefly concise single only just simply one few quick",
    "detailed detail details comprehensive depth complete full long thorough extensive everything each all",
    "summary summarize summarise tldr shorten condense extract classify categorize categorise identify label",
    "translate rewrite rephrase paraphrase fix correct edit proofread convert format refactor optimize improve",
    "calculate compute solve find determine evaluate many much old far probability equation sum",
    "prove proof theorem derive show",
    "compare difference versus vs pros cons advantages analyze analyse analysis",
    "roleplay role pretend act imagine character persona",
    "json xml yaml csv markdown latex",
    "error exception traceback bug debug fails failed",
)
_GROUP_OF = {word: number for number, words in enumerate(_GROUPS) for word in words.split()}
_NAMES = frozenset(_GROUP_OF)
_PHRASES: tuple[str, ...] = (
    "step by step", "how to", "how many", "as a ", "act as", "show that", "answer with", "no explanation", "```", "</",
)  # fmt: skip
_ENDS = tuple(re.match(r"[a-z]+|.", phrase)[0] for phrase in _PHRASES)  # type: ignore[index]
ENDS_THAT_OPEN = tuple(sorted(set(_ENDS)))  # of words: only such can begin a phrase
_ANY = (1.0,) * len(_PHRASES)
_WORD = re.compile(r"[a-z]+|[0-9]+")
# A number that begins a word. It is looked for by its first digit, which is fast, and only then at what stands before.
_UNIT = "word character token paragraph sentence line page".split()
UNITS = frozenset((*_UNIT, *(unit + "s" for unit in _UNIT)))  # in which a length is asked for
_ASKED = re.compile(rf"([0-9](?<!\w[0-9])[0-9]{{0,4}})[ -]?(?:{'|'.join(_UNIT)})s?\b")
_SIZES = (16, 64, 256, 1_024, 4_096)  # characters
_LINES = (1, 4, 16)
_CATEGORIES = tuple(category.value for category in Category)
_CATEGORY_SIGNS = {name: bytes(SCALE if name == other else 0 for other in _CATEGORIES) for name in _CATEGORIES}
_NO_CATEGORY = bytes(len(_CATEGORIES))
# By how many of the limits are reached: 64, 64, 0, 0, 0 for two of five.
_SIZE_SIGNS = tuple(bytes([SCALE] * n + [0] * (len(_SIZES) - n)) for n in range(len(_SIZES) + 1))
_LINE_SIGNS = tuple(bytes([SCALE] * n + [0] * (len(_LINES) - n)) for n in range(len(_LINES) + 1))
GROUPS = len(_GROUPS)
PHRASES = len(_PHRASES)
COUNT = GROUPS + len(_PHRASES) + len(_CATEGORIES) + len(_SIZES) + len(_LINES) + 11


class Tally(NamedTuple):
    """The words of what is looked at, counted. A word is letters or digits, such as the two of "page12"."""

    groups: bytes  # one per group of words: ``NAMED`` where one of them is there, else 0
    openings: Sequence[float]  # one per phrase: 0 where none of the words can begin it
    words: int
    letters: int  # and digits, of all words
    digits: int  # words that are numbers
    units: int  # words in which a length can be asked for
    different: int  # words


def split(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text)


def group_of(word: str) -> int | None:
    """Which group of words it belongs to, from 0; None: none."""
    return _GROUP_OF.get(word)


def opens(word: str) -> list[bool]:
    """Which phrases may begin with the end of ``word``, letters and digits or one other character."""
    return [word.endswith(end) for end in _ENDS]


def tally(text: str) -> Tally:
    """Of a text in lower case."""
    words = split(text)
    different = set(words)
    groups = bytearray(GROUPS)
    for word in different & _NAMES:
        groups[_GROUP_OF[word]] = NAMED
    return Tally(
        bytes(groups), _ANY, len(words), sum(map(len, words)), sum(map(str.isdigit, words)),
        sum(map(UNITS.__contains__, words)), len(different),
    )  # fmt: skip


def features(text: str, category: str, counted: Tally | None = None) -> bytes:
    """The signs of a bare prompt of that category, :data:`COUNT` bytes of 0 to 127. Any text has them. ``counted``:
    the tally of a text of at most ``HEAD`` characters, where somebody has it already."""
    text = text[:LOOKED_AT]
    size = len(text)
    head = text[:HEAD].lower()
    if size > HEAD:
        head += "\n" + text[-min(TAIL, size - HEAD) :].lower()
    groups, openings, words, letters, digits, units, different = counted or tally(head)
    lines = text.count("\n")
    looked = len(head) or 1
    asked = _ASKED.search(head) if digits and units else None
    return b"".join(
        (
            groups,
            bytes([SCALE if may and phrase in head else 0 for may, phrase in zip(openings, _PHRASES, strict=True)]),
            _CATEGORY_SIGNS.get(category, _NO_CATEGORY),
            _SIZE_SIGNS[bisect_right(_SIZES, size)],
            _LINE_SIGNS[bisect_right(_LINES, lines)],
            bytes(
                (
                    _doublings(size, 8.0),
                    _doublings(lines, 4.0),
                    _byte(words / looked * 4.0),
                    _byte((looked - letters - head.count(" ")) / looked * 5.0),
                    _byte(digits / (1.0 + words) * 4.0),
                    _doublings(different, 5.0),
                    _doublings(head.count("?"), 1.5),
                    SCALE if head.rstrip().endswith("?") else 0,
                    0 if text.isascii() else SCALE,
                    SCALE if asked else 0,
                    _doublings(int(asked[1]), 8.0) if asked else 0,
                )
            ),
        )
    )


def _byte(value: float) -> int:
    return min(127, round(value * SCALE))


@lru_cache(maxsize=4096)
def _doublings(count: int, most: float) -> int:
    return _byte(log2(1.0 + count) / most)
