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
from scheduling.core.policies.registry import make_ordering


class Shift(Action):
    name = "shift"
    help = "show how tuning follows a change of the mix: automatic, advise, random, off"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--policy", default=shift.DEFAULT, help="what the pool begins with (default %(default)s)")
        parser.add_argument("--kind", action="append", choices=shift.KINDS, help="only this mix; may be repeated")
        modes = (*shift.MODES, "oracle", shift.HINDSIGHT)
        parser.add_argument("--mode", action="append", choices=modes, help="only this mode; may be repeated")
        parser.add_argument("--seeds", type=int, default=5, help="runs with different traffic (default 5)")
        follows = "advise mode: minutes until a proposal is started (default %(default)g)"
        parser.add_argument("--follows", type=float, default=15.0, help=follows)
        limits = (
            "requests pass the product's admission; each tier's concurrency is its share of the slots, and the shipped "
            "tiers' queue limits and longest waits apply (default: everybody is let in)"
        )
        parser.add_argument("--limits", action="store_true", help=limits)
        settled = (
            "one study on the first minutes of the second mix, measured on what comes after them; mode hindsight is "
            "the best setting on what is measured, under which no tier pays"
        )
        parser.add_argument("--settled", action="store_true", help=settled)
        parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a chart")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
        if options["seeds"] < 1 or not options["follows"] >= 0:
            raise CommandError("--seeds must be at least 1, --follows at least 0")
        policy, plot = options["policy"], chart_of(options)
        make_ordering(policy)
        if shift.HINDSIGHT in (options["mode"] or ()) and not options["settled"]:
            raise CommandError("--mode hindsight: only with --settled")
        kinds, modes = options["kind"] or shift.KINDS, options["mode"] or shift.modes_of(options["settled"])
        follows_s, limits = 60.0 * options["follows"], options["limits"]
        jobs = shift.jobs(policy, options["seeds"], follows_s, kinds, modes, options["settled"], limits)
        with self.progress(len(jobs)) as (bar, item):

            def done(job: shift.Job) -> None:
                bar.update(item, advance=1, description=f"{job.kind}, {job.mode}, seed {job.seed}")

            figures = Lab(self.folder(), options["processes"]).figures(jobs, shift.run_job, shift.kept_name, done)
        if options["settled"]:
            rows = shift.settled_rows(figures)
            if options["json"]:
                self.stdout.write(json.dumps(rows, indent=1))
            else:
                self.console().print(shift.settled_grid(rows))
            return
        table = shift.rows_of_table(figures)
        if plot is not None:
            plot.write_text(shift.drawing(policy, figures), encoding="utf-8")
        if options["json"]:
            self.stdout.write(json.dumps(table, indent=1))
        else:
            self.console().print(shift.grid_of(policy, table))
