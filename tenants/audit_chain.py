"""The audit log as a chain: each entry's digest covers the digest before it, so that none can be changed, taken out,
put in or moved without a trace. Retention takes away the oldest and writes down where the chain begins since then.

Whoever can write to the database can compute the chain anew. Against that keep what :func:`verify` says of its end
somewhere else and give it back as an anchor.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any

from django.db import transaction
from django.db.models import QuerySet

from tenants.audit import SYSTEM
from tenants.csv_cells import plain
from tenants.models import AuditEntry, AuditHead
from tenants.models.records import digest_of

MOST_FAULTS = 100  # that are listed
CHUNK = 1_000
RETAINED_MEANWHILE = 3  # looks, where retention keeps taking entries away under them
FIELDS = (
    "number", "at", "actor", "via", "address", "action", "outcome", "kind", "object", "tenant", "before", "after",
    "request_id", "digest",
)  # fmt: skip


@dataclass(slots=True)
class Report:
    """What was found."""

    entries: int = 0
    unchained: int = 0  # of older releases
    end: str = "0:"  # number and digest of the last entry: an anchor
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


def verify(anchor: str = "") -> Report:
    """Reads the whole chain and reports where it is broken. ``anchor``: the ``end`` of an earlier report. Writers wait
    for a moment only: entries written meanwhile belong to the next report."""
    for _ in range(RETAINED_MEANWHILE):
        with transaction.atomic():
            head = AuditHead.locked()
        report = _verify_to(head, anchor)
        with transaction.atomic():
            now = AuditHead.locked()
            beyond = AuditEntry.objects.filter(number__gt=now.number).count()
        if now.base_number == head.base_number:
            break  # else retention took away entries under the reader
    if beyond:
        report.fault(f"Put in: {beyond} entries with numbers above {now.number}, the last that was written.")
    return report


def _verify_to(head: AuditHead, anchor: str) -> Report:
    report = Report()
    number, digest = head.base_number, head.base_digest
    anchored = f"{number}:{digest}" == anchor or not anchor
    first_id: int | None = None
    for entry in AuditEntry.objects.filter(number__lte=head.number).order_by("number").iterator(CHUNK):
        first_id = entry.pk if first_id is None else min(first_id, entry.pk)
        assert entry.number is not None
        report.entries += 1
        if entry.number != number + 1:
            gone = f"{number + 1}" if entry.number == number + 2 else f"{number + 1} to {entry.number - 1}"
            report.fault(f"Missing: entry {gone}.")
        elif entry.digest != digest_of(entry, digest):
            report.fault(f"Changed, put in or moved: entry {entry.number} ({entry}).")
        number, digest = entry.number, entry.digest
        anchored = anchored or f"{number}:{digest}" == anchor
    report.end = f"{number}:{digest}"
    if (number, digest) != (head.number, head.digest):
        report.fault(f"Missing: the end of the log. It ends at entry {number}, and {head.number} were written.")
    if not anchored:
        report.fault(f"Written anew: the anchor {anchor.partition(':')[0]} is not in this chain.")
    _check_beginning(report, head)
    for pk in AuditEntry.objects.filter(number__isnull=True).values_list("pk", flat=True).iterator(CHUNK):
        report.unchained += 1
        if first_id is not None and pk > first_id:
            report.fault(f"Put in: the row with id {pk} is not in the chain (or an older release wrote it).")
    return report


def _check_beginning(report: Report, head: AuditHead) -> None:
    """A chain begins with its first entry, or where retention wrote that it does."""
    if head.base_number == 0:
        return
    retained = AuditEntry.objects.filter(action="retain", number__isnull=False).order_by("-number").first()
    wanted = {"until": head.base_number, "digest": head.base_digest}
    if retained is None or {name: (retained.after or {}).get(name) for name in wanted} != wanted:
        report.fault(f"Missing: the log begins after entry {head.base_number}, and no retention says why.")


def retain(before: datetime) -> int:
    """Deletes the entries from before a time, oldest first and without a gap, and writes down that it did. Returns how
    many went. Entries of older releases, which are not in the chain, go too."""
    with transaction.atomic():
        head = AuditHead.locked()
        stays = AuditEntry.objects.filter(number__isnull=False, at__gte=before).order_by("number").first()
        last = stays.number - 1 if stays is not None and stays.number is not None else head.number
        old = AuditEntry.objects.filter(number__isnull=True, at__lt=before)
        base = AuditEntry.objects.filter(number=last).first() if last > head.base_number else None
        count = old.count() + (last - head.base_number if base is not None else 0)
        if count == 0:
            return 0
        _drop(old)
        if base is not None:
            head.base_number, head.base_digest = last, base.digest
            head.save()
            _drop(AuditEntry.objects.filter(number__lte=last))
        AuditEntry(
            actor=SYSTEM.name,
            via=SYSTEM.via,
            action="retain",
            kind="auditentry",
            object_id=f"before {before.isoformat()}",
            after={"until": head.base_number, "digest": head.base_digest, "entries": count},
        ).save()
    return count


def _drop(rows: QuerySet[AuditEntry]) -> None:
    rows._raw_delete(rows.db)  # nothing refers to an entry


# An entry's place in the chain, for those who see their tenant's alone: a number counts everybody's entries, and a
# digest is made of the one before it, so that a guess about another tenant's entry could be tried on it.
UNCHAINED = {"number": None, "digest": ""}


def exported(entry: AuditEntry, chained: bool = True) -> dict[str, Any]:
    """An entry as it is exported; ``chained``: with its place in the chain."""
    row = {
        "number": entry.number,
        "at": entry.at.isoformat(),
        "actor": entry.actor,
        "via": entry.via,
        "address": entry.address,
        "action": entry.action,
        "outcome": entry.outcome,
        "kind": entry.kind,
        "object": entry.object_id,
        "tenant": entry.tenant_name,
        "before": entry.before,
        "after": entry.after,
        "request_id": entry.request_id,
        "digest": entry.digest,
    }
    return row if chained else row | UNCHAINED


def lines(entries: Iterable[AuditEntry], chained: bool = True) -> Iterator[str]:
    """JSON, one entry a line."""
    for entry in entries:
        yield json.dumps(exported(entry, chained), ensure_ascii=False) + "\n"


def write_csv(entries: Iterable[AuditEntry], file: IO[str], chained: bool = True) -> None:
    """For spreadsheets: a text that one would take for a formula begins with an apostrophe."""
    writer = csv.writer(file)
    writer.writerow(FIELDS)
    for entry in entries:
        row = exported(entry, chained)
        values = [json.dumps(row[n]) if isinstance(row[n], dict | list) else row[n] for n in FIELDS]
        writer.writerow([plain(value) for value in values])
