"""What changed in a pool, by its leader's snapshots: who leads, which replicas serve, the policy, a loss of state.

Written by the thread that publishes snapshots; a database that is away only delays it. What was changed by people is in
the audit log, what a rule saw is an alert: :mod:`telemetry.api.events` puts them together.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import Error as DatabaseTrouble
from django.utils import timezone

from telemetry.models import PoolEvent
from tenants.connections import own_connection

log = logging.getLogger(__name__)

_UNWRITTEN = 300  # of a pool that wait for a database that is away
A_MINUTE = 60  # of one pool: a replica that comes and goes must not fill the table


class Happenings:
    """Compares each snapshot of the pools this process leads with the one before. One thread."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, Any]] = {}
        self._unwritten: dict[str, deque[PoolEvent]] = {}
        self._written: dict[str, deque[float]] = {}

    def add(self, snapshot: Mapping[str, Any]) -> None:
        """Takes a pool's next snapshot. Never raises."""
        try:
            self._add(snapshot)
        except DatabaseTrouble as error:
            log.debug("events of pool %s wait (%s)", snapshot.get("pool"), type(error).__name__)
        except Exception:
            log.exception("events of pool %s were lost", snapshot.get("pool"))

    def _add(self, snapshot: Mapping[str, Any]) -> None:
        pool, at_s = snapshot["pool"], snapshot["at"]
        before, self._before[pool] = self._before.get(pool), snapshot
        recent = self._written.setdefault(pool, deque(maxlen=A_MINUTE))
        waiting = self._unwritten.setdefault(pool, deque(maxlen=_UNWRITTEN))
        at = datetime.fromtimestamp(at_s, UTC)
        for kind, subject, line in changes(before, snapshot):
            if len(recent) == A_MINUTE and at_s - recent[0] < 60.0:
                continue
            recent.append(at_s)
            line = line.replace("\x00", "")[:300]  # PostgreSQL refuses it, and all that is written with it
            waiting.append(PoolEvent(pool=pool, at=at, kind=kind, subject=subject[:150], line=line))
        if rows := [row for one in self._unwritten.values() for row in one]:
            self._write(rows)

    @own_connection
    def _write(self, rows: list[PoolEvent]) -> None:
        PoolEvent.objects.bulk_create(rows, batch_size=200, ignore_conflicts=True)
        self._unwritten.clear()


def changes(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """``(kind, subject, line)`` of what differs. Without a snapshot before only that somebody leads."""
    if before is None or before["epoch"] != now["epoch"]:
        yield "leader", now["leader"], f"{now['leader']} leads, epoch {now['epoch']}"
    if before is None:
        return
    if before["policy"] != now["policy"]:
        yield "policy", now["policy"], f"Policy {now['policy']} decides, was {before['policy']}"
    lost_s = now.get("state", {}).get("lost")
    if lost_s is not None and lost_s != before.get("state", {}).get("lost"):
        yield "state", "", "Shared state was lost and is being rebuilt"
    rows, earlier = now.get("backends", {}), before.get("backends", {})
    for name in sorted(rows.keys() | earlier.keys()):
        row, was = rows.get(name), earlier.get(name)
        if row is None:
            yield "backend", name, f"Replica {name} was removed"
        elif was is None:
            yield "backend", name, f"Replica {name} was added"
        elif row["state"] != was["state"]:
            why = f": {row['why']}" if row.get("why") else ""
            yield "backend", name, f"Replica {name} is {row['state']}, was {was['state']}{why}"


def purge(days: int) -> int:
    """Deletes events older than the ledger's retention; how many."""
    return PoolEvent.objects.filter(at__lt=timezone.now() - timedelta(days=days)).delete()[0]
