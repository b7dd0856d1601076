"""`lab shift`: How tuning follows a change of prompts."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab import shift
from controlplane.lab.actions.base import Action
from controlplane.lab.actions.cases import chart_of
from controlplane.lab.tables import Lab
from scheduling.tuning.space import SPACES, space_of


class Shift(Action):
    name = "shift"
    help = "show how tuning follows a change of prompts: automatic, advise, off"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--policy", default="ewsjf", help=f"one of {', '.join(SPACES)} (default ewsjf)")
        parser.add_argument("--seeds", type=int, default=5, help="runs with different traffic (default 5)")
        follows = "advise mode: minutes until a proposal is started (default %(default)g)"
        parser.add_argument("--follows", type=float, default=15.0, help=follows)
        limits = (
            "requests pass the product's admission; each tier's concurrency is its share of the slots, and the shipped "
            "tiers' queue limits and longest waits apply (default: everybody is let in)"
        )
        parser.add_argument("--limits", action="store_true", help=limits)
        parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a chart")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
        if options["seeds"] < 1 or not options["follows"] >= 0:
            raise CommandError("--seeds must be at least 1, --follows at least 0")
        policy, plot = options["policy"], chart_of(options)
        space_of(policy)
        jobs = shift.jobs(policy, options["seeds"], 60.0 * options["follows"], options["limits"])
        with self.progress(len(jobs)) as (bar, item):

            def done(job: shift.Job) -> None:
                bar.update(item, advance=1, description=f"{job.kind}, {job.mode}, seed {job.seed}")

            figures = Lab(self.folder(), options["processes"]).figures(jobs, shift.run_job, shift.kept_name, done)
        table = shift.rows_of_table(figures)
        if plot is not None:
            plot.write_text(shift.drawing(policy, figures), encoding="utf-8")
        if options["json"]:
            self.stdout.write(json.dumps(table, indent=1))
        else:
            self.console().print(shift.grid_of(policy, table))
