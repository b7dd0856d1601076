"""Tenants, and the users who may act for them."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from tenants.models.base import Named


class Tenant(Named):
    """An organisation or team that shares the GPUs."""

    paused_since = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Since then new requests of its keys are refused; admitted requests continue.",
    )
    paused_reason = models.CharField(max_length=200, blank=True, editable=False)

    class Meta:
        ordering = ["slug"]


class Role(models.TextChoices):
    ADMIN = "admin", "admin: changes everything"
    OPERATOR = "operator", "operator: sees everything, changes policies, drains backends"
    MEMBER = "member", "member: sees its own tenant, manages its keys"


def members_have_a_tenant(name: str) -> models.CheckConstraint:
    """Of rows with a role and a tenant."""
    return models.CheckConstraint(
        name=name,
        condition=Q(role=Role.MEMBER, tenant__isnull=False)
        | Q(role__in=[Role.ADMIN, Role.OPERATOR], tenant__isnull=True),
        violation_error_message="A member needs a tenant; an admin or operator must have none (it covers all).",
    )


class Membership(models.Model):
    """A user's role: over everything (admin, operator) or within one tenant (member)."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        related_name="memberships",
        null=True,
        blank=True,
        help_text="Members belong to one tenant. Leave empty for admins and operators: their role covers all tenants.",
    )
    role = models.CharField(
        max_length=8, choices=Role.choices, default=Role.MEMBER, help_text="What the user may see and change."
    )
    from_groups = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Given by the identity provider's groups, and taken away with them.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    fixed: ClassVar[tuple[str, ...]] = ("user", "tenant", "from_groups")
    secret: ClassVar[tuple[str, ...]] = ()

    class Meta:
        ordering = ["user__username", "tenant__slug"]
        constraints = [
            members_have_a_tenant("membership_members_have_a_tenant"),
            models.UniqueConstraint(
                name="membership_once_per_tenant",
                fields=["user", "tenant"],
                violation_error_message="This user already has a role in this tenant; change that one.",
            ),
            models.UniqueConstraint(
                name="membership_one_global_role",
                fields=["user"],
                condition=Q(tenant__isnull=True),
                violation_error_message="This user already is admin or operator; change that role.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user.get_username()}@{self.tenant.slug if self.tenant else 'all'}"
