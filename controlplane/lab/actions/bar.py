"""`lab bar`: compare the default policy with every shipped composition."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from controlplane.lab import bar, compare
from controlplane.lab.actions.base import Action, numbers
from controlplane.lab.tables import Figures, Lab, sections
from scheduling.simulator.compare import Case, parse_policy, run_case


class Bar(Action):
    name = "bar"
    help = "compare the default policy with every shipped composition, in front of the engines"

    def add_arguments(self, parser: ArgumentParser) -> None:
        kinds = (
            "recorded trace: Azure CSV, Mooncake JSONL or ServeGen rates (with --lengths); can be given several times"
        )
        parser.add_argument("--trace", action="append", required=True, metavar="FILE", help=kinds)
        parser.add_argument("--lengths", default="", metavar="FILE", help="length distributions of a ServeGen trace")
        parser.add_argument(
            "--loads", default="1,1.3", metavar="N,N", help="loads as multiples of capacity (default %(default)s)"
        )
        parser.add_argument("--replicas", type=int, default=4, help="simulated engines (default %(default)s)")
        parser.add_argument("--seeds", type=int, default=10, help="draws for each trace and load (default %(default)s)")
        parser.add_argument(
            "--first-seed",
            type=int,
            default=101,
            help="seed of the first draw; the next draws use the next seeds (default %(default)s)",
        )
        length = "length of a draw (default %(default)g); ServeGen's, with ten times the requests, are a tenth as long"
        parser.add_argument("--minutes", type=float, default=4.0, help=length)
        limits = "apply admission limits as `lab compare` does (default: every request is admitted)"
        parser.add_argument("--limits", action="store_true", help=limits)
        some = "compare only these with the default, instead of all shipped compositions"
        parser.add_argument("--policies", nargs="+", default=(), metavar="POLICY", help=some)
        parser.add_argument(
            "--output",
            type=Path,
            metavar="PAGE.md",
            help="write the section into this page, such as docs/results/compare.md",
        )

    def run(self, options: dict[str, Any]) -> None:
        output: Path | None = options["output"]
        if output is not None and not output.is_file():
            raise CommandError(f"--output: there is no page {output}")
        if options["seeds"] < bar.FIRST:
            raise CommandError(f"--seeds must be at least {bar.FIRST}")
        loads = numbers(options["loads"], "--loads")
        same = {name: options[name] for name in ("lengths", "replicas", "seeds", "first_seed", "minutes", "limits")}
        asked = bar.BarPlan(tuple(options["trace"]), loads=tuple(loads), **same)
        asked = bar.with_silent_draws(asked)
        policies, bench = bar.shipped(), Lab(self.folder(), options["processes"])
        if options["policies"]:
            for policy in options["policies"]:
                parse_policy(policy)
            policies = [bar.DEFAULT, *(name for name in options["policies"] if name != bar.DEFAULT)]
            if len(policies) == 1:
                raise CommandError(f"--policies: {bar.DEFAULT} is what others are compared with; name another one")
        figures = self._run_cases(bench, bar.first_cases(asked, policies))
        figures |= self._run_cases(bench, bar.further_cases(asked, policies, figures))
        figures |= self._run_cases(bench, bar.unpromised_cases(asked))
        result = bar.result_of(asked, policies, figures)
        words = [Path(word).name if word in (*options["trace"], options["lengths"]) else word for word in sys.argv[1:]]
        text = bar.section(result, asked, policies, timezone.localdate(), shlex.join(["manage.py", *words]))
        if output is None:
            self.stdout.write(text)
        else:
            before = output.read_text(encoding="utf-8")
            head = before.partition("\n## ")[0]
            title = bar.heading(asked)
            parts = {title: text} | {k: v for k, v in sections(before).items() if k != title}
            output.write_text("\n".join([f"{head.rstrip()}\n", *parts.values()]), encoding="utf-8")
            self.stdout.write(f"wrote {output}")
        for failure in result.failures():
            self.stderr.write(f"not met: {failure}")

    def _run_cases(self, bench: Lab, cases: Sequence[Case]) -> dict[Case, Figures]:
        with self.progress(len(cases)) as (shown, item):

            def done(case: Case) -> None:
                shown.update(item, advance=1, description=f"{case.name}: {case.label}"[:32])

            return bench.figures(cases, run_case, compare.kept_name, done)
