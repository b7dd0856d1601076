"""What a tenant may use in a period, and what use costs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from scheduling.core.ledger.money import MAX_ALERTS
from tenants.models.capacity import Adapter, Pool
from tenants.models.credentials import ApiKey
from tenants.models.people import Tenant
from tenants.models.projects import Project
from tenants.validators import AT_LEAST_ONE, validate_shares

_NOT_NEGATIVE = [MinValueValidator(Decimal(0))]
_CURRENCY = [RegexValidator("^[A-Z]{3}$", "Three capital letters, such as EUR.")]


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
        validators=AT_LEAST_ONE,
        help_text="Passing it raises an alert [tokens]. Empty: none.",
    )
    hard_tokens = models.PositiveBigIntegerField(
        "hard limit [tokens]",
        null=True,
        blank=True,
        validators=AT_LEAST_ONE,
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


def _money(label: str, text: str, **changes: Any) -> models.DecimalField[Decimal, Decimal]:
    kept = {"default": Decimal(0)} | changes
    return models.DecimalField(label, max_digits=14, decimal_places=6, validators=_NOT_NEGATIVE, help_text=text, **kept)


class Price(models.Model):
    """What use of a pool, or of one adapter of it, costs from a moment on, until its next price begins."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="prices")
    model = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="The adapter that it is for, by the name that clients send. Empty: all that has no price of its own.",
    )
    valid_from = models.DateTimeField(default=timezone.now, help_text="Rounded down to the hour.")
    currency = models.CharField(
        max_length=3, default="USD", validators=_CURRENCY, help_text="Three letters, such as EUR."
    )
    per_million_input = _money("per million input tokens", "0: prompts cost nothing.")
    per_million_cached = _money(
        "per million cached input tokens",
        "Of the input, what the engine's prefix cache held. Empty: as other input.",
        default=None,
        null=True,
        blank=True,
    )
    per_million_output = _money("per million output tokens", "0: answers cost nothing.")
    per_gpu_second = _money("per GPU second", "A request pays for its slot's share of a GPU while it runs.")
    slots_per_gpu = models.PositiveIntegerField(
        default=1, validators=AT_LEAST_ONE, help_text="Requests that share one GPU: 64 slots on one GPU are 64."
    )
    per_reserved_used_second = _money(
        "per reserved GPU second, used",
        "A dedicated or guaranteed entitlement pays for its slots' share of a GPU while its requests run, beside what "
        "these cost.",
        db_default=Decimal(0),
    )
    per_reserved_idle_second = _money(
        "per reserved GPU second, idle", "And while they stand ready for it.", db_default=Decimal(0)
    )

    fixed: ClassVar[tuple[str, ...]] = ("pool", "model")
    secret: ClassVar[tuple[str, ...]] = ()

    class Meta:
        ordering = ["pool__slug", "valid_from"]
        constraints = [
            models.UniqueConstraint(
                name="price_once_per_moment",
                fields=["pool", "model", "valid_from"],
                violation_error_message="This already has a price from that hour on; change that one.",
            )
        ]

    def __str__(self) -> str:
        of = f"{self.pool.slug}/{self.model}" if self.model else self.pool.slug
        return f"{of}@{self.valid_from.astimezone(UTC):%Y-%m-%dT%HZ}"

    def clean(self) -> None:
        self.valid_from = _hour(self.valid_from)
        stored = Price.objects.filter(pk=self.pk).first() if self.pk else None
        if stored is not None and stored.begun and any(getattr(stored, f) != getattr(self, f) for f in self._terms()):
            raise ValidationError(f"This price has been charged since {stored.valid_from:%Y-%m-%d %H:%M}. {_NEW_ONE}")
        if stored is None and self.model:
            self._check_adapter()
        if self.begun and (stored is None or stored.valid_from != self.valid_from):
            # A pool of this hour has charged none: its prices of the past are those of the file that it comes from.
            older = Pool.objects.filter(pk=self.pool_id, created_at__lt=_hour(timezone.now()))
            earlier = Price.objects.filter(pool__in=older, model__in={"", self.model})
            if earlier.filter(valid_from__lte=self.valid_from).exclude(pk=self.pk).exists():
                raise ValidationError({"valid_from": f"Another price has been charged for that time. {_NEW_ONE}"})

    @property
    def begun(self) -> bool:
        """Whether complete hours were charged by it, which it may not change any more."""
        return self.valid_from < _hour(timezone.now())

    def refuse_delete(self) -> None:
        """Raises ValidationError for a price that was charged."""
        if self.begun:
            raise ValidationError(f"This price has been charged since {self.valid_from:%Y-%m-%d %H:%M}. {_NEW_ONE}")

    def _check_adapter(self) -> None:
        if not Adapter.objects.filter(pool_id=self.pool_id, model=self.model).exists():
            raise ValidationError({"model": "This pool has no adapter of that name. Empty: the pool's own model."})

    def _terms(self) -> list[str]:
        return [field.attname for field in self._meta.concrete_fields if not field.primary_key]


_NEW_ONE = "The past is not charged anew: make a price that begins with the present hour or later."


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


class BudgetScope(models.TextChoices):
    TENANT = "tenant", "the tenant"
    PROJECT = "project", "one project"
    USER = "user", "one user"
    KEY = "key", "one key"


class Budget(models.Model):
    """What may be spent in a calendar month (UTC), over all pools, by a tenant or one project, user or key of it."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="budgets")
    scope = models.CharField(
        max_length=7, choices=BudgetScope.choices, default=BudgetScope.TENANT, help_text="Whose requests it pays for."
    )
    name = models.CharField(
        max_length=64,
        blank=True,
        default="",
        help_text="Of the project, of the user as requests or keys name it, or the id of the key. Empty: the tenant.",
    )
    currency = models.CharField(
        max_length=3,
        default="USD",
        validators=_CURRENCY,
        help_text="Three letters, such as EUR. What is priced in another currency does not count.",
    )
    soft_amount = _money(
        "soft limit", "Amount a month. Passing it raises an alert. Empty: none.", default=None, null=True, blank=True
    )
    hard_amount = _money(
        "hard limit",
        "Amount a month. From here on requests are refused until the month ends. Empty: none.",
        default=None,
        null=True,
        blank=True,
    )
    alert_at = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_shares],
        help_text=f"Shares of the hard limit, else of the soft one, that raise an alert [%], such as [50, 80]. At most "
        f"{MAX_ALERTS}.",
    )

    fixed: ClassVar[tuple[str, ...]] = ("tenant", "scope", "name", "currency")
    secret: ClassVar[tuple[str, ...]] = ()

    class Meta:
        ordering = ["tenant__slug", "scope", "name"]
        constraints = [
            models.UniqueConstraint(
                name="budget_once",
                fields=["tenant", "scope", "name"],
                violation_error_message="This already has a budget; change that one.",
            ),
            models.CheckConstraint(
                name="budget_limits_ordered",
                condition=(Q(soft_amount__isnull=False) | Q(hard_amount__isnull=False))
                & (Q(soft_amount__isnull=True) | Q(hard_amount__isnull=True) | Q(soft_amount__lte=F("hard_amount"))),
                violation_error_message="Give a soft or a hard limit; the soft one must not be above the hard one.",
            ),
        ]

    def __str__(self) -> str:
        return "/".join(filter(None, (self.tenant.slug, self.scope, self.name)))

    def clean(self) -> None:
        if (self.scope == BudgetScope.TENANT) != (not self.name):
            wanted = "Leave it empty: the budget is the tenant's." if self.name else f"Name the {self.scope}."
            raise ValidationError({"name": wanted})
        if self.pk is None and self.scope in ("project", "key") and not self._named().exists():
            raise ValidationError({"name": f"The tenant has no {self.scope} {self.name!r}."})

    def _named(self) -> models.QuerySet[Project] | models.QuerySet[ApiKey]:
        if self.scope == BudgetScope.PROJECT:
            return Project.objects.filter(tenant_id=self.tenant_id, slug=self.name)
        of_tenant = Q(entitlement__tenant_id=self.tenant_id) | Q(project__tenant_id=self.tenant_id)
        return ApiKey.objects.filter(of_tenant, public_id=self.name)
