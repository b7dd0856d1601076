"""``manage.py backup FOLDER``: a copy of an instance of ``make up``, while it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.embedded import backup


class Command(BaseCommand):
    help = (
        "Copies the database, the secret key, the demo's keys and the files of batches into a new folder, checks the "
        "copy, and prints the folder's name last. For SQLite; with PostgreSQL, use pg_dump (docs/guide/maintenance.md)."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="Where backups are kept; made if it is not there.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.ENV.embedded:
            raise CommandError("The database is PostgreSQL: use pg_dump (docs/guide/maintenance.md).")
        try:
            done = backup.save(settings.ENV.home, options["folder"])
            entries = backup.check(done / backup.DATABASE)
        except backup.CannotBackUp as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped. No backup was made.", returncode=130) from None
        size = sum(path.stat().st_size for path in done.rglob("*") if path.is_file())
        parts = ", ".join(sorted(path.name for path in done.iterdir()))
        print(f"{parts}: {size / 1e6:.1f} MB, {entries} ledger entries; the database is whole", file=sys.stderr)
        self.stdout.write(str(done))
