"""`lab front`: Policies inside engines and in front of them."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab import compare, front
from controlplane.lab.actions.base import Action, numbers
from controlplane.lab.actions.cases import add_case, cases_of
from controlplane.lab.tables import Lab
from scheduling.simulator.compare import Case, parse_policy, run_case


class Front(Action):
    name = "front"
    help = "compare policies inside engines and in front of them"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("policies", nargs="+", metavar="POLICY", help="[MODIFIER+...]NAME[:PARAMETER=VALUE,...]")
        add_case(parser)
        parser.set_defaults(replicas=4)
        parser.add_argument("--loads", default="1", metavar="N,N", help="loads to compare, instead of --load")
        credits = "prefill credits of a replica [prompt tokens], 0 none, 1 one prompt at a time (default %(default)s)"
        parser.add_argument("--credits", default="0,1,2048,4096", metavar="N,N", help=credits)
        delays = "delays from an engine's token to the grant that follows [ms] (default %(default)s)"
        parser.add_argument("--delays", default="0,5", metavar="N,N", help=delays)
        parser.add_argument("--seeds", type=int, default=1, help="runs with different tiers, averaged (default 1)")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")
        parser.add_argument(
            "--output", type=Path, metavar="PAGE.md", help="write the tables as a page like docs/results/front.md"
        )
        parser.add_argument("--append", action="store_true", help="append the tables to an existing page")

    def run(self, options: dict[str, Any]) -> None:
        loads, credits, delays = (numbers(options[name], f"--{name}") for name in ("loads", "credits", "delays"))
        if not all(credit == int(credit) for credit in credits):
            raise CommandError("--credits are whole numbers of prompt tokens")
        output: Path | None = options["output"]
        if output is not None and not output.resolve().parent.is_dir():
            raise CommandError(f"--output: there is no folder {output.resolve().parent}")
        plain = cases_of(options, [(*parse_policy(text), False) for text in options["policies"]])
        if options["loads"] != "1":
            plain = [replace(case, load=load) for load in loads for case in plain]
        cases = [variant for case in plain for variant in front.variants(case, [int(n) for n in credits], delays)]
        with self.progress(len(cases)) as (bar, item):

            def done(case: Case) -> None:
                bar.update(item, advance=1, description=f"{case.name}: {case.label}"[:32])

            figures = Lab(self.folder(), options["processes"]).figures(cases, run_case, compare.kept_name, done)
        lines = front.lines_of(cases, figures)
        if output is not None:
            before = output.read_text(encoding="utf-8") if options["append"] and output.exists() else ""
            words = [Path(word).name if word in options["trace"] else word for word in sys.argv[1:]]
            page = front.page(lines, cases, shlex.join(["manage.py", *words]), before)
            output.write_text(page, encoding="utf-8")
            self.stdout.write(f"wrote {output}")
        elif options["json"]:
            self.stdout.write(json.dumps([line.as_json() for line in lines], indent=1))
        else:
            for grid in front.grids(lines):
                self.console().print(grid)
