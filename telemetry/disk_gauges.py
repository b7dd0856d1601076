"""Gauges of the disk that an instance fills: the room left beside its files, and how large its database has become."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from telemetry.pool_gauges import Samples

DATABASE = ("db.sqlite3", "db.sqlite3-wal")


def samples(home: Path) -> Samples:
    """Asked at a scrape, in its thread. What cannot be read is left out."""
    out: Samples = {}
    try:
        disk = shutil.disk_usage(home)
    except OSError:
        return out
    out["home_disk_bytes"], out["home_disk_free_bytes"] = [((), disk.total)], [((), disk.free)]
    sizes = []
    for name in DATABASE:
        with contextlib.suppress(OSError):  # SQLite takes its log away when nobody has it open
            sizes.append((home / name).stat().st_size)
    if sizes:
        out["sqlite_bytes"] = [((), sum(sizes))]
    return out
