"""``python -m tests.support.on_postgresql``: the tests that use the database, on a real PostgreSQL started for them."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.postgresql import postgresql

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin: leaves out what has nothing to do with a database."""
    kept, left = [], []
    for item in items:
        uses = item.get_closest_marker("django_db") or DATABASE_FIXTURES & set(getattr(item, "fixturenames", ()))
        (kept if uses else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="qm-pg-") as folder, postgresql(Path(folder)) as url:
        os.environ["QUARTERMASTER_DATABASE_URL"] = url
        os.environ["QUARTERMASTER_SECRET_KEY"] = secrets.token_urlsafe(48)
        # The server goes away with the test databases, so nobody waits for the last connection to drop them.
        return int(pytest.main([*arguments, "--reuse-db", "-p", "tests.support.on_postgresql"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
