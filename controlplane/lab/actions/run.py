"""`lab run`: Scenarios of the papers, computed here, beside the paper's figures."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from rich.table import Table as Grid

from controlplane.lab.actions.papers import PaperAction
from controlplane.lab.tables import figure, interval
from scheduling.simulator.lab import load_scenario, scenario_names


class Run(PaperAction):
    name = "run"
    help = "run one or more scenarios"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="+", metavar="NAME", help="a scenario's name or id, or 'all'")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
        names = scenario_names() if "all" in options["names"] else options["names"]
        tables = self.tables([load_scenario(name) for name in names], options["processes"])
        if options["json"]:
            rows = [line.as_json() for _, lines in tables for line in lines]
            self.stdout.write(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        for scenario, lines in tables:
            grid = Grid(
                "figure",
                "unit",
                "paper",
                "ours",
                "allowed",
                "verdict",
                "note",
                title=f"{scenario.id}: {scenario.title}",
            )
            for line in lines:
                colour = {"holds": "green", "differs": "red"}.get(line.verdict, "dim")
                ours = (figure(line.ours), interval(line), f"[{colour}]{line.verdict}[/]", line.note)
                grid.add_row(line.row, line.unit, line.paper, *ours)
            self.console().print(grid)
