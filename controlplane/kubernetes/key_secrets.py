"""Keys by Secret reference: the value of a key is in a Secret that the operator makes, or finds there.

The Secret comes first and the catalog second: whatever stops in between, the next look finds a value that the catalog
does not know yet, and adds it. Rotation is the same: another value, after which the one before it ends.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.kubernetes.catalog import CustomResource, actor_of, error_text
from controlplane.kubernetes.replicas import is_name
from controlplane.kubernetes.resources import API_VERSION, DEFAULT_KEY, GROUP, SECRET
from tenants import keys, services
from tenants.connections import own_connection
from tenants.manifest.document import parse
from tenants.manifest.plan import apply, plan
from tenants.manifest.reader import ManifestError
from tenants.models import ApiKey, Entitlement, Owner, Project

KIND = "ApiKey"
ROTATED = f"{GROUP}/rotate"  # annotation of a Secret: the ``rotate`` for which its value was made
FOR_KEY = f"{GROUP}/key"  # label of a Secret: the resource that may have values written into it


def tenants_by_namespace(pairs: Iterable[str]) -> dict[str, frozenset[str]]:
    """The tenants whose keys each namespace's resources may ask for, from ``NAMESPACE/TENANT``; ``NAMESPACE/`` alone
    allows none. A namespace that is not listed may ask for all.

    Raises:
        ValueError: the text is no such pair.
    """
    found: dict[str, set[str]] = {}
    for pair in pairs:
        namespace, slash, tenant = pair.partition("/")
        if not namespace or not slash or "/" in tenant:
            raise ValueError(f"{pair!r} is not NAMESPACE/TENANT")
        found.setdefault(namespace, set()).update({tenant} - {""})
    return {namespace: frozenset(tenants) for namespace, tenants in found.items()}


class KeyFault(Exception):
    """The key cannot be as its resource says. The text says why, never a value."""


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a key's value is: ``spec.secret``."""

    name: str
    key: str
    rotate: str
    every_s: int
    overlap_s: int

    @classmethod
    def of(cls, resource: CustomResource) -> SecretReference:
        """Raises:
        KeyFault: no Secret can have this name.
        """
        spec = resource.spec[SECRET]
        if not is_name(spec["name"]):
            raise KeyFault(f"spec.secret.name: a Secret cannot be called {spec['name']!r}"[:1000])
        return cls(
            spec["name"], spec.get("key") or DEFAULT_KEY, spec.get("rotate") or "",
            spec.get("rotateEverySeconds") or 0, spec.get("overlapSeconds") or 0,
        )  # fmt: skip

    def value(self, secret: Mapping[str, Any] | None) -> str:
        """Empty where there is none yet.

        Raises:
            KeyFault: something else is there, which is not overwritten.
        """
        raw = ((secret or {}).get("data") or {}).get(self.key) or ""
        try:
            text = base64.b64decode(raw, validate=True).decode("ascii").strip()
        except (binascii.Error, ValueError):
            text = "?"
        parsed = keys.parse(text)
        if text and (parsed is None or parsed.prefix != keys.KEY_PREFIX):
            raise KeyFault(f"Secret {self.name}: {self.key} is no key of ours; remove it there to have one made")
        return text

    def check_ours(self, resource: CustomResource, secret: Mapping[str, Any]) -> None:
        """Whether a key may be written into an existing Secret: only into one created for this resource, or labelled
        for it by somebody who may write Secrets. Permission to write ApiKeys is none to write Secrets.

        Raises:
            KeyFault: it is somebody else's.
        """
        metadata = secret.get("metadata") or {}
        owners = metadata.get("ownerReferences") or []
        labelled = (metadata.get("labels") or {}).get(FOR_KEY) == resource.name
        if not labelled and not any(owner.get("uid") == resource.uid for owner in owners):
            raise KeyFault(
                f"Secret {self.name} was not made for this resource, and no value is written into it: name another "
                f"one, or give it the label {FOR_KEY}={resource.name}"
            )

    def body(self, resource: CustomResource, credential: keys.Credential) -> dict[str, Any]:
        """The Secret with another value. One that we make goes with its resource."""
        owner = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": resource.name,
            "uid": resource.uid,
            "controller": True,
        }
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.name,
                "namespace": resource.namespace,
                "labels": {FOR_KEY: resource.name},
                "annotations": {ROTATED: self.rotate},
                "ownerReferences": [owner],
            },
            "data": {self.key: base64.b64encode(credential.text.encode()).decode()},
        }


@own_connection
def is_due(resource: CustomResource, place: SecretReference, value: str, annotations: Mapping[str, str]) -> bool:
    """Whether another value has to be made.

    Raises:
        KeyFault: the value that is there is another's, and stays.
    """
    if not value:
        return True
    credential = keys.parse(value)
    row = ApiKey.objects.filter(public_id=credential.public_id).first() if credential else None
    if credential is not None and row is not None:
        _check_owner(resource, credential, row)
    if place.rotate and annotations.get(ROTATED, "") != place.rotate:
        return True
    return bool(row and place.every_s and timezone.now() - row.created_at > timedelta(seconds=place.every_s))


@own_connection
def settle(resource: CustomResource, place: SecretReference, value: str, tenants: Collection[str] | None = None) -> str:
    """Makes the catalog know this value under its resource's rights and limits; those before it end. The key's id.

    ``tenants``: whose keys its namespace may ask for. None: anybody's.

    Raises:
        KeyFault: it cannot.
    """
    credential = keys.parse(value)
    assert credential is not None  # SecretReference.value
    try:
        with transaction.atomic():
            row = ApiKey.objects.filter(public_id=credential.public_id).first()
            if row is None:
                _issue(resource, place, credential)
            else:
                _check(resource, credential, row)
            spec = {name: part for name, part in resource.spec.items() if name != SECRET}
            node = CustomResource(KIND, resource.namespace, credential.public_id, resource.uid, spec).node()
            apply(plan([node]), actor=actor_of(resource))
            if tenants is not None and ApiKey.objects.get(public_id=credential.public_id).tenant.slug not in tenants:
                refused = f"namespace {resource.namespace} may not have keys of this tenant"
                raise KeyFault(f"{resource.where}: {refused}: operator.secrets.tenants")
            [mine] = parse([node])
            attributes = sorted(rule.attribute for rule in mine.kind.fields if rule.path in mine.state)
            Owner.objects.update_or_create(
                kind=KIND,
                name=credential.public_id,
                defaults={"namespace": resource.namespace, "uid": resource.uid, "attributes": attributes},
            )
    except ManifestError as error:
        raise KeyFault(error_text(error)) from error
    except ValidationError as error:
        raise KeyFault("; ".join(error.messages)[:1000]) from error
    return credential.public_id


def _issue(resource: CustomResource, place: SecretReference, credential: keys.Credential) -> None:
    services.issue_key(
        actor=actor_of(resource),
        name=resource.spec.get("displayName") or resource.name,
        entitlement=_named(Entitlement, resource, "entitlementRef"),
        project=_named(Project, resource, "projectRef"),
        credential=credential,
    )
    for owner in Owner.objects.filter(kind=KIND, uid=resource.uid):
        before = ApiKey.objects.filter(public_id=owner.name).first()
        if before is not None and before.revoked_at is None:
            _end(resource, before, place.overlap_s)
        owner.delete()  # it ends by itself; what its resource says is now another key's


def _named(model: Any, resource: CustomResource, reference: str) -> Any:
    name = (resource.spec.get(reference) or {}).get("name")
    if not name:
        return None
    row = model.objects.filter(slug=name).first()
    if row is None:
        raise KeyFault(f"{resource.where}: {reference}.name: there is no {model._meta.verbose_name} {name!r}")
    return row


def _end(resource: CustomResource, key: ApiKey, overlap_s: int) -> None:
    if overlap_s <= 0:
        services.revoke_key(actor=actor_of(resource), key=key)
        return
    end = timezone.now() + timedelta(seconds=overlap_s)
    key.expires_at = end if key.expires_at is None else min(end, key.expires_at)
    services.save(actor=actor_of(resource), instance=key, action="rotate")


def _check(resource: CustomResource, credential: keys.Credential, row: ApiKey) -> None:
    _check_owner(resource, credential, row)
    if row.revoked_at is not None:
        raise KeyFault(f"{row} was revoked; remove its value from the Secret to have another one made")


def _check_owner(resource: CustomResource, credential: keys.Credential, row: ApiKey) -> None:
    if (
        not keys.matches(credential, row.digest)
        or not Owner.objects.filter(kind=KIND, name=row.public_id, uid=resource.uid).exists()
    ):
        raise KeyFault(f"the key in the Secret, {row}, was not made for this resource; remove it to have one made")


@own_connection
def remove(resource: CustomResource) -> None:
    """Ends the keys of a resource that is being deleted. Their rows stay: records name them."""
    for owner in Owner.objects.filter(kind=KIND, uid=resource.uid):
        with transaction.atomic():
            row = ApiKey.objects.filter(public_id=owner.name).first()
            if row is not None:
                services.revoke_key(actor=actor_of(resource), key=row)
            owner.delete()
