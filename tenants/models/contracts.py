"""Promises about time, and the contract templates that carry them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from scheduling.core import types as core
from tenants.models.base import Named
from tenants.validators import finite

_POSITIVE: list[Callable[[Any], None]] = [finite, MinValueValidator(0.001)]


class Slo(Named):
    """A promise about time. Interactive: first token and time between tokens. Not interactive: the whole answer."""

    ttft_s = models.FloatField(
        "TTFT [s]",
        null=True,
        blank=True,
        validators=_POSITIVE,
        help_text="Time to first token [s]. Interactive SLOs have TTFT and TBT.",
    )
    tbt_s = models.FloatField(
        "TBT [s]",
        null=True,
        blank=True,
        validators=_POSITIVE,
        help_text="Time between tokens [s]. Interactive SLOs have TTFT and TBT.",
    )
    ttlt_s = models.FloatField(
        "TTLT [s]",
        null=True,
        blank=True,
        validators=_POSITIVE,
        help_text="Time to last token [s]. SLOs for whole answers have only this. All requests end after "
        "QUARTERMASTER_REQUEST_TIMEOUT_S (600 unless set).",
    )

    class Meta:
        ordering = ["slug"]
        verbose_name = "SLO"
        verbose_name_plural = "SLOs"
        constraints = [
            models.CheckConstraint(
                name="slo_is_interactive_or_not",
                # A comparison with NULL is neither true nor false, and a check passes unless it is false.
                condition=Q(ttft_s__isnull=False, tbt_s__isnull=False, ttft_s__gt=0, tbt_s__gt=0, ttlt_s__isnull=True)
                | Q(ttft_s__isnull=True, tbt_s__isnull=True, ttlt_s__isnull=False, ttlt_s__gt=0),
                violation_error_message="Give TTFT and TBT (interactive), or TTLT alone (not interactive), in seconds.",
            )
        ]


class ServiceClass(models.TextChoices):
    DEDICATED = core.ServiceClass.DEDICATED.value, "dedicated: reserved, may burst"
    GUARANTEED = core.ServiceClass.GUARANTEED.value, "guaranteed: reserved, never bursts"
    ELASTIC = core.ServiceClass.ELASTIC.value, "elastic: baseline over time, owed debt"
    SPOT = core.ServiceClass.SPOT.value, "spot: surplus only, refused first"
    PREEMPTIBLE = core.ServiceClass.PREEMPTIBLE.value, "preemptible: surplus only, may be ended"


class OverLimit(models.TextChoices):
    REFUSE = core.OverLimit.REFUSE.value, "refuse with 429 and Retry-After"
    WAIT = core.OverLimit.WAIT.value, "wait in the queue"


class Tier(Named):
    """A contract template: service class, order, weight, promise and queueing rule."""

    service_class = models.CharField(
        max_length=12,
        choices=ServiceClass.choices,
        default=ServiceClass.ELASTIC,
        help_text="What entitlements of this tier may count on when capacity is short.",
    )
    rank = models.PositiveSmallIntegerField(
        default=1,
        validators=[MaxValueValidator(1000)],
        help_text="Order of tiers for policies that use it: 0 goes first.",
    )
    weight = models.FloatField(
        default=30.0, validators=_POSITIVE, help_text="Relative share for policies that use weights."
    )
    slo = models.ForeignKey(
        Slo, on_delete=models.PROTECT, related_name="tiers", verbose_name="SLO", help_text="Targets for latency."
    )
    over_limit = models.CharField(
        max_length=6,
        choices=OverLimit.choices,
        default=OverLimit.REFUSE,
        help_text="What happens to a request over the entitlement's concurrency.",
    )
    queue_limit = models.PositiveIntegerField(
        default=100, help_text="Requests of one entitlement that may wait. 0 refuses instead of queueing."
    )
    max_wait_s = models.FloatField(
        "longest wait [s]",
        default=30.0,
        validators=[finite, MinValueValidator(0.1), MaxValueValidator(86_400)],
        help_text="A request that waited this long [s] is refused. All requests end after "
        "QUARTERMASTER_REQUEST_TIMEOUT_S (600 unless set), waiting included.",
    )
    max_grammar_bytes = models.PositiveIntegerField(
        "largest grammar [bytes]",
        default=core.MAX_GRAMMAR_BYTES,
        validators=[MaxValueValidator(core.MAX_GRAMMAR_BYTES)],
        help_text="Largest schema, regex, grammar or list of choices of one request [bytes]: the engine compiles it "
        "before the first token. 0 allows no structured output.",
    )

    class Meta:
        ordering = ["rank", "slug"]
        constraints = [
            models.CheckConstraint(
                name="tier_figures_in_range",
                condition=Q(weight__gt=0, max_wait_s__gt=0),
                violation_error_message="Weight and longest wait must be greater than 0.",
            )
        ]
