"""Kept responses in the database. All of it blocks."""

from __future__ import annotations

import hmac
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone

from controlplane.env import Env
from controlplane.owners import NOBODY
from controlplane.responses.models import StoredResponse
from scheduling.gateway.answers.sealing import seal, unseal
from scheduling.gateway.answers.stored import Kept, Owner
from tenants.connections import own_connection

CHUNK = 500  # rows of a statement
OLDEST = 50  # that are looked at together where a tenant has too many
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode


class GivenUp(Exception):
    """Nobody waits for it any more: it is as if it had not begun."""


def _env() -> Env:
    return settings.ENV


def _key(secret: bytes, owner: Owner, response_id: str) -> bytes:
    """A row that is put in another's place opens for nobody: names have no newline."""
    return hmac.digest(secret, "\n".join((owner.tenant, owner.project, response_id)).encode(), "sha256")


@own_connection
def keep(secret: bytes, owner: Owner, response_id: str, kept: Kept, given_up: Callable[[], bool]) -> bool:
    """False where one tenant may not keep so much. Raises :class:`GivenUp`, with nothing kept."""
    env, now = _env(), timezone.now()
    sealed = seal(_key(secret, owner, response_id), zlib.compress(_encode((kept.context, kept.answer)), 1))
    if len(sealed) > env.responses_bytes:
        return False
    with transaction.atomic():
        if given_up():
            raise GivenUp
        StoredResponse.objects.create(
            public_id=response_id, tenant=owner.tenant, project=owner.project, sealed=sealed, bytes=len(sealed),
            created_at=now, expires_at=now + timedelta(days=env.responses_keep_days),
        )  # fmt: skip
        _make_room(owner.tenant)
        if given_up():
            raise GivenUp
    return True


def _make_room(tenant: str) -> None:
    """Deletes a tenant's oldest until it has no more than it may."""
    env, rows = _env(), StoredResponse.objects.filter(tenant=tenant)
    has = rows.aggregate(count=Count("pk"), bytes=Sum("bytes"))
    count, size = has["count"], has["bytes"] or 0
    while count > env.responses_per_tenant or size > env.responses_bytes:
        gone = []
        for pk, length in rows.order_by("created_at", "id").values_list("pk", "bytes")[:OLDEST]:
            if count <= env.responses_per_tenant and size <= env.responses_bytes:
                break
            gone.append(pk)
            count, size = count - 1, size - length
        if not gone:
            return  # others deleted them meanwhile
        rows.filter(pk__in=gone).delete()


@own_connection
def load(secrets: Sequence[bytes], owner: Owner, response_id: str) -> Kept | None:
    """None for another's as for none, and for what none of the secrets opens: the deployment's is another."""
    row = (
        StoredResponse.objects.filter(
            tenant=owner.tenant, project=owner.project, public_id=response_id, expires_at__gt=timezone.now()
        )
        .values_list("sealed", flat=True)
        .first()
    )
    if row is None:
        return None
    opened = (unseal(_key(secret, owner, response_id), bytes(row)) for secret in secrets)
    text = next((text for text in opened if text is not None), None)
    return None if text is None else Kept(*_decode(zlib.decompress(text)))


@own_connection
def delete(owner: Owner, response_id: str) -> bool:
    """Whether there was one."""
    rows = StoredResponse.objects.filter(tenant=owner.tenant, project=owner.project, public_id=response_id)
    return rows.filter(expires_at__gt=timezone.now()).delete()[0] > 0


def forget(tenant: str, project: str | None) -> None:
    """Of a tenant that is gone, or one project of it, nothing is kept. ``tidy`` deletes it."""
    rows = StoredResponse.objects.filter(tenant=tenant)
    if project is not None:
        rows = rows.filter(project=project)
    rows.update(tenant=NOBODY, project="", expires_at=timezone.now())


@own_connection
def tidy() -> None:
    """Deletes what has expired, in bounded pieces."""
    for _ in range(20):
        old = StoredResponse.objects.filter(expires_at__lt=timezone.now()).order_by("expires_at")
        gone = list(old.values_list("pk", flat=True)[:CHUNK])
        StoredResponse.objects.filter(pk__in=gone).delete()
        if len(gone) < CHUNK:
            return
