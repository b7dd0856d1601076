"""`lab shared`: prompts that begin alike, or of very unlike lengths, as a trace."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab.actions.base import Action
from scheduling.simulator.shared_prompts import Conversations, Documents, Instructions, Kind, agents, write_shared
from scheduling.simulator.workload import BLOCK_TOKENS


class Shared(Action):
    name = "shared"
    help = "write a trace of prompts by their blocks: instructions, turns of conversations or agents, or documents"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=("instructions", "conversations", "agents", "documents"))
        parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
        parser.add_argument(
            "--texts", type=int, default=1, help="how many different instructions there are (default 1)"
        )
        parser.add_argument(
            "--tokens",
            type=int,
            help="in common (default 4096 of instructions, 1024 of conversations, 5120 of agents)",
        )
        parser.add_argument(
            "--every", type=int, default=40, help="of so many prompts one is a long document (default 40)"
        )
        parser.add_argument(
            "--rate", type=float, default=10.0, help="prompts, or sessions that begin, a second (default 10)"
        )
        parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
        parser.add_argument("--seed", type=int, default=1)

    def run(self, options: dict[str, Any]) -> None:
        texts, rate, seconds = options["texts"], options["rate"], options["seconds"]
        if options["every"] < 1:
            raise CommandError("--every must be at least 1")
        usual = {"conversations": 1024, "agents": 5120}.get(options["kind"], 4096)
        tokens = options["tokens"] if options["tokens"] is not None else usual
        if texts < 1 or not rate > 0 or not seconds > 0 or tokens < 0:
            raise CommandError("--texts must be at least 1, --rate and --seconds above 0, --tokens at least 0")
        if rate * seconds > 1_000_000:
            raise CommandError("--rate times --seconds must be at most 1,000,000")
        if tokens % BLOCK_TOKENS:
            raise CommandError(f"--tokens must be a multiple of {BLOCK_TOKENS}, the length of a block")
        kind: Kind = Instructions(texts, tokens)
        if options["kind"] == "documents":
            kind = Documents(options["every"])
        elif options["kind"] == "conversations":
            kind = Conversations(tokens)
        elif options["kind"] == "agents":
            kind = agents(tokens)
        count = write_shared(options["out"], kind, rate, seconds, options["seed"])
        self.stdout.write(f"wrote {count} requests to {options['out']}")
