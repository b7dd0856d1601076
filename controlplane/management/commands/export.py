"""``manage.py export``: the catalog as YAML, for git, or as custom resources for a cluster."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.kubernetes import resources
from tenants import manifest


class Command(BaseCommand):
    help = "Writes tiers, SLOs, pools, backends, tenants, entitlements, memberships and key names as one YAML document."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--kubernetes",
            metavar="NAMESPACE",
            default="",
            help="Write custom resources of this namespace instead (docs/guide/kubernetes.md).",
        )
        parser.add_argument("-f", "--file", default="-", help="Output file; - is standard output (default).")

    def handle(self, *args: Any, **options: Any) -> None:
        text = resources.export(options["kubernetes"]) if options["kubernetes"] else manifest.export()
        if options["file"] == "-":
            self.stdout.write(text, ending="")
            return
        path = Path(options["file"])
        try:
            _write(path.resolve(), text)  # a link goes on naming its file
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}") from error
        print(f"{path}: {text.count(chr(10))} lines", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    """All of it or nothing: whoever reads the file meanwhile, or after a full disk, finds what was there before."""
    if path.exists() and not path.is_file():  # such as /dev/stdout or a pipe: there is nothing to keep
        path.write_text(text, encoding="utf-8")
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            if path.exists():
                draft.chmod(path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
