"""What of a prompt tells how long its answer will be: a few dozen signs, one byte each.

Words that ask for more or for less ("essay", "explain", "only", "json"), how long the prompt is, what it is made of and
whether it says how long the answer shall be. They say nothing by themselves: how much each counts is learned per
application (``regression.py``). Only the beginning and the end are looked at, and every sign is bounded, so that a
hostile prompt costs no more time and moves no weight further than any other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from math import log2

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
_WORD = re.compile(r"[a-z]+|[0-9]+")
# A number that begins a word. It is looked for by its first digit, which is fast, and only then at what stands before.
_ASKED = re.compile(r"([0-9](?<!\w[0-9])[0-9]{0,4})[ -]?(?:word|character|token|paragraph|sentence|line|page)s?\b")
_SIZES = (16, 64, 256, 1_024, 4_096)  # characters
_LINES = (1, 4, 16)
_CATEGORIES = tuple(category.value for category in Category)
_PHRASES_AT = tuple((len(_GROUPS) + number, phrase) for number, phrase in enumerate(_PHRASES))
_CATEGORY_AT = {name: len(_GROUPS) + len(_PHRASES) + number for number, name in enumerate(_CATEGORIES)}
_SIZES_AT = len(_GROUPS) + len(_PHRASES) + len(_CATEGORIES)
_LINES_AT = _SIZES_AT + len(_SIZES)
_REST_AT = _LINES_AT + len(_LINES)
COUNT = _REST_AT + 11


def features(text: str, category: str) -> bytes:
    """The signs of a bare prompt of that category, :data:`COUNT` bytes of 0 to 127. Any text has them."""
    text = text[:LOOKED_AT]
    size = len(text)
    head = text[:HEAD].lower()
    if size > HEAD:
        head += "\n" + text[-min(TAIL, size - HEAD) :].lower()
    words = _WORD.findall(head)
    different = set(words)
    signs = bytearray(COUNT)
    for word in different & _NAMES:
        signs[_GROUP_OF[word]] = NAMED
    for place, phrase in _PHRASES_AT:
        if phrase in head:
            signs[place] = SCALE
    if category in _CATEGORY_AT:
        signs[_CATEGORY_AT[category]] = SCALE
    for place in range(bisect_right(_SIZES, size)):
        signs[_SIZES_AT + place] = SCALE
    lines = text.count("\n")
    for place in range(bisect_right(_LINES, lines)):
        signs[_LINES_AT + place] = SCALE
    looked = len(head) or 1
    letters = sum(map(len, words))
    digits = sum(map(str.isdigit, words))
    asked = _ASKED.search(head) if digits else None
    signs[_REST_AT:] = (
        _byte(log2(1.0 + size) / 8.0),
        _byte(log2(1.0 + lines) / 4.0),
        _byte(len(words) / looked * 4.0),
        _byte((looked - letters - head.count(" ")) / looked * 5.0),
        _byte(digits / (1.0 + len(words)) * 4.0),
        _byte(log2(1.0 + len(different)) / 5.0),
        _byte(log2(1.0 + head.count("?")) / 1.5),
        SCALE if head.rstrip().endswith("?") else 0,
        0 if text.isascii() else SCALE,
        SCALE if asked else 0,
        _byte(log2(1.0 + int(asked[1])) / 8.0) if asked else 0,
    )
    return bytes(signs)


def _byte(value: float) -> int:
    return min(127, round(value * SCALE))
