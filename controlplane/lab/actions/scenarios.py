"""`lab list`: The scenarios that there are."""

from __future__ import annotations

from typing import Any

from rich.table import Table as Grid

from controlplane.lab.actions.base import Action
from scheduling.simulator.lab import load_scenario, scenario_names


class List(Action):
    name = "list"
    help = "list the scenarios"

    def run(self, options: dict[str, Any]) -> None:
        grid = Grid("id", "name", "what", "paper")
        for scenario in sorted((load_scenario(name) for name in scenario_names()), key=lambda s: s.id):
            grid.add_row(scenario.id, scenario.name, scenario.title, scenario.paper)
        self.console().print(grid)
