"""``manage.py crds DIRECTORY``: definitions of the custom resources, as the chart ships them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Writes the definitions of the custom resources, one file each."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directory", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        from controlplane.kubernetes.resources import documents

        try:
            options["directory"].mkdir(parents=True, exist_ok=True)
            for name, text in documents():
                (options["directory"] / name).write_text(text)
        except OSError as error:
            raise CommandError(f"{options['directory']} cannot be written: {error.strerror}.") from error
