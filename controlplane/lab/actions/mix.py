"""`lab mix`: traffic of known lengths as a trace, such as EWSJF's mix of short and long prompts."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab.actions.base import Action
from scheduling.simulator.workload import MIXES, write_mix


class Mix(Action):
    name = "mix"
    help = "write EWSJF's 80/20 mix of short and long prompts, or other made-up traffic, as a trace"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
        kinds = (
            "ewsjf: 80%% short and 20%% long prompts; reasoning: answers ten times as long as prompts; two-lengths: "
            "bursts of prompts of 60 and of 6,000 tokens; waves: a rate that is 0.4 and 1.6 times --rate, five minutes "
            "each (default %(default)s)"
        )
        parser.add_argument("--kind", choices=tuple(MIXES), default="ewsjf", help=kinds)
        parser.add_argument("--requests", type=int, default=4000, help="how many (default 4000)")
        parser.add_argument("--rate", type=float, default=10.0, help="mean arrivals [requests/s] (default 10)")
        parser.add_argument("--seed", type=int, default=1)

    def run(self, options: dict[str, Any]) -> None:
        if options["requests"] < 1 or not options["rate"] > 0:
            raise CommandError("--requests must be at least 1, --rate above 0")
        write_mix(options["out"], options["requests"], options["rate"], options["seed"], options["kind"])
        self.stdout.write(f"wrote {options['requests']} requests to {options['out']}")
