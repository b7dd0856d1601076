"""`manage.py replay TRACE`: a real trace's arrivals and lengths, through HTTP, with a table at the end.

A client and nothing else: it opens no database, asks the instance for everything, and asks before it sends. The report
is on disk from the first moment on and says of each part that is missing why.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from controlplane.replay import client
from controlplane.replay.client import Replay, Sender
from controlplane.replay.instance import CannotAsk, Instance
from controlplane.replay.keep import ReportFile
from controlplane.replay.report import Sent, rows_as_json, summarise
from controlplane.replay.verify import compare
from scheduling.core.types import Slo
from scheduling.simulator.trace import TraceError, read_trace

KEEP_S = 10.0  # between two states of the report on disk
MAX_SHARE_OF_TIME = 0.05  # that writing them may take
SHARES = {"premium": 0.2, "standard": 0.5, "batch": 0.3}


class Command(BaseCommand):
    help = (
        "Replays a recorded trace (Azure LLM inference CSV or Mooncake JSONL, gz included) against a running instance "
        "and prints what its clients saw per tenant and tier. Ctrl-C ends it early and keeps the partial report. It "
        "uses only the instance's API, with the keys and the access token of --tenants-from."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="trace file")
        parser.add_argument("--speed", type=float, default=1.0, help="multiple of the trace's own speed (default 1)")
        parser.add_argument("--limit", type=int, help="at most this many requests")
        parser.add_argument("--minutes", type=float, help="only the trace's first minutes")
        parser.add_argument(
            "--tenants-from",
            type=Path,
            metavar="FILE",
            help="JSON or YAML with base_url, model, token and keys {name: key} or tenants [{name, tier, key, share}]; "
            "default: demo.json of QUARTERMASTER_HOME",
        )
        parser.add_argument(
            "--shares", default="", help="e.g. premium=0.2,standard=0.5,batch=0.3: share of requests per key"
        )
        parser.add_argument("--url", help="base URL, instead of the file's")
        parser.add_argument("--model", help="model, instead of the file's")
        parser.add_argument("--seed", type=int, default=0, help="seed of tenants and words (default 0)")
        parser.add_argument("--no-stream", action="store_true", help="request answers that are not streamed")
        parser.add_argument(
            "--respect-eos",
            action="store_true",
            help="let the model end early; by default the recorded output length is enforced (ignore_eos)",
        )
        parser.add_argument(
            "--token-file",
            type=Path,
            metavar="FILE",
            help="access token (qma-...) of a user who may see these keys (`manage.py token USER`); default: the "
            "token in --tenants-from",
        )
        parser.add_argument("--report", type=Path, metavar="OUT.json", help="write the results as JSON")
        parser.add_argument("--rows", action="store_true", help="with --report: include one entry per request")
        parser.add_argument(
            "--no-ledger",
            action="store_true",
            help="do not compare with the ledger; without an access token SLOs are not evaluated either",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for name in ("speed", "limit", "minutes"):
            if options[name] is not None and not 0 < options[name] < math.inf:
                raise CommandError(f"--{name} must be a number above 0")
        file = _report_file(options["report"])
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
        instance = Instance(replay.base_url, _token(options["token_file"], book))
        with contextlib.closing(instance):
            try:
                with _asking(console, "asking the instance"):
                    targets, missing = self.check_instance(instance, replay, ledger=not options["no_ledger"])
                    served_by = self.served_by(instance, replay)
            except KeyboardInterrupt:
                raise CommandError("interrupted: nothing was sent", returncode=130) from None
            draft = _Draft(replay, targets, missing, options["trace"].name, options["rows"], file, served_by)
            interrupted = self.run_with_bar(replay, console, draft)
            self.finish(instance, draft, console, interrupted=interrupted, ledger=not options["no_ledger"])

    @staticmethod
    def check_instance(instance: Instance, replay: Replay, *, ledger: bool) -> tuple[dict[str, Slo], dict[str, str]]:
        """Everything that the end will need, asked for before anything is sent: the tiers' promises, and what of the
        report will be missing and why."""
        try:
            instance.check_keys(replay.senders, replay.model)
        except CannotAsk as problem:
            raise CommandError(f"{problem}. Nothing was sent.") from None
        if not instance.token and not ledger:
            return {}, {"slo": "no access token was given, so the tiers' promises are not known"}
        advice = "Give an access token of an operator or admin (--token-file), or --no-ledger. Nothing was sent."
        if not instance.token:
            raise CommandError(f"The ledger cannot be read without an access token. {advice}")
        try:
            if ledger:
                instance.check_ledger(replay.senders)
            return instance.targets(), {}
        except CannotAsk as problem:
            raise CommandError(f"{problem}. {advice}") from None

    @staticmethod
    def served_by(instance: Instance, replay: Replay) -> dict[str, Any] | None:
        """What decides and serves, for `lab parity`; None where the token does not show it."""
        try:
            return instance.served_by(replay.senders, replay.model) if instance.token else None
        except CannotAsk:
            return None

    @staticmethod
    def finish(instance: Instance, draft: _Draft, console: Console, *, interrupted: bool, ledger: bool) -> None:
        """Compares with the ledger, writes and prints; says at the very end what is missing."""
        missing = draft.missing
        missing.pop("requests", None)
        draft.ask_turnaround(instance)
        if interrupted:
            missing["requests"] = f"interrupted: {draft.unsent} of {len(draft.replay.trace)} were not sent"
        if ledger:
            missing["ledger"] = "the process ended before the ledger was compared"
            draft.keep()  # before the ledger is asked, which may take a while or be interrupted
            try:
                with _asking(console, "comparing with the ledger"):
                    read = lambda: instance.ledger(draft.replay.senders)  # noqa: E731
                    draft.ledger = compare(draft.replay.rows, read).as_json()
                del missing["ledger"]
            except CannotAsk as problem:
                missing["ledger"] = str(problem)
            except KeyboardInterrupt:
                interrupted, missing["ledger"] = True, "interrupted: the ledger was not compared"
        report = draft.keep(last=True)
        _print(report, Console(width=None if sys.stdout.isatty() else 150))
        unasked = {part: why for part, why in missing.items() if part != "slo"}
        if draft.problem:
            raise CommandError(f"--report: {draft.problem}")
        if unasked:
            reasons = "; ".join(f"{part}: {why}" for part, why in unasked.items())
            raise CommandError(f"the report is partial. {reasons}", returncode=130 if interrupted else 1)

    def run_with_bar(self, replay: Replay, console: Console, draft: _Draft) -> bool:
        """Runs the replay under a progress bar; True when Ctrl-C ended it."""
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        item = bar.add_task("replay", total=replay.progress.total)

        def show(state: client.Progress) -> None:
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
            keeping = asyncio.create_task(draft.keep_going())
            try:
                await run
            except asyncio.CancelledError:
                return True
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            return False

        with bar:
            return asyncio.run(go())


class _Draft:
    """The report while it grows. ``missing``: part -> why it is not there."""

    def __init__(
        self, replay: Replay, targets: dict[str, Slo], missing: dict[str, str], trace: str, rows: bool,
        file: ReportFile | None, served_by: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        self.replay = replay
        self.missing = {**missing, "requests": "the process ended while requests were sent or answered"}
        self.ledger: dict[str, Any] | None = None
        self.problem = ""  # why the latest state is not on disk
        self._targets = targets
        self._trace = trace
        self._rows = rows
        self._file = file
        self._served_by = served_by
        self._began = time.monotonic()

    @property
    def unsent(self) -> int:
        return len(self.replay.trace) - self.replay.progress.sent

    def ask_turnaround(self, instance: Instance) -> None:
        """How quickly grants followed from first tokens under this load, for the lab. Not knowing it costs nothing."""
        if self._served_by is not None:
            with contextlib.suppress(CannotAsk):
                self._served_by["turnaround_ms"] = instance.turnaround_ms(self._served_by["pool"]["slug"])

    def keep(self, *, last: bool = False) -> dict[str, Any]:
        """The report as it is now, also on disk. What cannot be written is in ``problem``."""
        rows: list[Sent] = list(self.replay.rows)
        report = summarise(rows, self._targets, self.replay.duration_s or time.monotonic() - self._began)
        report["trace"] = self._trace
        report["speed"] = self.replay.speed
        report["model"] = self.replay.model
        report["served_by"] = self._served_by
        report["complete"] = not self.missing.keys() - {"slo"}
        report["missing"] = dict(self.missing)
        report["unsent"] = self.unsent
        if self._rows:
            report["requests"] = rows_as_json(rows)
        if self.ledger is not None:
            report["ledger"] = self.ledger
        if self._file is not None:
            try:
                self._file.write(report, last=last)
                self.problem = ""
            except OSError as problem:
                self.problem = f"{self._file.path}: {problem.strerror or problem}"
        return report

    async def keep_going(self) -> None:
        """Writes every now and then, in a thread of its own, so that a kill loses little."""
        while self._file is not None:
            began = time.monotonic()
            await asyncio.to_thread(self.keep)
            await asyncio.sleep(max(KEEP_S, (time.monotonic() - began) / MAX_SHARE_OF_TIME))


@contextlib.contextmanager
def _asking(console: Console, what: str) -> Iterator[None]:
    """Shows what is waited for; SIGTERM ends it as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with console.status(what):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report_file(path: Path | None) -> ReportFile | None:
    try:
        return None if path is None else ReportFile(path)
    except OSError as problem:
        raise CommandError(f"--report: {problem}") from None


def _token(file: Path | None, book: dict[str, Any]) -> str:
    if file is None:
        return str(book.get("token") or "")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise CommandError(f"--token-file: {file}: {getattr(problem, 'strerror', None) or 'not a text'}") from None


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
        raise CommandError("--shares: all shares are 0")
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
    for part, why in report["missing"].items():
        console.print(f"missing: {part}: {why}", markup=False)


def _reasons(counts: dict[str, int]) -> str:
    return "0" if not counts else "\n".join(f"{count} {reason}" for reason, count in counts.items())


def _three(values: dict[str, float | None], factor: float, digits: int) -> str:
    return " / ".join("-" if value is None else f"{value * factor:.{digits}f}" for value in values.values())
