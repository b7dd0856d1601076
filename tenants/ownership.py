"""One source of truth per object: what a custom resource says, only the custom resource changes.

A field that the resource does not mention stays free: a pool's policy can be tuned here while its backends come from
the cluster. Rows that belong to another (a pool's backends) go by that one's resource.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import models

from tenants.audit import Actor
from tenants.models import Owner, Pool

KUBERNETES = "kubernetes"  # Actor.via of the operator

FINDS = "replicas"  # among a pool's owned attributes, though it is no column: its resource says where replicas are

# By model: the kind's name in a file. Backends are named inside their pool.
KIND_OF = {
    "slo": "Slo",
    "tier": "Tier",
    "pool": "TokenPool",
    "backend": "Backend",
    "tenant": "Tenant",
    "adapter": "Adapter",
    "project": "Project",
    "entitlement": "TokenEntitlement",
    "apikey": "ApiKey",
}


def owner_of(instance: models.Model) -> Owner | None:
    """The custom resource that keeps this row, if one does."""
    kind = KIND_OF.get(instance._meta.model_name or "")
    name = getattr(instance, "slug", "") or getattr(instance, "public_id", "")
    return Owner.objects.filter(kind=kind, name=name).first() if kind and name else None


def resource_of(owner: Owner) -> Owner:
    """The one that is a resource in the cluster: a backend is a line in its pool's."""
    if owner.kind != "Backend":
        return owner
    return Owner.objects.filter(kind="TokenPool", uid=owner.uid).first() or owner


def are_listed_by_cluster(pool: Pool) -> bool:
    """Whether a custom resource says where in the cluster this pool's replicas are: they are registered and removed by
    the operator, and a scaling driver only makes and ends them."""
    owner = owner_of(pool)
    return owner is not None and FINDS in owner.attributes


def refuse_change(actor: Actor, instance: models.Model, changed: Iterable[str]) -> None:
    """Called inside a write, before it is kept.

    Raises:
        ValidationError: by field, where one of these is set by a custom resource and ``actor`` is not the operator.
    """
    if actor.via in (KUBERNETES, "system"):
        return
    owner = owner_of(instance)
    if owner is None:
        return
    message = f"{resource_of(owner)} in Kubernetes sets this. Change it there."
    faults = {name: message for name in changed if name in owner.attributes}
    if faults:
        raise ValidationError(faults)


def refuse_rotation(instance: models.Model) -> None:
    """Raises:
    ValidationError: the key's value is in a Secret, which would go on to name the old one.
    """
    owner = owner_of(instance)
    if owner is not None:
        raise ValidationError(f"ApiKey of namespace {owner.namespace} in Kubernetes keeps this key. Rotate it there.")


def refuse_delete(actor: Actor, instance: models.Model) -> None:
    """Raises:
    ValidationError: a custom resource keeps this row and would make it again.
    """
    if actor.via in (KUBERNETES, "system"):  # a scaling driver ends replicas that the operator has found
        return
    owner = owner_of(instance)
    if owner is not None:
        raise ValidationError(f"{resource_of(owner)} in Kubernetes keeps this. Delete it there.")
