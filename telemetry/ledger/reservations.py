"""What stands ready for whom, recorded while it does.

Once a minute the time since the last look is written to the hours of each entitlement that has capacity reserved, with
the slots that it has then: a later change of the entitlement changes nothing that was recorded. After more than
:data:`LONGEST` without a look nobody knows what stood ready, and nothing is charged for it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F
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
    """Writes what stood ready since the last look. Two at once record nothing twice."""
    now = now or timezone.now()
    RollupMark.objects.get_or_create(pk=1)
    with transaction.atomic():
        mark = RollupMark.objects.select_for_update().get(pk=1)
        since = mark.reserved_at
        if since is not None and now <= since:
            return
        mark.reserved_at = now
        mark.save(update_fields=["reserved_at"])
        if since is None or now - since > LONGEST:
            return
        rows = Entitlement.objects.filter(tier__service_class__in=RESERVED, concurrency__gt=0)
        for one in rows.select_related("pool", "adapter", "tenant", "tier", "project").order_by("pk"):
            if one.state_at(now) in STANDING:
                for hour, passed in _hours(since, now):
                    _add(one, hour, one.concurrency * (passed // timedelta(microseconds=1)))


def _add(one: Entitlement, hour: datetime, slot_us: int) -> None:
    row, created = ReservedHour.objects.get_or_create(
        hour=hour,
        entitlement=one.slug,
        defaults={
            "pool": one.pool.slug,
            "model": one.pool.model if one.adapter is None else one.adapter.model,
            "tenant": one.tenant.slug,
            "tier": one.tier.slug,
            "project": "" if one.project is None else one.project.slug,
            "slot_us": slot_us,
        },
    )
    if not created:
        ReservedHour.objects.filter(pk=row.pk).update(slot_us=F("slot_us") + slot_us)


def _hours(since: datetime, until: datetime) -> list[tuple[datetime, timedelta]]:
    """The hours that a time is in, and how much of it is in each."""
    hours = []
    hour = floor_hour(since)
    while hour < until:
        hours.append((hour, min(until, hour + HOUR) - max(since, hour)))
        hour += HOUR
    return hours
