"""API keys for ``/v1`` and access tokens for the management API: public ids and digests, never secrets."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, QuerySet, Value

from tenants.models.entitlements import Entitlement
from tenants.models.limits import KeyLimits
from tenants.models.people import Tenant
from tenants.models.projects import Project
from tenants.validators import validate_names


class Credential(models.Model):
    """What keys and tokens have in common."""

    public_id = models.CharField("id", max_length=12, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)  # SHA-256 of the secret, hexadecimal
    name = models.CharField(max_length=100, help_text="What it is for, such as 'nightly reports'.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Stops working at this time. Empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    secret: ClassVar[tuple[str, ...]] = ("digest",)

    class Meta:
        abstract = True

    def status_at(self, now: datetime) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "active"

    @classmethod
    def active_at(cls, now: datetime) -> QuerySet[Self]:
        """Those that open the door at a time."""
        return cls._default_manager.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now), revoked_at__isnull=True)


class ApiKey(Credential, KeyLimits):
    """A key to ``/v1``. It opens one entitlement, or those that its project may use, or some of them by name."""

    entitlement = models.ForeignKey(
        Entitlement,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="keys",
        help_text="The only entitlement it opens. Give this or a project.",
    )
    project = models.ForeignKey(
        Project,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="keys",
        help_text="It opens the entitlements that this project may use; the model chooses among them.",
    )
    entitlements = models.JSONField(
        default=list,
        db_default=Value([], models.JSONField()),  # so that a release without the column can still make a key
        blank=True,
        validators=[validate_names],
        help_text="Names of those of the project's entitlements that it opens. Empty: all, also later ones.",
    )
    user = models.CharField(
        max_length=64,
        db_default="",
        blank=True,
        default="",
        help_text="The person or service that its use is attributed to, such as an e-mail address, where requests "
        "name no user.",
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    fixed: ClassVar[tuple[str, ...]] = ("public_id", "digest", "entitlement", "project", "created_by", "revoked_at")

    class Meta:
        ordering = ["entitlement__slug", "project__slug", "name", "public_id"]
        verbose_name = "API key"
        constraints = [
            models.CheckConstraint(
                name="key_opens_one_thing",
                condition=Q(entitlement__isnull=False, project__isnull=True)
                | Q(entitlement__isnull=True, project__isnull=False),
                violation_error_message="A key opens one entitlement or a project: give exactly one of them.",
            ),
        ]

    @property
    def tenant(self) -> Tenant:
        """Whose key it is."""
        owner = self.entitlement or self.project
        assert owner is not None  # the constraint
        return owner.tenant

    def clean(self) -> None:
        if not self.entitlements:
            return
        if self.project is None:
            raise ValidationError({"entitlements": "Only a key of a project opens several: give a project."})
        reach = reachable(self.project)
        unknown = sorted(set(self.entitlements) - set(reach))
        # one that was deleted since stays listed, and opens nothing
        stored = ApiKey.objects.filter(pk=self.pk).values_list("entitlements", flat=True).first() or []
        unknown = [name for name in unknown if name not in stored]
        if unknown:
            names = ", ".join(reach) or "none"
            raise ValidationError({"entitlements": f"{self.project} may not use {unknown[0]!r}. It may use: {names}."})

    def __str__(self) -> str:
        return f"qm-{self.public_id}"


def reachable(project: Project) -> list[str]:
    """Names of the entitlements that a project's keys may open."""
    rows = Entitlement.objects.filter(Q(project=project) | Q(project__isnull=True), tenant_id=project.tenant_id)
    return list(rows.order_by("slug").values_list("slug", flat=True))


class TokenScope(models.TextChoices):
    ALL = "all", "all: everything its owner may do"
    READ = "read", "read: what its owner may see, and no change"


class AccessToken(Credential):
    """A token to the management API. It acts in its owner's name, with its owner's rights."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="access_tokens")
    made_with = models.ForeignKey(
        "self", null=True, blank=True, editable=False, on_delete=models.CASCADE, related_name="made",
        help_text="The token that created it; it ends with that token. None: created in a session or by a command.",
    )  # fmt: skip

    scope = models.CharField(
        max_length=8,
        choices=TokenScope.choices,
        default=TokenScope.ALL,
        db_default=TokenScope.ALL,
        help_text="What it may be used for.",
    )

    fixed: ClassVar[tuple[str, ...]] = ("public_id", "digest", "user", "made_with", "scope", "revoked_at")

    class Meta:
        ordering = ["user__username", "name", "public_id"]

    def __str__(self) -> str:
        return f"qma-{self.public_id}"
