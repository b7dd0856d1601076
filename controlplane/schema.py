"""The database's tables beside the migrations of this release."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from django.apps import apps
from django.db import connection

OURS = ("tenants", "telemetry", "batches", "responses")

Migration = tuple[str, str]  # app's label, name


def shipped() -> Set[Migration]:
    """The migrations of this release. From the files: asking Django's loader costs half a second."""
    return {
        (config.label, file.stem)
        for config in apps.get_app_configs()
        for file in Path(config.path, "migrations").glob("[0-9]*.py")
    }


def applied() -> Set[Migration]:
    """The migrations that the database has seen; none before the first. Raises DatabaseError where it does not say."""
    with connection.cursor() as cursor:
        if "django_migrations" not in connection.introspection.table_names(cursor):
            return set()
        cursor.execute("SELECT app, name FROM django_migrations")
        return set(cursor.fetchall())


def newer() -> list[str]:
    """What a newer release of ours has changed in the database (``app name``, in order): this one would write rows that
    lack what that one needs. Of others' apps files may go when they are squashed."""
    return sorted(f"{app} {name}" for app, name in applied() - shipped() if app in OURS)


def refusal(names: list[str]) -> str:
    """What to do about it, for people."""
    return (
        f"The database was migrated by a newer release: {', '.join(names)}. Take that release again, or go back with "
        f'it first (docs/guide/maintenance.md, "Roll back"):\n{way_back(names)}'
    )


def way_back(names: list[str]) -> str:
    """What the newer release has to be told: for each part that it changed, the last migration that this one has."""
    ours = shipped()
    lines = []
    for app in sorted({name.split()[0] for name in names}, key=OURS.index, reverse=True):
        last = max((name for label, name in ours if label == app), default="zero")
        lines.append(f"  .venv/bin/python manage.py migrate {app} {last}")
    return "\n".join(lines)
