"""What a channel is sent, in the form that its receiver documents.

| kind | how |
|---|---|
| webhook | a signed POST (:mod:`telemetry.alerts.webhook`) |
| Slack | an incoming webhook: ``{"text": ...}`` with ``&``, ``<`` and ``>`` escaped |
| e-mail | Django's mail, by ``QUARTERMASTER_EMAIL_URL`` |
| PagerDuty | Events API v2: ``trigger`` and ``resolve`` under one ``dedup_key`` |

Addresses that an admin writes have a host on ``QUARTERMASTER_WEBHOOK_HOSTS``; PagerDuty's is the installation's own
setting. One attempt each, bounded in time; who retries is :mod:`telemetry.alerts.notify`.
"""

from __future__ import annotations

import smtplib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email

from telemetry.alerts.webhook import WebhookError, post, send
from telemetry.models import ChannelKind, NotificationChannel
from tenants.validators import check_webhook

MAX_ADDRESSES = 10
_JSON = {"content-type": "application/json"}
_KEY_LENGTH = 32  # of PagerDuty's integration keys

Content = dict[str, Any]  # of an alert's beginning or end (telemetry.alerts.content)


def check(kind: str, target: str) -> None:
    """Whether a channel can be sent to as far as its words tell. Raises ValidationError."""
    if kind in (ChannelKind.WEBHOOK, ChannelKind.SLACK):
        check_webhook(target)
        if kind == ChannelKind.WEBHOOK and not settings.QUARTERMASTER_WEBHOOK_SECRET:
            raise ValidationError("QUARTERMASTER_WEBHOOK_SECRET is not set, so nothing could be signed.")
    elif kind == ChannelKind.EMAIL:
        if not settings.EMAIL_HOST:
            raise ValidationError("QUARTERMASTER_EMAIL_URL is not set, so no e-mail can be sent.")
        targets = addresses(target)
        if not 1 <= len(targets) <= MAX_ADDRESSES:
            raise ValidationError(f"Give one to {MAX_ADDRESSES} addresses, with commas.")
        for address in targets:
            validate_email(address)
    elif len(target) != _KEY_LENGTH or not target.isalnum():
        raise ValidationError(f"An integration key of PagerDuty has {_KEY_LENGTH} letters and digits.")


def addresses(target: str) -> list[str]:
    return [address.strip() for address in target.split(",") if address.strip()]


def masked_target(channel: NotificationChannel) -> str:
    """Where it goes, without what would let others send there."""
    if channel.kind == ChannelKind.EMAIL:
        return channel.target
    if channel.kind == ChannelKind.PAGERDUTY:
        return f"…{channel.target[-4:]}"
    parts = urlsplit(channel.target)  # a secret may follow the host without a slash, as a query
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


def deliver(channel: NotificationChannel, content: Content) -> None:
    """One attempt.

    Raises:
        WebhookError: it was not taken, or may not be sent there (any more); the message says why.
    """
    try:
        check(channel.kind, channel.target)
    except ValidationError as error:
        raise WebhookError(" ".join(error.messages)) from error
    _SENDERS[ChannelKind(channel.kind)](channel.target, content)


def title(content: Content) -> str:
    """ "[critical] Deep queue", and of an end "[resolved] Deep queue"; on one line."""
    state = "resolved" if content["status"] == "resolved" else content["severity"]
    return " ".join(f"[{state}] {content['rule'] or content['kind'].replace('_', ' ')}".split())


def _webhook(target: str, content: Content) -> None:
    post(target, settings.QUARTERMASTER_WEBHOOK_SECRET, content["id"], content)


def _slack(target: str, content: Content) -> None:
    lines = [f"*{_escaped(title(content))}*", _escaped(content["text"])]
    if content["link"]:
        lines.append(f"<{content['link']}|Open the incident>")
    send(target, msgspec.json.encode({"text": "\n".join(lines)}), _JSON, "Slack")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _email(target: str, content: Content) -> None:
    facts = [(name, content[name]) for name in ("pool", "tenant", "subject", "value", "threshold", "at")]
    body = [content["text"], "", *(f"{name}: {value}" for name, value in facts if value not in ("", None))]
    body += ["", content["link"]] if content["link"] else []
    message = EmailMessage(title(content), "\n".join(body), settings.DEFAULT_FROM_EMAIL, addresses(target))
    message.extra_headers["X-Quartermaster-Id"] = content["id"]
    try:
        message.send()
    except smtplib.SMTPResponseException as error:
        reply = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise WebhookError(f"the mail server answered {error.smtp_code}: {' '.join(reply.split())[:200]}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise WebhookError(f"the mail server did not take it ({type(error).__name__})") from error


def _pagerduty(target: str, content: Content) -> None:
    event: Content = {
        "routing_key": target,
        "event_action": "resolve" if content["status"] == "resolved" else "trigger",
        "dedup_key": f"quartermaster-{content['id'].removesuffix('-resolved')}",
    }
    if event["event_action"] == "trigger":
        names = ("kind", "rule", "tenant", "value", "threshold", "at")
        event["payload"] = {
            "summary": f"{title(content)}: {content['text']}"[:1024],
            "source": content["pool"] or "quartermaster",
            "severity": content["severity"],
            "component": content["subject"],
            "custom_details": {name: content[name] for name in names if content[name] not in ("", None)},
        }
        if content["link"]:
            event["links"] = [{"href": content["link"], "text": "Open the incident"}]
    send(settings.QUARTERMASTER_PAGERDUTY_URL, msgspec.json.encode(event), _JSON, "PagerDuty")


_SENDERS: dict[ChannelKind, Callable[[str, Content], None]] = {
    ChannelKind.WEBHOOK: _webhook,
    ChannelKind.SLACK: _slack,
    ChannelKind.EMAIL: _email,
    ChannelKind.PAGERDUTY: _pagerduty,
}
