"""What it is to break a formula on purpose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One formula, how it is broken, and the tests that are to notice."""

    name: str
    what: str
    file: str
    old: str  # exactly once in the file
    new: str
    tests: tuple[str, ...]
