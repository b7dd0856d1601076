"""What a tenant may use in a period, and what use costs."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import ClassVar

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from tenants.models.capacity import Pool
from tenants.models.people import Tenant

_AT_LEAST_ONE = [MinValueValidator(1)]
_NOT_NEGATIVE = [MinValueValidator(Decimal(0))]


class QuotaPeriod(models.TextChoices):
    DAY = "day", "day (UTC)"
    MONTH = "month", "month (UTC)"


class Quota(models.Model):
    """Tokens (input and output) a tenant may use in one calendar period, over all pools."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quotas")
    period = models.CharField(
        max_length=5,
        choices=QuotaPeriod.choices,
        default=QuotaPeriod.MONTH,
        help_text="Calendar day or month in UTC, after which counting begins again.",
    )
    soft_tokens = models.PositiveBigIntegerField(
        "soft limit [tokens]",
        null=True,
        blank=True,
        validators=_AT_LEAST_ONE,
        help_text="Passing it raises an alert [tokens]. Empty: none.",
    )
    hard_tokens = models.PositiveBigIntegerField(
        "hard limit [tokens]",
        null=True,
        blank=True,
        validators=_AT_LEAST_ONE,
        help_text="Beyond it requests are refused until the period ends [tokens]. Empty: none.",
    )

    fixed: ClassVar[tuple[str, ...]] = ("tenant", "period")
    secret: ClassVar[tuple[str, ...]] = ()

    class Meta:
        ordering = ["tenant__slug", "period"]
        constraints = [
            models.UniqueConstraint(
                name="quota_once_per_period",
                fields=["tenant", "period"],
                violation_error_message="This tenant already has a quota for that period; change that one.",
            ),
            models.CheckConstraint(
                name="quota_limits_ordered",
                condition=(Q(soft_tokens__isnull=False) | Q(hard_tokens__isnull=False))
                & (Q(soft_tokens__isnull=True) | Q(hard_tokens__isnull=True) | Q(soft_tokens__lte=F("hard_tokens"))),
                violation_error_message="Give a soft or a hard limit; the soft one must not be above the hard one.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant.slug}/{self.period}"


def _money(label: str, text: str) -> models.DecimalField:
    return models.DecimalField(
        label, max_digits=14, decimal_places=6, default=Decimal(0), validators=_NOT_NEGATIVE, help_text=text
    )


class Price(models.Model):
    """What use of a pool costs from a moment on, until the pool's next price begins."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="prices")
    valid_from = models.DateTimeField(default=timezone.now, help_text="Rounded down to the hour.")
    currency = models.CharField(max_length=3, default="USD", help_text="Three letters, such as EUR.")
    per_million_input = _money("per million input tokens", "0: prompts cost nothing.")
    per_million_output = _money("per million output tokens", "0: answers cost nothing.")
    per_gpu_second = _money("per GPU second", "A request pays for its slot's share of a GPU while it runs.")
    slots_per_gpu = models.PositiveIntegerField(
        default=1, validators=_AT_LEAST_ONE, help_text="Requests that share one GPU: 64 slots on one GPU are 64."
    )

    fixed: ClassVar[tuple[str, ...]] = ("pool",)
    secret: ClassVar[tuple[str, ...]] = ()

    class Meta:
        ordering = ["pool__slug", "valid_from"]
        constraints = [
            models.UniqueConstraint(
                name="price_once_per_moment",
                fields=["pool", "valid_from"],
                violation_error_message="This pool already has a price from that hour on; change that one.",
            )
        ]

    def __str__(self) -> str:
        return f"{self.pool.slug}@{self.valid_from.astimezone(UTC):%Y-%m-%dT%HZ}"

    def clean(self) -> None:
        self.valid_from = self.valid_from.replace(minute=0, second=0, microsecond=0)
