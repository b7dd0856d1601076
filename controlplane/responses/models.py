"""Responses that are kept. Owners are names, as in the ledger, and end with who has them (``controlplane.owners``)."""

from __future__ import annotations

from django.db import models


class StoredResponse(models.Model):
    """A conversation and the response to it. Who reads the table learns whose it is and how long, and nothing of it."""

    public_id = models.CharField("id", max_length=64, unique=True)
    tenant = models.CharField(max_length=63)
    project = models.CharField(
        max_length=63,
        blank=True,
        help_text="Whose keys alone see it. Empty: those that are of no project.",
    )
    sealed = models.BinaryField(help_text="Compressed, then encrypted under the deployment's secret, owner and id.")
    bytes = models.PositiveIntegerField(help_text="As stored.")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(help_text="Deleted after this time.")

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "created_at", "id"], name="response_tenant_created"),
            models.Index(fields=["expires_at"], name="response_expires"),
        ]

    def __str__(self) -> str:
        return self.public_id
