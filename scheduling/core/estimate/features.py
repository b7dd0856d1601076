"""What of a prompt tells how long its answer will be: a few dozen signs, one byte each.

Words that ask for more or for less ("essay", "explain", "only", "json"), how long the prompt is, what it is made of and
whether it says how long the answer shall be. They say nothing by themselves: how much each counts is learned per
application (``regression.py``). Only the beginning and the end are looked at, and every sign is bounded, so that a
hostile prompt costs no more time and moves no weight further than any other.
"""

from __future__ import annotations

import re
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
_NAMES = {word: 1 << number for number, words in enumerate(_GROUPS) for word in words.split()}
_PHRASES: tuple[str, ...] = (
    "step by step", "how to", "how many", "as a ", "act as", "show that", "answer with", "no explanation", "```", "</",
)  # fmt: skip
_WORD = re.compile(r"[a-z]+|[0-9]+")
_ASKED = re.compile(r"\b([0-9]{1,5})[ -]?(?:word|character|token|paragraph|sentence|line|page)s?\b")
_SIZES = (16, 64, 256, 1_024, 4_096)  # characters
_LINES = (1, 4, 16)
_CATEGORIES = tuple(category.value for category in Category)
COUNT = len(_GROUPS) + len(_PHRASES) + len(_CATEGORIES) + len(_SIZES) + len(_LINES) + 11


def features(text: str, category: str) -> bytes:
    """The signs of a bare prompt of that category, :data:`COUNT` bytes of 0 to 127. Any text has them."""
    text = text[:LOOKED_AT]
    size = len(text)
    head = text[:HEAD].lower()
    if size > HEAD:
        head += "\n" + text[-min(TAIL, size - HEAD) :].lower()
    words = _WORD.findall(head)
    marks = 0
    for word in _NAMES.keys() & words:
        marks |= _NAMES[word]
    signs = [NAMED if marks >> number & 1 else 0 for number in range(len(_GROUPS))]
    signs += [SCALE if phrase in head else 0 for phrase in _PHRASES]
    signs += [SCALE if category == name else 0 for name in _CATEGORIES]
    signs += [SCALE if size >= least else 0 for least in _SIZES]
    lines = text.count("\n")
    signs += [SCALE if lines >= least else 0 for least in _LINES]
    looked = max(1, len(head))
    letters = sum(map(len, words))
    asked = _ASKED.search(head)
    signs += (
        _byte(log2(1.0 + size) / 8.0),
        _byte(log2(1.0 + lines) / 4.0),
        _byte(len(words) / looked * 4.0),
        _byte((looked - letters - head.count(" ")) / looked * 5.0),
        _byte(sum(map(str.isdigit, words)) / (1.0 + len(words)) * 4.0),
        _byte(log2(1.0 + len(set(words))) / 5.0),
        _byte(log2(1.0 + head.count("?")) / 1.5),
        SCALE if head.rstrip().endswith("?") else 0,
        0 if text.isascii() else SCALE,
        SCALE if asked else 0,
        _byte(log2(1.0 + int(asked[1])) / 8.0) if asked else 0,
    )
    return bytes(signs)


def _byte(value: float) -> int:
    return min(127, max(0, round(value * SCALE)))
