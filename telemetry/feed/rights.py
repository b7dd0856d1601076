"""Tells the live feed of every process at once whose rights have changed: a role, an account, a session that ended.

A notification: the feed asks by itself every half minute, so one that is lost costs that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user_model
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from telemetry.feed.publisher import GroupSender
from tenants.models import Membership

CHANGED = "live.rights"  # the type of its messages to the group

_sender = GroupSender(each=True)


def watch() -> None:
    """Listens to what decides who may see what."""
    post_save.connect(_membership, sender=Membership)
    post_delete.connect(_membership, sender=Membership)
    post_save.connect(_user, sender=get_user_model())
    post_delete.connect(_user, sender=get_user_model())
    post_delete.connect(_session, sender=Session)


def send(message: dict[str, Any]) -> None:
    """Hands it over; neither waits nor raises."""
    if settings.QUARTERMASTER_REDIS_URL:  # without it there is one process, of a test
        _sender(message)


def _membership(instance: Membership, **_: Any) -> None:
    _tell(instance.user_id)


def _user(instance: Any, created: bool = False, update_fields: Any = None, **_: Any) -> None:
    if not created and set(update_fields or ()) != {"last_login"}:
        _tell(instance.pk)


def _session(instance: Session, **_: Any) -> None:
    user = instance.get_decoded().get(SESSION_KEY)
    if user is not None:
        _tell(user)


def _tell(user: object) -> None:
    transaction.on_commit(partial(send, {"type": CHANGED, "user": str(user)}))
