"""Server-sent events of ``/v1`` as our own clients read them: replays, experiments, tests.

The gateway has its own reader of engines (``scheduling/gateway/answers/sse.py``), which trusts nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

DONE: Final = "[DONE]"
_DATA = b"data:"


def _event(line: bytes) -> Any:
    """A chunk, :data:`DONE`, or None for a line without data. Raises ValueError where it is no JSON."""
    if not line.startswith(_DATA):
        return None
    data = line[len(_DATA) :].strip()
    return DONE if data == DONE.encode() else json.loads(data)


async def events(lines: AsyncIterable[bytes]) -> AsyncIterator[Any]:
    """Each chunk as it comes, and :data:`DONE` where the stream says so. Raises ValueError where a chunk is no JSON."""
    async for line in lines:
        if (event := _event(line)) is not None:
            yield event


def events_of(text: str) -> list[Any]:
    """The same of a whole answer."""
    return [event for line in text.encode().splitlines() if (event := _event(line)) is not None]
