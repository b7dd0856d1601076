"""People whom an identity provider has signed in, and the roles that its groups give here."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from tenants.models.people import Role, Tenant, members_have_a_tenant


class Identity(models.Model):
    """A person as the identity provider knows them. Written at each sign-in and each time the provider is asked."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identity")
    issuer = models.CharField(max_length=300)
    subject = models.CharField(max_length=255, help_text="The provider's name for them, which never changes.")
    groups = models.JSONField(default=list, help_text="The groups they were in when the provider was asked last.")
    grant = models.TextField(blank=True, default="", editable=False)  # tokens of the provider, sealed
    signed_in_at = models.DateTimeField()
    checked_at = models.DateTimeField(null=True, help_text="When the provider last said that they are there.")
    due_at = models.DateTimeField(null=True, db_index=True, help_text="When it is asked again. Null: never.")
    trouble = models.CharField(max_length=200, blank=True, default="", help_text="Why the provider did not say.")
    ended_at = models.DateTimeField(null=True, help_text="Since when they may do nothing here.")
    ended_because = models.CharField(max_length=200, blank=True, default="")

    secret: ClassVar[tuple[str, ...]] = ("grant",)

    class Meta:
        ordering = ["user__username"]
        verbose_name_plural = "identities"
        constraints = [models.UniqueConstraint(name="identity_once", fields=["issuer", "subject"])]

    def __str__(self) -> str:
        return self.subject


class GroupRule(models.Model):
    """Whoever is in a group of the identity provider has a role here."""

    group = models.CharField(max_length=200, help_text="The group's name, exactly as the identity provider sends it.")
    role = models.CharField(
        max_length=8,
        choices=Role.choices,
        default=Role.MEMBER,
        help_text="What users in this group may see and change.",
    )
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="group_rules",
        help_text="The tenant that they are members of. Leave empty for admins and operators: their role covers all.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    fixed: ClassVar[tuple[str, ...]] = ()
    secret: ClassVar[tuple[str, ...]] = ()

    class Meta:
        ordering = ["group", "role", "tenant__slug"]
        constraints = [
            members_have_a_tenant("group_rule_members_have_a_tenant"),
            models.UniqueConstraint(
                name="group_rule_once_per_tenant",
                fields=["group", "tenant"],
                violation_error_message="This group already has a role in this tenant; change that one.",
            ),
            models.UniqueConstraint(
                name="group_rule_one_global_role",
                fields=["group"],
                condition=Q(tenant__isnull=True),
                violation_error_message="This group already is admin or operator; change that role.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.group}@{self.tenant.slug if self.tenant else 'all'}"
