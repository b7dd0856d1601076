"""What the management API says of a wrong request: within bounds, whatever the request said.

Sentences about a value repeat it, and a list of wrong values has a sentence for each: without a bound the answer is
several times the request, and so is what it takes in memory.
"""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response
from rest_framework.views import exception_handler

MOST_LETTERS = 1000  # of a sentence; of a longer one the middle is left out
MOST_SENTENCES = 100
_BEGINNING, _END = 600, 300


def answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """REST framework's answer to an exception, bounded. None: not one that it answers."""
    response = exception_handler(error, context)
    if response is not None:
        response.data, _ = _bounded(response.data, MOST_SENTENCES)
    return response


def _bounded(said: Any, left: int) -> tuple[Any, int]:
    """What may be said of it, and how many sentences may follow."""
    if said in ({}, []):
        return said, left - 1
    if isinstance(said, dict):
        parts = {}
        for name, part in said.items():
            if left <= 0:
                break
            parts[_short(name)], left = _bounded(part, left)
        return parts, left
    if isinstance(said, list):
        items = []
        for part in said:
            if left <= 0:
                break
            item, left = _bounded(part, left)
            items.append(item)
        return items, left
    return _short(said), left - 1


def _short(text: Any) -> Any:
    if isinstance(text, str) and len(text) > MOST_LETTERS:
        return f"{text[:_BEGINNING]} ... {text[-_END:]}"
    return text
