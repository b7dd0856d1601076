"""The content of an alert's notification, for all kinds of channel."""

from __future__ import annotations

from typing import Any

from telemetry.models import ONE_TIME, Alert
from tenants.public_address import public_url


def content(alert: Alert, ended: bool) -> dict[str, Any]:
    """What is sent of an alert's beginning or end."""
    moment = alert.resolved_at if ended else alert.at
    return {
        "id": f"alert-{alert.pk}-resolved" if ended else f"alert-{alert.pk}",
        "status": "resolved" if ended else "firing" if alert.rule_id else ONE_TIME,
        "kind": alert.kind,
        "name": alert.name,
        "severity": alert.severity,
        "rule": alert.rule.name if alert.rule else "",
        "subject": alert.subject,
        "at": moment.isoformat() if moment else "",
        "tenant": alert.tenant,
        "pool": alert.pool,
        "text": alert.resolution if ended else alert.line,
        "value": alert.value,
        "threshold": alert.threshold,
        "used_tokens": alert.used_tokens,
        "limit_tokens": alert.limit_tokens,
        "link": link(alert.pk),
    }


def link(number: int) -> str:
    """Its page in the console; nothing where the console's address is not known."""
    return public_url(f"/alerts/{number}")


def trial() -> dict[str, Any]:
    """What a test of a channel sends: an alert that says that it is none."""
    return content(
        Alert(kind="test", name="test", severity="warning", line="A test of this channel: nothing is wrong."), False
    ) | {"id": "alert-test", "rule": "Test", "status": ONE_TIME, "link": ""}
