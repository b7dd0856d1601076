"""`lab parity`: A replay's requests once more, in the lab."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.lab import parity
from controlplane.lab.actions.base import Action
from controlplane.lab.tables import figure
from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.engine.step_time import preset_names
from scheduling.core.policies.registry import make_ordering
from scheduling.simulator.compare import GRANT_DELAY_S


class Parity(Action):
    name = "parity"
    help = "serve a replay's requests again in the lab, and compare"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--report", type=Path, required=True, metavar="OUT.json", help="written by `manage.py replay ... --rows`"
        )
        parser.add_argument("--preset", default="llama-3-8b-a100", help="the engine model (default %(default)s)")
        instead = "instead of the pool's, with its default parameters; or a composition, such as relegate+edf"
        parser.add_argument("--policy", help=instead)
        parser.add_argument("--slots", type=int, help="slots of a replica, instead of the report's")
        parser.add_argument(
            "--credit", type=int, help="prefill credit of a replica, instead of the report's; 0: no limit"
        )
        delay = (
            "delay from an engine's token to the grant that follows from it (default: as the leader measured it during "
            f"the replay, else {1e3 * GRANT_DELAY_S:g})"
        )
        parser.add_argument("--signal-ms", type=float, metavar="MS", help=delay)
        parser.add_argument(
            "--engine-order", default="priority", metavar="POLICY", help="how engines order granted requests"
        )
        budget = f"token budget of an engine's step (default: as the engine reported it, else {USUAL_BUDGET})"
        parser.add_argument("--step-tokens", type=int, metavar="N", help=budget)
        within = "fail when a tier's attainment differs by more [points]"
        parser.add_argument("--within", type=float, metavar="POINTS", help=within)
        parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
        if options["preset"] not in preset_names():
            raise CommandError(f"--preset: unknown {options['preset']!r}; there are: {', '.join(preset_names())}")
        if (
            not (options["signal_ms"] or 0) >= 0
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
            self.console().print(parity.grid_of(result, str(report.get("trace", ""))))
            both = (result.live_tokens_per_s, result.simulated_tokens_per_s)
            live, lab = ("-" if speed is None else figure(speed) for speed in both)
            queued = f"mean {result.waiting:.2f}, p99 {result.waiting_p99:.0f}"
            self.stdout.write(
                f"tokens/s while requests were sent: live {live}, lab {lab}; waiting in a simulated engine: {queued}; "
                f"{result.left_out} left out; largest difference of a tier: {result.worst:.1f} points"
            )
        if options["within"] is not None and not result.worst <= options["within"]:
            raise CommandError(f"a tier differs by {result.worst:.1f} points, more than {options['within']:g}")
