"""`manage.py replay TRACE`: a real trace's arrivals and lengths, through HTTP, with a table at the end."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from scheduling.simulator.trace import TraceError, read_trace
from telemetry.replay.client import Progress as State
from telemetry.replay.client import Replay, Sender
from telemetry.replay.report import rows_as_json, summarise
from telemetry.replay.verify import compare
from tenants.selectors import tier_slos

SHARES = {"premium": 0.2, "standard": 0.5, "batch": 0.3}


class Command(BaseCommand):
    help = (
        "Replays a recorded trace (Azure LLM inference CSV or Mooncake JSONL, gz included) against a running instance "
        "and prints what its clients saw per tenant and tier. Ctrl-C ends it early and keeps the partial report."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="trace file")
        parser.add_argument("--speed", type=float, default=1.0, help="times the trace's own speed (default 1)")
        parser.add_argument("--limit", type=int, help="at most this many requests")
        parser.add_argument("--minutes", type=float, help="only the trace's first minutes")
        parser.add_argument(
            "--tenants-from",
            type=Path,
            metavar="FILE",
            help="JSON or YAML with base_url, model and keys {name: key} or tenants [{name, tier, key, share}]; "
            "default: demo.json of QUARTERMASTER_HOME",
        )
        parser.add_argument(
            "--shares", default="", help="e.g. premium=0.2,standard=0.5,batch=0.3: who sends how much of it"
        )
        parser.add_argument("--url", help="base URL, instead of the file's")
        parser.add_argument("--model", help="model, instead of the file's")
        parser.add_argument("--seed", type=int, default=0, help="for which tenant sends which request, and its words")
        parser.add_argument("--no-stream", action="store_true", help="ask for whole answers")
        parser.add_argument(
            "--respect-eos",
            action="store_true",
            help="let the model end early; by default the recorded output length is enforced (ignore_eos)",
        )
        parser.add_argument("--report", type=Path, metavar="OUT.json", help="writes the figures as JSON")
        parser.add_argument("--rows", action="store_true", help="... with one entry per request")
        parser.add_argument(
            "--no-ledger",
            action="store_true",
            help="do not compare with the ledger (for an instance whose database is elsewhere)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for name in ("speed", "limit", "minutes"):
            if options[name] is not None and not 0 < options[name] < math.inf:
                raise CommandError(f"--{name} must be a number above 0")
        if options["report"]:
            _require_writable(options["report"])
        try:
            trace = read_trace(
                options["trace"],
                limit=options["limit"],
                until_s=options["minutes"] * 60 if options["minutes"] else None,
            )
        except (TraceError, OSError) as problem:
            raise CommandError(str(problem)) from problem
        target_file = options["tenants_from"] or Path(
            os.environ.get("QUARTERMASTER_HOME", ".quartermaster"), "demo.json"
        )
        book = _read_book(target_file)
        replay = Replay(
            base_url=(options["url"] or str(book.get("base_url", ""))).rstrip("/"),
            model=options["model"] or str(book.get("model", "")),
            senders=_senders(book, options["shares"], target_file),
            trace=trace,
            speed=options["speed"],
            seed=options["seed"],
            stream=not options["no_stream"],
            ignore_eos=not options["respect_eos"],
        )
        if not replay.base_url or not replay.model:
            raise CommandError(f"{target_file} has no base_url and model; give --url and --model")
        console = Console(stderr=True)
        interrupted = self.run_with_bar(replay, console)
        report = summarise(replay.rows, tier_slos(), replay.duration_s)
        report["trace"] = options["trace"].name
        report["speed"] = replay.speed
        report["model"] = replay.model
        report["complete"] = not interrupted
        report["unsent"] = len(trace) - replay.progress.sent
        if options["rows"]:
            report["requests"] = rows_as_json(replay.rows)
        if options["report"]:  # before the ledger is asked, which may take a while or be interrupted
            _write(options["report"], report)
        if not options["no_ledger"]:
            try:
                with console.status("comparing with the ledger"):
                    comparison = compare(replay.rows)
            except KeyboardInterrupt:
                _print(report, Console(width=None if sys.stdout.isatty() else 150))
                raise CommandError("interrupted: the ledger was not compared", returncode=130) from None
            report["ledger"] = comparison.as_json()
            if options["report"]:
                _write(options["report"], report)
        _print(report, Console(width=None if sys.stdout.isatty() else 150))
        if interrupted:
            raise CommandError("interrupted: the report is partial", returncode=130)

    def run_with_bar(self, replay: Replay, console: Console) -> bool:
        """Runs the replay under a progress bar; True when Ctrl-C ended it."""
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        item = bar.add_task("replay", total=replay.progress.total)

        def show(state: State) -> None:
            bar.update(
                item,
                completed=state.completed + state.refused + state.failed,
                description=f"open {state.open:4d}  ok {state.completed}  refused {state.refused}  "
                f"failed {state.failed}",
            )

        async def go() -> bool:
            run = asyncio.create_task(replay.run(show))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, run.cancel)
            try:
                await run
            except asyncio.CancelledError:
                return True
            return False

        with bar:
            return asyncio.run(go())


def _require_writable(path: Path) -> None:
    """A replay may take an hour: that its report cannot be written is said before."""
    if not path.resolve().parent.is_dir():
        raise CommandError(f"--report: there is no folder {path.resolve().parent}")
    if path.is_dir():
        raise CommandError(f"--report: {path} is a folder")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise CommandError(f"--report: {path} cannot be written")


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=1) + "\n")
    except OSError as problem:
        raise CommandError(f"--report: {path}: {problem.strerror}") from problem


def _read_book(path: Path) -> dict[str, Any]:
    try:
        book = yaml.safe_load(path.read_text())
    except OSError as problem:
        raise CommandError(
            f"{path}: {problem.strerror}. Start an instance with `make up`, or give --tenants-from."
        ) from None
    except yaml.YAMLError as problem:
        raise CommandError(f"{path} is neither JSON nor YAML: {problem}") from None
    if not isinstance(book, dict):
        raise CommandError(f"{path}: expected an object with keys or tenants")
    return book


def _senders(book: dict[str, Any], shares: str, path: Path) -> list[Sender]:
    wanted: dict[str, float] = {}
    for part in filter(None, shares.split(",")):
        name, _, share = part.partition("=")
        try:
            wanted[name.strip()] = float(share)
        except ValueError:
            raise CommandError(f"--shares: {part!r} is not NAME=NUMBER") from None
    if "tenants" in book:
        try:
            senders = [
                Sender(str(t["name"]), str(t.get("tier", t["name"])), str(t["key"]), float(t.get("share", 1)))
                for t in book["tenants"]
            ]
        except (TypeError, KeyError, ValueError) as problem:
            raise CommandError(f"{path}: each tenant needs name and key, share is a number ({problem!r})") from None
    elif isinstance(book.get("keys"), dict) and book["keys"]:
        senders = [Sender(name, name, key, SHARES.get(name, 1.0)) for name, key in book["keys"].items()]
    else:
        raise CommandError(f"{path}: neither keys nor tenants in it")
    unknown = wanted.keys() - {sender.name for sender in senders}
    if unknown:
        raise CommandError(f"--shares: no such tenant: {', '.join(sorted(unknown))}")
    if wanted:
        senders = [Sender(s.name, s.tier, s.key, wanted[s.name]) for s in senders if wanted.get(s.name, 0) > 0]
    if not senders:
        raise CommandError("--shares: nobody would send anything")
    return senders


def _print(report: dict[str, Any], console: Console) -> None:
    def table(title: str, groups: dict[str, Any]) -> Table:
        result = Table(title=title, title_justify="left")
        result.add_column("")
        columns = (
            "sent",
            "completed",
            "refused",
            "failed",
            "TTFT p50/p95/p99 s",
            "TBT ms",
            "TTLT s",
            "SLO",
            "tokens/s",
        )
        for column in columns:
            result.add_column(column, justify="right", no_wrap=column not in ("refused", "failed"))
        for name, group in groups.items():
            result.add_row(
                name,
                f"{group['sent']}",
                f"{group['completed']}",
                _reasons(group["refused"]),
                _reasons(group["failed"]),
                _three(group["ttft_s"], 1, 2),
                _three(group["tbt_s"], 1000, 0),
                _three(group["ttlt_s"], 1, 1),
                "-" if group["slo_attainment"] is None else f"{100 * group['slo_attainment']:.1f} %",
                f"{group['tokens_per_s']:.0f}",
            )
        return result

    console.print(table("by tenant", report["tenants"]))
    console.print(table("by tier", {**report["tiers"], "all": report["total"]}))
    ledger = report.get("ledger")
    if ledger is not None:
        verdict = "the same" if ledger["equal"] else "DIFFERENT"
        console.print(
            f"ledger: {ledger['found']} of {ledger['sent']} requests, sums {verdict}"
            + (f"; {ledger['without_id']} got no answer and no id" if ledger["without_id"] else "")
        )
        for difference in ledger["differences"]:
            console.print(f"  {difference}", markup=False)


def _reasons(counts: dict[str, int]) -> str:
    return "0" if not counts else "\n".join(f"{count} {reason}" for reason, count in counts.items())


def _three(values: dict[str, float | None], factor: float, digits: int) -> str:
    return " / ".join("-" if value is None else f"{value * factor:.{digits}f}" for value in values.values())
