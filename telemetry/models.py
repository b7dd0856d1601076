"""The ledger: one row per ended request. Lengths, times and names only; no prompt, no answer, no secret."""

from __future__ import annotations

from django.db import models

from scheduling.core.outcomes import Outcome, Reason


class LedgerEntry(models.Model):
    """What was believed of a request, what happened to it, and why (``scheduling/core/ledger.py``).

    Names are copied, not referenced: a deleted tenant's past stays, and writing a row asks no other table.
    """

    request_id = models.CharField(max_length=64, unique=True)
    pool = models.CharField(max_length=63)
    model = models.CharField(max_length=200, help_text="The name the client asked for.")
    tenant = models.CharField(max_length=63)
    tier = models.CharField(max_length=63)
    entitlement = models.CharField(max_length=63)
    key_id = models.CharField("key", max_length=32, help_text="The key's public part.")
    gateway = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=[(o.value, o.value) for o in Outcome])
    reason = models.CharField(max_length=32, choices=[(r.value, r.value.replace("_", " ")) for r in Reason])
    status = models.PositiveSmallIntegerField("HTTP status", help_text="What the client saw; 0 where there was none.")
    streamed = models.BooleanField()
    attempts = models.PositiveIntegerField()
    backend = models.CharField(max_length=63, blank=True)
    policy = models.CharField(max_length=80, blank=True, help_text="Name@version, or direct where nobody waited.")
    why = models.CharField(max_length=300, blank=True, help_text="Why now and why there.")

    input_tokens_est = models.BigIntegerField("input, estimated [tokens]")
    output_tokens_est = models.FloatField("output, estimated [tokens]")
    output_bound = models.BigIntegerField("output bound [tokens]")
    input_tokens = models.BigIntegerField("input [tokens]")
    output_tokens = models.BigIntegerField("output [tokens]")

    received_at = models.DateTimeField("received")
    queued_at = models.DateTimeField("queued", null=True, blank=True)
    granted_at = models.DateTimeField("granted", null=True, blank=True)
    first_token_at = models.DateTimeField("first token", null=True, blank=True)
    done_at = models.DateTimeField("done")

    ttft_slo_s = models.FloatField("TTFT promised [s]", null=True, blank=True)
    tbt_slo_s = models.FloatField("TBT promised [s]", null=True, blank=True)
    ttlt_slo_s = models.FloatField("TTLT promised [s]", null=True, blank=True)
    slo_met = models.BooleanField("SLO met", null=True, blank=True)

    class Meta:
        ordering = ["-received_at", "-id"]
        verbose_name = "request"
        verbose_name_plural = "requests"
        indexes = [
            models.Index(fields=["received_at", "id"], name="ledger_received"),
            models.Index(fields=["tenant", "received_at"], name="ledger_tenant_received"),
            models.Index(fields=["pool", "received_at"], name="ledger_pool_received"),
            models.Index(fields=["outcome", "reason", "received_at"], name="ledger_outcome_reason"),
        ]

    def __str__(self) -> str:
        return self.request_id
