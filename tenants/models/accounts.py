"""Local accounts: of invited people and of programs."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from tenants.models.people import Membership, Role, Tenant


class Invitation(models.Model):
    """A link that makes one account with one role, once, until it expires."""

    public_id = models.CharField("id", max_length=12, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)  # SHA-256 of the secret, hexadecimal
    name = models.CharField(max_length=100, help_text="Who it is for, such as 'Ada, data team'.")
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.MEMBER, help_text="The role it gives.")
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="invitations",
        help_text="The tenant of a member. Leave empty for admins and operators: their role covers all.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    made_with = models.ForeignKey(
        "tenants.AccessToken", null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+",
        help_text="The token that created it; it ends with that token. None: created in a session or by a command.",
    )  # fmt: skip
    expires_at = models.DateTimeField(help_text="The link works until this time, at most 30 days.")
    revoked_at = models.DateTimeField(null=True, editable=False)
    used_at = models.DateTimeField(null=True, editable=False)
    used_by = models.CharField(max_length=150, blank=True, default="", editable=False, help_text="The account it made.")

    fixed: ClassVar[tuple[str, ...]] = (
        "public_id",
        "digest",
        "role",
        "tenant",
        "created_by",
        "made_with",
        "expires_at",
    )
    secret: ClassVar[tuple[str, ...]] = ("digest",)

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.CheckConstraint(
                name="invitation_members_have_a_tenant",
                condition=Q(role=Role.MEMBER, tenant__isnull=False)
                | Q(role__in=[Role.ADMIN, Role.OPERATOR], tenant__isnull=True),
                violation_error_message="A member needs a tenant; an admin or operator must have none (it covers all).",
            ),
        ]

    def __str__(self) -> str:
        return f"qmi-{self.public_id}"

    def status_at(self, now: datetime) -> str:
        """``open``, ``used``, ``revoked`` or ``expired``."""
        if self.used_at is not None:
            return "used"
        if self.revoked_at is not None or not self._maker_may(now):
            return "revoked"
        return "expired" if self.expires_at <= now else "open"

    def _maker_may(self, now: datetime) -> bool:
        """:meth:`open_at` of one that was read; with ``created_by__memberships`` and ``made_with`` without a query."""
        by, token = self.created_by, self.made_with
        if token is not None and token.status_at(now) != "active":
            return False
        roles = () if by is None else by.memberships.all()
        return by is None or (by.is_active and (by.is_superuser or any(one.role == Role.ADMIN for one in roles)))

    @classmethod
    def open_at(cls, now: datetime) -> models.QuerySet[Invitation]:
        """Whose link works: who made it, and with which token, may still invite."""
        admins = Membership.objects.filter(role=Role.ADMIN).values("user_id")
        maker = Q(created_by__isnull=True) | Q(created_by__is_active=True) & (
            Q(created_by__is_superuser=True) | Q(created_by_id__in=admins)
        )
        works = Q(made_with__revoked_at__isnull=True) & (
            Q(made_with__expires_at__isnull=True) | Q(made_with__expires_at__gt=now)
        )
        return cls.objects.filter(maker, works, used_at__isnull=True, revoked_at__isnull=True, expires_at__gt=now)


class ServiceAccount(models.Model):
    """Marks an account as a program's: it has no password, and admins make its access tokens."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="service_account")
    description = models.CharField(max_length=200, blank=True, help_text="What it is for.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.user.get_username()
