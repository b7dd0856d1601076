"""``manage.py operator``: keeps the catalog as the cluster's custom resources say (docs/guide/kubernetes.md)."""

from __future__ import annotations

import asyncio
import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tenants.audit import Actor


class Command(BaseCommand):
    help = "Runs the Kubernetes operator: custom resources into the catalog, states and leases back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--namespace", action="append", default=[], help="Watch this one; may be repeated. None: the whole cluster."
        )
        parser.add_argument(
            "--no-leases", action="store_true", help="Capacity is judged by the catalog alone: no nodes, no lease pods."
        )
        parser.add_argument(
            "--release",
            action="store_true",
            help="Instead of running: let the rows go that resources keep (of these namespaces). They stay as they "
            "are, and people may change them. Stop the operator before, which would take them again.",
        )
        parser.add_argument("--liveness", default="", help="Address of a health endpoint, http://0.0.0.0:8080/healthz.")

    def handle(self, *args: Any, **options: Any) -> None:
        from controlplane.kubernetes import catalog
        from controlplane.kubernetes.operator import serve

        if options["release"]:
            let_go = catalog.release(options["namespace"], Actor(getpass.getuser(), "cli"))
            self.stdout.write("".join(f"{one}\n" for one in let_go) + f"Rows let go: {len(let_go)}.")
            return
        namespaces, with_leases = options["namespace"], not options["no_leases"]
        asyncio.run(serve(namespaces=namespaces, with_leases=with_leases, liveness=options["liveness"]))
