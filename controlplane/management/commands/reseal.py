"""``manage.py reseal``: what is encrypted and signed, anew with the present key, so that a former one can go."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from django.contrib.sessions.models import Session
from django.core import signing
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone

from controlplane.signin.adapters import SECOND_FACTOR
from controlplane.signin.sessions import SessionStore
from tenants.models import Identity
from tenants.people import GRANT
from tenants.sealed import resealed

SEALED = ("secret", "seed", "migrated_codes")  # of what allauth keeps of a second factor


class Command(BaseCommand):
    help = (
        "Encrypts second factors and tokens of the identity provider, and signs sessions, anew with "
        "QUARTERMASTER_SECRET_KEY, before a key is taken out of QUARTERMASTER_SECRET_KEY_FALLBACKS."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        done, closed = 0, []
        factors = Authenticator.objects.exclude(type=Authenticator.Type.WEBAUTHN).order_by("pk")  # those are public
        for pk in factors.values_list("pk", flat=True):
            with transaction.atomic():
                row = factors.select_for_update().get(pk=pk)
                anew = {name: _anew(row.data[name]) for name in SEALED if name in row.data}
                if None in anew.values():
                    closed.append(f"{row.get_type_display()} of {row.user.get_username()}")
                    continue
                row.data = {**row.data, **anew}
                row.save(update_fields=["data"])
                done += 1
        for pk in Identity.objects.exclude(grant="").values_list("pk", flat=True):
            with transaction.atomic():
                identity = Identity.objects.select_for_update().get(pk=pk)
                grant = resealed(identity.grant, GRANT)
                if grant is None:
                    closed.append(f"tokens of {identity.user.get_username()}")
                    continue
                identity.grant = grant
                identity.save(update_fields=["grant"])
                done += 1
        alive = Session.objects.filter(expire_date__gt=timezone.now())
        signed = [_signed_anew(key) for key in list(alive.values_list("pk", flat=True))]
        sessions, unread = signed.count(True), signed.count(None)
        if unread:
            closed.append(f"{unread} {'session' if unread == 1 else 'sessions'}")
        self.stdout.write(f"{done} sealed and {sessions} sessions signed with the present key.")
        if closed:
            raise CommandError(f"No key opens: {', '.join(closed)}. They stay as they are.")


def _signed_anew(key: str) -> bool | None:
    """Whether it is there still; None: no key has signed it. Its end stays, which a save would put off."""
    store = SessionStore(key)
    with transaction.atomic():
        row = Session.objects.select_for_update().filter(pk=key).first()
        if row is None:
            return False
        try:
            data = signing.loads(row.session_data, salt=store.key_salt, serializer=store.serializer)
        except signing.BadSignature:
            return None
        Session.objects.filter(pk=key).update(session_data=store.encode(store.as_of_now(data)))
    return True


def _anew(value: Any) -> Any:
    """None: there is something that no key opens."""
    if isinstance(value, list):
        values = [_anew(one) for one in value]
        return None if None in values else values
    return resealed(value, SECOND_FACTOR)
