"""Alerts: stored once, shown, and delivered to the webhook until it takes them."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from telemetry.models import Alert
from telemetry.webhook import WebhookError, post

log = logging.getLogger(__name__)

BATCH = 50
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 3600.0
GIVE_UP_AFTER = timedelta(days=2)


def raise_alert(kind: str, name: str, line: str, **fields: str | int) -> bool:
    """Stores an alert; False when one of that name was there. It stays one, however often it is raised."""
    _, made = Alert.objects.get_or_create(name=name[:200], defaults={"kind": kind, "line": line[:300], **fields})
    if made:
        log.warning("alert %s: %s", name, line)
    return made


def deliver() -> int:
    """One attempt at each alert that is due; how many were taken. Without a webhook alerts are only shown."""
    url = settings.QUARTERMASTER_ALERT_WEBHOOK
    if not url:
        return 0
    now, taken = timezone.now(), 0
    due = Alert.objects.filter(
        Q(next_attempt_at__isnull=True) | Q(next_attempt_at__lte=now), delivered_at=None, at__gt=now - GIVE_UP_AFTER
    )
    for alert in due.order_by("id")[:BATCH]:
        content = {
            "id": f"alert-{alert.pk}",
            "kind": alert.kind,
            "name": alert.name,
            "at": alert.at.isoformat(),
            "tenant": alert.tenant,
            "pool": alert.pool,
            "text": alert.line,
            "used_tokens": alert.used_tokens,
            "limit_tokens": alert.limit_tokens,
        }
        alert.attempts += 1
        try:
            post(url, settings.QUARTERMASTER_WEBHOOK_SECRET, content["id"], content)
        except WebhookError as error:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (alert.attempts - 1))
            alert.next_attempt_at = now + timedelta(seconds=pause_s)
            log.warning("alert %s was not delivered (%s); again in %.0f s", alert.name, error, pause_s)
        else:
            alert.delivered_at, taken = timezone.now(), taken + 1
        alert.save(update_fields=["attempts", "next_attempt_at", "delivered_at"])
    return taken
