"""What the management API takes: JSON that cannot be too deep, times and pages within bounds, cursors of ours.

One place for each kind of value, so that nobody's input reaches the database, a recursion or an arithmetic that it
breaks. What is wrong is answered with 400 and a sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, NoReturn

from django.db import models
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware
from rest_framework import serializers
from rest_framework.exceptions import NotFound, ParseError, ValidationError
from rest_framework.pagination import Cursor, CursorPagination, LimitOffsetPagination
from rest_framework.parsers import JSONParser
from rest_framework.request import Request

from tenants.validators import EARLIEST, LATEST, NUL, TIME_BOUNDS, TURNS, turns_text

MAX_LEVELS = 32  # of lists and objects in each other; ours need five
MAX_DIGITS = 19  # of a whole number: 64 bits, which is what the databases hold
MAX_OFFSET = 1_000_000  # rows of a list that are skipped; every one of them is read

# A text without an end goes to the end of the body: tried again at each of its quotes, it would take their square.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
_HALF = "This holds half of a surrogate pair, which is no character."


# --- bodies


class BoundedJSONParser(JSONParser):
    """JSON of at most :data:`MAX_LEVELS` levels, with 64-bit whole numbers, finite fractions, and text that every
    database stores. (Its size is bounded before Django: ``controlplane.web.body_limits``.)"""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        try:
            text = stream.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ParseError(f"The body is not UTF-8 text: byte {error.start} is none of it.") from None
        if not _shallow(text):
            raise ParseError(f"The body has more than {MAX_LEVELS} lists and objects in each other.")
        try:
            document = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_no_constant)
        except ValueError as error:
            raise ParseError(f"JSON parse error - {error}") from None
        escaped = text.lower()
        # As raw bytes neither NUL nor half a pair gets through the decoder.
        if any(begin in escaped for begin in ("\\u0000", "\\ud", "\\u202", "\\u206")) or turns_text(text):
            _check(document, "")
        return document


def _shallow(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_LEVELS:
        return True
    level = 0
    for token in _TOKENS.finditer(text):
        match token[0]:
            case "[" | "{":
                level += 1
                if level > MAX_LEVELS:
                    return False
            case "]" | "}":
                level -= 1
    return True


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS or not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError(f"{digits[:MAX_DIGITS]}... is not a number of 64 bits")
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:MAX_DIGITS]} is larger than any number that is stored")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check(value: Any, path: str) -> None:
    for at, text in _texts(value, path):
        problem = NUL if "\x00" in text else _HALF if any("\ud800" <= c <= "\udfff" for c in text) else ""
        problem = problem or (TURNS if turns_text(text) else "")
        if problem:
            raise ValidationError({at.encode("utf-8", "replace").decode().replace("\x00", "?") or "detail": problem})


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a value that was read, names of fields included, with the way to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield path, name
            yield from _texts(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, path)


# --- times


class Moment(serializers.DateTimeField):
    """A time from :data:`EARLIEST` up to :data:`LATEST`."""

    def enforce_timezone(self, value: datetime) -> datetime:
        aware: datetime = super().enforce_timezone(value)
        if not EARLIEST <= aware <= LATEST:
            raise ValidationError(TIME_BOUNDS)
        return aware


class Timed(serializers.ModelSerializer[Any]):
    """A model's row, whose times are :class:`Moment`."""

    serializer_field_mapping: ClassVar = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.DateTimeField: Moment,
    }


def moment(text: str) -> datetime | None:
    """A time in UTC, or None for a text that is none (or names no zone), and for one out of bounds."""
    try:
        value = parse_datetime(text)
        if value is None or not is_aware(value):
            return None
        value = value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return value if EARLIEST <= value <= LATEST else None


# --- pages


def _number(request: Request, name: str, low: int, high: int) -> int | None:
    """A whole number of the query, None where it is absent or empty. More than ``high`` is for the caller to judge."""
    raw = request.query_params.get(name, "")
    if raw == "":
        return None
    if not (raw.isascii() and raw.isdigit()) or len(raw) > MAX_DIGITS or int(raw) < low:
        raise ValidationError({name: f"Use a whole number from {low} to {high}."})
    return int(raw)


class Page(LimitOffsetPagination):
    """``?limit=&offset=``; a larger limit is cut to the largest."""

    default_limit = 100
    max_limit = 1000

    def get_limit(self, request: Request) -> int:
        limit = _number(request, self.limit_query_param, 1, self.max_limit)
        return self.default_limit if limit is None else min(limit, self.max_limit)

    def get_offset(self, request: Request) -> int:
        offset = _number(request, self.offset_query_param, 0, MAX_OFFSET) or 0
        if offset > MAX_OFFSET:
            raise ValidationError(
                {"offset": f"Use a whole number from 0 to {MAX_OFFSET}; filter to see what lies further."}
            )
        return offset


class NewestFirst(CursorPagination):
    """``?limit=&cursor=``: pages that stay right while rows come in. ``ordering`` begins with a time."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    invalid_cursor_message = "This cursor is not valid. Start without one, and follow `next`."

    def get_page_size(self, request: Request) -> int:
        size = _number(request, self.page_size_query_param, 1, self.max_page_size)
        return self.page_size if size is None else min(size, self.max_page_size)

    def decode_cursor(self, request: Request) -> Cursor | None:
        cursor = super().decode_cursor(request)
        if cursor is None or cursor.position is None:
            return cursor
        position = moment(str(cursor.position))
        if position is None:
            raise NotFound(self.invalid_cursor_message)
        return cursor._replace(position=str(position))  # type: ignore[arg-type]  # in UTC: PostgreSQL refuses odd offsets, such as +23:59
