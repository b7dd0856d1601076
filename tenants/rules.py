"""What a change of one object must not do, and what goes with it. Nothing is written here: ``services`` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, User
from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from tenants.models import ApiKey, Entitlement, Invitation, Membership, Pool, Project, Role, Tenant
from tenants.validators import TURNS, check_webhook, turns_text, validate_one_script

# A change of one of these is a new version of a pool's policy.
DECIDES = ("policy", "policy_params", "modifiers", "routing", "routing_params", "room")


def belongings(instance: models.Model) -> Iterator[models.Model]:
    """What goes with an object, one audit entry each, instead of vanishing in a cascade."""
    match instance:
        case Entitlement() | Project():
            yield from instance.keys.all()
        case Tenant():
            yield from instance.memberships.all()
            yield from instance.quotas.all()
            yield from instance.budgets.all()
        case Pool():
            yield from instance.prices.all()
        case User():
            yield from instance.memberships.all()
            # Before the tokens that made them: without those they would be as if a command had.
            yield from Invitation.objects.filter(created_by=instance, used_at__isnull=True)
            yield from instance.access_tokens.all()


def refuse_fixed(stored: models.Model, instance: models.Model) -> None:
    for name in getattr(instance, "fixed", ()):
        attname = cast("models.Field[Any, Any]", instance._meta.get_field(name)).attname
        if getattr(stored, attname) != getattr(instance, attname):
            raise ValidationError({name: "This cannot change after creation. Create a new object and delete this one."})


def number_policy(stored: models.Model, instance: models.Model) -> None:
    if isinstance(instance, Pool) and isinstance(stored, Pool):
        same = all(getattr(stored, name) == getattr(instance, name) for name in DECIDES)
        instance.policy_version = stored.policy_version + (0 if same else 1)


def check_user_name(stored: models.Model | None, instance: models.Model) -> None:
    """When it is written: names stand in the audit log, and accounts that have another one keep it."""
    if isinstance(instance, User) and not (isinstance(stored, User) and stored.username == instance.username):
        try:
            validate_one_script(instance.username)
        except ValidationError as error:
            raise ValidationError({"username": error.messages}) from error


def check_directions(stored: models.Model | None, instance: models.Model) -> None:
    """Texts that are written turn no text around them; those of an older release stand in no other change's way."""
    for field in instance._meta.concrete_fields:
        value = getattr(instance, field.attname)
        if isinstance(value, str) and turns_text(value) and value != getattr(stored, field.attname, None):
            raise ValidationError({field.name: TURNS})


def check_scaling_webhook(stored: models.Model | None, instance: models.Model) -> None:
    """When it is written, so that a list that was shortened later does not stand in the way of other changes. What is
    sent is checked again each time."""
    if not isinstance(instance, Pool) or instance.scaling_driver != "webhook":
        return
    if isinstance(stored, Pool) and (stored.scaling_driver, stored.scaling_params) == (
        instance.scaling_driver,
        instance.scaling_params,
    ):
        return
    try:
        check_webhook(instance.scaling_params["url"])
    except ValidationError as error:
        raise ValidationError({"scaling_params": error.messages}) from error


@contextmanager
def an_admin_remains(instance: models.Model) -> Iterator[None]:
    """Refuses to take the last admin away: nobody could give the role back through the product."""
    concerned = isinstance(instance, Membership | AbstractBaseUser)
    before = concerned and _has_admin()
    yield
    if before and not _has_admin():
        raise ValidationError("This would leave no one with the admin role. Give it to someone else first.")


def _has_admin() -> bool:
    """Whether a person is: an account of a program has no password, and its tokens may end with whoever made them."""
    users = get_user_model()._default_manager.filter(is_active=True, service_account__isnull=True)
    return users.filter(models.Q(is_superuser=True) | models.Q(memberships__role=Role.ADMIN)).exists()


def check_key(stored: models.Model, instance: models.Model) -> None:
    """A revoked key stays as it was, for the audit. An end that is written lies ahead: to end a key now, revoke it."""
    if not isinstance(instance, ApiKey) or not isinstance(stored, ApiKey):
        return
    if stored.revoked_at is not None:
        raise ValidationError("This key is revoked and cannot change any more. Make a new one.")
    if instance.expires_at != stored.expires_at:
        refuse_past(instance.expires_at)


def refuse_past(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= timezone.now():
        raise ValidationError({"expires_at": "This time has passed. Give a later one, or leave it empty."})


def within_life(expires_at: datetime | None) -> datetime | None:
    """The end of a new token: at the latest, and where none was given, that of the longest life."""
    days = settings.QUARTERMASTER_TOKEN_DAYS
    if not days:
        return expires_at
    latest = timezone.now() + timedelta(days=days)
    if expires_at is not None and expires_at > latest:
        raise ValidationError({"expires_at": f"Access tokens live {days} days at most (QUARTERMASTER_TOKEN_DAYS)."})
    return expires_at or latest
