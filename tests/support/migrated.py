"""A migrated SQLite database to begin with: made once in a test run, by whichever process needs it first, then copied.

Applying every migration takes 1.7 s of CPU, and a run starts more than twenty instances and web processes, beside the
processes that the tests share.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120  # generous: other tests may share the machine
_made: list[Path] = []  # this process' own, where no run of tests has named one


def put_into(home: Path) -> None:
    """Gives ``home`` a migrated database, unless it has one."""
    database = home / "db.sqlite3"
    if database.exists():
        return
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = home / "db.sqlite3.copied"
    shutil.copyfile(_template(), draft)
    draft.replace(database)


def fill_test_databases() -> None:
    """From now on this process' test database begins with it, where that is SQLite in memory. Django's `migrate` comes
    after it all the same, and finds nothing to apply."""
    connection_created.connect(_fill)


def _fill(connection: Any, **_: Any) -> None:
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        connection_created.disconnect(_fill)  # the first connection makes it, all others share it
        with closing(sqlite3.connect(_template())) as made:
            made.backup(connection.connection)


def _template() -> Path:
    folder = _folder()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        database = folder / "db.sqlite3"
        if not database.exists():
            home = folder / "home"
            environ = {k: v for k, v in os.environ.items() if not k.startswith(("QUARTERMASTER_", "DJANGO_"))}
            subprocess.run(
                [sys.executable, "manage.py", "migrate", "-v0"],
                cwd=ROOT,
                env=environ | {"QUARTERMASTER_HOME": str(home)},
                check=True,
                timeout=LIMIT_S,
            )
            (home / "db.sqlite3").replace(database)
        return database


def _folder() -> Path:
    """One for all processes of a test run (``tests/conftest.py`` names it), else one for this process."""
    if named := os.environ.get("PYTEST_MIGRATED_FOLDER"):
        folder = Path(named)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    if not _made:
        _made.append(Path(tempfile.mkdtemp(prefix="migrated-")))
    return _made[0]
