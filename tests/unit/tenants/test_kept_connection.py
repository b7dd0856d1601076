"""A thread that asks SQLite again and again opens it once, and no child of the process gets its connection."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support import migrated
from tests.support.instance import ROOT

SETUP = """
import os, shutil, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
import django
django.setup()
from concurrent.futures import ThreadPoolExecutor
from django.db import connection, connections
from django.db.backends.signals import connection_created
from tenants import specs
from tenants.connections import lock_wait, own_connection
from tenants.kept_connection import kept_connection

opened = []
connection_created.connect(lambda connection, **_: opened.append(connection), weak=False)
thread = ThreadPoolExecutor(1)
name = str(connections["default"].settings_dict["NAME"])

@kept_connection
def ask():
    return own_connection(lambda: specs.catalog_version())()

def busy_ms():
    with connection.cursor() as cursor:
        return cursor.execute("PRAGMA busy_timeout").fetchone()[0]

def files():
    return sum(os.path.realpath(f"/proc/self/fd/{fd}") == name for fd in os.listdir("/proc/self/fd"))
"""


def run(tmp_path: Path, test: str) -> None:
    """In a process of its own, with a database in a file: those of tests are in memory."""
    migrated.put_into(tmp_path)
    code = SETUP + textwrap.dedent(test)
    env = {"QUARTERMASTER_HOME": str(tmp_path), "QUARTERMASTER_SECRET_KEY": "s" * 60, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_opened_once_whatever_is_called_in_between(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        for _ in range(5):
            thread.submit(ask).result()
        assert len(opened) == 1, opened
        own_connection(specs.catalog_version)()  # of another thread: as ever
        assert len(opened) == 2
        assert connection.connection is None
        """,
    )


def test_a_child_does_not_get_it_and_the_parent_opens_it_again(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        version = thread.submit(ask).result()
        assert files() == 1
        child = os.fork()
        if not child:
            os._exit(files())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child holds the database"
        assert thread.submit(ask).result() == version
        assert len(opened) == 2
        """,
    )


def test_a_fork_waits_for_the_call_that_is_made(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        asked, leave = threading.Event(), threading.Event()

        @kept_connection
        def long():
            specs.catalog_version()
            asked.set()
            leave.wait(60)
            return specs.catalog_version()

        result = thread.submit(long)
        asked.wait(60)
        threading.Timer(0.2, leave.set).start()
        child = os.fork()
        if not child:
            os._exit(files())
        assert leave.is_set(), "it was taken from a call"
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert result.result(60) == own_connection(specs.catalog_version)()
        """,
    )


def test_another_file_in_its_place_is_seen(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        from tenants.models import CatalogVersion
        before = thread.submit(ask).result()
        connection.close()
        shutil.copy(name, name + ".new")
        os.replace(name + ".new", name)
        for end in ("-wal", "-shm"):
            if os.path.exists(name + end):
                os.unlink(name + end)
        CatalogVersion.objects.update_or_create(pk=1, defaults={"version": before + 7})
        connection.close()
        assert thread.submit(ask).result() == before + 7
        """,
    )


def test_how_long_it_waits_for_a_lock_holds_for_it_too(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        @kept_connection
        def hurried(seconds):
            specs.catalog_version()
            with lock_wait(seconds):
                return busy_ms()

        assert [thread.submit(hurried, s).result() for s in (0.5, 0.05)] == [500, 50]
        assert thread.submit(kept_connection(busy_ms)).result() == 20_000
        """,
    )
