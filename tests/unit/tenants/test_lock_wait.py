"""How long a thread waits for SQLite's lock."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from django.db import ConnectionHandler

from tenants.connections import lock_wait

pytestmark = pytest.mark.django_db


def waits_ms(file: Path) -> int:
    """What a connection that is made now waits."""
    options = {"timeout": 20}
    connection = ConnectionHandler(
        {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": options}}
    )["default"]
    try:
        with connection.cursor() as cursor:
            return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])
    finally:
        connection.close()


def test_only_who_says_so_waits_less_and_only_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "x.sqlite3"
    assert waits_ms(file) == 20_000
    with lock_wait(0.5):
        assert waits_ms(file) == 500
        with lock_wait(2.0):
            assert waits_ms(file) == 2_000
        assert waits_ms(file) == 500
    assert waits_ms(file) == 20_000


def test_another_thread_waits_as_ever(tmp_path: Path) -> None:
    inside, looked = threading.Event(), threading.Event()

    def hurry() -> None:
        with lock_wait(0.5):
            inside.set()
            looked.wait(60)

    thread = threading.Thread(target=hurry)
    thread.start()
    try:
        assert inside.wait(60)
        assert waits_ms(tmp_path / "y.sqlite3") == 20_000
    finally:
        looked.set()
        thread.join()
