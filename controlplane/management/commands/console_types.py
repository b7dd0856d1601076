"""``manage.py console_types``: what the console takes from Python (``controlplane/console_types.py``)."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane import console_types


class Command(BaseCommand):
    help = "Write what the console takes from Python: fields of forms, reasons, types of answers."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--schema", action="store_true", help="Print the schema of the answers, and do nothing else."
        )
        parser.add_argument("--types", action="store_true", help="Write the types from standard input as well.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["schema"]:
            self.stdout.write(console_types.as_json(console_types.answers()))
            return
        console_types.DATA.write_text(console_types.data(), encoding="utf-8")
        if options["types"]:
            console_types.TYPES.write_text(console_types.stamped(sys.stdin.read()), encoding="utf-8")
