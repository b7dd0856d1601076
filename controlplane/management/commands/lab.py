"""`manage.py lab`: the papers' tables, computed here, and policies side by side on recorded traces."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.lab.actions import ACTIONS
from scheduling.core.policies.registry import PolicyError
from scheduling.simulator.compare import CompareError
from scheduling.simulator.lab import ScenarioError
from scheduling.simulator.trace import TraceError


class Command(BaseCommand):
    help = (
        "Runs the tables of the scheduling papers in the simulator and shows the paper's figures beside ours. "
        "Needs no running instance; results are kept in QUARTERMASTER_HOME/lab, so an interrupted run continues."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, default=0, help="processes (default: one per core)")
        chosen = parser.add_subparsers(dest="action", required=True)
        for action in ACTIONS:
            action_of = action(self.stdout, self.stderr)
            action_of.add_arguments(chosen.add_parser(action.name, help=action.help))

    def handle(self, *args: Any, **options: Any) -> None:
        if options["processes"] < 0:
            raise CommandError("--processes must be at least 0")
        action = next(action for action in ACTIONS if action.name == options["action"])
        try:
            action(self.stdout, self.stderr).run(options)
        except (ScenarioError, CompareError, TraceError, PolicyError) as problem:
            raise CommandError(str(problem)) from problem
        except OSError as problem:
            raise CommandError(f"{problem.filename}: {problem.strerror}") from problem
        except KeyboardInterrupt:
            raise CommandError(
                "interrupted; what was finished is kept and will not be run again", returncode=130
            ) from None
