"""`lab unified`: The default policy beside the best of each paper."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab import unified
from controlplane.lab.actions.papers import PaperAction
from scheduling.simulator.duel import SEEDS


class Unified(PaperAction):
    name = "unified"
    help = "compare the default policy with the best of each paper"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each policy (default {SEEDS})")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
        if options["seeds"] < 2:
            raise CommandError("--seeds must be at least 2: one run has no noise to be judged by")
        matches = self.duels(options["seeds"], options["processes"])
        if options["json"]:
            rows = [row.as_json() for _, table in matches for row in table]
            self.stdout.write(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        for grid in unified.grids(matches):
            self.console().print(grid)
