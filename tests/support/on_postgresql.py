"""``python -m tests.support.on_postgresql``: the tests that use the database, on a real PostgreSQL started for them."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.database_tests import in_a_folder_without, uses_database
from tests.support.postgresql import postgresql


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """As a plugin: half of all tests need not even be collected."""
    return in_a_folder_without(collection_path) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has nothing to do with a database."""
    kept, left = [], []
    for item in items:
        (kept if uses_database(item) else left).append(item)
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
