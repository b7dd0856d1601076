"""Backup and restore of an instance of `make up`: what one copies the other brings back, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.embedded import backup
from controlplane.embedded.home import CannotStart, Home


@pytest.fixture(autouse=True)
def moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backup and restore has a moment of its own."""
    passed = iter(range(100))
    monkeypatch.setattr(backup, "_moment", lambda: f"20261128T0000{next(passed):02d}Z")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "files" / "a").mkdir(parents=True)
    (home / "files" / "a" / "lines.jsonl").write_text("one line")
    (home / "secret-key").write_text("k" * 40)
    with closing(sqlite3.connect(home / "db.sqlite3")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE telemetry_ledgerentry (id INTEGER PRIMARY KEY)")
    add(home)
    return home


def add(home: Path) -> None:
    with closing(sqlite3.connect(home / "db.sqlite3")) as database, database:
        database.execute("INSERT INTO telemetry_ledgerentry DEFAULT VALUES")


def rows(folder: Path) -> int:
    return backup.check(folder / "db.sqlite3")


def test_each_backup_is_a_new_one_and_none_else_may_read_it(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / "db.sqlite3")) as running:  # its last rows are in the log beside the file
        first = backup.save(home, tmp_path / "backups")
        running.execute("INSERT INTO telemetry_ledgerentry DEFAULT VALUES")
        running.commit()
        second = backup.save(home, tmp_path / "backups")
    assert (rows(first), rows(second)) == (1, 2)
    assert (second / "files" / "a" / "lines.jsonl").read_text() == "one line"
    assert (second / "secret-key").read_text() == "k" * 40
    assert all(path.stat().st_mode & 0o077 == 0 for path in (second, second / "db.sqlite3"))


def test_a_restore_brings_all_of_it_back_and_keeps_what_was_there(home: Path, tmp_path: Path) -> None:
    kept = backup.save(home, tmp_path / "backups")
    add(home)
    (home / "files" / "later").write_text("x")
    (home / "secret-key").write_text("n" * 40)
    former = backup.restore(home, kept)
    assert rows(home) == 1
    assert (home / "secret-key").read_text() == "k" * 40
    assert [path.name for path in (home / "files").iterdir()] == ["a"]
    assert backup.restore(home, former) != former
    assert rows(home) == 2, "and that can be restored in its turn"
    assert (home / "files" / "later").exists()
    assert (home / "secret-key").read_text() == "n" * 40


def test_what_is_no_whole_backup_changes_nothing(home: Path, tmp_path: Path) -> None:
    kept = backup.save(home, tmp_path / "backups")
    with (kept / "db.sqlite3").open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * 2048)
    with pytest.raises(backup.CannotBackUp, match="damaged"):
        backup.restore(home, kept)
    with pytest.raises(backup.CannotBackUp, match=r"it has no db\.sqlite3"):
        backup.restore(home, tmp_path / "backups")
    assert rows(home) == 1
    assert not list(home.glob("before-restore-*"))


def test_a_running_instance_is_not_restored(home: Path, tmp_path: Path) -> None:
    kept = backup.save(home, tmp_path / "backups")
    running = Home(home)
    running.acquire()
    with pytest.raises(CannotStart, match="already runs"):
        backup.restore(home, kept)
    running.release()


@pytest.mark.parametrize("name", ["copy2", "fsync"])
def test_no_backup_is_left_where_there_was_no_room(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if name == "copy2":
        monkeypatch.setattr(shutil, "copy2", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(backup.CannotBackUp, match="No space left"):
        backup.save(home, tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_restore_that_was_killed_is_begun_again(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = backup.save(home, tmp_path / "backups")
    add(home)

    class Killed(BaseException):
        """What no handler of errors catches."""

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            backup.restore(home, kept)
    assert rows(home) == 2, "the former database is in its place until the other one takes it"
    backup.restore(home, kept)
    assert rows(home) == 1


def test_the_log_of_a_database_that_was_deleted_does_not_get_into_the_restored_one(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / "db.sqlite3")) as running:
        kept = backup.save(home, tmp_path / "backups")
        running.execute("INSERT INTO telemetry_ledgerentry DEFAULT VALUES")
        running.commit()
        shutil.copy2(home / "db.sqlite3-wal", tmp_path / "log")
    (home / "db.sqlite3").unlink()
    shutil.copy2(tmp_path / "log", home / "db.sqlite3-wal")
    backup.restore(home, kept)
    assert rows(home) == 1


def test_a_file_is_no_place_for_backups(home: Path) -> None:
    with pytest.raises(backup.CannotBackUp, match="secret-key is no folder"):
        backup.save(home, home / "secret-key")
