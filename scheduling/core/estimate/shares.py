"""How much of a shared budget each owner holds, and which one holds most: that one gives way first.

A budget kept so is divided fairly (max-min): an owner that holds less than an equal share never loses anything to
others, however many entries they add.
"""

from __future__ import annotations


class Shares:
    """Entries held per owner. Every operation takes constant time."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[str, int] = {}
        self._by_count: dict[int, dict[str, None]] = {}  # owners by what they hold, in the order they came to hold it
        self._most = 0

    def of(self, owner: str) -> int:
        return self._counts.get(owner, 0)

    def add(self, owner: str) -> None:
        self._move(owner, self._counts.get(owner, 0) + 1)
        self.total += 1

    def remove(self, owner: str) -> None:
        """One entry less. Raises KeyError for an owner that holds nothing."""
        self._move(owner, self._counts[owner] - 1)
        self.total -= 1

    def drop(self, owner: str) -> None:
        """Everything of an owner is gone."""
        self.total -= self._counts.get(owner, 0)
        self._move(owner, 0)

    def largest(self) -> str:
        """The holder of most; of several, the one that has held as much for longest. Raises StopIteration where there
        is none."""
        while self._most and not self._by_count.get(self._most):
            self._most -= 1
        return next(iter(self._by_count.get(self._most, ())))

    def _move(self, owner: str, count: int) -> None:
        before = self._counts.pop(owner, 0)
        if before:
            level = self._by_count[before]
            del level[owner]
            if not level:
                del self._by_count[before]
        if count:
            self._counts[owner] = count
            self._by_count.setdefault(count, {})[owner] = None
            self._most = max(self._most, count)
