"""Changes of other objects than the pool itself in a trial: shares, tiers and slots, as they were and as they would be.

A draft names objects by kind and name, with the values to try. What they had when the draft was made is kept beside
them: a trial starts only while that still holds, and a trial that ends otherwise than kept brings it back, except where
somebody has changed it meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction

from tenants import services
from tenants.audit import Actor
from tenants.models import Backend, Entitlement, EntitlementState, Pool, Tenant, Tier

MOST_OBJECTS = 20  # objects of one draft
FIELDS: dict[str, tuple[str, ...]] = {
    "entitlement": ("concurrency", "tokens_per_s", "burst_tokens", "kv_tokens"),
    "tier": ("rank", "weight", "over_limit", "queue_limit", "max_wait_s"),
    "backend": ("slots",),
}
Change = Mapping[str, Any]  # kind, name, values; and was, once it is kept


def completed(pool: Pool, changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The changes with what the objects have now (``was``); values that are the same already are left out.

    Raises:
        ValidationError: no such object in this pool, or a field that cannot be tried.
    """
    if len(changes) > MOST_OBJECTS:
        raise ValidationError({"objects": f"A trial can change {MOST_OBJECTS} objects at most."})
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for change in changes:
        kind, name, values = change["kind"], change["name"], change["values"]
        row = _row(pool, kind, name)
        unknown = sorted(set(values) - set(FIELDS[kind]))
        if unknown:
            can = ", ".join(FIELDS[kind])
            raise ValidationError({"objects": f"{kind} {name}: {', '.join(unknown)} cannot be tried; can: {can}."})
        if (kind, name) in merged:
            raise ValidationError({"objects": f"{kind} {name} is named twice."})
        wanted = {field: _typed(row, field, value) for field, value in values.items()}
        other = {field: value for field, value in wanted.items() if getattr(row, field) != value}
        if other:
            was = {field: getattr(row, field) for field in other}
            merged[kind, name] = {"kind": kind, "name": name, "values": other, "was": was}
    return list(merged.values())


def apply(actor: Actor, pool: Pool, changes: Sequence[Change]) -> None:
    """Raises:
    ValidationError: a value breaks a rule, an object is gone, or it is no longer as it was.
    """
    for change in changes:
        row = _row(pool, change["kind"], change["name"])
        moved = [field for field, was in change["was"].items() if getattr(row, field) != was]
        if moved:
            message = f"{change['kind']} {change['name']}: {', '.join(moved)} was changed since. Make a new draft."
            raise ValidationError({"objects": message})
        for field, value in change["values"].items():
            setattr(row, field, value)
        services.save(actor=actor, instance=row, action="trial")


def restore(actor: Actor, pool: Pool, changes: Sequence[Change]) -> list[str]:
    """Restores the objects' former values. Returns the fields that were left as they are, because somebody has changed
    them since."""
    left = []
    for change in changes:
        try:
            row = _row(pool, change["kind"], change["name"])
        except ValidationError:
            left.append(f"{change['kind']} {change['name']} is gone")
            continue
        for field, was in change["was"].items():
            if getattr(row, field) == change["values"][field]:
                setattr(row, field, was)
            else:
                left.append(f"{change['kind']} {change['name']}: {field} was changed meanwhile")
        services.save(actor=actor, instance=row, action="trial")
    return left


@contextmanager
def as_if(
    actor: Actor,
    pool: Pool,
    setting: Mapping[str, Any],
    *,
    lost: Collection[str] = (),
    newcomers: Mapping[str, str] | None = None,
) -> Iterator[Pool]:
    """The pool as it would be under a draft. Everything is rolled back, and nobody is notified.

    ``lost``: backends that would not answer, so that shares which cannot be kept without them are degraded.
    ``newcomers``: tenants that would be there as well, each with the entitlement whose share and tier it would have.

    Raises:
        ValidationError: what saving would raise.
    """
    with transaction.atomic():
        with services.change(actor=actor):
            apply(actor, pool, setting.get("objects", ()))
            for name, like in (newcomers or {}).items():
                _join(actor, pool, name, like)
            services.set_silent(pool_slug=pool.slug, answering=dict.fromkeys(lost, False))
            row = Pool.objects.get(pk=pool.pk)
            for name, value in setting.items():
                if name != "objects":
                    setattr(row, name, value)
            services.save(actor=actor, instance=row)
        yield Pool.objects.get(pk=pool.pk)
        transaction.set_rollback(True)


def bound(pool: Pool) -> set[int]:
    """The pool's shares that can be kept now."""
    return set(Entitlement.objects.filter(pool=pool, state=EntitlementState.BOUND).values_list("pk", flat=True))


def require_room(pool: Pool, before: Collection[int]) -> None:
    """Inside :func:`as_if`: what could be kept before can still be. A save is let through with such a share degraded;
    a trial would only measure that it is.

    Raises:
        ValidationError: the shares that could not be kept, with the reason of each.
    """
    lost = Entitlement.objects.filter(pk__in=before, pool=pool).exclude(state=EntitlementState.BOUND).order_by("slug")
    if lost:
        said = [f"{share.slug} would be {share.state}: {share.state_reason}." for share in lost[:MOST_OBJECTS]]
        raise ValidationError({"objects": said})


def _join(actor: Actor, pool: Pool, name: str, like: str) -> None:
    """A tenant and its entitlement, both called ``name``."""
    model: Entitlement = _row(pool, "entitlement", like)
    try:
        tenant = services.save(actor=actor, instance=Tenant(slug=name))
        share = Entitlement(slug=name, tenant=tenant, pool=pool, tier=model.tier, adapter=model.adapter)
        for field in FIELDS["entitlement"]:
            setattr(share, field, getattr(model, field))
        services.save(actor=actor, instance=share)
    except ValidationError as error:
        raise ValidationError({"newcomers": f"Tenant {name} cannot join: {' '.join(error.messages)}"}) from error


def _row(pool: Pool, kind: str, name: str) -> Any:
    rows: models.QuerySet[Any]
    if kind == "entitlement":
        rows = Entitlement.objects.select_for_update(of=("self",)).filter(pool=pool)
    elif kind == "backend":
        rows = Backend.objects.select_for_update(of=("self",)).filter(pool=pool)
    elif kind == "tier":
        rows = Tier.objects.filter(entitlements__pool=pool).distinct()
    else:
        raise ValidationError({"objects": f"{kind!r} cannot be tried; can: {', '.join(FIELDS)}."})
    row = rows.filter(slug=name).first()
    if row is None:
        raise ValidationError({"objects": f"Pool {pool.slug} has no {kind} {name!r}."})
    return row


def _typed(row: models.Model, field: str, value: Any) -> Any:
    try:
        column = row._meta.get_field(field)
        assert isinstance(column, models.Field)
        return column.to_python(value)
    except ValidationError as error:
        raise ValidationError({"objects": f"{row}: {field}: {' '.join(error.messages)}"}) from error
