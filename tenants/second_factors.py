"""A second factor of local accounts: an authenticator app (TOTP, RFC 6238), passkeys (``tenants.passkeys``) and
recovery codes, as ``allauth.mfa``'s rows.

Who signs in through the identity provider has the provider's. Service accounts have no password, and access tokens
stand for a login that was made. Nothing here counts wrong codes: callers do, before they ask.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import format_hotp_value, generate_totp_secret, hotp_value
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.crypto import constant_time_compare

from tenants import passkeys
from tenants.access import scope_for
from tenants.audit import Actor, record

STEP_S = 30
CODES = 10  # recovery codes
LONGEST_CODE = 32  # characters, spaces included
LAST = "last_step"  # of the row's data: no code of this or an earlier step is taken again
HOW = "qm.signed_in_by"  # of a session: password, code, passkey or provider
ENOUGH = ("code", "passkey", "provider")
FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)


@dataclass(frozen=True, slots=True)
class Offer:
    """A secret that an app may take up, as text and as a drawing. Nothing is stored yet."""

    secret: str
    address: str  # otpauth://
    svg: str


@dataclass(frozen=True, slots=True)
class State:
    """A user's second factors, and whether one is required."""

    enabled: bool
    mandatory: bool
    available: bool
    since: datetime | None
    used_at: datetime | None
    codes_left: int
    app: bool
    passkeys: list[passkeys.Passkey]


def required(user: User) -> bool:
    """Whether a password alone lets this user in no more."""
    match settings.QUARTERMASTER_SECOND_FACTOR:
        case "all":
            return True
        case "admins":
            return scope_for(user).may_write
        case _:
            return False


def enabled(user: User) -> bool:
    return bool(Authenticator.objects.filter(user=user, type__in=FACTORS).exists())


def password_is_enough(user: User) -> bool:
    """Whether who knows the password, and nothing else, is let in."""
    return not enabled(user) and not required(user)


def is_enough(user: User, how: str | None) -> bool:
    """Whether a session that began in this way may go on. A factor that is required later ends sessions without it."""
    return how in ENOUGH or not required(user)


def state(user: User) -> State:
    rows = list(Authenticator.objects.filter(user=user))
    factors = [row for row in rows if row.type in FACTORS]
    codes = next((row for row in rows if row.type == Authenticator.Type.RECOVERY_CODES), None)
    return State(
        enabled=bool(factors),
        mandatory=required(user),
        available=user.has_usable_password(),
        since=min((row.created_at for row in factors), default=None),
        used_at=max((row.last_used_at for row in rows if row.last_used_at), default=None),
        codes_left=CODES - int(codes.data["used_mask"]).bit_count() if factors and codes else 0,
        app=any(row.type == Authenticator.Type.TOTP for row in factors),
        passkeys=passkeys.listed(user),
    )


def offer(user: User, secret: str = "") -> Offer:
    """A new secret, or a drawing of one that was offered before."""
    secret = secret or generate_totp_secret()
    adapter = get_adapter()
    address = adapter.build_totp_url(user, secret)
    return Offer(secret, address, adapter.build_totp_svg(address))


def step_of(secret: str, code: str, now_s: float) -> int | None:
    """The step of 30 s that a code belongs to: this one, the one before or the one after. None: to no such."""
    typed = "".join(code.split())
    now = int(now_s) // STEP_S
    around = settings.MFA_TOTP_TOLERANCE
    fits = [
        step
        for step in range(now - around, now + around + 1)
        if constant_time_compare(format_hotp_value(hotp_value(secret, step)), typed)
    ]
    return fits[-1] if fits else None


def enable(*, actor: Actor, user: User, secret: str, code: str, now_s: float | None = None) -> list[str]:
    """Takes the app that made ``code`` from ``secret`` as this user's, in place of an earlier one, and returns new
    recovery codes. They are shown only now.

    Raises:
        ValidationError: the code is not of that secret, or the account has no password to stand beside.
    """
    if not user.has_usable_password():
        raise ValidationError("This account has no password here, so there is nothing to add a second factor to.")
    step = step_of(secret, code, time.time() if now_s is None else now_s)
    if step is None:
        raise ValidationError({"code": "This code does not fit. Check the clock of the device, and type the newest."})
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        Authenticator.objects.filter(user=user).exclude(type=Authenticator.Type.WEBAUTHN).delete()
        Authenticator.objects.create(
            user=user,
            type=Authenticator.Type.TOTP,
            data={"secret": get_adapter().encrypt(secret), LAST: step},
        )
        codes: list[str] = RecoveryCodes.activate(user).generate_codes()
        record(actor=actor, action="enable second factor", instance=user)
    return codes


def check(*, actor: Actor, user: User, code: str, now_s: float | None = None) -> bool:
    """Whether this is a code of theirs that was not used before. It is used up by that."""
    now_s = time.time() if now_s is None else now_s
    with transaction.atomic():
        rows = {row.type: row for row in Authenticator.objects.select_for_update().filter(user=user)}
        app = rows.get(Authenticator.Type.TOTP)
        step = None if app is None else step_of(get_adapter().decrypt(app.data["secret"]), code, now_s)
        if app is not None and step is not None:
            if step <= app.data.get(LAST, -1):  # somebody read it over a shoulder
                return False
            app.data[LAST] = step
            app.save(update_fields=["data"])
            app.record_usage()
            return True
        spare = rows.get(Authenticator.Type.RECOVERY_CODES)
        if spare is None or not rows.keys() & set(FACTORS) or not (codes := RecoveryCodes(spare)).validate_code(code):
            return False
        codes.instance.record_usage()
        record(actor=actor, action="use recovery code", instance=user, after={"left": len(codes.get_unused_codes())})
    return True


def new_codes(*, actor: Actor, user: User) -> list[str]:
    """Recovery codes in place of the old ones, which work no more."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if not enabled(user):
            raise ValidationError("There is no second factor to have recovery codes for. Set one up first.")
        Authenticator.objects.filter(user=user, type=Authenticator.Type.RECOVERY_CODES).delete()
        codes: list[str] = RecoveryCodes.activate(user).generate_codes()
        record(actor=actor, action="renew recovery codes", instance=user)
    return codes


def add_passkey(*, actor: Actor, site: passkeys.Site, user: User, name: str, state: Any, answer: Any) -> list[str]:
    """Takes up a passkey. Recovery codes where it is the first factor, else an empty list: they are shown only now."""
    with transaction.atomic():
        passkeys.add(actor=actor, site=site, user=user, name=name, state=state, answer=answer)
        if Authenticator.objects.filter(user=user, type=Authenticator.Type.RECOVERY_CODES).exists():
            return []
        codes: list[str] = RecoveryCodes.activate(user).generate_codes()
    return codes


def remove_passkey(*, actor: Actor, user: User, passkey: int) -> bool:
    """Takes one passkey away, with the recovery codes where it was the last factor. Whether there was such a one.

    Raises:
        ValidationError: it is the last factor, and one is required.
    """
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        row = passkeys.rows_of(user).filter(pk=passkey).first()
        if row is None:
            return False
        last = not Authenticator.objects.filter(user=user, type__in=FACTORS).exclude(pk=row.pk).exists()
        if last and required(user):
            raise ValidationError("A second factor is required here, and this is the last. Add another one first.")
        record(actor=actor, action="remove passkey", instance=user, before={"name": row.data["name"]})
        row.delete()
        if last:
            Authenticator.objects.filter(user=user).delete()
    return True


def remove(*, actor: Actor, user: User, action: str = "disable second factor") -> bool:
    """Takes a factor away, with its recovery codes: by its owner, or by an admin whose user has lost the device.

    Doing it twice changes nothing. Returns whether there was one."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        there = enabled(user)
        Authenticator.objects.filter(user=user).delete()
        if there:
            record(actor=actor, action=action, instance=user)
    return there
