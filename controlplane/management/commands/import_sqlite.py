"""``manage.py import_sqlite FOLDER``: all that a SQLite database holds, into the PostgreSQL that is configured."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from django.db import DataError, IntegrityError, connection, connections, models, transaction

from controlplane import schema
from controlplane.embedded import backup
from controlplane.embedded.home import CannotStart, Home

SOURCE = "source"
CHUNK = 1000  # rows of one statement: where PostgreSQL takes one of them not, it is one of so many
TOLD = 20  # times in a table of more than one statement


class Command(BaseCommand):
    help = (
        "Copies every row of a SQLite database, as `manage.py backup` has copied it, into the PostgreSQL of "
        "QUARTERMASTER_DATABASE_URL, which `manage.py migrate` has prepared and nobody has used. All of it or nothing."
    )
    requires_system_checks = ()
    _at = ""  # what is being copied

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="A backup, or the HOME of an instance that is stopped.")

    def handle(self, *args: Any, **options: Any) -> None:
        file = options["folder"] / backup.DATABASE
        if settings.ENV.embedded:
            raise CommandError("QUARTERMASTER_DATABASE_URL is not set: say which PostgreSQL the rows go to.")
        if not file.is_file():
            raise CommandError(f"{options['folder']} has no {backup.DATABASE}.")
        try:
            backup.check(file)
        except backup.CannotBackUp as error:
            raise CommandError(str(error)) from error
        try:
            with _stopped(options["folder"]):
                self._require_same_tables(file)
                self._open(file)
                self._copy()
        except CannotStart as error:
            raise CommandError(f"{error} Or give a backup of it.") from error
        except KeyboardInterrupt:
            raise CommandError("Stopped. Nothing was copied.", returncode=130) from None
        except (DataError, IntegrityError) as error:
            said = " ".join(str(error).split())
            raise CommandError(f"{self._at}: PostgreSQL does not take them ({said}). Nothing was copied.") from error

    def _require_same_tables(self, file: Path) -> None:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as there:
            theirs = set(there.execute("SELECT app, name FROM django_migrations"))
        if different := sorted(f"{app} {name}" for app, name in theirs ^ schema.applied()):
            raise CommandError(
                f"The two databases are of different releases ({', '.join(different[:5])}). "
                "Migrate both with this one: `manage.py migrate`."
            )

    def _open(self, file: Path) -> None:
        told = settings.DATABASES["default"] | {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": file.absolute(),
            "OPTIONS": {},
        }
        connections.databases[SOURCE] = {**connections.databases["default"], **told}

    def _copy(self) -> None:
        ours = [model for model in apps.get_models(include_auto_created=True) if _is_ours(model)]
        rows = 0
        with transaction.atomic():
            for model in map(apps.get_model, ("tenants.AuditEntry", "telemetry.LedgerEntry", "auth.User")):
                with connection.cursor() as cursor:  # who writes to it at this moment is waited for, and is seen
                    cursor.execute(f"LOCK TABLE {connection.ops.quote_name(model._meta.db_table)}")
                if model._base_manager.exists():
                    raise CommandError("The PostgreSQL database is in use: it has users, requests or an audit log.")
            tables = [model._meta.db_table for model in ours]
            with connection.cursor() as cursor:  # what migrations put in, and Django's own, comes with the copy
                for statement in connection.ops.sql_flush(no_style(), tables, allow_cascade=False):
                    cursor.execute(statement)
            for model in ours:
                count = 0
                whole = model._base_manager.using(SOURCE).count()
                for some in _chunks(model):
                    self._at = f"{model._meta.label}, rows {some[0][0]} to {some[-1][0]}"
                    _write(model, some)
                    before, count = count, count + len(some)
                    if before * TOLD // whole < count * TOLD // whole < TOLD:
                        self.stderr.write(f"{model._meta.label}: {count} of {whole}")
                rows += count
                if count:
                    self.stderr.write(f"{model._meta.label}: {count}")
            self._at = "All rows"  # what refers to a row that is not there is refused at the end
            with connection.cursor() as cursor:
                for statement in connection.ops.sequence_reset_sql(no_style(), ours):
                    cursor.execute(statement)
        self.stdout.write(f"Copied {rows} rows of {len(ours)} tables.")


@contextmanager
def _stopped(folder: Path) -> Iterator[None]:
    """Keeps an instance from running on a HOME meanwhile; a backup is none.

    Raises:
        CannotStart: one runs.
    """
    home = Home(folder)
    if not (home.run / "lock").exists():
        yield
        return
    home.acquire()
    try:
        yield
    finally:
        home.release()


def _is_ours(model: type[models.Model]) -> bool:
    return model._meta.managed and not model._meta.proxy


def _chunks(model: type[models.Model]) -> Iterator[list[tuple[Any, ...]]]:
    """Values of rows in the order of their keys: the key, then those of :func:`_columns`."""
    names = [field.attname for field in _columns(model)]
    rows = model._base_manager.using(SOURCE).order_by("pk").values_list("pk", *names).iterator(CHUNK)
    while some := list(islice(rows, CHUNK)):
        yield some


def _columns(model: type[models.Model]) -> list[Any]:
    return [field for field in model._meta.concrete_fields if not field.generated]


def _write(model: type[models.Model], rows: list[tuple[Any, ...]]) -> None:
    """Rows as they are there: no moment of creation is now. By COPY, since an INSERT of Django's makes an object of
    each row and one text of all their values, which took most of the time."""
    name, columns = connection.ops.quote_name, _columns(model)
    stored = [field.get_db_prep_save for field in columns]
    listed = ", ".join(name(field.column) for field in columns)
    into = f"COPY {name(model._meta.db_table)} ({listed}) FROM STDIN"
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(into) as copy:
        for _, *values in rows:
            copy.write_row([save(value, connection) for save, value in zip(stored, values, strict=True)])
