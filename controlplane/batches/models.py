"""Files that tenants bring and get, and batches with the results that are there so far.

Owners are names, as in the ledger, and end with the tenant or project that has the name (``controlplane.owners``).
"""

from __future__ import annotations

from django.db import models

BATCH, BATCH_OUTPUT = "batch", "batch_output"


class StoredFile(models.Model):
    """A file of a tenant. Its contents are in the storage ``batches`` (``settings.STORAGES``)."""

    public_id = models.CharField("id", max_length=40, unique=True)
    tenant = models.CharField(max_length=63)
    entitlement = models.CharField(max_length=63, help_text="Whose key brought it.")
    project = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="Whose keys alone see it. Empty: those keys of the tenant that are of no project.",
    )
    purpose = models.CharField(max_length=16, choices=[(BATCH, "batch"), (BATCH_OUTPUT, "batch output")])
    filename = models.CharField(max_length=255)
    bytes = models.BigIntegerField()
    name = models.CharField("name in the storage", max_length=200)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(help_text="Deleted after this time.")

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "created_at", "id"], name="file_tenant_created"),
            models.Index(fields=["entitlement"], name="file_entitlement"),
            models.Index(fields=["expires_at"], name="file_expires"),
        ]

    def __str__(self) -> str:
        return self.public_id


class Status(models.TextChoices):
    """OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)


class Batch(models.Model):
    """A file of requests, one a line. The executor that works on it holds a lease; ``claim`` counts the executors so
    far."""

    public_id = models.CharField("id", max_length=40, unique=True)
    tenant = models.CharField(max_length=63)
    entitlement = models.CharField(max_length=63)
    project = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="Whose keys alone see it. Empty: those keys of the tenant that are of no project.",
    )
    key_id = models.CharField("key", max_length=32)
    endpoint = models.CharField(max_length=32)
    model = models.CharField(max_length=200)
    completion_window = models.CharField(max_length=8)
    metadata = models.JSONField(null=True)
    input_file = models.CharField(max_length=40)
    input_name = models.CharField(max_length=200)
    output_file = models.CharField(max_length=40, blank=True, default="")
    error_file = models.CharField(max_length=40, blank=True, default="")
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.VALIDATING)
    ends_as = models.CharField(
        max_length=12, choices=Status.choices, blank=True, default="",
        help_text="What it is once its files are written: completed, expired or cancelled.",
    )  # fmt: skip
    problems = models.JSONField(default=list, help_text="Why it failed: code, message, param and line of each.")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(help_text="What is not done by then is not done.")
    in_progress_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    cancelling_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    claim = models.PositiveIntegerField(default=0)
    holder = models.CharField(max_length=40, blank=True, default="")
    lease_until = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "batches"
        indexes = [
            models.Index(fields=["tenant", "created_at", "id"], name="batch_tenant_created"),
            models.Index(fields=["status", "id"], name="batch_status"),
            models.Index(fields=["entitlement", "status"], name="batch_entitlement_status"),
        ]

    def __str__(self) -> str:
        return self.public_id


class Result(models.Model):
    """What a line came to, once: a line of the output file or of the file of errors. Gone when those are written."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="results")
    line = models.PositiveIntegerField(help_text="Of the input file, the first is 1.")
    ok = models.BooleanField()
    text = models.TextField(help_text="JSON.")

    class Meta:
        constraints = [models.UniqueConstraint(name="batch_result_once", fields=["batch", "line"])]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.line}"
