"""What stands ready for whom, recorded while it does.

Once a minute the time since the last look is written to the hours of each entitlement that has capacity reserved, with
the slots that it has then: a later change of the entitlement changes nothing that was recorded. After more than
:data:`LONGEST` without a look nobody knows what stood ready, and nothing is charged for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from scheduling.core.types import EntitlementState, ServiceClass
from telemetry.ledger.rollup import floor_hour
from telemetry.models import ReservedHour, RollupMark
from tenants.models import Entitlement

LONGEST = timedelta(minutes=10)
HOUR = timedelta(hours=1)
RESERVED = (ServiceClass.DEDICATED.value, ServiceClass.GUARANTEED.value)
STANDING = (EntitlementState.BOUND, EntitlementState.DEGRADED)


def record(now: datetime | None = None) -> None:
    """Writes what stood ready since the last look. Two at once record nothing twice.

    Read before the transaction and written by a few statements in it: SQLite's keeps all others from writing.
    """
    now = now or timezone.now()
    RollupMark.objects.get_or_create(pk=1)
    reserved = Entitlement.objects.filter(tier__service_class__in=RESERVED, concurrency__gt=0)
    related = reserved.select_related("pool", "adapter", "tenant", "tier", "project").order_by("pk")
    standing = [one for one in related if one.state_at(now) in STANDING]
    with transaction.atomic():
        mark = RollupMark.objects.select_for_update().get(pk=1)
        since = mark.reserved_at
        if since is not None and now <= since:
            return
        mark.reserved_at = now
        mark.save(update_fields=["reserved_at"])
        if since is None or now - since > LONGEST:
            return
        for hour, passed in _hours(since, now):
            _add(standing, hour, passed // timedelta(microseconds=1))


def _add(standing: Sequence[Entitlement], hour: datetime, passed_us: int) -> None:
    """Whoever holds the mark adds alone. What an hour says of its entitlement stays as it was first written."""
    before = dict(ReservedHour.objects.filter(hour=hour).values_list("entitlement", "slot_us"))
    rows = [
        ReservedHour(
            hour=hour,
            entitlement=one.slug,
            pool=one.pool.slug,
            model=one.pool.model if one.adapter is None else one.adapter.model,
            tenant=one.tenant.slug,
            tier=one.tier.slug,
            project="" if one.project is None else one.project.slug,
            slot_us=before.get(one.slug, 0) + one.concurrency * passed_us,
        )
        for one in standing
    ]
    ReservedHour.objects.bulk_create(
        rows, batch_size=500, update_conflicts=True, unique_fields=["hour", "entitlement"], update_fields=["slot_us"]
    )


def _hours(since: datetime, until: datetime) -> list[tuple[datetime, timedelta]]:
    """The hours that a time is in, and how much of it is in each."""
    hours = []
    hour = floor_hour(since)
    while hour < until:
        hours.append((hour, min(until, hour + HOUR) - max(since, hour)))
        hour += HOUR
    return hours
