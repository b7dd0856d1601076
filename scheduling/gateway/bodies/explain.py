"""What a parser found wrong with a body, in words: which field, what it takes, and what to do instead.

A parser says that a value is none of those allowed, not which these are. The type of the field says so, and with
:func:`instead` what to do about values that clients send to other services.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

MAX_MESSAGE_CHARS, MAX_PATH_CHARS, MAX_VALUE_CHARS = 600, 200, 60  # of what a client sees
UNKNOWN = "Object contains unknown field `"  # how the parser begins to say so
_WRONG_VALUE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_KEY = " - at `key` in `$"  # of a dictionary
_STEP = re.compile(r"\[(?:\d+|\.\.\.)\]|\.?((?:[^.\[]|\[\])+)")
_ADVICE = "instead"
_ANY = ""  # every value for which there is no advice of its own


def instead(advice: dict[str, str] | str) -> msgspec.Meta:
    """What to do instead of sending a value, by value; a text: of any that is not allowed."""
    return msgspec.Meta(extra={_ADVICE: advice if isinstance(advice, dict) else {_ANY: advice}})


def explained(error: str, struct: type[msgspec.Struct]) -> tuple[str, str | None]:
    """What a parser of ``struct`` said, as a sentence and the path of the field it is about."""
    message, at, path = error.partition(_KEY)
    if not at:
        message, _, path = error.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if message.startswith(UNKNOWN):
        path = _joined(path, message.removeprefix(UNKNOWN).rstrip("`"))
        message = (
            "This field is not known here and would not reach the model: leave it out "
            "(docs/reference/v1.md lists them all)"
        )
    elif missing := _MISSING.fullmatch(message):
        path = _joined(path, missing[1])
        message = "This field is missing"
    elif wrong := _WRONG_VALUE.fullmatch(message):
        message = _not_allowed(wrong[1], path, struct)
    elif at:
        message = f"The name of an entry: {message}"
    path = path[:MAX_PATH_CHARS]
    return (f"{path}: {message[:MAX_MESSAGE_CHARS]}." if path else f"{message[:MAX_MESSAGE_CHARS]}."), path or None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _not_allowed(shown: str, path: str, struct: type[msgspec.Struct]) -> str:
    """Of a value, as the parser shows it: which are allowed, and what to do."""
    if len(shown) > MAX_VALUE_CHARS:
        shown = f"{shown[:MAX_VALUE_CHARS]}..."
    allowed: dict[str, None] = {}
    advice: dict[str, str] = {}
    for hint in _hints_at(struct, path):
        for member in _members(hint):
            if isinstance(member, msgspec.Meta):
                advice |= (member.extra or {}).get(_ADVICE, {})
            elif get_origin(member) is Literal:
                allowed |= dict.fromkeys(map(str, get_args(member)))
    words = f"{shown} is not allowed here. Allowed: {', '.join(allowed)}"
    what_to_do = advice.get(shown.strip("'"), advice.get(_ANY))
    return f"{words}. {what_to_do}" if what_to_do else words


def _hints_at(struct: type[msgspec.Struct], path: str) -> list[Any]:
    """The types that a field may have which a parser names by this path."""
    hints: list[Any] = [struct]
    for step in _STEP.finditer(path):
        hints = [inner for hint in hints for member in _members(hint) for inner in _inside(member, step[1])]
    return hints


def _inside(member: Any, name: str | None) -> Iterator[Any]:
    """What is in such a value: in the field of this name, or in each entry."""
    if name is None:
        if get_origin(member) in (list, dict):
            yield get_args(member)[-1]
    elif isinstance(member, type) and issubclass(member, msgspec.Struct):
        hint = _fields(member).get(name)
        if hint is not None:
            yield hint


def _members(hint: Any) -> Iterator[Any]:
    """What a type may be, and what is said about it."""
    if get_origin(hint) is Annotated:
        inner, *said = get_args(hint)
        yield from said
        yield from _members(inner)
    elif get_origin(hint) in (Literal, list, dict) or isinstance(hint, TypeVar) or not get_args(hint):
        yield hint
    else:
        for inner in get_args(hint):
            yield from _members(inner)


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of a struct by the names that clients use."""
    hints = get_type_hints(struct, include_extras=True)
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    return {said: hints[name] for said, name in names}
