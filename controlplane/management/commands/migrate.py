"""Django's ``migrate``, which here refuses a database that a newer release has migrated, and says what is locked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connection

from controlplane import schema


class Command(migrate.Command):
    def check(self, *args: Any, **options: Any) -> None:
        """Django asks the database for JSON inside a transaction, which here waits for who writes, and takes a lock for
        a no: one line for each field that is not supported. The library is asked instead, without the database."""
        if connection.vendor == "sqlite":
            with closing(sqlite3.connect(":memory:")) as library:
                library.execute("SELECT JSON('{}')")
            connection.features.__dict__["supports_json_field"] = True
        super().check(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["app_label"] and options["database"] == "default" and (names := schema.newer()):
            raise CommandError(schema.refusal(names))
        super().handle(*args, **options)
