"""`manage.py estimates evaluate --data FILE...`: how wrong each way of predicting output lengths is, and its cost."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from scheduling.estimation.embedding import Embedder
from scheduling.estimation.evaluation import data, endtoend, run
from scheduling.estimation.evaluation.latency import measure
from scheduling.estimation.evaluation.methods import PRODUCT, TOGETHER, WITHOUT
from scheduling.estimation.tokenizer import Tokenizer, TokenizerError

TENANTS = 8
MAX_TENANTS = 30  # lines of a table
STEPS = ("tokenise", "classify", "features", "embed", "search", "predict", "cost", "gittins", "total", "wall")


class Command(BaseCommand):
    help = (
        "Compares the predictors of output length on prompts whose answers are known: trains each on a part of them "
        "(the earlier ones, or by a hash of the prompt) and scores it on the rest."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        evaluate = actions.add_parser("evaluate", help="show errors by method, and the cost of an estimate")
        simulate = actions.add_parser("simulate", help="show waiting times with each predictor, in a simulated engine")
        for action in (evaluate, simulate):
            action.add_argument(
                "--data",
                nargs="+",
                required=True,
                metavar="FILE",
                help="CSV, JSON lines, JSON or Parquet, .gz or not, or folders of them: a prompt and its answer or the "
                "answer's length per row",
            )
            action.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
            action.add_argument(
                "--tokenizer",
                type=Path,
                metavar="FILE",
                help="a model's tokenizer.json: counts tokens if the files do not, and is timed",
            )
            action.add_argument(
                "--tenants",
                type=int,
                default=TENANTS,
                metavar="N",
                help="assign prompts without a tenant or application to this many tenants, of "
                f"sizes 1, 1/2, ... 1/N (default {TENANTS}; 1: one tenant)",
            )
            action.add_argument(
                "--by-label",
                action="store_true",
                help="treat each label of a file with 100 prompts or more as an application of its own",
            )
        simulate.add_argument(
            "--where",
            choices=endtoend.PLACES,
            default=endtoend.FRONT,
            help="where the policy decides: in front of the engine, as this product serves (default), or inside it",
        )
        simulate.add_argument(
            "--policies",
            nargs="+",
            choices=endtoend.POLICIES,
            default=endtoend.POLICIES,
            metavar="POLICY",
            help=f"only these (default {' '.join(endtoend.POLICIES)})",
        )
        simulate.add_argument(
            "--ceiling",
            action="store_true",
            help="also what learners find that have seen the answers to all other prompts, and other models' answers",
        )
        simulate.add_argument("--seed", type=int, default=1, help="seed of the arrivals and the order of the prompts")

    def handle(self, *args: Any, **options: Any) -> None:
        out: Path | None = options["json"]
        if out is not None and not out.resolve().parent.is_dir():
            raise CommandError(f"--json: there is no folder {out.resolve().parent}")
        if out is not None and out.is_dir():
            raise CommandError(f"--json: {out} is a folder")
        if not 1 <= options["tenants"] <= 1_000:
            raise CommandError("--tenants: a number from 1 to 1000")
        began = time.monotonic()
        try:
            count = None if options["tokenizer"] is None else Tokenizer(options["tokenizer"]).count
            examples = data.read_all(options["data"], count, lambda why: self.stderr.write(f"left out: {why}"))
            examples = data.deal(examples, options["tenants"])
            if options["by_label"]:
                examples = data.by_label(examples)
            if options["action"] == "simulate":
                self._simulate(examples, options, out)
            else:
                self._evaluate(examples, count, out, began)
        except (data.DataError, TokenizerError) as problem:
            raise CommandError(str(problem)) from problem
        except KeyboardInterrupt:
            raise CommandError("interrupted: nothing is written", returncode=130) from None

    def _simulate(self, examples: list[data.Example], options: dict[str, Any], out: Path | None) -> None:
        console, where = self._console(), options["where"]
        with _bar(console) as bar:
            task = bar.add_task("", total=None)
            report = endtoend.compare(
                run.cases_of(examples, Embedder()),
                options["seed"],
                lambda name, done, total: bar.update(task, description=name, completed=done, total=total),
                where,
                options["policies"],
                options["ceiling"],
            )
        if out is not None:
            out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        _table(
            console,
            f"Time to the last token of {report['requests']} requests at {report['rate']:.1f}/s, "
            f"{report['load']:g} times what the engine can do; the policy decides "
            f"{'in front of it' if where == endtoend.FRONT else 'inside it'}",
            ("policy", "predictor", "mean [s]", "p99 [s]", "to oracle lengths", "to the application's history"),
            [
                (r["policy"], r["predictor"], f"{r['mean_ttlt_s']:.1f}", f"{r['p99_s']:.1f}",
                 *("-" if r[name] is None else f"{r[name]:.2f}" for name in ("to_oracle", "to_constant")))
                for r in report["runs"]
            ],
        )  # fmt: skip

    def _console(self) -> Console:
        return Console(file=cast("IO[str] | None", getattr(self.stdout, "_out", None)))

    def _evaluate(
        self, examples: list[data.Example], count: Callable[[str], int] | None, out: Path | None, began: float
    ) -> None:
        train_rows, test_rows, how = data.split(examples)
        if not train_rows or not test_rows:
            prompts = len({e.prompt for e in examples})
            raise CommandError(
                f"{len(examples)} examples of {prompts} prompts are too few to be split into training and test"
            )
        embedder = Embedder()
        train, test = run.cases_of(train_rows, embedder), run.cases_of(test_rows, embedder)
        console = self._console()
        with _bar(console) as bar:
            task = bar.add_task("", total=None)
            scores = run.compare(
                train, test, lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
            )
            bar.update(task, description="drift, classifiers, latency")
            report: dict[str, Any] = {
                "data": {
                    "files": sorted({e.file for e in examples}), "rows": len(examples), "train": len(train),
                    "test": len(test), "split": how, "models": sorted({e.model for e in examples}),
                    "applications": len({e.application for e in examples}),
                    "tenants": len({e.tenant for e in examples}),
                },
                "methods": [score.as_json() for score in scores],
                "drift": run.drift_in_its_own_units([*train, *test]),
                "newcomers": run.newcomers(train),
                "convergence": run.convergence(train),
                "shift": run.shift([*train, *test]),
                "classifiers": run.classifiers(train, test, embedder),
                "latency_ms": measure(train, test, count),
            }  # fmt: skip
        report["seconds"] = round(time.monotonic() - began, 1)
        if out is not None:
            out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        for print_part in PRINTED:
            print_part(console, report)


def _method(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(method for method in report["methods"] if method["name"] == name)
    return found


def _print_data(console: Console, report: dict[str, Any]) -> None:
    about = report["data"]
    console.print(
        f"{about['rows']} prompts of {len(about['files'])} files: {about['train']} to learn from, "
        f"{about['test']} to be scored on (split by {about['split']}), of {about['tenants']} tenants; "
        f"{report['seconds']} s"
    )


def _print_methods(console: Console, report: dict[str, Any]) -> None:
    _table(
        console, "Error by method [tokens]",
        ("method", "rows", "MAE", "RMSE", "median APE", "pinball", "Spearman", "coverage of 90 %"),
        [
            (m["name"], m["rows"], f"{m['mae']:.1f}", f"{m['rmse']:.1f}", f"{m['mdape']:.3f}",
             f"{m['pinball']:.1f}", "-" if m["spearman"] is None else f"{m['spearman']:.3f}",
             f"{m['coverage90']:.3f}")
            for m in report["methods"]
        ],
    )  # fmt: skip
    again = [m for m in report["methods"] if m["repeated"] is not None]
    if again:
        _table(
            console, f"The same on the {again[0]['repeated']['rows']} answers whose prompt occurs more than once",
            ("method", "MAE", "RMSE", "median APE", "Spearman"),
            [
                (m["name"], f"{r['mae']:.1f}", f"{r['rmse']:.1f}", f"{r['mdape']:.3f}",
                 "-" if r["spearman"] is None else f"{r['spearman']:.3f}")
                for m in again for r in (m["repeated"],)
            ],
        )  # fmt: skip


def _print_tenants(console: Console, report: dict[str, Any]) -> None:
    alone, together = (_method(report, name) for name in (PRODUCT, TOGETHER))
    _table(
        console, "By tenant: each with its own history (the product), and all in one history",
        ("tenant", "scored", "MAE own", "MAE one", "Spearman own", "Spearman one", "90 % own", "90 % one"),
        [
            (tenant or "-", m["rows"], f"{m['mae']:.1f}", f"{o['mae']:.1f}", _figure(m["spearman"], 3),
             _figure(o["spearman"], 3), f"{m['coverage90']:.3f}", f"{o['coverage90']:.3f}")
            for tenant, m in list(alone["by_tenant"].items())[:MAX_TENANTS]
            for o in (together["by_tenant"][tenant],)
        ],
    )  # fmt: skip


def _print_newcomers(console: Console, report: dict[str, Any]) -> None:
    _table(
        console,
        "A tenant new to a pool that the others have taught: MAE [tokens] of its first answers",
        ("answers", "own history", "one history"),
        [(f"{n['from']} to {n['to']}", _figure(n[PRODUCT], 1), _figure(n[TOGETHER], 1)) for n in report["newcomers"]],
    )


def _print_applications(console: Console, report: dict[str, Any]) -> None:
    history, without, product = (_method(report, name) for name in ("application history", WITHOUT, PRODUCT))
    _table(
        console,
        "Order within an application: its history, the product without regression, the product",
        ("application", "scored", "Spearman", "MAE [tokens]", "coverage"),
        [
            (name, m["rows"], " / ".join(_figure(e["spearman"], 2) for e in each),
             " / ".join(f"{e['mae']:.1f}" for e in each), " / ".join(f"{e['coverage90']:.2f}" for e in each))
            for name, m in list(product["by_application"].items())[:MAX_TENANTS]
            for each in ([history["by_application"][name], without["by_application"][name], m],)
        ],
    )  # fmt: skip


def _print_drift(console: Console, report: dict[str, Any]) -> None:
    drift = report["drift"]
    if drift["rows"]:
        _table(
            console, "DriftSched's measure: estimate and answer in the same unit, correction off and on",
            ("unit", "MAE off", "MAE on", "change", "RMSE off", "RMSE on", "change"),
            [
                (unit, f"{d['mae_off']:.1f}", f"{d['mae_on']:.1f}", f"{d['mae_change']:+.0%}",
                 f"{d['rmse_off']:.1f}", f"{d['rmse_on']:.1f}", f"{d['rmse_change']:+.0%}")
                for unit, d in drift.items() if unit != "rows"
            ],
        )  # fmt: skip


def _print_shift(console: Console, report: dict[str, Any]) -> None:
    shift = report["shift"]
    _table(
        console, f"Other prompts, a model that says {run.LONGER:g} times as much, after {shift['before']} answers",
        ("method", "MAE before", f"next {shift['stretch']}", f"next {shift['stretch']}", "in the end", "recovered"),
        [
            (m["name"], f"{m['mae_before']:.1f}", *(f"{mae:.1f}" for mae in (*m["mae_after"], 0.0, 0.0)[:2]),
             f"{m['mae_final']:.1f}", f"after {m['recovered_after']}")
            for m in shift["methods"]
        ],
    )  # fmt: skip


def _print_convergence(console: Console, report: dict[str, Any]) -> None:
    names = [name for name in report["convergence"][0] if name != "after"]
    _table(
        console,
        "How fast: MAE [tokens] of the next answers after so many",
        ("answers", *names),
        [(c["after"], *(f"{c[n]:.1f}" for n in names)) for c in report["convergence"]],
    )


def _print_classifiers(console: Console, report: dict[str, Any]) -> None:
    _table(
        console, "Categories: what they are worth to tokens + EMA",
        ("classifier", "MAE", "Spearman", "labels told", "share of prompts"),
        [
            (c["name"], f"{c['mae']:.1f}", "-" if c["spearman"] is None else f"{c['spearman']:.3f}",
             "-" if c.get("label_accuracy") is None else f"{c['label_accuracy']:.0%}",
             ", ".join(f"{name} {share:.0%}" for name, share in c["share"].items()))
            for c in report["classifiers"]
        ],
    )  # fmt: skip


def _print_latency(console: Console, report: dict[str, Any]) -> None:
    cost = report["latency_ms"]
    _table(
        console,
        f"Latency [ms of one thread's CPU], window of {cost['window']}, input tokens "
        + ("by the tokenizer" if cost["tokenizer"] else "from words and bytes"),
        ("step", "p50", "p99"),
        [(step, f"{cost[f'{step}_p50']:.4f}", f"{cost[f'{step}_p99']:.4f}") for step in STEPS],
    )


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<42}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), console=console, transient=True,
    )  # fmt: skip


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(title=escape(title), title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)


PRINTED = (
    _print_data,
    _print_methods,
    _print_tenants,
    _print_newcomers,
    _print_applications,
    _print_drift,
    _print_shift,
    _print_convergence,
    _print_classifiers,
    _print_latency,
)
