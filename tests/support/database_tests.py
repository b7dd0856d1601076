"""Which tests use the database, and which folders have none that do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"}
FOLDERS_WITHOUT = (
    "contract", "reference", "unit/checkout", "unit/engines", "unit/estimation", "unit/gateway", "unit/state",
)  # fmt: skip
TESTS = Path(__file__).resolve().parents[1]


def uses_database(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("django_db") or FIXTURES & set(getattr(item, "fixturenames", ())))


@cache
def in_a_folder_without(path: Path) -> bool:
    """Whether no test of ``path`` uses the database: the run on PostgreSQL does not even collect it."""
    return any(path.is_relative_to(TESTS / folder) for folder in FOLDERS_WITHOUT)


def misplaced(items: list[pytest.Item]) -> list[str]:
    """Tests that the run on PostgreSQL would miss."""
    return [item.nodeid for item in items if in_a_folder_without(item.path) and uses_database(item)]
