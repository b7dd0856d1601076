"""People whom an identity provider vouches for: made when they first sign in, changed with their groups, and ended.

Nothing here talks to the provider (``controlplane.signin`` does). Callers have verified what they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from tenants import services
from tenants.audit import Actor, record
from tenants.models import ApiKey, GroupRule, Identity, Membership, Role
from tenants.sealed import seal, unseal

MOST_GROUPS = 1_000  # of one person; those beyond give nothing
GROUP_LETTERS = 200
MOST_SESSIONS = 20  # of one person; the oldest ends when one more begins
PROVIDER = Actor("identity provider", "oidc")
GRANT = "grant"  # purpose of the seal

Wanted = frozenset[tuple[str, int | None]]  # role, tenant's key


@dataclass(frozen=True, slots=True)
class Grant:
    """What the provider gave us to ask it again."""

    access: str
    refresh: str = ""

    def sealed(self) -> str:
        return seal(json.dumps([self.access, self.refresh]), GRANT)

    @classmethod
    def opened(cls, text: str) -> Grant | None:
        """None where there is none, or the instance's key has changed."""
        found = unseal(text, GRANT) if text else None
        return None if found is None else cls(*json.loads(found))


def groups_in(claims: Mapping[str, Any], claim: str) -> list[str] | None:
    """The groups that claims name, sorted; None where they do not speak of groups. Dots lead into objects."""
    value: Any = claims
    for name in [claim] if claim in claims else claim.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return None
    named = {group for group in value if isinstance(group, str) and 0 < len(group) <= GROUP_LETTERS}
    return sorted(named)[:MOST_GROUPS]


def granted(groups: Iterable[str]) -> Wanted:
    """The roles that groups give: one for everything at most, the higher one."""
    rules = GroupRule.objects.filter(group__in=list(groups)).values_list("role", "tenant_id")
    found: set[tuple[str, int | None]] = set(rules)
    if (Role.ADMIN.value, None) in found:
        found.discard((Role.OPERATOR.value, None))
    return frozenset(found)


def has_role(user: User) -> bool:
    return user.is_superuser or Membership.objects.filter(user=user).exists()


def has_role_by_hand(user: User) -> bool:
    """Whether somebody gave this person a role, whatever their groups are."""
    return user.is_superuser or Membership.objects.filter(user=user, from_groups=False).exists()


def follow_groups(*, actor: Actor, user: User, groups: Iterable[str]) -> None:
    """Gives and takes away what groups say. Roles that an admin gave by hand stay."""
    wanted = granted(groups)
    if _given(user) == _reduced(user, wanted):
        return
    with services.change(actor=actor):
        wanted = _reduced(user, granted(groups))
        for row in Membership.objects.filter(user=user, from_groups=True).select_related("user", "tenant"):
            if (row.role, row.tenant_id) not in wanted:
                services.withdraw(actor=actor, membership=row)
        for role, tenant_id in sorted(wanted - _given(user), key=str):
            services.save(actor=actor, instance=Membership(user=user, role=role, tenant_id=tenant_id, from_groups=True))


def _given(user: User) -> Wanted:
    return frozenset(Membership.objects.filter(user=user, from_groups=True).values_list("role", "tenant_id"))


def _reduced(user: User, wanted: Wanted) -> Wanted:
    """Without those in whose place somebody has given a role by hand: there is one per tenant."""
    by_hand = set(Membership.objects.filter(user=user, from_groups=False).values_list("tenant_id", flat=True))
    return frozenset((role, tenant) for role, tenant in wanted if tenant not in by_hand)


def signed_in(*, user: User, issuer: str, subject: str, groups: list[str], grant: Grant, due_at: datetime) -> Identity:
    """Notes a sign-in, and gives the roles of the groups. Whom the provider had ended may come back."""
    actor = Actor(user.get_username(), "oidc", user)
    now = timezone.now()
    with services.change(actor=actor):
        identity = Identity.objects.select_for_update().filter(user=user).first() or Identity(user=user)
        identity.issuer, identity.subject, identity.groups = issuer, subject, groups
        identity.grant, identity.due_at = grant.sealed(), due_at
        identity.signed_in_at = identity.checked_at = now
        identity.trouble = ""
        if identity.ended_at is not None:
            record(actor=actor, action="return", instance=user, before={"ended_at": identity.ended_at.isoformat()})
            identity.ended_at, identity.ended_because = None, ""
            user.is_active = True
            user.save(update_fields=["is_active"])
        identity.save()
        follow_groups(actor=actor, user=user, groups=groups)
    return identity


def found(identity: Identity, *, groups: list[str] | None, grant: Grant | None) -> None:
    """The provider said that they are there. ``groups`` None: it did not say which ones they are in."""
    identity.checked_at, identity.trouble = timezone.now(), ""
    if groups is not None:
        identity.groups = groups
    if grant is not None:
        identity.grant = grant.sealed()
    identity.save(update_fields=["checked_at", "trouble", "groups", "grant"])
    follow_groups(actor=PROVIDER, user=identity.user, groups=identity.groups)
    if not has_role(identity.user):
        end(identity, "No group of theirs has a role here any more.")


def end(identity: Identity, reason: str) -> None:
    """Ends a person here: sessions, access tokens, roles that groups gave and, where that is set, API keys.

    Doing it twice changes nothing."""
    with services.change(actor=PROVIDER):
        identity = Identity.objects.select_for_update().select_related("user").get(pk=identity.pk)
        if identity.ended_at is not None:
            return
        user = identity.user
        identity.ended_at, identity.ended_because = timezone.now(), reason[:200]
        identity.due_at, identity.grant = None, ""
        identity.save()
        user.is_active = False
        user.save(update_fields=["is_active"])
        tokens = list(user.access_tokens.filter(revoked_at__isnull=True))
        for token in tokens:
            services.revoke_token(actor=PROVIDER, token=token)
        for membership in user.memberships.filter(from_groups=True).select_related("user", "tenant"):
            services.withdraw(actor=PROVIDER, membership=membership)
        keys = list(keys_of(user)) if settings.QUARTERMASTER_OIDC_END_KEYS else []
        for key in keys:
            services.revoke_key(actor=PROVIDER, key=key)
        sessions = end_sessions(user)
        after = {"reason": reason, "sessions": sessions, "access_tokens": len(tokens), "api_keys": len(keys)}
        record(actor=PROVIDER, action="end", instance=user, after=after)


def keys_of(user: User) -> Any:
    """Keys that still open something and that this person made, or that are attributed to them."""
    names = [name for name in (user.get_username(), user.email) if name]
    return ApiKey.objects.filter(Q(created_by=user) | Q(user__in=names), revoked_at__isnull=True).order_by("pk")


# --- sessions


def began(*, user: User, session_key: str, address: str, agent: str) -> None:
    """Notes a new session, so that it can be listed and ended. The oldest of too many ends."""
    UserSession.objects.update_or_create(
        session_key=session_key, defaults={"user": user, "ip": address, "user_agent": agent[:200]}
    )
    rows = UserSession.objects.filter(user=user).order_by("-created_at", "-pk")
    for row in rows[MOST_SESSIONS : MOST_SESSIONS + 100]:
        end_session(row)


def end_session(row: UserSession) -> None:
    """Whoever has it is a stranger from now on; an open console is closed within a minute."""
    import_module(settings.SESSION_ENGINE).SessionStore().delete(row.session_key)
    row.delete()


def end_sessions(user: User) -> int:
    """Ends all of a person's. Returns how many there were."""
    rows = list(UserSession.objects.filter(user=user))
    for row in rows:
        end_session(row)
    return len(rows)
