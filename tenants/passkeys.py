"""Passkeys and security keys (WebAuthn) as a second factor, kept as ``allauth.mfa``'s rows beside the app's.

The browser signs a challenge of ours with a key that never leaves the device, and only for the site it was made on: a
page that looks like ours gets nothing. Only the public key is stored. Callers keep the challenge, use it once and count
what did not fit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allauth.mfa.models import Authenticator
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from fido2.rpid import verify_rp_id
from fido2.server import Fido2Server
from fido2.utils import websafe_decode, websafe_encode
from fido2.webauthn import (
    AttestedCredentialData,
    AuthenticationResponse,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialUserEntity,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from tenants.audit import Actor, record

MOST_PASSKEYS = 10  # of one account
NAME_LETTERS = 60
ANSWER_LETTERS = 16_384  # of what a browser sends as JSON
CREDENTIAL_BYTES = 2_048  # of one public key with its name there
NOT_OURS = "This is no answer of a passkey of this account, or it came too late. Try again."


@dataclass(frozen=True, slots=True)
class Site:
    """Where the browser is: what a passkey is bound to."""

    host: str  # without a port
    origins: Collection[str]

    def server(self) -> Fido2Server:
        site = PublicKeyCredentialRpEntity(name="Quartermaster", id=self.host)
        return Fido2Server(
            site, verify_origin=lambda origin: origin in self.origins and verify_rp_id(self.host, origin)
        )


@dataclass(frozen=True, slots=True)
class Passkey:
    """One of somebody's."""

    id: int
    name: str
    since: datetime
    used_at: datetime | None


def rows_of(user: User) -> Any:
    return Authenticator.objects.filter(user=user, type=Authenticator.Type.WEBAUTHN).order_by("pk")


def listed(user: User) -> list[Passkey]:
    return [Passkey(row.pk, row.data["name"], row.created_at, row.last_used_at) for row in rows_of(user)]


def ask_for_new(site: Site, user: User) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the browser is given to make one, and the challenge to keep.

    Raises:
        ValidationError: there are too many.
    """
    known = [_key(row) for row in rows_of(user)]
    if len(known) >= MOST_PASSKEYS:
        raise ValidationError(f"This account has {MOST_PASSKEYS} passkeys, the most. Remove one first.")
    options, state = site.server().register_begin(
        PublicKeyCredentialUserEntity(
            id=str(user.pk).encode(), name=user.get_username(), display_name=user.get_username()
        ),
        credentials=known,
        resident_key_requirement=ResidentKeyRequirement.DISCOURAGED,
        user_verification=UserVerificationRequirement.PREFERRED,
    )
    return _plain(options), dict(state)


def ask_for_use(site: Site, user: User) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the browser is given to use one, and the challenge to keep."""
    options, state = site.server().authenticate_begin(
        [_key(row) for row in rows_of(user)], user_verification=UserVerificationRequirement.PREFERRED
    )
    return _plain(options), dict(state)


def add(*, actor: Actor, site: Site, user: User, name: str, state: Mapping[str, Any] | None, answer: Any) -> Passkey:
    """Takes up the passkey that answered the challenge.

    Raises:
        ValidationError: it is none, it is known already, or there are too many.
    """
    if not user.has_usable_password():
        raise ValidationError("This account has no password here, so there is nothing to add a second factor to.")
    try:
        made = site.server().register_complete(state or {}, _bounded(answer))
        key = made.credential_data
        assert key is not None
        stored = websafe_encode(bytes(key))
    except Exception as error:  # the parser of a stranger's CBOR: whatever it raises, this is no passkey
        raise ValidationError({"credential": NOT_OURS}) from error
    if len(bytes(key)) > CREDENTIAL_BYTES:
        raise ValidationError({"credential": f"This passkey's key is longer than {CREDENTIAL_BYTES} bytes."})
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        rows = list(rows_of(user))
        if len(rows) >= MOST_PASSKEYS:
            raise ValidationError(f"This account has {MOST_PASSKEYS} passkeys, the most. Remove one first.")
        if any(_key(row).credential_id == key.credential_id for row in rows):
            raise ValidationError({"credential": "This passkey is here already."})
        if any(row.data["name"] == name for row in rows):
            raise ValidationError({"name": "Another passkey of this account has this name."})
        row = Authenticator.objects.create(
            user=user,
            type=Authenticator.Type.WEBAUTHN,
            data={"name": name, "credential": stored, "count": made.counter},
        )
        record(actor=actor, action="add passkey", instance=user, after={"name": name})
    return Passkey(row.pk, name, row.created_at, None)


def check(*, actor: Actor, site: Site, user: User, state: Mapping[str, Any] | None, answer: Any) -> bool:
    """Whether one of this user's passkeys signed the challenge. A signature counter that went back is a copied device:
    refused, and written down."""
    with transaction.atomic():
        rows = list(rows_of(user).select_for_update())
        try:
            bounded = _bounded(answer)
            used = site.server().authenticate_complete(state or {}, [_key(row) for row in rows], bounded)
            count = AuthenticationResponse.from_dict(bounded).response.authenticator_data.counter
        except Exception:  # the parser of a stranger's CBOR: whatever it raises, nothing was signed
            return False
        row = next(row for row in rows if _key(row).credential_id == used.credential_id)
        before = row.data.get("count", 0)
        if (count or before) and count <= before:
            record(actor=actor, action="refuse copied passkey", instance=user, after={"name": row.data["name"]})
            return False
        row.data["count"] = count
        row.save(update_fields=["data"])
        row.record_usage()
    return True


def rename(*, actor: Actor, user: User, passkey: int, name: str) -> Passkey | None:
    """None: there is no such passkey. Raises ValidationError where another one has the name."""
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        row = rows_of(user).filter(pk=passkey).first()
        if row is None:
            return None
        if rows_of(user).exclude(pk=passkey).filter(data__name=name).exists():
            raise ValidationError({"name": "Another passkey of this account has this name."})
        before = row.data["name"]
        if before != name:
            row.data["name"] = name
            row.save(update_fields=["data"])
            record(actor=actor, action="rename passkey", instance=user, before={"name": before}, after={"name": name})
    return Passkey(row.pk, name, row.created_at, row.last_used_at)


def _key(row: Authenticator) -> AttestedCredentialData:
    return AttestedCredentialData(websafe_decode(row.data["credential"]))


def _plain(options: Any) -> dict[str, Any]:
    """As JSON: what ``parseCreationOptionsFromJSON`` of browsers reads."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(options)))["publicKey"]
    return plain


def _bounded(answer: Any) -> dict[str, Any]:
    """Raises ValueError for what no browser sends."""
    if not isinstance(answer, dict) or len(json.dumps(answer)) > ANSWER_LETTERS:
        raise ValueError("not an answer of a browser")
    return answer
