"""`lab record`: A pool's recent requests as a trace."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab.actions.base import Action
from controlplane.tuning import recent


class Record(Action):
    name = "record"
    help = "write a pool's recent requests as a trace, without any text"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pool", required=True)
        parser.add_argument("--minutes", type=float, default=60.0, help="how far back (default %(default)g)")
        parser.add_argument(
            "--sample", action="store_true", help="the long-term sample instead; its rate has no meaning"
        )
        parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")

    def run(self, options: dict[str, Any]) -> None:
        if not options["minutes"] > 0:
            raise CommandError("--minutes must be above 0")
        with options["out"].open("w", encoding="utf-8") as out:
            if options["sample"]:
                count = recent.export_sample(options["pool"], out)
            else:
                count = recent.export(options["pool"], options["minutes"], out)
        if not count:
            options["out"].unlink()
            raise CommandError(f"pool {options['pool']!r} had no requests in that time; nothing was written")
        self.stdout.write(f"wrote {count} requests to {options['out']}")
