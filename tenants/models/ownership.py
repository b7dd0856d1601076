"""Which rows are kept by something outside the catalog, and which of their fields it sets."""

from __future__ import annotations

from django.db import models


class Owner(models.Model):
    """A Kubernetes resource that owns a row of the catalog: nobody else may change the fields that it sets."""

    kind = models.CharField(max_length=32, help_text="Kind of the row, as in files: TokenPool, Tenant and so on.")
    name = models.CharField(max_length=63, help_text="Name of the row.")
    namespace = models.CharField(max_length=63, help_text="Namespace of the resource.")
    uid = models.CharField(max_length=64, help_text="Which resource it is: another one of the same name is another.")
    attributes = models.JSONField(default=list, help_text="Fields of the row that the resource sets.")

    class Meta:
        ordering = ["kind", "name"]
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="owner_of_one_row")]

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
