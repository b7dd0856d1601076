"""A tenant's right to a share of a pool."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Q

from scheduling.core import types as core
from tenants.models.base import Named
from tenants.models.capacity import Adapter, Pool
from tenants.models.contracts import Tier
from tenants.models.people import Tenant
from tenants.models.projects import Project
from tenants.validators import finite


class EntitlementState(models.TextChoices):
    PENDING = core.EntitlementState.PENDING.value, "pending"
    BOUND = core.EntitlementState.BOUND.value, "bound"
    DEGRADED = core.EntitlementState.DEGRADED.value, "degraded"
    EXPIRED = core.EntitlementState.EXPIRED.value, "expired"


class Lease(models.TextChoices):
    """What a cluster's scheduler says of the pod that stands for an entitlement's share."""

    NONE = "", "none"
    PENDING = "pending", "pending"
    BOUND = "bound", "bound"


class Entitlement(Named):
    """The share ``(lambda_e, chi_e, r_e)`` that a tenant has of a pool, under a tier's contract."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="entitlements")
    project = models.ForeignKey(
        Project,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="entitlements",
        help_text="The project whose keys open it. Empty: those of all projects of the tenant.",
    )
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="entitlements")
    adapter = models.ForeignKey(
        Adapter,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="entitlements",
        help_text="The adapter that it is for, on the pool's capacity. Empty: the pool's own model.",
    )
    tier = models.ForeignKey(Tier, on_delete=models.PROTECT, related_name="entitlements")
    tokens_per_s = models.FloatField(
        "tokens per second",
        default=0.0,
        validators=[finite, MinValueValidator(0.0)],
        help_text="Refill of the token bucket [tokens/s]. 0 enforces no token budget.",
    )
    burst_tokens = models.FloatField(
        "burst [tokens]",
        default=0.0,
        validators=[finite, MinValueValidator(0.0)],
        help_text="Depth of the token bucket [tokens]; required with tokens per second.",
    )
    kv_tokens = models.PositiveBigIntegerField(
        "KV share [tokens]", default=0, help_text="KV cache it may hold at once [tokens]. 0 sets no limit."
    )
    concurrency = models.PositiveIntegerField(
        default=8,
        validators=[MinValueValidator(1)],
        help_text="Sequences that may run at once: a request of several answers or prompts takes as many, up to 16.",
    )
    valid_from = models.DateTimeField(null=True, blank=True, help_text="Starts at this time. Empty: at once.")
    valid_until = models.DateTimeField(null=True, blank=True, help_text="Ends at this time. Empty: never.")
    state = models.CharField(
        max_length=8, choices=EntitlementState.choices, default=EntitlementState.PENDING, editable=False
    )
    state_reason = models.CharField(max_length=300, blank=True, default="", editable=False)
    lease = models.CharField(
        max_length=8, choices=Lease.choices, default=Lease.NONE, db_default="", blank=True, editable=False
    )
    lease_reason = models.CharField(max_length=300, blank=True, default="", db_default="", editable=False)

    fixed: ClassVar[tuple[str, ...]] = ("slug", "tenant", "pool", "adapter")

    class Meta:
        ordering = ["tenant__slug", "slug"]
        indexes = [models.Index(fields=["pool", "state"], name="entitlement_pool_state")]
        constraints = [
            models.CheckConstraint(
                name="entitlement_figures_in_range",
                condition=Q(tokens_per_s__gte=0, burst_tokens__gte=0, concurrency__gte=1),
                violation_error_message="Tokens per second and burst must be 0 or more, concurrency 1 or more.",
            ),
            models.CheckConstraint(
                name="entitlement_budget_has_depth",
                condition=Q(tokens_per_s=0) | Q(burst_tokens__gt=0),
                violation_error_message=(
                    "A token budget needs a burst greater than 0, or no request would ever fit; "
                    "ten seconds' worth is a good start."
                ),
            ),
            models.CheckConstraint(
                name="entitlement_ends_after_it_begins",
                condition=Q(valid_from__isnull=True) | Q(valid_until__isnull=True) | Q(valid_until__gt=F("valid_from")),
                violation_error_message="'Valid until' must be later than 'valid from'.",
            ),
        ]

    def clean(self) -> None:
        if self.project is not None and self.project.tenant_id != self.tenant_id:
            raise ValidationError({"project": f"{self.project} belongs to another tenant."})
        if self.adapter is not None and self.adapter.pool_id != self.pool_id:
            raise ValidationError({"adapter": f"{self.adapter} belongs to pool {self.adapter.pool}."})

    def state_at(self, now: datetime) -> str:
        """The state at a time: the stored one, unless the entitlement's own dates say otherwise."""
        if self.valid_until is not None and self.valid_until <= now:
            return EntitlementState.EXPIRED
        if self.valid_from is not None and self.valid_from > now:
            return EntitlementState.PENDING
        return EntitlementState(self.state)
