"""`lab compare`: Policies side by side on recorded traces."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from controlplane.lab import compare
from controlplane.lab.actions.base import Action
from controlplane.lab.actions.cases import add_case, add_where, cases_of, chart_of
from controlplane.lab.tables import Lab
from scheduling.simulator.compare import Case, parse_policy, run_case


class Compare(Action):
    name = "compare"
    help = "compare policies on recorded traces"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("policies", nargs="+", metavar="POLICY", help="[MODIFIER+...]NAME[:PARAMETER=VALUE,...]")
        add_case(parser)
        add_where(parser)
        oracle = "add a row: this policy with known true lengths, as an upper limit"
        parser.add_argument("--clairvoyant", metavar="POLICY", help=oracle)
        parser.add_argument("--seeds", type=int, default=3, help="runs with different tiers, averaged (default 3)")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
        policies = [(*parse_policy(text), False) for text in options["policies"]]
        if options["clairvoyant"]:
            policies.append((*parse_policy(options["clairvoyant"]), True))
        cases = cases_of(options, policies)
        plot = chart_of(options)
        with self.progress(len(cases)) as (bar, item):

            def done(case: Case) -> None:
                bar.update(item, advance=1, description=f"{case.name}: {case.label}"[:32])

            figures = Lab(self.folder(), options["processes"]).figures(cases, run_case, compare.kept_name, done)
        rows = compare.rows_of(cases, figures)
        if plot is not None:
            plot.write_text(compare.drawing(rows), encoding="utf-8")
        if options["json"]:
            self.stdout.write(json.dumps([row.as_json() for row in rows], indent=1, ensure_ascii=False))
            return
        for grid in compare.grids(rows, cases):
            self.console().print(grid)
