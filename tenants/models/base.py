"""What every named row of the catalog has."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.validators import slug_validator


class Named(models.Model):
    """A row known by its slug: in URLs, in YAML, in Redis keys. The slug never changes once given."""

    slug = models.CharField(
        "name",
        max_length=63,
        unique=True,
        validators=[slug_validator],
        help_text="Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later.",
    )
    description = models.CharField(max_length=200, blank=True, help_text="A short description.")
    created_at = models.DateTimeField(auto_now_add=True)

    fixed: ClassVar[tuple[str, ...]] = ("slug",)  # fields that cannot change after creation
    secret: ClassVar[tuple[str, ...]] = ()  # fields that never leave the database

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.slug
