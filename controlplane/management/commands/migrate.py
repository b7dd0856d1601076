"""Django's ``migrate``, which here refuses a database that a newer release has migrated."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate

from controlplane import schema


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        if not options["app_label"] and options["database"] == "default" and (names := schema.newer()):
            raise CommandError(schema.refusal(names))
        super().handle(*args, **options)
