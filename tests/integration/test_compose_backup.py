"""Backup and restore of the compose file: its own commands, into an empty database that has to hold all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.support.instance import ROOT
from tests.support.postgresql import postgresql, programs

pytestmark = pytest.mark.timeout(900)
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]

FILL = """
from telemetry.ledger import writer
from tests.support import worlds
from tests.support.telemetry_world import record
worlds.build()
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Entitlement
key = services.issue_key(actor=SYSTEM, name="kept", entitlement=Entitlement.objects.first())
writer.write([record(number) for number in range(300)])
print(key.credential.text)
"""
LOOK = """
from django.db import connection
with connection.cursor() as cursor:
    for table in sorted(connection.introspection.table_names(cursor)):
        cursor.execute(f'SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)), count(*) FROM "{table}" t')
        print(table, *cursor.fetchone())
"""

OLDER = (("tenants", "0027"), ("telemetry", "0017"))  # an older version's last migrations


class Database:
    """A server with the compose file's database, and its services' commands as compose would run them."""

    def __init__(self, folder: Path, socket: str) -> None:
        self.folder, self.socket = folder, socket
        self.secrets, self.backups = folder / "secrets", folder / "backups"
        self.backups.mkdir()
        subprocess.run([ROOT / "deploy" / "make-secrets.sh", self.secrets], check=True, capture_output=True)

    def empty(self) -> None:
        """As the image of PostgreSQL makes it at its first start."""
        with psycopg.connect(host=self.socket, user="postgres", dbname="postgres", autocommit=True) as admin:
            admin.execute("DROP DATABASE IF EXISTS quartermaster WITH (FORCE)")
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'quartermaster'").fetchone():
                admin.execute("CREATE ROLE quartermaster LOGIN SUPERUSER")
            admin.execute("CREATE DATABASE quartermaster OWNER quartermaster")

    def run(self, service: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Its entrypoint, with what compose would put in: secrets, the folder of backups, the server's name."""
        command = [*COMPOSE[service]["entrypoint"], *words]
        places = {
            "/run/secrets/": f"{self.secrets}/",
            "/backups/": f"{self.backups}/",
            "--host postgres": f"--host {self.socket}",
        }
        for name, place in places.items():
            command = [word.replace(name, place) for word in command]
        command = [word.replace("$$", "$") for word in command]  # as compose reads it
        environ = os.environ | {"PATH": f"{programs()}:{os.environ['PATH']}"}
        return subprocess.run(command, env=environ, check=check, capture_output=True, text=True)

    def manage(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")}
        environ = own | {
            "QUARTERMASTER_DATABASE_URL": f"postgresql://quartermaster@/quartermaster?host={self.socket}",
            "QUARTERMASTER_HOME": str(self.folder / "home"),
            "QUARTERMASTER_SECRET_KEY_FILE": str(self.secrets / "secret-key"),
        }
        (self.folder / "home").mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "manage.py", *words], cwd=ROOT, env=environ, check=check, capture_output=True, text=True
        )

    def shell(self, code: str) -> str:
        return self.manage("shell", "--no-imports", "-c", code).stdout.strip()


@dataclass(frozen=True)
class Backup:
    """What was backed up, and what the command left."""

    key: str
    tables: str
    anchor: str  # the end of the audit log's chain
    printed: str
    files: list[str]

    @property
    def name(self) -> str:
        return Path(self.printed).name


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One server for the file. Each test begins with an empty database."""
    folder = tmp_path_factory.mktemp("backup")
    with ExitStack() as stack:
        url = stack.enter_context(postgresql(folder))
        made = Database(folder, re.findall(r"host=([^&]+)", url)[0])
        made.empty()
        yield made


@pytest.fixture(scope="module")
def backup(database: Database) -> Backup:
    """A database as an installation has it, backed up once, whatever other tests have left."""
    database.empty()
    there = {path.name for path in database.backups.iterdir()} if database.backups.exists() else set()
    database.manage("migrate", "--noinput")
    key = database.shell(FILL).splitlines()[-1]
    tables, anchor = database.shell(LOOK), database.manage("audit", "verify").stdout
    printed = database.run("backup").stdout.strip()
    made = [path.name for path in database.backups.iterdir() if path.name not in there]
    return Backup(key, tables, anchor, printed, made)


def test_what_was_backed_up_is_there_after_a_restore_into_an_empty_database(database: Database, backup: Backup) -> None:
    before, key = backup.tables, backup.key
    assert re.search(r"^telemetry_ledgerentry \w+ 300$", before, re.M), before
    assert re.fullmatch(r"backups/quartermaster-\d{8}T\d{6}Z\.dump", backup.printed)
    assert backup.files == [backup.name], "no half of one is left"

    database.empty()
    assert database.manage("audit", "verify", check=False).returncode != 0, "nothing is there"
    database.run("restore", backup.name)
    assert database.shell(LOOK) == before, "each table, row by row"
    assert database.manage("audit", "verify").stdout == backup.anchor
    assert database.manage("migrate", "--check").returncode == 0
    found = database.shell(
        "from tenants import keys; from tenants.models import ApiKey; "
        f"c = keys.parse({key!r}); "
        "print(keys.matches(c, ApiKey.objects.get(public_id=c.public_id).digest))"
    )
    assert found == "True", "who had a key has it still"

    # Over what was written since, which is gone then; and a dump that is damaged changes nothing.
    database.shell(
        "from tenants.models import Tenant; Tenant.objects.filter(slug='globex').update(description='later')"
    )
    changed = database.shell(LOOK)
    broken = database.backups / "broken.dump"
    whole = (database.backups / backup.name).read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    assert database.run("restore", broken.name, check=False).returncode != 0
    assert database.shell(LOOK) == changed
    database.run("restore", backup.name)
    assert database.shell(LOOK) == before


def test_a_changed_entry_of_a_restored_audit_log_is_found(database: Database, backup: Backup) -> None:
    database.empty()
    database.run("restore", backup.name)
    assert database.manage("audit", "verify").returncode == 0
    database.shell(
        "from tenants.models import AuditEntry; e = AuditEntry.objects.order_by('pk')[2]; "
        "AuditEntry.objects.filter(pk=e.pk).update(actor='somebody else')"
    )
    assert database.manage("audit", "verify", check=False).returncode == 1


def test_a_dump_of_an_older_version_replaces_what_a_newer_one_has_made_of_the_database(database: Database) -> None:
    """How an upgrade is taken back: newer tables, which refer to older ones, are in the way of those of the dump."""
    database.empty()
    for app, number in OLDER:
        database.manage("migrate", "--noinput", app, number)
    before = database.shell(LOOK)
    name = Path(database.run("backup").stdout.strip()).name
    database.manage("migrate", "--noinput")
    newer = database.shell(LOOK)
    assert {line.split()[0] for line in newer.splitlines()} > {line.split()[0] for line in before.splitlines()}
    whole = (database.backups / name).read_bytes()
    half = database.backups / "half.dump"
    half.write_bytes(whole[: len(whole) * 3 // 4])

    text = (ROOT / "docs" / "guide" / "maintenance.md").read_text(encoding="utf-8")
    guide = textwrap.dedent(re.findall(r"^    \{ echo \"BEGIN;.*?tail -n 1$", text, re.M | re.S)[0])
    environ = os.environ | {
        "PATH": f"{programs()}:{os.environ['PATH']}",
        "QUARTERMASTER_DATABASE_URL": f"postgresql://quartermaster@/quartermaster?host={database.socket}",
    }

    def by_compose(dump: str) -> bool:
        return database.run("restore", dump, check=False).returncode == 0

    def by_the_guide(dump: str) -> bool:
        commands = guide.replace("quartermaster.dump", str(database.backups / dump))
        done = subprocess.run(["sh", "-c", commands], env=environ, check=False, capture_output=True, text=True)
        return done.stdout.strip() == "COMMIT"

    for restore in (by_compose, by_the_guide):
        assert not restore(half.name)
        assert not restore("missing.dump")
        assert database.shell(LOOK) == newer, "what failed changes nothing"
        assert restore(name)
        assert database.shell(LOOK) == before
        database.manage("migrate", "--noinput")
        assert database.manage("migrate", "--check").returncode == 0
        newer = database.shell(LOOK)
