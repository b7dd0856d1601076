"""API keys for ``/v1`` and access tokens for the management API: public ids and digests, never secrets."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q, QuerySet

from tenants.models.entitlements import Entitlement


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
    def active_at(cls, now: datetime) -> QuerySet:
        """Those that open the door at a time."""
        return cls._default_manager.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now), revoked_at__isnull=True)


class ApiKey(Credential):
    """A key to ``/v1``, bound to one entitlement."""

    entitlement = models.ForeignKey(Entitlement, on_delete=models.CASCADE, related_name="keys")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    fixed: ClassVar[tuple[str, ...]] = ("public_id", "digest", "entitlement", "created_by", "revoked_at")

    class Meta:
        ordering = ["entitlement__slug", "name", "public_id"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"qm-{self.public_id}"


class AccessToken(Credential):
    """A token to the management API. It acts in its owner's name, with its owner's rights."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="access_tokens")
    made_with = models.ForeignKey(
        "self", null=True, blank=True, editable=False, on_delete=models.CASCADE, related_name="made",
        help_text="The token that created it; it ends with that token. None: created in a session or by a command.",
    )  # fmt: skip

    fixed: ClassVar[tuple[str, ...]] = ("public_id", "digest", "user", "made_with", "revoked_at")

    class Meta:
        ordering = ["user__username", "name", "public_id"]

    def __str__(self) -> str:
        return f"qma-{self.public_id}"
