"""What the catalog remembers about themselves: who changed what, the catalog's version, the highest epochs."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from tenants.models.people import Tenant


class AuditEntry(models.Model):
    """One change: who, when, what, from what to what. Written once; holds no secret."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=150, help_text="User name, or the part of the system that acted.")
    via = models.CharField(max_length=16, help_text="Where it was done: api, admin, cli, kubernetes or system.")
    action = models.CharField(max_length=32)
    kind = models.CharField(max_length=32, help_text="What sort of object.")
    object_id = models.CharField(max_length=150, help_text="Its name.")
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.SET_NULL, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["kind", "object_id"], name="audit_object")]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.kind} {self.object_id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise TypeError("An audit entry is written once and never changed.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise TypeError("An audit entry is never deleted.")


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
