"""Records of the catalog about itself: the audit log, the catalog's version, the highest epochs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from decimal import Decimal
from hashlib import sha256
from typing import Any

from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from tenants.models.people import Tenant


def _plain(value: Any) -> Any:
    """A JSON value as every database gives it back: 1.0 and 1 are one number, and names are text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"number": format(Decimal(str(value)).normalize(), "e")}
    return value


def digest_of(entry: AuditEntry, before: str) -> str:
    """What links an entry to the one before it. Everything that a reader sees is in it."""
    content = [
        before, entry.number, entry.at.astimezone(UTC).isoformat(), entry.actor, entry.via, entry.action, entry.kind,
        entry.object_id, entry.tenant_name, _plain(entry.before), _plain(entry.after), entry.request_id, entry.address,
        entry.outcome,
    ]  # fmt: skip
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class AuditEntry(models.Model):
    """One change, refused attempt or read: who, when, from where, what, from what to what. Written once; holds no
    secret. Each is linked to the one before by its digest (``tenants.audit_chain``)."""

    at = models.DateTimeField(default=timezone.now, editable=False, db_index=True)
    actor = models.CharField(max_length=150, help_text="User name, or the part of the system that acted.")
    via = models.CharField(max_length=16, help_text="Where it was done: api, admin, cli, kubernetes or system.")
    action = models.CharField(max_length=32)
    kind = models.CharField(max_length=32, help_text="What sort of object.")
    object_id = models.CharField(max_length=150, help_text="Its name.")
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.SET_NULL, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    request_id = models.CharField(max_length=64, blank=True, default="")
    address = models.CharField(
        max_length=45, db_default="", blank=True, default="", help_text="Where the request came from."
    )
    outcome = models.CharField(
        max_length=8,
        choices=[("done", "done"), ("refused", "refused"), ("read", "read")],
        db_default="done",
        default="done",
        help_text="Whether it was done, refused, or only read.",
    )
    tenant_name = models.CharField(max_length=63, db_default="", blank=True, default="")  # outlives the tenant
    number = models.PositiveBigIntegerField(
        null=True, unique=True, editable=False, help_text="Its place in the chain. Null: written by an older release."
    )
    digest = models.CharField(
        max_length=64, db_default="", blank=True, default="", editable=False,
        help_text="SHA-256 over the digest before it and everything in this entry.",
    )  # fmt: skip

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["kind", "object_id"], name="audit_object")]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.kind} {self.object_id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise TypeError("An audit entry is written once and never changed.")
        with transaction.atomic():
            head = AuditHead.locked()
            self.tenant_name = self.tenant.slug if self.tenant is not None else self.tenant_name
            self.number = head.number + 1
            self.digest = digest_of(self, head.digest)
            super().save(*args, **kwargs)
            head.number, head.digest = self.number, self.digest
            head.save()

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise TypeError("An audit entry is never deleted.")


class AuditHead(models.Model):
    """The single row that says where the audit chain begins and ends. Its lock orders all writers."""

    number = models.PositiveBigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True, default="")
    base_number = models.PositiveBigIntegerField(default=0)  # the last entry that retention deleted
    base_digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        constraints = [models.CheckConstraint(name="audit_head_is_one_row", condition=Q(id=1))]

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def locked(cls) -> AuditHead:
        """Inside a transaction: whoever has it writes the next entry."""
        head = cls.objects.select_for_update().filter(pk=1).first()
        if head is None:
            cls.objects.get_or_create(pk=1)
            head = cls.objects.select_for_update().get(pk=1)
        return head


class CatalogVersion(models.Model):
    """The single row that says which version of the catalog is current. Its lock orders all writes."""

    version = models.PositiveBigIntegerField(default=1)
    next_change_at = models.DateTimeField(null=True)  # when the earliest entitlement begins or ends by itself

    class Meta:
        constraints = [models.CheckConstraint(name="catalog_version_is_one_row", condition=Q(id=1))]

    def __str__(self) -> str:
        return f"catalog {self.version}"


class EpochFloor(models.Model):
    """The highest epoch ever given to a leader of a pool, out of reach of a lost Redis."""

    pool = models.CharField(max_length=63, unique=True)  # by name: it outlives the pool's row
    epoch = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.pool}@{self.epoch}"
