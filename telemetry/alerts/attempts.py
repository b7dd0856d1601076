"""Attempts at sending an alert, to the webhook (:mod:`telemetry.alerts.lifecycle`) or to a channel
(:mod:`telemetry.alerts.notify`): when the next one is due, and whose it is.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F, Q

from telemetry.models import Alert, AlertDelivery

BATCH = 50  # that one call takes
FIRST_PAUSE_S, MAX_PAUSE_S = 10.0, 3600.0  # doubling
GIVE_UP_AFTER = timedelta(days=2)


def due(now: datetime) -> Q:
    return Q(next_attempt_at=None) | Q(next_attempt_at__lte=now)


def claim(row: Alert | AlertDelivery, now: datetime) -> float | None:
    """Takes the next attempt; how long after it another one is due [s], or None: another process has it."""
    pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**row.attempts)
    same = type(row).objects.filter(due(now), pk=row.pk, attempts=row.attempts, delivered_at=row.delivered_at)
    taken = same.update(attempts=F("attempts") + 1, next_attempt_at=now + timedelta(seconds=pause_s))
    return pause_s if taken else None
