"""``manage.py audit verify | export | retain``: the audit log as a chain."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from tenants import audit_chain
from tenants.models import AuditEntry


class Command(BaseCommand):
    help = "Checks the audit log's chain, exports the log, or deletes its oldest entries."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        verify = actions.add_parser("verify", help="Is anything changed, missing, put in or moved? Exits 1 if so.")
        verify.add_argument("--anchor", default="", help="The end that an earlier verify printed.")
        export = actions.add_parser("export", help="The whole log, oldest first, to the standard output.")
        export.add_argument("--format", choices=("jsonl", "csv"), default="jsonl")
        retain = actions.add_parser("retain", help="Deletes what is older. The chain stays verifiable.")
        retain.add_argument("--days", type=int, required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        match options["action"]:
            case "verify":
                self._verify(options["anchor"])
            case "export":
                rows = AuditEntry.objects.order_by("number", "pk").iterator(audit_chain.CHUNK)
                if options["format"] == "csv":
                    audit_chain.write_csv(rows, cast(TextIO, self.stdout))
                else:
                    for line in audit_chain.lines(rows):
                        self.stdout.write(line, ending="")
            case _:
                if options["days"] < 1:
                    raise CommandError("--days: use 1 or more.")
                gone = audit_chain.retain(timezone.now() - timedelta(days=options["days"]))
                self.stdout.write(f"{gone} entries were deleted.")

    def _verify(self, anchor: str) -> None:
        anchor = anchor.strip()
        if anchor and re.fullmatch(r"[0-9]+:[0-9a-f]{64}", anchor) is None:
            raise CommandError(
                "--anchor: use the end as an earlier verify printed it, NUMBER:DIGEST with 64 characters."
            )
        report = audit_chain.verify(anchor)
        self.stdout.write(f"{report.entries} entries in the chain, {report.unchained} of older releases before it.")
        self.stdout.write(f"It ends at {report.end}")
        if report.faults:
            raise CommandError("The audit log is broken:\n  " + "\n  ".join(report.faults))
        self.stdout.write("Nothing was changed, taken out, put in or moved.")
