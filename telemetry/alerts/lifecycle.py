"""Alerts: stored once, shown, resolved when what a rule saw is over, and delivered to the installation's webhook or the
rule's own until it takes them; to channels by :mod:`telemetry.alerts.notify`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from telemetry.alerts import notify
from telemetry.alerts.attempts import BATCH, GIVE_UP_AFTER, claim, due
from telemetry.alerts.content import content
from telemetry.alerts.webhook import WebhookError, post
from telemetry.models import Alert, AlertRule
from tenants import audit
from tenants.connections import give_back_connection
from tenants.models import Pool
from tenants.validators import check_webhook

log = logging.getLogger(__name__)


def raise_alert(kind: str, name: str, line: str, **fields: str | int) -> bool:
    """Stores an alert; False when one of that name was there. It stays one, however often it is raised."""
    with transaction.atomic():
        alert, created = Alert.objects.get_or_create(
            name=name[:200], defaults={"kind": kind, "line": line[:300], **fields}
        )
        if created:
            notify.address(alert)
    if created:
        log.warning("alert %s: %s", name, line)
    return created


def fire(
    rule: AlertRule,
    *,
    pool: str,
    subject: str,
    tenant: str,
    line: str,
    value: float,
    at_s: float,
    began_s: float | None = None,
) -> bool:
    """Opens a rule's alert; False if it is open already. ``began_s``: when the condition began [epoch s], if known."""
    name = f"rule {rule.pk}:{pool}:{subject}:{at_s:.0f}"[:200]
    same = Alert.objects.filter(rule=rule, pool=pool, subject=subject[:200], silenced_until__gt=timezone.now())
    silenced: dict[str, Any] = dict(same.values("silenced_until", "silenced_by", "note").first() or {})
    try:
        with transaction.atomic():
            alert = Alert.objects.create(
                kind=rule.kind, name=name, severity=rule.severity, rule=rule, subject=subject[:200], tenant=tenant,
                pool=pool, line=line[:300], value=value, threshold=rule.threshold,
                began_at=None if began_s is None else datetime.fromtimestamp(began_s, UTC), **silenced,
            )  # fmt: skip
            notify.address(alert)
    except IntegrityError:  # two leaders at once, or one that looked back
        return False
    log.warning("alert %s: %s", rule.name, line)
    return True


def acknowledge(alert: Alert, actor: audit.Actor, note: str) -> None:
    """Somebody looks after it. Recorded in the audit log; the alert stays open."""
    _mark(alert, actor, "acknowledge", acknowledged_at=timezone.now(), acknowledged_by=actor.name, note=note)


def silence(alert: Alert, actor: audit.Actor, until: datetime | None, note: str) -> None:
    """Nothing is sent of it, nor of the same rule, pool and subject, until then. None ends that."""
    by = actor.name if until else ""
    _mark(alert, actor, "silence" if until else "end silence", silenced_until=until, silenced_by=by, note=note)


def assign(alert: Alert, actor: audit.Actor, to: str) -> None:
    """Assigns an alert to somebody; an empty name to nobody. Recorded in the audit log."""
    by, at = (actor.name, timezone.now()) if to else ("", None)
    _mark(alert, actor, "assign" if to else "unassign", assigned_to=to, assigned_by=by, assigned_at=at)


def _mark(alert: Alert, actor: audit.Actor, action: str, **changes: Any) -> None:
    with transaction.atomic():
        before = audit.snapshot(alert)
        for name, value in changes.items():
            setattr(alert, name, value)
        alert.save(update_fields=list(changes))
        shown = audit.difference(before, audit.snapshot(alert))
        audit.record(actor=actor, action=action, instance=alert, before=shown[0], after=shown[1])


def resolve(rows: QuerySet[Alert], why: str) -> bool:
    """Ends open alerts; whether there was one. What ends is told as well, beginning with a first attempt."""
    still_open = rows.filter(resolved_at=None, rule__isnull=False)
    with transaction.atomic():
        ids = list(still_open.values_list("pk", flat=True))
        if not ids:
            return False
        notify.rewind(Alert.objects.filter(pk__in=ids))
        ended = Alert.objects.filter(pk__in=ids, resolved_at=None).update(
            resolved_at=timezone.now(), resolution=why[:300], attempts=0, next_attempt_at=None
        )
    return bool(ended)


def tidy() -> None:
    """Ends open alerts of pools that are gone: nobody leads and watches them any more."""
    stray = Alert.objects.filter(resolved_at=None, rule__isnull=False).exclude(pool="")
    resolve(stray.exclude(pool__in=Pool.objects.values("slug")), "The pool is gone.")


def deliver() -> int:
    """One attempt at each alert, and each end of one, that is due; how many were taken. A receiver that fails is left
    alone for the rest of the round, so that it holds up no other. Without a webhook alerts are only shown."""
    now, taken = timezone.now(), 0
    failed: set[str] = set()
    for _ in range(BATCH):
        # one at a time: a batch may be all of a receiver that fails
        alert = _due(now - GIVE_UP_AFTER, failed).filter(due(now)).first()
        if alert is None:
            break
        ended = alert.delivered_at is not None
        if (pause_s := claim(alert, now)) is None:
            continue
        try:
            body, address = content(alert, ended), _address(alert)
            give_back_connection()
            post(address, settings.QUARTERMASTER_WEBHOOK_SECRET, body["id"], body)
        except Exception as error:  # whatever is wrong with one alert, the others are delivered
            message = "; ".join(error.messages) if isinstance(error, ValidationError) else error
            if isinstance(error, WebhookError):
                failed.add(_own_webhook(alert))
            elif not isinstance(error, ValidationError):
                log.exception("alert %s cannot be sent as it is", alert.name)
            log.warning("alert %s was not delivered (%s); again in %.0f s", alert.name, message, pause_s)
        else:
            taken += 1
            done = {"resolution_delivered_at" if ended else "delivered_at": timezone.now()}
            Alert.objects.filter(pk=alert.pk).update(attempts=0, next_attempt_at=None, **done)
    return taken


def _due(since: Any, failed: Collection[str]) -> QuerySet[Alert]:
    """``failed``: webhooks to leave out, as :func:`_own_webhook` names them."""
    undelivered = Q(delivered_at=None, at__gt=since)
    ended = Q(delivered_at__isnull=False, resolution_delivered_at=None, resolved_at__gt=since)
    heard = Q(silenced_until=None) | Q(silenced_until__lte=timezone.now())
    rows = Alert.objects.filter(undelivered | ended).filter(heard).select_related("rule")
    rows = rows.alias(webhook=Coalesce("rule__webhook", Value(""))).exclude(webhook__in=failed)
    if not settings.QUARTERMASTER_ALERT_WEBHOOK:
        rows = rows.exclude(webhook="")
    return rows.order_by("id")


def _own_webhook(alert: Alert) -> str:
    """Its rule's; empty: the installation's is its receiver."""
    return "" if alert.rule is None else alert.rule.webhook


def _address(alert: Alert) -> str:
    """Raises ValidationError: the rule's host is not allowed (any more)."""
    if not (own := _own_webhook(alert)):
        return str(settings.QUARTERMASTER_ALERT_WEBHOOK)
    check_webhook(own)
    return own
