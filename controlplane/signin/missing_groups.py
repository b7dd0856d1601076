"""Does an answer without the claim of groups mean that a person is in none, or that the provider says nothing of them?

Many providers leave an empty claim out, so who was removed from their last group would keep its roles. A claim that is
missing of everybody says nothing: a scope or a mapper is not there. So it means none where this source has named groups
of this person before, and has named groups of somebody since it first named none of theirs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

_ELSEWHERE = ("_claim_names", "hasgroups")  # Entra ID: they are too many for a token, and are somewhere else


class MissingGroups:
    """Of the people whom one process asks about. Safe for several threads."""

    def __init__(self) -> None:
        self._order = itertools.count(1)
        self._named: dict[str, int] = {}  # source -> its latest answer that named groups, of anybody
        self._of: set[tuple[str, int]] = set()  # sources that have named groups of a person
        self._none_since: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def means_none(self, person: int, named: Mapping[str, bool]) -> bool:
        """``named``: whether each source that answered now named groups of this person; asked for every answer."""
        none = False
        with self._lock:
            at = next(self._order)
            for source, whether in named.items():
                if whether:
                    self._named[source] = at
                    self._of.add((source, person))
                    self._none_since.pop((source, person), None)
                elif (source, person) in self._of:
                    none |= self._named[source] > self._none_since.setdefault((source, person), at)
        return none and not any(named.values())


def elsewhere(claims: Mapping[str, Any]) -> bool:
    """Whether claims say that there are groups which they do not name."""
    return any(claims.get(name) for name in _ELSEWHERE)
