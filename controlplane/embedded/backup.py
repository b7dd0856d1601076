"""Backup and restore of what an embedded instance keeps in HOME, for ``manage.py backup`` and ``manage.py restore``.

A backup is a folder that is whole as soon as it has its name. A restore first copies all of it into HOME, then puts it
in place, the database by one rename; what was there stays beside it. So either may be killed at any moment and begun
again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from controlplane.embedded.home import Home

DATABASE, FILES = "db.sqlite3", "files"
PAPERS = ("secret-key", "demo.json")  # where the instance has them
BESIDE = ("-wal", "-shm")


class CannotBackUp(Exception):
    """The message says what is in the way."""


def save(home: Path, folder: Path) -> Path:
    """Copies HOME's database, papers and files of batches into a new folder below ``folder``, while the instance runs.

    Raises:
        CannotBackUp: there is nothing to copy, no room for it, or the copy is damaged.
    """
    if not (home / DATABASE).exists():
        raise CannotBackUp(f"There is no database in {home}. Is QUARTERMASTER_HOME that of the instance?")
    done = folder / f"quartermaster-{_moment()}"
    draft = done.with_name(f"{done.name}.partial")
    with _told(folder), _private():
        if folder.exists() and not folder.is_dir():
            raise CannotBackUp(f"{folder} is no folder.")
        folder.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        try:
            with contextlib.closing(sqlite3.connect(home / DATABASE, timeout=60)) as source:
                source.execute("VACUUM INTO ?", [str(draft / DATABASE)])
            check(draft / DATABASE)
            for name in PAPERS:
                if (home / name).exists():
                    shutil.copy2(home / name, draft / name)
            _copy_files(home / FILES, draft / FILES)
            _keep(draft)
            draft.rename(done)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return done


def restore(home: Path, backup: Path) -> Path:
    """Puts a backup in the place of what HOME has. Returns the folder that holds what was there.

    Raises:
        CannotBackUp: the backup is no whole one, or there is no room for it; HOME is then as it was.
        CannotStart: an instance runs on this HOME.
    """
    if not (backup / DATABASE).is_file():
        raise CannotBackUp(f"{backup} is no backup: it has no {DATABASE}.")
    with _told(backup):
        check(backup / DATABASE)
    lock = Home(home)
    lock.acquire()
    draft, former = home / "restoring", home / f"before-restore-{_moment()}"
    try:
        with _told(home), _private():
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            for name in (DATABASE, *PAPERS):
                if (backup / name).exists():
                    shutil.copy2(backup / name, draft / name)
            _copy_files(backup / FILES, draft / FILES)
            _keep(draft)
            former.mkdir()
            _set_aside(home, former)
            for name in (FILES, *PAPERS, DATABASE):
                if name == FILES and (home / name).exists():
                    (home / name).rename(former / name)
                elif name in PAPERS and (home / name).exists():
                    shutil.copy2(home / name, former / name)
                if (draft / name).exists():
                    (draft / name).replace(home / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        lock.release()
    return former


def check(database: Path) -> int:
    """Looks through a copy; how many ledger entries it has.

    Raises:
        CannotBackUp: it is damaged, or none of ours.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            found = [str(row[0]) for row in copy.execute("PRAGMA integrity_check(3)")]
            if found != ["ok"]:
                raise CannotBackUp(f"{database} is damaged: {'; '.join(found)}")
            return int(copy.execute("SELECT count(*) FROM telemetry_ledgerentry").fetchone()[0])
    except sqlite3.DatabaseError as error:
        raise CannotBackUp(f"{database} is no database of Quartermaster, or damaged: {error}") from error


def _set_aside(home: Path, former: Path) -> None:
    """The present database, with what its log holds, stays in its place until the other one takes it."""
    database = home / DATABASE
    if database.exists():
        with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(database)) as present:
            present.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.link(database, former / DATABASE)
    for ending in BESIDE:  # left where it is damaged, was killed, or is gone: SQLite would put it into the other one
        with contextlib.suppress(FileNotFoundError):
            (home / f"{DATABASE}{ending}").rename(former / f"{DATABASE}{ending}")


def _copy_files(source: Path, target: Path) -> None:
    """A file that is deleted meanwhile is none that anybody will ask for."""
    for path in sorted(source.rglob("*")) if source.exists() else []:
        to = target / path.relative_to(source)
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                to.mkdir(parents=True, exist_ok=True)
            else:
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)


def _keep(folder: Path) -> None:
    """On the disk, not only in memory, before anything counts on it."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


@contextlib.contextmanager
def _private() -> Iterator[None]:
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _told(where: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise CannotBackUp(f"{error.filename} is there already: another one runs, or began in this second.") from error
    except (OSError, sqlite3.Error) as error:
        raise CannotBackUp(f"{where}: {error}") from error
