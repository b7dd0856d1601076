"""`lab trust`: Simulated and live latencies of a pool."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone
from rich.table import Table as Grid

from controlplane.lab.actions.base import Action
from controlplane.lab.tables import figure
from controlplane.tuning import replicas
from tenants.models import Pool


class Trust(Action):
    name = "trust"
    help = "compare simulated and live latencies of a pool"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pool", required=True)
        parser.add_argument("--minutes", type=float, default=10.0, help="how far back (default %(default)g)")
        parser.add_argument(
            "--until", default="", metavar="TIME", help="where the window ends, ISO 8601 (default: now)"
        )
        parser.add_argument(
            "--calibrate", action="store_true", help="first fit the engines, on as much time before the window"
        )
        parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")

    def run(self, options: dict[str, Any]) -> None:
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
        self.console().print(grid)
        for tier, (live, simulated) in trust.attainment.items():
            line = f"{live:.1f} % live, {simulated:.1f} % simulated ({simulated - live:+.1f} points)"
            self.stdout.write(f"{tier}: SLO attainment {line}")


def _moment(text: str) -> datetime:
    """A moment in the server's time zone where none is named; now for no text."""
    if not text:
        return timezone.now()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as problem:
        raise CommandError(f"--until: {text!r} is not a time such as 2026-11-21T09:30") from problem
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)
