"""``manage.py operator``: keeps the catalog as the cluster's custom resources say (docs/guide/kubernetes.md)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.audit import Actor

log = logging.getLogger(__name__)

LAST_S = 5.0


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
            "--keys-for",
            action="append",
            default=[],
            metavar="NAMESPACE/TENANT",
            help="ApiKey resources of this namespace may be for this tenant; may be repeated. A namespace that is "
            "named may have keys of its tenants only, any other one those of all.",
        )
        parser.add_argument(
            "--release",
            action="store_true",
            help="Instead of running: let the rows go that resources keep (of these namespaces). They stay as they "
            "are, and people may change them. Stop the operator before, which would take them again.",
        )
        parser.add_argument("--liveness", default="", help="Address of a health endpoint, http://0.0.0.0:8080/healthz.")

    def handle(self, *args: Any, **options: Any) -> None:
        from controlplane.kubernetes import catalog, key_secrets
        from controlplane.kubernetes.operator import serve

        if options["release"]:
            let_go = catalog.release(options["namespace"], Actor.at_shell())
            self.stdout.write("".join(f"{one}\n" for one in let_go) + f"Rows let go: {len(let_go)}.")
            return
        namespaces, with_leases = options["namespace"], not options["no_leases"]
        try:
            key_tenants = key_secrets.tenants_by_namespace(options["keys_for"])
        except ValueError as error:
            raise CommandError(f"--keys-for: {error}") from error
        serving = serve(
            namespaces=namespaces, with_leases=with_leases, key_tenants=key_tenants, liveness=options["liveness"]
        )
        asyncio.run(until_stopped(serving))


async def until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Runs it, and ends the process at most :data:`LAST_S` after it: asyncio waits at its end for threads, however long
    the database keeps them. What they were writing is rolled back, and the next operator writes it."""
    failed = True
    try:
        await serving
        failed = False
    except Exception:
        log.exception("the operator ends by an error")  # a process that is ended tells nothing more
        raise
    finally:
        end = threading.Timer(LAST_S, os._exit, (int(failed),))
        end.daemon = True
        end.start()
