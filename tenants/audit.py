"""What an object looks like in the audit log: every field, no secret."""

from __future__ import annotations

import getpass
import logging
import os
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import DatabaseError
from django.db.models import Model, Q
from django.http import HttpRequest
from django.utils import timezone

from tenants.models import (
    ApiKey,
    AuditEntry,
    Budget,
    Entitlement,
    GroupRule,
    Invitation,
    Membership,
    Project,
    Quota,
    Tenant,
)

log = logging.getLogger(__name__)

_NOISE = ("id", "created_at", "last_login", "date_joined")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and through what."""

    name: str
    via: str  # api | admin | cli | oidc | system
    user: User | None = None
    request_id: str = ""
    address: str = ""  # where the request came from

    @classmethod
    def of(cls, request: HttpRequest, via: str) -> Actor:
        """The signed-in user behind an HTTP request."""
        user = request.user if isinstance(request.user, User) else None
        return cls(
            request.user.get_username(),
            via,
            user,
            request.headers.get("x-request-id", "")[:64],
            request.META.get("REMOTE_ADDR", "")[:45],
        )

    @classmethod
    def at_shell(cls) -> Actor:
        """Who gives a command. A user that the cluster chose (OpenShift, ``runAsUser``) has no name."""
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # Python before 3.13, and since
            name = f"uid {os.getuid()}"
        return cls(name, "cli")


SYSTEM = Actor("quartermaster", "system")


def secrets_of(instance: Model) -> tuple[str, ...]:
    """Fields that never leave the database."""
    return ("password",) if isinstance(instance, AbstractBaseUser) else getattr(instance, "secret", ())


def snapshot(instance: Model) -> dict[str, Any]:
    """The object's fields as JSON. Secrets show only whether they are set; relations by name."""
    hidden = secrets_of(instance)
    result: dict[str, Any] = {}
    for field in instance._meta.concrete_fields:
        if field.name in _NOISE:
            continue
        if field.name in hidden:
            result[field.name] = "(set)" if getattr(instance, field.attname) else ""
            continue
        value = getattr(instance, field.name)
        if isinstance(value, Model):
            value = str(value)
        elif isinstance(value, datetime):
            value = value.isoformat()
        elif isinstance(value, Decimal):
            value = str(value)
        result[field.name] = value
    return result


def difference(before: dict[str, Any] | None, after: dict[str, Any] | None) -> tuple[Any, Any]:
    """Of a change, only the fields that changed; of a creation or deletion, everything."""
    if before is None or after is None:
        return before, after
    changed = [name for name in after if before.get(name) != after[name]]
    return {name: before.get(name) for name in changed}, {name: after[name] for name in changed}


def tenant_of(instance: Model) -> Tenant | None:
    """The tenant whose members may read about this object."""
    match instance:
        case Tenant():
            return instance if instance.pk else None
        case ApiKey() | Budget() | Entitlement() | GroupRule() | Invitation() | Membership() | Project() | Quota():
            return instance.tenant
        case _:
            return None


def record(
    *,
    actor: Actor,
    action: str,
    instance: Model,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Writes one entry. Call it inside the transaction of the change it tells about."""
    tenant = tenant_of(instance) if action != "delete" or not isinstance(instance, Tenant) else None
    entry = AuditEntry(
        actor=actor.name,
        via=actor.via,
        action=action,
        kind=instance._meta.model_name or "",
        object_id=str(instance)[:150],
        tenant=tenant,
        before=before,
        after=after,
        request_id=actor.request_id,
        address=actor.address,
    )
    entry.save()
    return entry


REFUSALS_A_MINUTE = 20  # of one name or address that are written; strangers must not fill the log
READS_A_MINUTE = 20  # of one name that are allowed: each is written, and a member must not fill the log either


WRITES_A_MINUTE = 300  # of one member; each is an entry as well, and every gateway hears of it


def are_many(actor: Actor, outcome: str, most: int) -> bool:
    """Whether this user has ``most`` entries of an outcome from the last minute, and so has to wait."""
    since = timezone.now() - timedelta(minutes=1)
    return AuditEntry.objects.filter(at__gte=since, outcome=outcome, actor=actor.name)[:most].count() >= most


def note(*, actor: Actor, action: str, outcome: str, what: str, detail: dict[str, Any] | None = None) -> None:
    """Writes down what changed nothing: a refused attempt, a login, or a read of something that is guarded.

    Never raises for want of a database: the answer was decided already.
    """
    actor = replace(actor, name=actor.name[:150])
    since = timezone.now() - timedelta(minutes=1)
    try:
        recent = AuditEntry.objects.filter(at__gte=since, outcome=outcome)
        by_same = recent.filter(Q(actor=actor.name) | Q(address=actor.address, via=actor.via))
        if outcome == "refused" and by_same.count() >= REFUSALS_A_MINUTE:
            return
        AuditEntry(
            actor=actor.name,
            via=actor.via,
            action=action[:32],
            kind="request",
            object_id=what[:150],
            after=detail,
            request_id=actor.request_id,
            address=actor.address,
            outcome=outcome,
        ).save()
    except DatabaseError:
        log.warning("audit: %s of %s could not be written", action, what[:150])
