"""``manage.py experiment NAME``: an experiment on a live instance of its own, its figures and drawings."""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from controlplane.experiments import canary
from controlplane.experiments.clients import Drive
from controlplane.experiments.drawings import drawings
from controlplane.experiments.instance import ExperimentError
from controlplane.experiments.plan import Experiment
from controlplane.experiments.run import run
from controlplane.experiments.shipped import EXPERIMENTS

PLOT = "plot"


class Command(BaseCommand):
    help = (
        "Starts an instance of its own with simulated engines, drives it over HTTP as the token-pools paper did, and "
        "prints each phase's figures. pools-2 and canary take 6 minutes, the others 2 to 4. 'plot' draws what was kept "
        "before."
    )
    requires_system_checks: Sequence[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name",
            choices=[*sorted((*EXPERIMENTS, canary.CANARY.name)), PLOT],
            help="; ".join(e.title for e in (*EXPERIMENTS.values(), canary.CANARY)),
        )
        parser.add_argument("files", nargs="*", type=Path, help="with 'plot': what --json wrote")
        parser.add_argument("--json", type=Path, metavar="FILE", help="writes figures, samples and requests")
        parser.add_argument("--plot", type=Path, metavar="DIR", help="draws them as SVG files in this folder")
        parser.add_argument(
            "--admission",
            choices=("on", "off"),
            default="on",
            help="off: everything is let through to the engine, the paper's baseline",
        )
        parser.add_argument(
            "--headroom", type=int, metavar="SLOTS", help="of the pool, instead of the experiment's own"
        )
        parser.add_argument("--seed", type=int, default=0, help="of the lengths that clients ask for")

    def handle(self, *args: Any, **options: Any) -> None:
        if (options["name"] == PLOT) != bool(options["files"]):
            raise CommandError("'plot' needs files that --json wrote, and no other name takes any")
        _require_writable(options["json"], options["plot"])
        if options["name"] == PLOT:
            self._plot(options["plot"] or Path(), [json.loads(f.read_text("utf-8")) for f in options["files"]])
            return
        if options["name"] == canary.CANARY.name:
            self._canary(options)
            return
        experiment = EXPERIMENTS[options["name"]]
        if options["headroom"] is not None:
            experiment = replace(experiment, headroom_slots=options["headroom"])
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description:44}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TimeElapsedColumn(),
            console=console,
        )
        try:
            with bar, tempfile.TemporaryDirectory(prefix="qm-experiment-") as home:
                item = bar.add_task("starting an instance", total=experiment.length_s)

                def tick(now_s: float, drive: Drive) -> None:
                    done = sum(row.completed for row in drive.rows)
                    text = f"sent {len(drive.rows)}, completed {done}"
                    bar.update(item, completed=min(now_s, experiment.length_s), description=text)

                found = run(
                    experiment,
                    Path(home) / "home",
                    admission=options["admission"] == "on",
                    seed=options["seed"],
                    on_tick=tick,
                )
        except ExperimentError as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted; the instance was ended", returncode=130) from None
        self._show(experiment, found)
        if options["json"]:
            options["json"].write_text(json.dumps(found, indent=1), encoding="utf-8")
        if options["plot"]:
            self._plot(options["plot"], [found])

    def _canary(self, options: dict[str, Any]) -> None:
        console = Console(stderr=True)
        try:
            with tempfile.TemporaryDirectory(prefix="qm-experiment-") as home:
                found = canary.run(Path(home) / "home", console.print, seed=options["seed"])
        except ExperimentError as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted; the instance was ended", returncode=130) from None
        text = json.dumps(found, indent=1)
        self.stdout.write(text)
        if options["json"]:
            options["json"].write_text(text, encoding="utf-8")

    def _plot(self, folder: Path, found: list[dict[str, Any]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, drawing in drawings(found).items():
            (folder / f"{name}.svg").write_text(drawing, encoding="utf-8")
            self.stdout.write(f"{folder / name}.svg")

    def _show(self, experiment: Experiment, found: dict[str, Any]) -> None:
        grid = Table(
            "phase", "entitlement", "class", "sent", "completed", "refused", "of it low priority", "TTFT p50 s",
            "TTFT p99 s", "wait p95 s", "slots", "debt peak", "weight",
            title=f"{experiment.title}; admission {found['admission']}",
        )  # fmt: skip
        for row in found["phases"]:
            weight = "" if row["weight_min"] is None else f"{row['weight_min']:.4g} to {row['weight_max']:.4g}"
            grid.add_row(
                row["phase"], row["entitlement"], row["class"], str(row["sent"]), str(row["completed"]),
                str(row["refused"]), str(row["refused_low_priority"]), _text(row["ttft_p50_s"]),
                _text(row["ttft_p99_s"]), _text(row["queue_p95_s"]), _text(row["slots_mean"]),
                _text(row["debt_peak"]), weight,
            )  # fmt: skip
        console = Console(file=self.stdout._out, width=None if self.stdout.isatty() else 170)
        console.print(grid)
        pool = found["pool"]
        console.print(f"longest queue {pool['queue_max']}, utilization {_text(pool['utilization'])}")
        for name, value in found.get("findings", {}).items():
            console.print(f"{name}: {json.dumps(value)}", markup=False)


def _require_writable(file: Path | None, folder: Path | None) -> None:
    """An experiment takes minutes: that its figures cannot be kept is said before."""
    if file is not None and (file.is_dir() or not os.access(file if file.exists() else file.resolve().parent, os.W_OK)):
        raise CommandError(f"--json: {file} cannot be written")
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise CommandError(f"--plot: {folder}: {problem.strerror}") from None


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
