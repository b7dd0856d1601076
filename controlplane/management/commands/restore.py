"""``manage.py restore BACKUP``: the opposite of ``manage.py backup``, while the instance is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.embedded import backup
from controlplane.embedded.home import CannotStart


class Command(BaseCommand):
    help = (
        "Puts a folder that `manage.py backup` has made in the place of what QUARTERMASTER_HOME holds. What was there "
        "is kept beside it. Refused while the instance runs. Redis is left as it is."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("backup", type=Path, help="The folder of one backup.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.ENV.embedded:
            raise CommandError("The database is PostgreSQL: use pg_restore (docs/guide/maintenance.md).")
        try:
            former = backup.restore(settings.ENV.home, options["backup"])
            entries = backup.check(settings.ENV.home / backup.DATABASE)
        except (backup.CannotBackUp, CannotStart) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Stopped, so parts may be missing. Restore again.", returncode=130) from None
        self.stdout.write(
            f"Restored: {entries} ledger entries. What was there is in {former}; delete it when unneeded."
        )
