"""Several processes that read and write in one transaction never hear "database is locked" (docs/reference/promises.md,
25)."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

PROCESSES, ROUNDS = 8, 300
WRITER = """
import json, sys, time
from django.conf import settings
name, options, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}}
)
import django
django.setup()
from django.db import OperationalError, connection, transaction
connection.ensure_connection()
print("ready", flush=True)
sys.stdin.readline()
errors, longest_s = 0, 0.0
for _ in range(rounds):
    began_s = time.monotonic()
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            (n,) = cursor.execute("SELECT n FROM counter").fetchone()
            cursor.execute("UPDATE counter SET n = %s", [n + 1])
    except OperationalError:
        errors += 1
    longest_s = max(longest_s, time.monotonic() - began_s)
print(errors, longest_s, flush=True)
"""


def counted(file: Path, options: dict[str, Any]) -> tuple[int, int, float]:
    """What the processes counted up to together, how many of their transactions failed, and the longest one [s]."""
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA journal_mode=WAL")  # changing it later needs the database alone
        database.execute("CREATE TABLE counter (n INTEGER)")
        database.execute("INSERT INTO counter VALUES (0)")
    database.close()
    command = [sys.executable, "-c", WRITER, str(file), json.dumps(options), str(ROUNDS)]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        said = [writer.communicate(timeout=240)[0].split() for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    with sqlite3.connect(file) as database:
        (n,) = database.execute("SELECT n FROM counter").fetchone()
    database.close()
    return n, sum(int(errors) for errors, _ in said), max(float(longest_s) for _, longest_s in said)


@pytest.mark.skipif("sqlite" not in settings.DATABASES["default"]["ENGINE"], reason="this is about SQLite")
@pytest.mark.parametrize("deferred", [False, True], ids=["as configured", "deferred, which fails"])
def test_processes_that_read_and_write_are_never_refused(tmp_path: Path, deferred: bool) -> None:
    options = dict(settings.DATABASES["default"]["OPTIONS"])
    assert options["transaction_mode"] == "IMMEDIATE"
    if deferred:
        options["transaction_mode"] = "DEFERRED"
    n, errors, longest_s = counted(tmp_path / "counter.sqlite3", options)
    print(f"{n} transactions, {errors} refused, the longest took {longest_s:.2f} s")
    assert n + errors == PROCESSES * ROUNDS
    assert (errors > 0) == deferred
