"""`manage.py lab`: the papers' tables, computed here."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from controlplane.lab import Lab, Table, figure, interval, report
from scheduling.simulator.lab import Scenario, ScenarioError, Task, load_scenario, scenario_names, tasks_of


class Command(BaseCommand):
    help = (
        "Runs the tables of the scheduling papers in the simulator and shows the paper's figures beside ours. "
        "Needs no running instance; figures are kept in QUARTERMASTER_HOME/lab, so an interrupted run goes on."
    )
    requires_system_checks: Sequence[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, default=0, help="how many run at once (default: all cores)")
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="the scenarios")
        run = actions.add_parser("run", help="one or more scenarios")
        run.add_argument("names", nargs="+", metavar="NAME", help="a scenario's name or id, or 'all'")
        run.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")
        page = actions.add_parser("report", help="all scenarios, written as a page")
        page.add_argument("--output", type=Path, default=Path("docs/papers.md"), help="default docs/papers.md")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["processes"] < 0:
            raise CommandError("--processes must be at least 0")
        try:
            if options["action"] == "list":
                self._list()
            elif options["action"] == "run":
                self._run(options)
            else:
                self._report(options)
        except ScenarioError as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError(
                "interrupted; what was finished is kept and will not be run again", returncode=130
            ) from None

    def _list(self) -> None:
        grid = Grid("id", "name", "what", "paper")
        for scenario in sorted((load_scenario(name) for name in scenario_names()), key=lambda s: s.id):
            grid.add_row(scenario.id, scenario.name, scenario.title, scenario.paper)
        self._console().print(grid)

    def _run(self, options: dict[str, Any]) -> None:
        names = scenario_names() if "all" in options["names"] else options["names"]
        tables = self._tables([load_scenario(name) for name in names], options["processes"])
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
            self._console().print(grid)

    def _report(self, options: dict[str, Any]) -> None:
        output: Path = options["output"]
        if not output.resolve().parent.is_dir():
            raise CommandError(f"--output: there is no folder {output.resolve().parent}")
        scenarios = sorted((load_scenario(name) for name in scenario_names()), key=lambda s: s.id)
        tables = self._tables(scenarios, options["processes"])
        output.write_text(report(tables), encoding="utf-8")
        self.stdout.write(f"wrote {output}")

    def _tables(self, scenarios: Sequence[Scenario], processes: int) -> list[Table]:
        total = sum(len(tasks_of(scenario)) for scenario in scenarios)
        bar = Progress(
            TextColumn("{task.description:32}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), console=Console(stderr=True),
        )  # fmt: skip
        with bar:
            item = bar.add_task("runs", total=total)

            def done(task: Task) -> None:
                bar.update(item, advance=1, description=f"{task.scenario}: {task.run}"[:32])

            return Lab(Path(settings.HOME) / "lab", processes).tables(scenarios, done)

    def _console(self) -> Console:
        return Console(file=self.stdout._out, width=None if self.stdout.isatty() else 170)
