"""From SQLite to PostgreSQL: every row of every table, as it was, and nothing where it cannot be all of them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from controlplane.embedded.home import Home
from tests.support.instance import ROOT
from tests.support.postgresql import postgresql

pytestmark = pytest.mark.timeout(300)

FILL = """
from telemetry.ledger import writer
from tests.support import worlds
from tests.support.telemetry_world import record
worlds.build()
from django.contrib.auth import get_user_model
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Entitlement
get_user_model().objects.create_superuser("ada")
services.issue_key(actor=SYSTEM, name="kept", entitlement=Entitlement.objects.first())
writer.write([record(number) for number in range(1500)])
"""
LOOK = """
import json
from django.apps import apps
for model in apps.get_models(include_auto_created=True):
    for row in model._base_manager.order_by("pk").values_list():
        print(model._meta.label, json.dumps(row, sort_keys=True, default=repr))
"""


@dataclass
class Databases:
    home: Path
    url: str

    def start(self, *words: str, postgres: bool = True) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("QUARTERMASTER_")}
        environ |= {"QUARTERMASTER_HOME": str(self.home), "QUARTERMASTER_SECRET_KEY": "s" * 40}
        if postgres:
            environ["QUARTERMASTER_DATABASE_URL"] = self.url
        return subprocess.Popen(
            [sys.executable, "manage.py", *words],
            cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def manage(self, *words: str, postgres: bool = True, status: int = 0) -> subprocess.CompletedProcess[str]:
        with self.start(*words, postgres=postgres) as process:
            out, err = process.communicate(timeout=200)
        assert process.returncode == status, err
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def shell(self, code: str, *, postgres: bool) -> str:
        return self.manage("shell", "-v0", "--no-imports", "-c", textwrap.dedent(code), postgres=postgres).stdout


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    folder = tmp_path_factory.mktemp("databases")
    with postgresql(folder) as url:
        both = Databases(folder / "home", url)
        for postgres in (False, True):
            both.manage("migrate", "-v0", postgres=postgres)
        both.shell(FILL, postgres=False)
        yield both


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("telemetry_ledgerentry SET model = printf('%.300c', 'x') WHERE id = 7", "telemetry.LedgerEntry, rows 1 to"),
        ("telemetry_ledgerentry SET backend = 'a' || char(0) WHERE id = 7", "telemetry.LedgerEntry, rows 1 to"),
        ("tenants_apikey SET entitlement_id = 999 WHERE entitlement_id IS NOT NULL", "All rows"),
    ],
)
def test_what_only_sqlite_takes_is_named_in_a_line(
    databases: Databases, tmp_path: Path, change: str, told: str
) -> None:
    databases.manage("flush", "--no-input")
    kept = Path(databases.manage("backup", str(tmp_path), postgres=False).stdout.strip())
    with closing(sqlite3.connect(kept / "db.sqlite3")) as database, database:
        assert database.execute(f"UPDATE {change}").rowcount > 0
    [line] = [
        line
        for line in databases.manage("import_sqlite", str(kept), status=1).stderr.splitlines()
        if line.startswith("CommandError")
    ]
    assert line.startswith(f"CommandError: {told}")
    assert line.endswith("Nothing was copied.")


def test_what_is_being_written_there_is_not_deleted(databases: Databases, tmp_path: Path) -> None:
    databases.manage("flush", "--no-input")
    kept = databases.manage("backup", str(tmp_path), postgres=False).stdout.strip()
    with psycopg.connect(databases.url) as other, psycopg.connect(databases.url, autocommit=True) as looking:
        other.execute("LOCK TABLE auth_user IN ROW EXCLUSIVE MODE")
        importing = databases.start("import_sqlite", kept)
        while not looking.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            assert importing.poll() is None
            time.sleep(0.05)
        other.execute(
            "INSERT INTO auth_user (username, password, is_superuser, first_name, last_name, email, is_staff, "
            "is_active, date_joined) VALUES ('new', '', false, '', '', '', false, true, now())"
        )
        other.commit()
        told = importing.communicate(timeout=200)[1]
        assert importing.returncode == 1
        assert "is in use" in told
        assert looking.execute("SELECT username FROM auth_user").fetchall() == [("new",)]


def test_a_home_on_which_an_instance_runs_is_not_copied(databases: Databases) -> None:
    running = Home(databases.home)
    running.acquire()
    try:
        told = databases.manage("import_sqlite", str(databases.home), status=1)
    finally:
        running.release()
    assert "already runs" in told.stderr


def test_every_row_is_copied_as_it_was_and_the_audit_log_is_whole(databases: Databases) -> None:
    kept = databases.manage("backup", str(databases.home / "backups"), postgres=False).stdout.strip()
    databases.manage("flush", "--no-input")
    other = databases.manage("import_sqlite", str(databases.home / "nothing"), status=1)
    assert other.stderr.endswith("has no db.sqlite3.\n")
    told = databases.manage("import_sqlite", kept).stderr
    assert "telemetry.LedgerEntry: 1000 of 1500\ntelemetry.LedgerEntry: 1500\n" in told
    there = databases.shell(LOOK, postgres=False).splitlines()
    assert databases.shell(LOOK, postgres=True).splitlines() == there
    assert sum(line.startswith("telemetry.LedgerEntry ") for line in there) == 1500
    assert "Nothing was changed" in databases.manage("audit", "verify").stdout
    again = databases.manage("import_sqlite", kept, status=1)
    assert "is in use" in again.stderr
    databases.manage("token", "ada")  # new rows get numbers that are free


def test_it_goes_to_postgresql_and_nowhere_else(databases: Databases) -> None:
    told = databases.manage("import_sqlite", str(databases.home), postgres=False, status=1)
    assert "QUARTERMASTER_DATABASE_URL is not set" in told.stderr
