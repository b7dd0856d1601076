"""``manage.py experiment NAME``: an experiment of the token-pools paper, on a live instance of its own."""

from __future__ import annotations

import json
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from controlplane.experiments.clients import Drive
from controlplane.experiments.instance import ExperimentError
from controlplane.experiments.pools import EXPERIMENTS, Experiment
from controlplane.experiments.run import run


class Command(BaseCommand):
    help = (
        "Starts an instance of its own with a simulated engine, drives it over HTTP as the token-pools paper did, and "
        "prints each phase's figures. pools-1 takes 2 minutes, pools-2 takes 6."
    )
    requires_system_checks: Sequence[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", choices=sorted(EXPERIMENTS), help="; ".join(e.title for e in EXPERIMENTS.values()))
        parser.add_argument("--json", type=Path, metavar="FILE", help="writes figures, samples and requests")
        parser.add_argument(
            "--admission", choices=("on", "off"), default="on",
            help="off: everything is let through to the engine, the paper's baseline",
        )  # fmt: skip
        parser.add_argument("--seed", type=int, default=0, help="of the lengths that clients ask for")

    def handle(self, *args: Any, **options: Any) -> None:
        experiment = EXPERIMENTS[options["name"]]
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description:44}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TimeElapsedColumn(), console=console,
        )  # fmt: skip
        try:
            with bar, tempfile.TemporaryDirectory(prefix="qm-experiment-") as home:
                item = bar.add_task("starting an instance", total=experiment.length_s)

                def tick(now_s: float, drive: Drive) -> None:
                    done = sum(row.completed for row in drive.rows)
                    text = f"sent {len(drive.rows)}, completed {done}"
                    bar.update(item, completed=min(now_s, experiment.length_s), description=text)

                found = run(
                    experiment, Path(home) / "home", admission=options["admission"] == "on", seed=options["seed"],
                    on_tick=tick,
                )  # fmt: skip
        except ExperimentError as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted; the instance was ended", returncode=130) from None
        self._show(experiment, found)
        if options["json"]:
            options["json"].write_text(json.dumps(found, indent=1), encoding="utf-8")

    def _show(self, experiment: Experiment, found: dict[str, Any]) -> None:
        grid = Table(
            "phase", "entitlement", "class", "sent", "completed", "refused", "of it low priority", "TTFT p50 s",
            "TTFT p99 s", "slots", "debt peak", "weight", title=f"{experiment.title}; admission {found['admission']}",
        )  # fmt: skip
        for row in found["phases"]:
            weight = "" if row["weight_min"] is None else f"{row['weight_min']:.4g} to {row['weight_max']:.4g}"
            grid.add_row(
                row["phase"], row["entitlement"], row["class"], str(row["sent"]), str(row["completed"]),
                str(row["refused"]), str(row["refused_low_priority"]), _text(row["ttft_p50_s"]),
                _text(row["ttft_p99_s"]), _text(row["slots_mean"]), _text(row["debt_peak"]), weight,
            )  # fmt: skip
        console = Console(file=self.stdout._out, width=None if self.stdout.isatty() else 170)
        console.print(grid)
        pool = found["pool"]
        console.print(f"longest queue {pool['queue_max']}, utilization {_text(pool['utilization'])}")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
