"""``manage.py apply -f FILE``: make the catalog says what a file says, after showing the difference."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tenants import manifest
from tenants.audit import Actor

_SIGNS = {"create": "+", "change": "~", "delete": "-"}


class Command(BaseCommand):
    help = (
        "Shows what a YAML file would change in the catalog, asks for confirmation at a terminal, and applies all of "
        "it or nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-f", "--file", required=True, help="A file written by `export` or by hand; - reads standard input."
        )
        parser.add_argument("--dry-run", action="store_true", help="Show the changes without applying them.")
        parser.add_argument("--yes", action="store_true", help="Do not ask for confirmation, not even before deleting.")
        parser.add_argument(
            "--prune",
            action="store_true",
            help="Delete objects that are not in the file, of kinds that it contains. Never keys.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        actor = Actor.at_shell()
        try:
            wanted = manifest.plan(manifest.read(*self._source(options["file"])), prune=options["prune"])
            if options["dry_run"] or not (options["yes"] or self._needs_nobody(options["file"], wanted)):
                manifest.apply(wanted, actor=actor, keep=False)  # faults show before anybody is asked
                self._show(wanted)
                if not wanted.changes or options["dry_run"]:
                    return
                if not self._agreed(options["file"]):
                    raise CommandError("Nothing was changed.")
                manifest.apply(wanted, actor=actor)
            else:
                manifest.apply(wanted, actor=actor)
                self._show(wanted)
                if not wanted.changes:
                    return
        except manifest.ManifestError as error:
            raise CommandError(f"Nothing was changed.\n{error}") from error
        self.stdout.write(self.style.SUCCESS(f"Applied {len(wanted.changes)} changes."))

    def _source(self, name: str) -> tuple[str, str]:
        if name == "-":
            return sys.stdin.read(), "<stdin>"
        try:
            return Path(name).read_text(encoding="utf-8"), name
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{name} cannot be read: {error}") from error

    def _needs_nobody(self, file: str, wanted: manifest.Plan) -> bool:
        """At a terminal a person is asked. A pipeline that applies what lies in git is not, but for what it deletes."""
        return not _at_terminal(file) and all(change.verb != "delete" for change in wanted.changes)

    def _agreed(self, file: str) -> bool:
        if not _at_terminal(file):
            raise CommandError("This deletes objects and needs a confirmation: use --yes, or --dry-run to see them.")
        return input("Apply? [y/N] ").strip().lower() in ("y", "yes")

    def _show(self, wanted: manifest.Plan) -> None:
        paint = {"create": self.style.SUCCESS, "change": self.style.WARNING, "delete": self.style.ERROR}
        for change in wanted.changes:
            self.stdout.write(paint[change.verb](f"{_SIGNS[change.verb]} {change.kind.name} {change.name}"))
            for path, before, after in change.values:
                if change.verb == "change":
                    self.stdout.write(f"    {path}: {_text(before)} -> {_text(after)}")
                elif change.verb == "create":
                    self.stdout.write(f"    {path}: {_text(after)}")
        for note in wanted.notes:
            self.stdout.write(self.style.NOTICE(f"! {note}"))
        if not wanted.changes:
            self.stdout.write("No change.")


def _at_terminal(file: str) -> bool:
    return file != "-" and sys.stdin.isatty()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
