"""`lab tune`: Parameters that would have served better, beside those of random search."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab import tune
from controlplane.lab.actions.base import Action
from controlplane.lab.actions.cases import add_case, add_where, cases_of, chart_of
from controlplane.lab.tables import Lab
from scheduling.tuning.space import SPACES, space_of


class Tune(Action):
    name = "tune"
    help = "find parameters; compared with random search"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--policy", default="ewsjf", help=f"one of {', '.join(SPACES)} (default ewsjf)")
        add_case(parser)
        add_where(parser)
        parser.set_defaults(minutes=10.0)
        parser.add_argument(
            "--trials", type=int, default=8, help="trials of the optimiser, after the defaults (default 8)"
        )
        parser.add_argument("--seeds", type=int, default=3, help="runs with different tiers and proposals (default 3)")
        parser.add_argument("--random", type=int, default=60, help="trials of random search (default 60)")
        where = "rewards and best parameters as JSON, in a file or on standard output"
        parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help=where)

    def run(self, options: dict[str, Any]) -> None:
        if options["trials"] < 1 or options["random"] < 0:
            raise CommandError("--trials must be at least 1, --random at least 0")
        policy = options["policy"]
        space_of(policy)
        plot = chart_of(options)
        cases = cases_of(options, [(policy, (), False)])
        jobs = [job for case in cases for job in tune.searches(case, options["trials"], options["random"])]
        with self.progress(sum(job.trials for job in jobs)) as (bar, item):

            def done(job: tune.Search) -> None:
                label = f"{job.case.name}, seed {job.case.seed}"[:32]
                bar.update(item, advance=job.trials, description=label)

            figures = Lab(self.folder(), options["processes"]).figures(jobs, tune.run_search, tune.kept_name, done)
        lines = tune.lines_of(jobs, figures)
        if plot is not None:
            plot.write_text(tune.drawing(policy, lines), encoding="utf-8")
        if options["json"]:
            text = json.dumps({"policy": policy, "seeds": [line.as_json() for line in lines]}, indent=1)
            if options["json"] == "-":
                self.stdout.write(text)
            else:
                Path(options["json"]).write_text(f"{text}\n", encoding="utf-8")
        if options["json"] != "-":
            self.console().print(tune.grid_of(policy, lines))
