"""What `manage.py` says where the database cannot be asked, and other processes where no Redis is named."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.instance import ROOT


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUARTERMASTER_")}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=environ | {"QUARTERMASTER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no such table: auth_user (`manage.py migrate` makes the tables)"),
        ("not a database, but long enough to be read as one" * 100, "file is not a database"),
    ],
)
def test_a_database_that_cannot_be_asked_is_a_line_and_no_traceback(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "db.sqlite3").write_text(content)
    told = run(tmp_path, "token", "admin")
    assert told.returncode == 1
    assert told.stderr == f"The database cannot be used: {said}. --traceback shows where.\n"
    assert "Traceback" in run(tmp_path, "token", "admin", "--traceback").stderr


def test_migrate_says_that_a_database_is_locked_and_reads_beside_who_writes(tmp_path: Path) -> None:
    assert run(tmp_path, "migrate", "-v0").returncode == 0
    with closing(sqlite3.connect(tmp_path / "db.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        told = run(tmp_path, "migrate", "--check")
        assert (told.returncode, told.stderr) == (0, "")
        told = run(tmp_path, "migrate", "tenants", "0036")
        locked = "The database cannot be used: database is locked. --traceback shows where.\n"
        assert (told.returncode, told.stderr) == (1, locked)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["written at the end", "written at once"])
def test_output_that_finds_no_room_or_no_reader_is_no_traceback(tmp_path: Path, unbuffered: str) -> None:
    words = [sys.executable, "manage.py", "export"]
    environ = os.environ | {"QUARTERMASTER_HOME": str(tmp_path), "PYTHONUNBUFFERED": unbuffered}
    assert run(tmp_path, "migrate", "-v0").returncode == 0
    with Path("/dev/full").open("w") as full:
        told = subprocess.run(words, cwd=ROOT, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (told.returncode, told.stderr.splitlines()[0][:34]) == (1, "There is no room on the disk: [Err")
    assert "Traceback" not in told.stderr
    reading, writing = os.pipe()
    os.close(reading)
    told = subprocess.run(words, cwd=ROOT, env=environ, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (told.returncode, told.stderr) == (141, "")


def test_a_fault_of_ours_keeps_its_traceback(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
        database.execute("CREATE TABLE auth_user (id INTEGER)")
    told = run(tmp_path, "shell", "--no-imports", "-c", "raise ValueError('a fault')")
    assert told.returncode == 1
    assert "Traceback" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "controlplane.web.serve"],
        ["-m", "controlplane.standby"],
        ["-m", "celery", "--app", "controlplane.celery", "--quiet", "worker", "--concurrency", "1"],
    ],
)
def test_what_serves_or_leads_without_a_redis_says_so_in_a_line_and_does_not_start(
    tmp_path: Path, words: list[str]
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUARTERMASTER_")}
    told = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environ | {"QUARTERMASTER_HOME": str(tmp_path), "QUARTERMASTER_PORT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode > 0
    assert "QUARTERMASTER_REDIS_URL is not set" in told.stderr
    assert "Traceback" not in told.stderr
