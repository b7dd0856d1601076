"""`manage.py lab`: the papers' tables, computed here, and policies side by side on recorded traces."""

from __future__ import annotations

import json
import math
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, cast

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from controlplane.lab import bar, compare, front, parity, shift, tune, unified
from controlplane.lab.tables import Figures, Lab, Table, figure, interval, page, report, sections
from controlplane.tuning import recent, replicas
from scheduling.core.prefill_credit import USUAL_BUDGET
from scheduling.core.registry import PolicyError, make_ordering
from scheduling.core.step_time import preset_names
from scheduling.simulator.compare import GRANT_DELAY_S, PLACES, Case, CompareError, parse_policy, parse_shares, run_case
from scheduling.simulator.duel import SEEDS, Bout, bout_name, bouts_of, fight, load_match, match_names, verdicts_of
from scheduling.simulator.lab import Scenario, ScenarioError, Task, load_scenario, scenario_names, tasks_of
from scheduling.simulator.trace import TraceError
from scheduling.simulator.workload import write_mix
from scheduling.tuning.space import SPACES, space_of
from tenants.models import Pool

PAGE = Path("docs/results/papers.md")


class Command(BaseCommand):
    help = (
        "Runs the tables of the scheduling papers in the simulator and shows the paper's figures beside ours. "
        "Needs no running instance; results are kept in QUARTERMASTER_HOME/lab, so an interrupted run continues."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, default=0, help="processes (default: one per core)")
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="list the scenarios")
        run = actions.add_parser("run", help="run one or more scenarios")
        run.add_argument("names", nargs="+", metavar="NAME", help="a scenario's name or id, or 'all'")
        run.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")
        self._add_compare(actions.add_parser("compare", help="compare policies on recorded traces"))
        self._add_front(actions.add_parser("front", help="compare policies inside engines and in front of them"))
        self._add_bar(actions.add_parser("bar", help="compare the default with every shipped composition, in front"))
        self._add_tune(actions.add_parser("tune", help="find parameters; compared with random search"))
        tape = actions.add_parser("record", help="write a pool's recent requests as a trace, without any text")
        tape.add_argument("--pool", required=True)
        tape.add_argument("--minutes", type=float, default=60.0, help="how far back (default %(default)g)")
        tape.add_argument("--sample", action="store_true", help="the long-term sample instead; its rate has no meaning")
        tape.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
        self._add_parity(actions.add_parser("parity", help="serve a replay's requests again in the lab, and compare"))
        sure = actions.add_parser("trust", help="compare simulated and live latencies of a pool")
        sure.add_argument("--pool", required=True)
        sure.add_argument("--minutes", type=float, default=10.0, help="how far back (default %(default)g)")
        sure.add_argument("--until", default="", metavar="TIME", help="where the window ends, ISO 8601 (default: now)")
        sure.add_argument(
            "--calibrate", action="store_true", help="first fit the engines, on as much time before the window"
        )
        sure.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
        mix = actions.add_parser("mix", help="write EWSJF's 80/20 mix of short and long prompts as a trace")
        mix.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
        mix.add_argument("--requests", type=int, default=4000, help="how many (default 4000)")
        mix.add_argument("--rate", type=float, default=10.0, help="Poisson arrivals [requests/s] (default 10)")
        mix.add_argument("--seed", type=int, default=1)
        change = actions.add_parser("shift", help="show how tuning follows a change of prompts: automatic, advise, off")
        change.add_argument("--policy", default="ewsjf", help=f"one of {', '.join(SPACES)} (default ewsjf)")
        change.add_argument("--seeds", type=int, default=5, help="runs with different traffic (default 5)")
        follows = "advise mode: minutes until a proposal is started (default %(default)g)"
        change.add_argument("--follows", type=float, default=15.0, help=follows)
        change.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a chart")
        change.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")
        duel = actions.add_parser("unified", help="compare the default policy with the best of each paper")
        duel.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each policy (default {SEEDS})")
        duel.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")
        pages = actions.add_parser("report", help="scenarios, written as a page; without names all of them")
        some = "scenarios by name or id, and 'unified'; the page's other sections stay as they are"
        pages.add_argument("names", nargs="*", metavar="NAME", help=some)
        pages.add_argument("--output", type=Path, default=PAGE, help=f"default {PAGE}")

    @classmethod
    def _add_compare(cls, parser: ArgumentParser) -> None:
        parser.add_argument("policies", nargs="+", metavar="POLICY", help="[MODIFIER+...]NAME[:PARAMETER=VALUE,...]")
        cls._add_case(parser)
        cls._add_where(parser)
        oracle = "add a row: this policy with known true lengths, as an upper limit"
        parser.add_argument("--clairvoyant", metavar="POLICY", help=oracle)
        parser.add_argument("--seeds", type=int, default=3, help="runs with different tiers, averaged (default 3)")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")

    @classmethod
    def _add_front(cls, parser: ArgumentParser) -> None:
        parser.add_argument("policies", nargs="+", metavar="POLICY", help="[MODIFIER+...]NAME[:PARAMETER=VALUE,...]")
        cls._add_case(parser)
        parser.set_defaults(replicas=4)
        parser.add_argument("--loads", default="1", metavar="N,N", help="loads to compare, instead of --load")
        credits = "prefill credits of a replica [prompt tokens], 0 none, 1 one prompt at a time (default %(default)s)"
        parser.add_argument("--credits", default="0,1,2048,4096", metavar="N,N", help=credits)
        delays = "delays from an engine's token to the grant that follows [ms] (default %(default)s)"
        parser.add_argument("--delays", default="0,5", metavar="N,N", help=delays)
        parser.add_argument("--seeds", type=int, default=1, help="runs with different tiers, averaged (default 1)")
        parser.add_argument("--json", action="store_true", help="a list of rows as JSON on standard output")
        parser.add_argument(
            "--output", type=Path, metavar="PAGE.md", help="write the tables as a page like docs/results/front.md"
        )
        parser.add_argument("--append", action="store_true", help="append the tables to an existing page")

    @staticmethod
    def _add_bar(parser: ArgumentParser) -> None:
        kinds = "Azure CSV, Mooncake JSONL, ServeGen's rates (with --lengths); may be repeated"
        parser.add_argument("--trace", action="append", required=True, metavar="FILE", help=kinds)
        parser.add_argument("--lengths", default="", metavar="FILE", help="ServeGen's length distributions")
        parser.add_argument("--loads", default="1,1.3", metavar="N,N", help="of capacity (default %(default)s)")
        parser.add_argument("--replicas", type=int, default=4, help="engines (default %(default)s)")
        parser.add_argument("--seeds", type=int, default=10, help="draws (default %(default)s)")
        parser.add_argument("--first-seed", type=int, default=101, help="the others follow it (default %(default)s)")
        parser.add_argument(
            "--minutes", type=float, default=4.0, help="of the recording in a draw (default %(default)g)"
        )
        some = "these beside the default, instead of all that are shipped"
        parser.add_argument("--policies", nargs="+", default=(), metavar="POLICY", help=some)
        parser.add_argument("--output", type=Path, metavar="PAGE.md", help="write it into docs/results/compare.md")

    @staticmethod
    def _add_parity(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--report", type=Path, required=True, metavar="OUT.json", help="written by `manage.py replay ... --rows`"
        )
        parser.add_argument("--preset", default="llama-3-8b-a100", help="the engine model (default %(default)s)")
        parser.add_argument("--policy", help="instead of the pool's, with its default parameters")
        parser.add_argument("--slots", type=int, help="slots of a replica, instead of the report's")
        parser.add_argument(
            "--credit", type=int, help="prefill credit of a replica, instead of the report's; 0: no limit"
        )
        delay = "delay from an engine's token to the grant that follows from it (default %(default)g)"
        parser.add_argument("--signal-ms", type=float, default=5.0, metavar="MS", help=delay)
        parser.add_argument(
            "--engine-order", default="priority", metavar="POLICY", help="how engines order granted requests"
        )
        budget = f"token budget of an engine's step (default: as the engine reported it, else {USUAL_BUDGET})"
        parser.add_argument("--step-tokens", type=int, metavar="N", help=budget)
        within = "fail when a tier's attainment differs by more [points]"
        parser.add_argument("--within", type=float, metavar="POINTS", help=within)
        parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")

    @staticmethod
    def _add_where(parser: ArgumentParser) -> None:
        ours = Case("", "")
        where = (
            "the policy decides: in front of all engines, as this product does, or inside each, as the papers have it "
            "(default %(default)s)"
        )
        parser.add_argument("--where", choices=PLACES, default=ours.where, help=where)
        credit = (
            "in front: prefill credit of a replica [prompt tokens], 1 is one prompt at a time, 0 is no bound (default: "
            "found while it serves, as live)"
        )
        parser.add_argument("--credit", dest="prefill_tokens", type=int, metavar="N", help=credit)
        delay = f"in front: delay from an engine's token to the grant that follows (default {1e3 * GRANT_DELAY_S:g})"
        parser.add_argument("--signal-ms", type=float, metavar="MS", help=delay)
        order = (
            "in front: how engines take what they were granted: fifo as vLLM's fcfs, or priority, told the policy's "
            "order (default %(default)s)"
        )
        parser.add_argument("--engine-order", default=ours.engine_order, metavar="POLICY", help=order)

    @classmethod
    def _add_tune(cls, parser: ArgumentParser) -> None:
        parser.add_argument("--policy", default="ewsjf", help=f"one of {', '.join(SPACES)} (default ewsjf)")
        cls._add_case(parser)
        cls._add_where(parser)
        parser.set_defaults(minutes=10.0)
        parser.add_argument(
            "--trials", type=int, default=8, help="trials of the optimiser, after the defaults (default 8)"
        )
        parser.add_argument("--seeds", type=int, default=3, help="runs with different tiers and proposals (default 3)")
        parser.add_argument("--random", type=int, default=60, help="trials of random search (default 60)")
        where = "rewards and best parameters as JSON, in a file or on standard output"
        parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help=where)

    @staticmethod
    def _add_case(parser: ArgumentParser) -> None:
        ours = Case("", "")
        shares = ",".join(f"{name}={100 * share:g}" for name, share in ours.shares)
        kinds = (
            "a recording (`lab record`), Azure 2023/2024 CSV, Mooncake JSONL, ServeGen's rates (with --lengths); "
            ".gz as it is; may be repeated"
        )
        parser.add_argument("--trace", action="append", required=True, metavar="FILE", help=kinds)
        parser.add_argument("--lengths", default="", metavar="FILE", help="ServeGen's length distributions")
        parser.add_argument("--replicas", type=int, default=ours.replicas, help=f"engines (default {ours.replicas})")
        parser.add_argument("--preset", default=ours.preset, help=f"the engine model (default {ours.preset})")
        parser.add_argument("--slots", type=int, default=0, help="sequences an engine runs at once (default: preset's)")
        parser.add_argument(
            "--from-minute", type=float, default=ours.from_minute, help="start at this minute of the recording"
        )
        parser.add_argument(
            "--minutes", type=float, default=ours.minutes, help="minutes of the recording (default %(default)g)"
        )
        load = f"mean arrivals as a share of what the replicas can serve (default {ours.load:g})"
        parser.add_argument("--load", type=float, default=ours.load, help=load)
        parser.add_argument("--as-recorded", action="store_true", help="keep the recorded rate instead of --load")
        parser.add_argument("--tiers", default=shares, help=f"shares of requests (default {shares})")
        parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a chart")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["processes"] < 0:
            raise CommandError("--processes must be at least 0")
        try:
            if options["action"] == "list":
                self._list()
            elif options["action"] == "run":
                self._run(options)
            elif options["action"] == "compare":
                self._compare(options)
            elif options["action"] == "front":
                self._front(options)
            elif options["action"] == "bar":
                self._bar(options)
            elif options["action"] == "parity":
                self._parity(options)
            elif options["action"] == "tune":
                self._tune(options)
            elif options["action"] == "record":
                self._record(options)
            elif options["action"] == "trust":
                self._trust(options)
            elif options["action"] == "mix":
                self._mix(options)
            elif options["action"] == "shift":
                self._shift(options)
            elif options["action"] == "unified":
                self._unified(options)
            else:
                self._report(options)
        except (ScenarioError, CompareError, TraceError, PolicyError) as problem:
            raise CommandError(str(problem)) from problem
        except OSError as problem:
            raise CommandError(f"{problem.filename}: {problem.strerror}") from problem
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

    def _compare(self, options: dict[str, Any]) -> None:
        policies = [(*parse_policy(text), False) for text in options["policies"]]
        if options["clairvoyant"]:
            policies.append((*parse_policy(options["clairvoyant"]), True))
        cases = self._cases(options, policies)
        plot = self._plot(options)
        with self._progress(len(cases)) as (bar, item):

            def done(case: Case) -> None:
                bar.update(item, advance=1, description=f"{case.name}: {case.label}"[:32])

            figures = Lab(self._folder(), options["processes"]).figures(cases, run_case, compare.kept_name, done)
        rows = compare.rows_of(cases, figures)
        if plot is not None:
            plot.write_text(compare.drawing(rows), encoding="utf-8")
        if options["json"]:
            self.stdout.write(json.dumps([row.as_json() for row in rows], indent=1, ensure_ascii=False))
            return
        for grid in compare.grids(rows, cases):
            self._console().print(grid)

    def _parity(self, options: dict[str, Any]) -> None:
        if options["preset"] not in preset_names():
            raise CommandError(f"--preset: unknown {options['preset']!r}; there are: {', '.join(preset_names())}")
        if (
            not options["signal_ms"] >= 0
            or (options["credit"] or 0) < 0
            or any(options[name] is not None and options[name] < 1 for name in ("slots", "step_tokens"))
        ):
            raise CommandError("--signal-ms and --credit must be at least 0, --slots and --step-tokens at least 1")
        make_ordering(options["engine_order"])
        setup = parity.Setup(
            options["preset"],
            options["credit"],
            options["signal_ms"],
            options["engine_order"],
            options["slots"],
            options["policy"],
            options["step_tokens"],
        )
        report = parity.read_report(options["report"])
        result = parity.compare(report, setup)
        if options["json"]:
            self.stdout.write(json.dumps(result.as_json(), indent=1))
        else:
            self._console().print(parity.grid_of(result, str(report.get("trace", ""))))
            speeds = f"live {figure(result.live_tokens_per_s)}, lab {figure(result.simulated_tokens_per_s)}"
            queued = f"mean {result.waiting:.2f}, p99 {result.waiting_p99:.0f}"
            self.stdout.write(
                f"tokens/s: {speeds}; waiting in a simulated engine: {queued}; {result.left_out} left out; largest "
                f"difference of a tier: {result.worst:.1f} points"
            )
        if options["within"] is not None and not result.worst <= options["within"]:
            raise CommandError(f"a tier differs by {result.worst:.1f} points, more than {options['within']:g}")

    def _front(self, options: dict[str, Any]) -> None:
        loads, credits, delays = (_numbers(options[name], f"--{name}") for name in ("loads", "credits", "delays"))
        if not all(credit == int(credit) for credit in credits):
            raise CommandError("--credits are whole numbers of prompt tokens")
        output: Path | None = options["output"]
        if output is not None and not output.resolve().parent.is_dir():
            raise CommandError(f"--output: there is no folder {output.resolve().parent}")
        plain = self._cases(options, [(*parse_policy(text), False) for text in options["policies"]])
        if options["loads"] != "1":
            plain = [replace(case, load=load) for load in loads for case in plain]
        cases = [variant for case in plain for variant in front.variants(case, [int(n) for n in credits], delays)]
        with self._progress(len(cases)) as (bar, item):

            def done(case: Case) -> None:
                bar.update(item, advance=1, description=f"{case.name}: {case.label}"[:32])

            figures = Lab(self._folder(), options["processes"]).figures(cases, run_case, compare.kept_name, done)
        lines = front.lines_of(cases, figures)
        if output is not None:
            before = output.read_text(encoding="utf-8") if options["append"] and output.exists() else ""
            words = [Path(word).name if word in options["trace"] else word for word in sys.argv[1:]]
            page = front.page(lines, cases, shlex.join(["manage.py", *words]), before)
            output.write_text(page, encoding="utf-8")
            self.stdout.write(f"wrote {output}")
        elif options["json"]:
            self.stdout.write(json.dumps([line.as_json() for line in lines], indent=1))
        else:
            for grid in front.grids(lines):
                self._console().print(grid)

    def _bar(self, options: dict[str, Any]) -> None:
        output: Path | None = options["output"]
        if output is not None and not output.is_file():
            raise CommandError(f"--output: there is no page {output}")
        if options["seeds"] < bar.FIRST:
            raise CommandError(f"--seeds must be at least {bar.FIRST}")
        loads = _numbers(options["loads"], "--loads")
        same = {name: options[name] for name in ("lengths", "replicas", "seeds", "first_seed", "minutes")}
        asked = bar.Asked(tuple(options["trace"]), loads=tuple(loads), **same)
        policies, bench = bar.shipped(), Lab(self._folder(), options["processes"])
        if options["policies"]:
            for policy in options["policies"]:
                parse_policy(policy)
            policies = [bar.DEFAULT, *(name for name in options["policies"] if name != bar.DEFAULT)]
        found = self._run_cases(bench, bar.first_cases(asked, policies))
        found |= self._run_cases(bench, bar.further_cases(asked, policies, found))
        found |= self._run_cases(bench, bar.unpromised_cases(asked))
        result = bar.result_of(asked, policies, found)
        words = [Path(word).name if word in (*options["trace"], options["lengths"]) else word for word in sys.argv[1:]]
        text = bar.section(result, asked, policies, timezone.localdate(), shlex.join(["manage.py", *words]))
        if output is None:
            self.stdout.write(text)
        else:
            before = output.read_text(encoding="utf-8")
            head = before.partition("\n## ")[0]
            parts = {bar.HEADING: text} | {k: v for k, v in sections(before).items() if k != bar.HEADING}
            output.write_text("\n".join([f"{head.rstrip()}\n", *parts.values()]), encoding="utf-8")
            self.stdout.write(f"wrote {output}")
        for told in result.failures():
            self.stderr.write(f"not held: {told}")

    def _run_cases(self, bench: Lab, cases: Sequence[Case]) -> dict[Case, Figures]:
        with self._progress(len(cases)) as (shown, item):

            def done(case: Case) -> None:
                shown.update(item, advance=1, description=f"{case.name}: {case.label}"[:32])

            return bench.figures(cases, run_case, compare.kept_name, done)

    def _tune(self, options: dict[str, Any]) -> None:
        if options["trials"] < 1 or options["random"] < 0:
            raise CommandError("--trials must be at least 1, --random at least 0")
        policy = options["policy"]
        space_of(policy)
        plot = self._plot(options)
        cases = self._cases(options, [(policy, (), False)])
        jobs = [job for case in cases for job in tune.searches(case, options["trials"], options["random"])]
        with self._progress(sum(job.trials for job in jobs)) as (bar, item):

            def done(job: tune.Search) -> None:
                label = f"{job.case.name}, seed {job.case.seed}"[:32]
                bar.update(item, advance=job.trials, description=label)

            figures = Lab(self._folder(), options["processes"]).figures(jobs, tune.run_search, tune.kept_name, done)
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
            self._console().print(tune.grid_of(policy, lines))

    def _shift(self, options: dict[str, Any]) -> None:
        if options["seeds"] < 1 or not options["follows"] >= 0:
            raise CommandError("--seeds must be at least 1, --follows at least 0")
        policy, plot = options["policy"], self._plot(options)
        space_of(policy)
        jobs = shift.jobs(policy, options["seeds"], 60.0 * options["follows"])
        with self._progress(len(jobs)) as (bar, item):

            def done(job: shift.Job) -> None:
                bar.update(item, advance=1, description=f"{job.kind}, {job.mode}, seed {job.seed}")

            figures = Lab(self._folder(), options["processes"]).figures(jobs, shift.run_job, shift.kept_name, done)
        table = shift.rows_of_table(figures)
        if plot is not None:
            plot.write_text(shift.drawing(policy, figures), encoding="utf-8")
        if options["json"]:
            self.stdout.write(json.dumps(table, indent=1))
        else:
            self._console().print(shift.grid_of(policy, table))

    def _mix(self, options: dict[str, Any]) -> None:
        if options["requests"] < 1 or not options["rate"] > 0:
            raise CommandError("--requests must be at least 1, --rate above 0")
        write_mix(options["out"], options["requests"], options["rate"], options["seed"])
        self.stdout.write(f"wrote {options['requests']} requests to {options['out']}")

    def _record(self, options: dict[str, Any]) -> None:
        if not options["minutes"] > 0:
            raise CommandError("--minutes must be above 0")
        with options["out"].open("w", encoding="utf-8") as out:
            if options["sample"]:
                count = recent.export_sample(options["pool"], out)
            else:
                count = recent.export(options["pool"], options["minutes"], out)
        if not count:
            options["out"].unlink()
            raise CommandError(f"pool {options['pool']!r} had no requests in that time; nothing was written")
        self.stdout.write(f"wrote {count} requests to {options['out']}")

    def _trust(self, options: dict[str, Any]) -> None:
        pool = Pool.objects.filter(slug=options["pool"]).first()
        if pool is None or not options["minutes"] > 0:
            raise CommandError(f"there is no pool {options['pool']!r}" if pool is None else "--minutes must be above 0")
        now, span = _moment(options["until"]), timedelta(minutes=options["minutes"])
        calibration = replicas.recalibrate(pool, now - 2 * span, now - span) if options["calibrate"] else None
        if options["calibrate"] and calibration is None:
            raise CommandError(
                "the engines cannot be fitted: the time before the window has too few requests, or too similar ones"
            )
        trust = replicas.trust(pool, now - span, now, calibration)
        if trust is None:
            raise CommandError("there is nothing to compare: no requests in that time, or no calibration yet")
        if options["json"]:
            self.stdout.write(json.dumps(trust.as_json(), indent=1))
            return
        grid = Grid("", "live s", "simulated s", "error %", title=f"{pool.slug}: {trust.requests} requests")
        for name, (live, simulated) in trust.figures.items():
            grid.add_row(name, figure(live), figure(simulated), f"{100 * (simulated / live - 1):+.1f}")
        self._console().print(grid)

    @staticmethod
    def _plot(options: dict[str, Any]) -> Path | None:
        plot: Path | None = options["plot"]
        if plot is not None and not plot.resolve().parent.is_dir():
            raise CommandError(f"--plot: there is no folder {plot.resolve().parent}")
        return plot

    @staticmethod
    def _cases(options: dict[str, Any], policies: Sequence[tuple[str, Any, bool]]) -> list[Case]:
        if options["preset"] not in preset_names():
            raise CommandError(f"--preset: unknown {options['preset']!r}; there are: {', '.join(preset_names())}")
        if options["seeds"] < 1:
            raise CommandError("--seeds must be at least 1")
        names = [Path(trace).name.split(".")[0] for trace in options["trace"]]
        if len(set(names)) < len(names):
            raise CommandError("--trace: two files have the same name, their rows could not be told apart")
        options_kept = ("lengths", "replicas", "preset", "slots", "from_minute", "minutes", "load", "as_recorded")
        where = ("where", "prefill_tokens", "signal_ms", "engine_order")
        same = {name: options[name] for name in (*options_kept, *where) if name in options}
        make_ordering(same.get("engine_order", "fifo"))
        shares = parse_shares(options["tiers"])
        return [
            Case(trace, policy, params, shares=shares, seed=seed, clairvoyant=clairvoyant, **same)
            for trace in options["trace"]
            for policy, params, clairvoyant in policies
            for seed in range(1, options["seeds"] + 1)
        ]

    def _report(self, options: dict[str, Any]) -> None:
        output: Path = options["output"]
        if not output.resolve().parent.is_dir():
            raise CommandError(f"--output: there is no folder {output.resolve().parent}")
        asked = [name for name in options["names"] if name != "unified"] if options["names"] else scenario_names()
        folder = output.parent / "images" / "papers"
        folder.mkdir(parents=True, exist_ok=True)
        today = timezone.localdate()
        for scenario in sorted((load_scenario(name) for name in asked), key=lambda s: s.id):
            made = self._tables([scenario], options["processes"])
            for name, text in Lab(self._folder(), options["processes"]).images([scenario]).items():
                (folder / f"{name}.svg").write_text(text, encoding="utf-8")
            self._write_page(output, report(made, today, self._page(output)))
        if not options["names"] or "unified" in options["names"]:
            duels = unified.section(self._duels(SEEDS, options["processes"]), SEEDS, today)
            self._write_page(output, page(sections(self._page(output)) | {unified.HEADING: duels}))

    @staticmethod
    def _page(output: Path) -> str:
        return output.read_text(encoding="utf-8") if output.exists() else ""

    def _write_page(self, output: Path, text: str) -> None:
        """Written whenever a table is done, so that an interrupted report has what was finished."""
        output.write_text(text, encoding="utf-8")
        self.stdout.write(f"wrote {output}")

    def _tables(self, scenarios: Sequence[Scenario], processes: int) -> list[Table]:
        total = sum(len(tasks_of(scenario)) for scenario in scenarios)
        with self._progress(total) as (bar, item):

            def done(task: Task) -> None:
                bar.update(item, advance=1, description=f"{task.scenario}: {task.run}"[:32])

            return Lab(self._folder(), processes).tables(scenarios, done)

    def _unified(self, options: dict[str, Any]) -> None:
        if options["seeds"] < 2:
            raise CommandError("--seeds must be at least 2: one run has no noise to be judged by")
        matches = self._duels(options["seeds"], options["processes"])
        if options["json"]:
            rows = [row.as_json() for _, table in matches for row in table]
            self.stdout.write(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        for grid in unified.grids(matches):
            self._console().print(grid)

    def _duels(self, seeds: int, processes: int) -> unified.Rows:
        matches = sorted((load_match(name) for name in match_names()), key=lambda match: match.id)
        bouts = [bout for match in matches for bout in bouts_of(match, seeds)]
        with self._progress(len(bouts)) as (bar, item):

            def done(bout: Bout) -> None:
                bar.update(item, advance=1, description=f"{bout.match}: {bout.run}"[:32])

            figures = Lab(self._folder(), processes).figures(bouts, fight, bout_name, done)
        return [(match, verdicts_of(match, figures, seeds)) for match in matches]

    @staticmethod
    def _folder() -> Path:
        return Path(settings.HOME) / "lab"

    @staticmethod
    @contextmanager
    def _progress(total: int) -> Iterator[tuple[Progress, TaskID]]:
        bar = Progress(
            TextColumn("{task.description:32}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        with bar:
            yield bar, bar.add_task("runs", total=total)

    def _console(self) -> Console:
        return Console(file=cast(IO[str], self.stdout._out), width=None if self.stdout.isatty() else 170)


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 <= number < math.inf for number in numbers):
        raise CommandError(f"{option}: {text!r} is not a list of numbers from 0, as 0,2048")
    return numbers


def _moment(text: str) -> datetime:
    """A moment in the server's time zone where none is named; now for no text."""
    if not text:
        return timezone.now()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as problem:
        raise CommandError(f"--until: {text!r} is not a time such as 2026-11-21T09:30") from problem
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)
