"""Several processes write to the audit log at once: one chain without a gap, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import migrated
from tests.support.instance import ROOT
from tests.support.postgresql import postgresql

pytestmark = pytest.mark.timeout(600)

PROCESSES, ROUNDS, LIMIT_S = 4, 25, 300
WRITER = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
import django
django.setup()
from tenants import services
from tenants.audit import SYSTEM, note
from tenants.models import Tenant
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[2])):
    services.save(actor=SYSTEM, instance=Tenant(slug=f"w{sys.argv[1]}-{n}"))
    note(actor=SYSTEM, action="export", outcome="read", what=f"w{sys.argv[1]}-{n}")
"""


def verified(environ: dict[str, str]) -> str:
    """What ``manage.py audit verify`` says after the writers are through."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number), str(ROUNDS)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        assert [writer.wait(LIMIT_S) for writer in writers] == [0] * PROCESSES
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    command = [sys.executable, "manage.py", "audit", "verify"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout + done.stderr


def environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("QUARTERMASTER_", "DJANGO_"))}
    return kept | {"QUARTERMASTER_HOME": str(home)}


def expected() -> str:
    return f"{2 * PROCESSES * ROUNDS} entries in the chain, 0 of older releases before it."


def test_writers_on_sqlite_make_one_chain(tmp_path: Path) -> None:
    migrated.put_into(tmp_path / "home")
    said = verified(environment(tmp_path / "home"))
    assert expected() in said, said
    assert "Nothing was changed" in said


def test_writers_on_postgresql_make_one_chain(tmp_path: Path) -> None:
    with postgresql(tmp_path) as url:
        environ = environment(tmp_path / "home") | {
            "QUARTERMASTER_DATABASE_URL": url,
            "QUARTERMASTER_SECRET_KEY": secrets.token_urlsafe(48),
        }
        command = [sys.executable, "manage.py", "migrate", "-v0"]
        subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=LIMIT_S)
        said = verified(environ)
    assert expected() in said, said
    assert "Nothing was changed" in said
