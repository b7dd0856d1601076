"""`lab mix`: traffic of known lengths as a trace, such as EWSJF's mix of short and long prompts."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab.actions.base import Action
from scheduling.simulator.tenant_mix import DEMANDS, write_tenant_mix
from scheduling.simulator.workload import MIXES, write_mix


class Mix(Action):
    name = "mix"
    help = "write EWSJF's 80/20 mix of short and long prompts, or other made-up traffic, as a trace"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a CSV file; JSONL with --tenants")
        kinds = (
            "ewsjf: 80%% short and 20%% long prompts; reasoning: answers ten times as long as prompts; two-lengths: "
            "bursts of prompts of 60 and of 6,000 tokens; waves: a rate that is 0.4 and 1.6 times --rate, five minutes "
            "each; code, conversation: lengths of the Azure traces (default %(default)s)"
        )
        parser.add_argument("--kind", choices=tuple(MIXES), default="ewsjf", help=kinds)
        parser.add_argument("--requests", type=int, default=4000, help="how many (default 4000)")
        parser.add_argument("--rate", type=float, default=10.0, help="mean arrivals [requests/s] (default 10)")
        tenants = (
            "of three premium, five standard, three batch tenants, each with arrivals of its own; of a tier's, even: "
            "all ask for the same; falling: 1, 1/2, 1/3 ...; one-loud: the first for ten times as much as each other "
            "one; pulses: the same, in twelve seconds of each minute (default: a trace without tenants)"
        )
        parser.add_argument("--tenants", choices=tuple(DEMANDS), default="", help=tenants)
        parser.add_argument("--seed", type=int, default=1)

    def run(self, options: dict[str, Any]) -> None:
        if options["requests"] < 1 or not options["rate"] > 0:
            raise CommandError("--requests must be at least 1, --rate above 0")
        written = options["out"], options["requests"], options["rate"], options["seed"], options["kind"]
        count = options["requests"]
        if options["tenants"]:
            count = write_tenant_mix(*written, options["tenants"])
        else:
            write_mix(*written)
        self.stdout.write(f"wrote {count} requests to {options['out']}")
