"""Every change of what decides in a pool is a version: who, why, what differs, and what was before.

Written inside the transaction of the change itself, so that there is no serving policy without its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tenants.models import Pool
from tenants.models.tuning import Author, PolicyVersion


@dataclass(frozen=True, slots=True)
class Note:
    """What a version says of itself."""

    reason: str = ""
    author_kind: Author = Author.PERSON
    restores: int | None = None


_note: ContextVar[Note | None] = ContextVar("policy_version_note", default=None)


@contextmanager
def because(note: Note) -> Iterator[None]:
    """Versions written within carry this note."""
    token = _note.set(note)
    try:
        yield
    finally:
        _note.reset(token)


def keep(pool: Pool, stored: Pool | None, author: str) -> PolicyVersion | None:
    """The version of a pool as it has just been saved, unless it is there already. ``stored``: as it was before."""
    if PolicyVersion.objects.filter(pool=pool, number=pool.policy_version).exists():
        return None
    parent = PolicyVersion.objects.filter(pool=pool).order_by("-number").first()
    if parent is None and stored is not None and stored.policy_version != pool.policy_version:
        parent = _make(stored, None, "", Note("as it was before versions were kept"), None)
    return _make(pool, stored, author, _note.get() or Note(), parent)


def changes(before: Any, after: Any) -> dict[str, list[Any]]:
    """Field, or parameter of a field, to [before, after]."""
    differences: dict[str, list[Any]] = {}
    for name in PolicyVersion.content:
        old, new = getattr(before, name), getattr(after, name)
        if old is None or new is None:
            continue  # a version of a release that did not keep it
        if isinstance(new, dict) and isinstance(old, dict):
            for key in sorted(old.keys() | new.keys()):
                if old.get(key) != new.get(key):
                    differences[f"{name}.{key}"] = [old.get(key), new.get(key)]
        elif old != new:
            differences[name] = [old, new]
    return differences


def _make(pool: Pool, before: Pool | None, author: str, note: Note, parent: PolicyVersion | None) -> PolicyVersion:
    return PolicyVersion.objects.create(
        pool_id=pool.pk,
        number=pool.policy_version,
        parent=parent,
        restores=note.restores,
        author_kind=note.author_kind,
        author=author,
        reason=note.reason[:300],
        changes=changes(before, pool) if before is not None else {},
        **{name: getattr(pool, name) for name in PolicyVersion.content},
    )
