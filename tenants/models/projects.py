"""Projects: what belongs together under a tenant, and what its keys open."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.base import Named
from tenants.models.limits import UserLimits
from tenants.models.people import Tenant
from tenants.validators import model_name_validator, validate_fallbacks, validate_model_aliases


class Project(Named, UserLimits):
    """A team or application of a tenant. Its keys open its entitlements, and those that belong to no project."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="projects")
    aliases = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_model_aliases],
        help_text='Names that clients use, and what they stand for: a model or an entitlement, such as {"gpt-4o": '
        '"llama-70b"}.',
    )
    default_model = models.CharField(
        max_length=200,
        blank=True,
        default="",
        validators=[model_name_validator],
        help_text="Used for requests that name no model. Empty: such requests are refused.",
    )
    fallbacks = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_fallbacks],
        help_text="By model, what takes its requests when it cannot, and when: unavailable, no_room, over_limit, "
        'too_long. Such as {"llama-70b": {"to": "llama-8b", "when": ["unavailable"]}}.',
    )

    fixed: ClassVar[tuple[str, ...]] = ("slug", "tenant")

    class Meta:
        ordering = ["tenant__slug", "slug"]
