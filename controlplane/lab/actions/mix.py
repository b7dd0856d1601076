"""`lab mix`: traffic of known lengths as a trace, such as EWSJF's mix of short and long prompts."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab.actions.base import Action
from scheduling.simulator.contracts import SHIPPED
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
            "each; code, conversation: lengths of the Azure traces; documents: prompts of 3,000 to 16,000 tokens "
            "(default %(default)s)"
        )
        parser.add_argument("--kind", choices=tuple(MIXES), default="ewsjf", help=kinds)
        parser.add_argument("--requests", type=int, default=4000, help="how many (default 4000)")
        parser.add_argument("--rate", type=float, default=10.0, help="mean arrivals [requests/s] (default 10)")
        tenants = (
            "of three premium, five standard, three batch tenants, each with arrivals of its own; of a tier's, even: "
            "all ask for the same; falling: 1, 1/2, 1/3 ...; one-loud: the first for ten times as much as each other "
            "one; pulses: the same, in twelve seconds of each minute; crowds: the same, twenty at once (default: a "
            "trace without tenants)"
        )
        parser.add_argument("--tenants", choices=tuple(DEMANDS), default="", help=tenants)
        parser.add_argument(
            "--kind-of",
            action="append",
            default=[],
            metavar="TIER=KIND",
            help="with --tenants: another kind for the tenants of one tier; may be repeated",
        )
        parser.add_argument("--seed", type=int, default=1)

    def run(self, options: dict[str, Any]) -> None:
        if options["requests"] < 1 or not options["rate"] > 0:
            raise CommandError("--requests must be at least 1, --rate above 0")
        written = options["out"], options["requests"], options["rate"], options["seed"], options["kind"]
        count = options["requests"]
        if options["tenants"]:
            count = write_tenant_mix(*written, options["tenants"], _kinds(options["kind_of"]))
        elif options["kind_of"]:
            raise CommandError("--kind-of is of tenants' tiers: give --tenants as well")
        else:
            write_mix(*written)
        self.stdout.write(f"wrote {count} requests to {options['out']}")


def _kinds(pairs: list[str]) -> dict[str, str]:
    """Of ``TIER=KIND``, by tier."""
    kinds = dict(pair.partition("=")[::2] for pair in pairs)
    tiers = [tier.name for tier in SHIPPED]
    for tier, kind in kinds.items():
        if tier not in tiers or kind not in MIXES:
            raise CommandError(
                f"--kind-of {tier}={kind}: write TIER=KIND with a TIER of {', '.join(tiers)} and a KIND of "
                f"{', '.join(MIXES)}"
            )
    return kinds
