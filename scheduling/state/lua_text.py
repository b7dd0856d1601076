"""What is known when a script is put together is written out in it.

A server runs a script from its first line in each call: it joins the name of each key, makes each function, and hands
each function what that uses of the variables outside. So constants are written where they are used, and so are the
names of keys that few calls touch, and the expression of a function that is one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

KEYS_OFTEN = ("META", "TOTALS", "BUCKETS", "HELD", "CREDITS")  # joined once in a call, the others where they are used

# Strings and comments are stepped over; what follows a dot is a field, no variable.
_TOKEN = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|--[^\n]*|(?<![\w.:])[A-Za-z_]\w*")
_CONSTANT = re.compile(r"^local ([A-Z][A-Z_0-9]*) = (.+)\n", re.MULTILINE)
_COMMENT = re.compile(r"\s*--.*")
_LITERAL = re.compile(r"'[^'\n]*'|-?\d[\d.]*")
_KEY = re.compile(r"P \.\. '[\w:]+'")
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_EXPRESSION = re.compile(
    r"^local function (\w+)\(([\w, ]*)\)\s+return ((?:(?!\b(?:end|function|return|local)\b|--).)+?)\s+end\n",
    re.MULTILINE | re.DOTALL,
)
_SIMPLE = re.compile(r"[\w.]+(\[\w+\])?|'[^'\n]*'")  # costs nothing to read twice
_BRACKET = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|[(){}\[\],]")
_EVERYWHERE = frozenset("and or not nil true false math string tonumber call redis".split())

Expressions = Mapping[str, tuple[Sequence[str], str]]  # of functions: what they are given, and what they return


def written_out(text: str) -> str:
    """A script that does the same, with constants and expressions in the places of their names."""
    known: dict[str, str] = {}
    for name, value in _CONSTANT.findall(text):
        literal = _literal(_COMMENT.sub("", value), known)
        if literal and not (name in KEYS_OFTEN and _KEY.search(value)):
            known[name] = literal
    text = replaced(_CONSTANT.sub(lambda found: "" if found[1] in known else found[0], text), known)
    functions = _expressions(text)
    text = _expanded(text, functions)
    used = Counter(_TOKEN.findall(text))
    for found in reversed(list(_EXPRESSION.finditer(text))):
        own = Counter(_TOKEN.findall(found[0]))
        if found[1] in functions and used[found[1]] == own[found[1]]:
            text = text[: found.start()] + text[found.end() :]
            used.subtract(own)
    return text


def _literal(value: str, known: Mapping[str, str]) -> str:
    """What a constant is, written out: a number, a string, both and others joined, a key. Empty: it is none."""
    if _KEY.fullmatch(value):
        return f"({value})"
    words = [known.get(word, word) for word in value.split(" .. ")]
    if not all(_LITERAL.fullmatch(word) for word in words):
        return ""
    return words[0] if len(words) == 1 else "'" + "".join(w[1:-1] if w[0] == "'" else w for w in words) + "'"


def replaced(text: str, values: Mapping[str, str]) -> str:
    """The text with each of these names replaced, but in strings, in comments, and as fields."""
    return _TOKEN.sub(lambda found: values.get(found[0], found[0]), text)


def _expressions(text: str) -> dict[str, tuple[Sequence[str], str]]:
    """The functions that are one expression of what they are given, and of other functions."""
    everywhere = _EVERYWHERE | set(_FUNCTION.findall(text))
    found: dict[str, tuple[Sequence[str], str]] = {}
    for name, given, expression in _EXPRESSION.findall(text):
        names = [one.strip() for one in given.split(",") if one.strip()]
        used = {token for token in _TOKEN.findall(expression) if token[0] not in "'\""}
        if used <= everywhere | set(names) and len(_arguments(f"{expression})", 0)[0]) == 1:
            found[name] = names, expression
    return found


def _expanded(text: str, functions: Expressions) -> str:
    """The text with calls of these functions replaced by what they return, where no work is done twice for that."""
    out, at = [], 0
    for found in _TOKEN.finditer(text):
        end = found.end()
        if found.start() < at or found[0] not in functions or text[end : end + 1] != "(":
            continue
        if text.endswith("function ", 0, found.start()):
            continue
        given, end = _arguments(text, end + 1)
        expression = _instead(*functions[found[0]], [_expanded(one, functions) for one in given])
        if expression:
            out += [text[at : found.start()], _expanded(expression, functions)]
            at = end
    return "".join([*out, text[at:]])


def _instead(names: Sequence[str], expression: str, given: Sequence[str]) -> str:
    values = dict(zip(names, [*given, *["nil"] * len(names)], strict=False))
    used = _tokens(expression)
    if any(used.count(name) > 1 and not _SIMPLE.fullmatch(value) for name, value in values.items()):
        return ""
    named = {name: value if _SIMPLE.fullmatch(value) else f"({value})" for name, value in values.items()}
    return f"({replaced(expression, named)})"


@cache
def _tokens(expression: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(expression))


def _arguments(text: str, at: int) -> tuple[list[str], int]:
    """What stands between a bracket, which is before ``at``, and the one that closes it; and where that is passed."""
    given, depth, start = [], 0, at
    for found in _BRACKET.finditer(text, at):
        if found[0] in "({[":
            depth += 1
        elif found[0] in ")}]":
            depth -= 1
        if depth < 0 or (depth == 0 and found[0] == ","):
            given.append(text[start : found.start()].strip())
            start = found.end()
        if depth < 0:
            return [one for one in given if one], start
    raise ValueError(f"a bracket is never closed: {text[at : at + 60]}")
