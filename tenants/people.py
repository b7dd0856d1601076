"""People whom an identity provider vouches for: made when they first sign in, changed with their groups, and ended.

Nothing here talks to the provider (``controlplane.signin`` does). Callers have verified what they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils import timezone

from tenants import keys, services
from tenants.audit import SYSTEM, Actor, record
from tenants.models import (
    AccessToken,
    ApiKey,
    GroupRule,
    Identity,
    Invitation,
    Membership,
    Role,
    ServiceAccount,
    Tenant,
)
from tenants.sealed import seal, unseal
from tenants.validators import turns_text

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
        data = unseal(text, GRANT) if text else None
        return None if data is None else cls(*json.loads(data))


def groups_in(claims: Mapping[str, Any], claim: str) -> list[str] | None:
    """The groups that claims name, sorted; None where they do not speak of groups. Dots lead into objects."""
    value: Any = claims
    for name in [claim] if claim in claims else claim.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    if value is None:  # as some providers write an empty list
        value = []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return None
    named = {group for group in value if isinstance(group, str) and 0 < len(group) <= GROUP_LETTERS and _kept(group)}
    return sorted(named)[:MOST_GROUPS]


def _kept(text: str) -> bool:
    """Whether every database keeps it, and it turns no text around it on the page People. A group that could not be
    stored would end each check of its person with a fault, before their roles follow their groups."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text) and not turns_text(text)


def granted(groups: Iterable[str]) -> Wanted:
    """The roles that groups give: one for everything at most, the higher one."""
    rules = GroupRule.objects.filter(group__in=list(groups)).values_list("role", "tenant_id")
    grants: set[tuple[str, int | None]] = set(rules)
    if (Role.ADMIN.value, None) in grants:
        grants.discard((Role.OPERATOR.value, None))
    return frozenset(grants)


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


def confirm(identity: Identity, *, groups: list[str] | None, grant: Grant | None) -> None:
    """The provider said that they are there. ``groups`` None: it did not say which ones they are in."""
    tenants = _tenants_of(identity.user)
    identity.checked_at, identity.trouble = timezone.now(), ""
    if groups is not None:
        identity.groups = groups
    if grant is not None:
        identity.grant = grant.sealed()
    identity.save(update_fields=["checked_at", "trouble", "groups", "grant"])
    follow_groups(actor=PROVIDER, user=identity.user, groups=identity.groups)
    if not has_role(identity.user):
        end(identity, "No group of theirs has a role here any more.", tenants)


def end(identity: Identity, reason: str, tenants: Iterable[int] = ()) -> None:
    """``tenants`` that they had a role in until just now, besides those of their roles.

    Ends a person here: sessions, access tokens, roles that groups gave and, where that is set, API keys. Whom an
    admin has locked stays locked by that admin: a return to the provider opens nothing.

    Doing it twice changes nothing."""
    with services.change(actor=PROVIDER):
        identity = Identity.objects.select_for_update().select_related("user").get(pk=identity.pk)
        if identity.ended_at is not None:
            return
        user = identity.user
        if user.is_active:
            identity.ended_at, identity.ended_because = timezone.now(), reason[:200]
        identity.due_at, identity.grant = None, ""
        identity.save()
        user.is_active = False
        user.save(update_fields=["is_active"])
        tokens = list(user.access_tokens.filter(revoked_at__isnull=True))
        for token in tokens:
            services.revoke_token(actor=PROVIDER, token=token)
        theirs = list(keys_of(user, {*tenants, *_tenants_of(user)})) if settings.QUARTERMASTER_OIDC_END_KEYS else []
        for membership in user.memberships.filter(from_groups=True).select_related("user", "tenant"):
            services.withdraw(actor=PROVIDER, membership=membership)
        for key in theirs:
            services.revoke_key(actor=PROVIDER, key=key)
        sessions = end_sessions(user)
        after = {"reason": reason, "sessions": sessions, "access_tokens": len(tokens), "api_keys": len(theirs)}
        record(actor=PROVIDER, action="end", instance=user, after=after)


def keys_of(user: User, tenants: Iterable[int]) -> Any:
    """Keys that still open something and that this person made, or that are attributed to them in one of ``tenants``.

    Names and addresses are what people write at their provider: of a tenant in which nobody gave them a role, they
    would end the keys of whoever else is called so.
    """
    names, ids = [name for name in (user.get_username(), user.email) if name], list(tenants)
    attributed = Q(user__in=names) & (Q(entitlement__tenant__in=ids) | Q(project__tenant__in=ids))
    return ApiKey.objects.filter(Q(created_by=user) | attributed, revoked_at__isnull=True).order_by("pk")


def _tenants_of(user: User) -> set[int]:
    """The tenants that this person has a role in."""
    return set(user.memberships.exclude(tenant=None).values_list("tenant_id", flat=True))


# --- accounts of our own

MOST_INVITATIONS = 200  # that are open
LONGEST_INVITATION = timedelta(days=30)


def invite(
    *,
    actor: Actor,
    name: str,
    role: str,
    tenant: Tenant | None,
    expires_at: datetime | None = None,
    made_with: AccessToken | None = None,
) -> services.Issued:
    """Makes a link to one account. Without an end it works for seven days, and as long as its maker, and the token that
    asked for it (``made_with``), may invite.

    Raises:
        ValidationError: it would work for too long, or too many are open.
    """
    now = timezone.now()
    expires_at = expires_at or now + timedelta(days=7)
    if not now < expires_at <= now + LONGEST_INVITATION:
        raise ValidationError({"expires_at": "Use a time within the next 30 days."})
    credential = keys.make(keys.INVITATION_PREFIX)
    with services.change(actor=actor):
        if Invitation.open_at(now).count() >= MOST_INVITATIONS:
            raise ValidationError(f"{MOST_INVITATIONS} invitations are open, the most. Revoke one first.")
        row = Invitation(
            public_id=credential.public_id,
            digest=credential.digest,
            name=name,
            role=role,
            tenant=tenant,
            expires_at=expires_at,
            created_by=actor.user,
            made_with=made_with,
        )
        return services.Issued(services.save(actor=actor, instance=row, action="invite"), credential)


def invited(text: str) -> Invitation | None:
    """The invitation that a link names, while it works."""
    credential = keys.parse(text)
    if credential is None or credential.prefix != keys.INVITATION_PREFIX:
        return None
    row = Invitation.open_at(timezone.now()).select_related("tenant").filter(public_id=credential.public_id).first()
    return row if row is not None and keys.matches(credential, row.digest) else None


def accept(*, text: str, user: User) -> User:
    """Makes the account (not stored yet, its password set) that an invitation is for, and uses the invitation up.

    Raises:
        ValidationError: it does not work any more, or the name is taken.
    """
    actor = Actor(user.get_username(), "invitation")
    with services.change(actor=actor):
        # Who is invited chooses the name, and it stands in the audit log: "Admin" would be read as "admin".
        alike = User.objects.filter(username__iexact=user.get_username()).exists()
        if alike or user.get_username().casefold() == SYSTEM.name:
            raise ValidationError("Another account has this user name, or one that reads like it. Choose another one.")
        row = invited(text)
        if row is None:
            raise ValidationError("This invitation was used, revoked or has expired. Ask for a new one.")
        row.used_at, row.used_by = timezone.now(), user.get_username()
        services.save(actor=actor, instance=user)
        services.save(actor=actor, instance=Membership(user=user, role=row.role, tenant=row.tenant))
        services.save(actor=actor, instance=row, action="accept")
    return user


def make_service_account(*, actor: Actor, username: str, description: str) -> User:
    """An account without a password. Its roles are given as to anybody, its tokens are made by admins."""
    with services.change(actor=actor):
        user = User(username=username)
        user.set_unusable_password()
        services.save(actor=actor, instance=user)
        ServiceAccount.objects.create(user=user, description=description)
    return user


def set_active(*, actor: Actor, user: User, active: bool) -> User:
    """Locks an account or opens it again. A locked one has no sessions and no access tokens from then on.

    Raises:
        ValidationError: it is the last admin's.
    """
    with services.change(actor=actor):
        user = User.objects.select_for_update().get(pk=user.pk)
        user.is_active = active
        services.save(actor=actor, instance=user, action="enable" if active else "disable")
        decided_by_hand(user)
        if not active:
            end_sessions(user)
            for token in user.access_tokens.filter(revoked_at__isnull=True):
                services.revoke_token(actor=actor, token=token)
    return user


def decided_by_hand(user: User) -> None:
    """An admin has locked an account or opened it: that the provider had ended it before counts no more, so a return
    there does not open it."""
    Identity.objects.filter(user=user).update(ended_at=None, ended_because="")


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


def revoke_session(*, actor: Actor, session: UserSession) -> None:
    """Ends one session, and notes who did."""
    with services.change(actor=actor):
        record(actor=actor, action="end session", instance=session.user, before={"address": session.ip})
        end_session(session)


def end_all(*, actor: Actor, user: User) -> None:
    """Ends a person's sessions, and notes who did."""
    with services.change(actor=actor):
        record(actor=actor, action="end sessions", instance=user, before={"sessions": end_sessions(user)})


def revoke_invitation(*, actor: Actor, invitation: Invitation) -> Invitation:
    """Its link works no more. Doing it twice, or after it was used, changes nothing."""
    with services.change(actor=actor):
        row = Invitation.objects.select_for_update().get(pk=invitation.pk)
        if row.revoked_at is None and row.used_at is None:
            row.revoked_at = timezone.now()
            services.save(actor=actor, instance=row, action="revoke")
    return row


def end_others(*, user: User, but: str) -> None:
    """Ends a person's other sessions: they began under weaker rules than the one that asks."""
    for row in UserSession.objects.filter(user=user).exclude(session_key=but):
        end_session(row)


def end_sessions(user: User) -> int:
    """Ends all of a person's. Returns how many there were."""
    rows = list(UserSession.objects.filter(user=user))
    for row in rows:
        end_session(row)
    return len(rows)
