"""Names by a value that changes, of which the least is asked all the time.

A heap with lazy removal: an entry is alive while it is the one in ``_live``. ``put`` and ``first`` are O(log n),
amortised; ties are broken by name.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Least:
    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._live: dict[str, tuple[float, str]] = {}
        self._heap: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._live

    def put(self, name: str, value: float) -> None:
        """Adds a name, or changes its value."""
        old = self._live.get(name)
        if old is not None and old[0] == value:
            return
        entry = self._live[name] = (value, name)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def drop(self, name: str) -> None:
        """Removes a name; nothing happens where it is not there."""
        self._live.pop(name, None)

    def first(self) -> str | None:
        """The name with the least value; None when there is none."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._live.get(entry[1]) is entry:
                return entry[1]
            heappop(heap)
        return None
