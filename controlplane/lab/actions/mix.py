"""`lab mix`: EWSJF's mix of short and long prompts as a trace."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab.actions.base import Action
from scheduling.simulator.workload import write_mix


class Mix(Action):
    name = "mix"
    help = "write EWSJF's 80/20 mix of short and long prompts as a trace"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
        parser.add_argument("--requests", type=int, default=4000, help="how many (default 4000)")
        parser.add_argument("--rate", type=float, default=10.0, help="Poisson arrivals [requests/s] (default 10)")
        parser.add_argument("--seed", type=int, default=1)

    def run(self, options: dict[str, Any]) -> None:
        if options["requests"] < 1 or not options["rate"] > 0:
            raise CommandError("--requests must be at least 1, --rate above 0")
        write_mix(options["out"], options["requests"], options["rate"], options["seed"])
        self.stdout.write(f"wrote {options['requests']} requests to {options['out']}")
