"""Alerts to channels: which alert is for which channel is settled when it opens, and each is tried until it is taken.

The next attempt is claimed in the database before something is sent, so two processes do not send the same. A channel
that fails is left alone for the rest of a round: it must not hold up the others.
"""

from __future__ import annotations

import logging
from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils import timezone

from telemetry.alerts import channels
from telemetry.alerts.attempts import BATCH, GIVE_UP_AFTER, claim, due
from telemetry.alerts.content import content
from telemetry.alerts.webhook import WebhookError
from telemetry.models import Alert, AlertDelivery, NotificationChannel
from tenants.connections import give_back_connection

log = logging.getLogger(__name__)


def address(alert: Alert) -> None:
    """Notes for which channels a new alert is: its rule's, else those for everything."""
    chosen = NotificationChannel.objects.none() if alert.rule is None else alert.rule.channels.all()
    channels = list(chosen) or list(NotificationChannel.objects.filter(for_all=True))
    AlertDelivery.objects.bulk_create(
        [AlertDelivery(alert=alert, channel=channel) for channel in channels], ignore_conflicts=True
    )


def rewind(alerts: QuerySet[Alert]) -> None:
    """The end of these begins with a first attempt. ``alerts`` are those that are about to end."""
    AlertDelivery.objects.filter(alert__in=alerts, delivered_at__isnull=False).update(attempts=0, next_attempt_at=None)


def deliver() -> int:
    """One attempt at everything that is due; how many were taken."""
    now, taken = timezone.now(), 0
    failed: set[int] = set()
    for _ in range(BATCH):
        # one at a time: a batch may be all of a channel that fails
        delivery = _due(now).exclude(channel__in=failed).first()
        if delivery is None:
            break
        if (pause_s := claim(delivery, now)) is None:
            continue
        if _attempt(delivery, pause_s):
            taken += 1
        else:
            failed.add(delivery.channel_id)
    return taken


def _attempt(delivery: AlertDelivery, pause_s: float) -> bool:
    ended = delivery.delivered_at is not None
    problem = try_channel(delivery.channel, content(delivery.alert, ended))
    if problem:
        log.warning(
            "alert %s was not delivered to %s (%s); again in %.0f s",
            delivery.alert.name, delivery.channel.name, problem, pause_s,
        )  # fmt: skip
        AlertDelivery.objects.filter(pk=delivery.pk).update(problem=problem)
        return False
    done = {"resolution_delivered_at" if ended else "delivered_at": timezone.now()}
    AlertDelivery.objects.filter(pk=delivery.pk).update(attempts=0, next_attempt_at=None, problem="", **done)
    return True


def try_channel(channel: NotificationChannel, message: channels.Content) -> str:
    """Sends once and notes what came of it; why not, or nothing."""
    problem, now = "", timezone.now()
    give_back_connection()
    try:
        channels.deliver(channel, message)
    except WebhookError as error:
        problem = str(error)[:300]
    except Exception as error:  # whatever is wrong with one channel, the others are sent to
        log.exception("channel %s cannot be sent to as it is", channel.name)
        problem = f"it could not be sent ({type(error).__name__}); the log has more"
    channel.tried_at, channel.problem = now, problem
    if not problem:
        channel.sent_at = now
    channel.save(update_fields=["tried_at", "problem", "sent_at"])
    return problem


def _due(now: datetime) -> QuerySet[AlertDelivery]:
    since = now - GIVE_UP_AFTER
    undelivered = Q(delivered_at=None, alert__at__gt=since)
    ended = Q(delivered_at__isnull=False, resolution_delivered_at=None, alert__resolved_at__gt=since)
    heard = Q(alert__silenced_until=None) | Q(alert__silenced_until__lte=now)
    rows = AlertDelivery.objects.filter(undelivered | ended, heard, channel__enabled=True)
    return rows.filter(due(now)).select_related("alert__rule", "channel").order_by("alert_id", "channel_id")
