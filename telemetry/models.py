"""The ledger: one row per ended request. Lengths, times and names only; no prompt, no answer, no secret."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from scheduling.core.outcomes import Outcome, Reason
from telemetry.loop_models import Calibration as Calibration
from telemetry.loop_models import LabRecording as LabRecording
from telemetry.loop_models import LabRun as LabRun
from telemetry.loop_models import Sampled as Sampled
from telemetry.loop_models import SampleMark as SampleMark
from telemetry.loop_models import ScalingDecision as ScalingDecision
from telemetry.loop_models import ScalingState as ScalingState

OUTCOMES_OF_REQUESTS = [(outcome.value, outcome.value) for outcome in Outcome]


def reason_choices() -> list[tuple[str, str]]:
    """(value, label) of each reason. A function, so that a new reason needs no migration."""
    return [(reason.value, reason.value.replace("_", " ")) for reason in Reason]


class LedgerEntry(models.Model):
    """What was believed of a request, what happened to it, and why (``scheduling/core/ledger/record.py``).

    Names are copied, not referenced: a deleted tenant's past stays, and writing a row asks no other table.
    """

    request_id = models.CharField(max_length=64, unique=True)
    pool = models.CharField(max_length=63)
    model = models.CharField(max_length=200, help_text="The model name in the request.")
    tenant = models.CharField(max_length=63)
    tier = models.CharField(max_length=63)
    entitlement = models.CharField(max_length=63)
    key_id = models.CharField("key", max_length=32, help_text="The key's public part.")
    gateway = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=OUTCOMES_OF_REQUESTS)
    reason = models.CharField(max_length=32, choices=reason_choices)
    status = models.PositiveSmallIntegerField("HTTP status", help_text="As sent to the client; 0 if none was sent.")
    streamed = models.BooleanField()
    attempts = models.PositiveIntegerField()
    backend = models.CharField(max_length=63, blank=True)
    policy = models.CharField(max_length=80, blank=True, help_text="Name@version, or direct where none waited.")
    why = models.CharField(max_length=300, blank=True, help_text="Why it was granted then, and on that backend.")

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

    category = models.CharField(max_length=16, blank=True, default="", help_text="What the prompt is about.")
    estimate_source = models.CharField(
        "estimated by", max_length=16, blank=True, default="", help_text="The predictor that was used."
    )
    output_tokens_p90 = models.FloatField(
        "output, 90 % limit [tokens]", default=0.0, help_text="90 of 100 such answers were expected not to be longer."
    )
    output_rank = models.FloatField(
        "rank", null=True, blank=True, help_text="Share of such answers expected to be shorter than this one was."
    )
    user = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        db_column="end_user",  # user is a word of SQL
        help_text="As the request named it, else the user of the key; a digest where it was too long.",
    )
    instead_of = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="The entitlement that refused it, where a fallback took it over.",
    )
    instead_why = models.CharField(
        max_length=32, blank=True, default="", db_default="", help_text="The reason with which that refused it."
    )
    admission = models.CharField(
        max_length=300, blank=True, default="", help_text="JSON: the figures that it was admitted by."
    )
    cached_tokens = models.BigIntegerField(
        "cached input [tokens]", default=0, db_default=0, help_text="Of the input, what the engine had in its cache."
    )
    project = models.CharField(
        max_length=63, blank=True, default="", db_default="", help_text="Of the key, if it has one."
    )
    interruptions = models.IntegerField(
        default=0,
        db_default=0,
        help_text="How often its prefill was interrupted for a request that would have been late.",
    )
    sequences = models.PositiveIntegerField(
        default=1, db_default=1, help_text="Places that it takes while it runs: its answers, or prompts."
    )
    ran_before_s = models.FloatField(
        default=0.0,
        db_default=0.0,
        help_text="How long it ran after it was queued, in attempts that were interrupted or failed [s]. It is no part "
        "of its wait.",
    )
    client_retry = models.PositiveSmallIntegerField(
        default=0,
        db_default=0,
        help_text="How often its client says that it sent it before (x-stainless-retry-count); 0: never, or not said.",
    )

    @property
    def wait_s(self) -> float | None:
        """``LedgerRecord.waited_s``."""
        if self.queued_at is None:
            return None if self.granted_at is None else 0.0
        return max(0.0, ((self.granted_at or self.done_at) - self.queued_at).total_seconds() - self.ran_before_s)

    class Meta:
        ordering = ["-received_at", "-id"]
        verbose_name = "request"
        verbose_name_plural = "requests"
        indexes = [
            models.Index(fields=["received_at", "id"], name="ledger_received"),
            models.Index(fields=["tenant", "received_at"], name="ledger_tenant_received"),
            models.Index(fields=["pool", "received_at"], name="ledger_pool_received"),
            # By time, so that those of an outcome are read in order; a reason is looked for in the index alone.
            models.Index(fields=["outcome", "received_at", "id", "reason"], name="ledger_outcome_received"),
            models.Index(fields=["entitlement", "received_at"], name="ledger_entitlement_received"),
            models.Index(fields=["key_id", "received_at"], name="ledger_key_received"),
            models.Index(fields=["user", "received_at"], name="ledger_user_received"),
        ]

    def __str__(self) -> str:
        return self.request_id


class SavedView(models.Model):
    """A query that a person kept under a name: what stands in the address of a page of the console."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=63)
    query = models.CharField(max_length=1000, blank=True, help_text="As in the address, without the question mark.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(name="saved_view_once", fields=["user", "name"])]

    def __str__(self) -> str:
        return self.name


class PastPoint(models.Model):
    """A pool's dashboard over one step of time: what is left of the feed after 15 minutes (``telemetry.feed.past``)."""

    pool = models.CharField(max_length=63)
    step_s = models.PositiveSmallIntegerField("step [s]")
    at = models.BigIntegerField(help_text="Beginning of the step, epoch seconds.")
    point = models.TextField(help_text="JSON, as docs/reference/feed.md describes a point.")

    class Meta:
        constraints = [models.UniqueConstraint(name="past_point_once", fields=["pool", "step_s", "at"])]
        indexes = [models.Index(fields=["step_s", "at"], name="past_point_age")]

    def __str__(self) -> str:
        return f"{self.pool} {self.at} + {self.step_s} s"


class UsageHour(models.Model):
    """One hour of the ledger added up: what is left after the ledger's retention (``telemetry/ledger/rollup.py``)."""

    hour = models.DateTimeField(help_text="Its beginning, UTC; by the moment a request was received.")
    pool = models.CharField(max_length=63)
    model = models.CharField(max_length=200)
    tenant = models.CharField(max_length=63)
    tier = models.CharField(max_length=63)
    entitlement = models.CharField(max_length=63)
    key_id = models.CharField("key", max_length=32)
    requests = models.BigIntegerField()
    completed = models.BigIntegerField()
    refused = models.BigIntegerField()
    failed = models.BigIntegerField()
    cancelled = models.BigIntegerField()
    input_tokens = models.BigIntegerField("input [tokens]")
    output_tokens = models.BigIntegerField("output [tokens]")
    slot_ms = models.BigIntegerField("slot time [ms]", help_text="Grant to end, over all requests.")
    slo_met = models.BigIntegerField("SLO met")
    slo_total = models.BigIntegerField("SLO known")
    slo_turned_away = models.BigIntegerField(
        "refused with an SLO", null=True, help_text="With 429 or 503; unknown in hours of older releases."
    )
    slo_retries = models.BigIntegerField(
        "retries with an SLO", null=True, help_text="As their clients say; unknown in hours of older releases."
    )
    slo_retries_met = models.BigIntegerField("retries with their SLO met", null=True)
    tokens_unknown = models.BigIntegerField(
        "requests of unknown tokens",
        null=True,
        help_text="Lost with their gateway; no answer of theirs is in the sums; unknown in hours of older releases.",
    )
    cached_tokens = models.BigIntegerField("cached input [tokens]", default=0, db_default=0)
    slot_us = models.BigIntegerField(
        "slot time [us]", null=True, help_text="Exact, for bills; hours of older releases have milliseconds only."
    )
    project = models.CharField(max_length=63, blank=True, default="", db_default="")  # of the key

    class Meta:
        ordering = ["-hour", "tenant", "pool"]
        verbose_name = "hour of usage"
        verbose_name_plural = "hours of usage"
        constraints = [
            models.UniqueConstraint(
                name="usage_hour_once",
                fields=["hour", "pool", "model", "tenant", "tier", "entitlement", "key_id"],
            )
        ]
        indexes = [models.Index(fields=["tenant", "hour"], name="usage_tenant_hour")]

    def __str__(self) -> str:
        return f"{self.tenant} {self.hour:%Y-%m-%dT%H}"


class RollupMark(models.Model):
    """How far the ledger is added up: one row."""

    last_id = models.BigIntegerField(default=0)  # the newest ledger row that was looked at
    at = models.DateTimeField(null=True)  # when: what was written before is in the hours
    reserved_at = models.DateTimeField(null=True)  # until when reservations are recorded

    class Meta:
        constraints = [models.CheckConstraint(name="rollup_mark_is_one_row", condition=models.Q(id=1))]

    def __str__(self) -> str:
        return f"ledger row {self.last_id}"


class ReservedHour(models.Model):
    """What stood ready for an entitlement in one hour, as it was (``telemetry/ledger/reservations.py``): a statement's
    past does not change with the entitlement."""

    hour = models.DateTimeField(help_text="Its beginning, UTC.")
    pool = models.CharField(max_length=63)
    model = models.CharField(max_length=200)
    tenant = models.CharField(max_length=63)
    tier = models.CharField(max_length=63)
    entitlement = models.CharField(max_length=63)
    project = models.CharField(max_length=63, blank=True, default="")
    slot_us = models.BigIntegerField("reserved slot time [us]")

    class Meta:
        ordering = ["-hour", "entitlement"]
        constraints = [models.UniqueConstraint(name="reserved_hour_once", fields=["hour", "entitlement"])]
        indexes = [models.Index(fields=["tenant", "hour"], name="reserved_tenant_hour")]

    def __str__(self) -> str:
        return f"{self.entitlement} {self.hour:%Y-%m-%dT%H}"


class RuleKind(models.TextChoices):
    """What an alert rule looks at (``telemetry/alerts/conditions.py``)."""

    SLO = "slo_attainment", "SLO attainment over the last minute [0..1], below"
    QUEUE = "queue_age", "wait of the oldest request in the queue [s], above"
    DEBT = "debt", "service debt of an entitlement, above"
    BACKEND = "backend_health", "a backend that receives no work and is not draining"
    QUOTA = "quota", "share of a tenant's quota that is used [0..1], above"
    TTFT = "ttft", "p95 of the time to the first token over the last minute [s], above"
    REFUSALS = "refusals", "share of requests refused over the last minute [0..1], above"
    FAILURES = "failures", "share of requests that failed over the last minute [0..1], above"
    ENGINE_QUEUE = "engine_queue", "requests waiting inside an engine, above"
    KV_CACHE = "kv_cache", "share of a replica's KV cache in use [0..1], above"
    GPU = "gpu", "GPU utilization of a replica [0..1], above"
    NO_LEADER = "no_leader", "a pool without a leader"
    COST = "cost", "cost of a tenant since midnight UTC [its currency], above"


class Severity(models.TextChoices):
    WARNING = "warning", "warning"
    CRITICAL = "critical", "critical"


class ChannelKind(models.TextChoices):
    """How a channel is sent to (``telemetry/alerts/channels.py``)."""

    WEBHOOK = "webhook", "webhook: a signed call to your own program"
    SLACK = "slack", "Slack, or another receiver of Slack's incoming webhooks"
    EMAIL = "email", "e-mail"
    PAGERDUTY = "pagerduty", "PagerDuty, Events API v2"


class NotificationChannel(models.Model):
    """A place that alerts are sent to. What it sent last, and why it could not, is kept with it."""

    secret: ClassVar[tuple[str, ...]] = ("target",)

    name = models.SlugField(max_length=63, unique=True, help_text="Rules name it by this.")
    kind = models.CharField(max_length=10, choices=ChannelKind.choices, help_text="What receives the alerts.")
    target = models.CharField(
        max_length=500,
        help_text="Webhook and Slack: the address, whose host is on QUARTERMASTER_WEBHOOK_HOSTS. E-mail: up to ten "
        "addresses, with commas. PagerDuty: the integration key.",
    )
    for_all = models.BooleanField(
        "default",
        default=False,
        help_text="Also receives alerts of rules that name no channel, and those that have no rule.",
    )
    enabled = models.BooleanField(default=True, help_text="Off: nothing is sent to it.")
    created_at = models.DateTimeField(auto_now_add=True)
    tried_at = models.DateTimeField("last tried", null=True, blank=True)
    sent_at = models.DateTimeField("last sent", null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True, help_text="Why the last attempt failed; empty: it did not.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class AlertRule(models.Model):
    """When operators want to be told. Looked at by the leader of each pool (``telemetry/alerts/watch.py``)."""

    name = models.CharField(max_length=63, unique=True)
    kind = models.CharField(max_length=16, choices=RuleKind.choices)
    threshold = models.FloatField(null=True, blank=True, help_text="The alert opens beyond this; none for backends.")
    clear_threshold = models.FloatField(
        null=True, blank=True, help_text="The alert clears at this value. Empty: the threshold."
    )
    for_s = models.PositiveIntegerField(
        "for [s]",
        default=60,
        help_text="How long the condition must hold before the alert opens, and be absent before it closes.",
    )
    pool = models.CharField(max_length=63, blank=True, help_text="Empty: every pool.")
    tenant = models.CharField(max_length=63, blank=True, help_text="Empty: the whole pool, or every tenant.")
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARNING)
    webhook = models.CharField(max_length=500, blank=True, help_text="Empty: QUARTERMASTER_ALERT_WEBHOOK.")
    channels = models.ManyToManyField(
        NotificationChannel,
        blank=True,
        related_name="rules",
        help_text="Where its alerts are sent as well. None chosen: the default channels.",
    )
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "alert rule"

    def __str__(self) -> str:
        return self.name


ONE_TIME = "told"  # on the wire for as long as alerts are: readers of webhooks and of the REST API compare it


class Alert(models.Model):
    """Something an operator should know, once. Delivered to the webhook, if one is configured.

    One of a rule lasts until it is resolved; others are sent once and have no end.
    """

    at = models.DateTimeField(auto_now_add=True)
    began_at = models.DateTimeField(
        "began",
        null=True,
        blank=True,
        help_text="When what it is about began; empty: its rule's time before it opened.",
    )
    kind = models.CharField(max_length=32)  # quota_soft | quota_hard | scaling_failed | a RuleKind
    name = models.CharField(max_length=200, unique=True, help_text="Identifies the alert: one name is stored once.")
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARNING)
    rule = models.ForeignKey(AlertRule, on_delete=models.SET_NULL, null=True, blank=True, related_name="alerts")
    subject = models.CharField(max_length=200, blank=True, help_text="The entitlement, backend or quota of a rule.")
    tenant = models.CharField(max_length=63, blank=True)
    pool = models.CharField(max_length=63, blank=True)
    line = models.CharField("what", max_length=300)
    value = models.FloatField(null=True, blank=True, help_text="The value, in the rule's unit.")
    threshold = models.FloatField(null=True, blank=True)
    used_tokens = models.BigIntegerField("used [tokens]", null=True, blank=True)
    limit_tokens = models.BigIntegerField("limit [tokens]", null=True, blank=True)
    resolved_at = models.DateTimeField("resolved", null=True, blank=True)
    resolution = models.CharField(max_length=300, blank=True, help_text="Why it was resolved.")
    delivered_at = models.DateTimeField("delivered", null=True, blank=True)
    resolution_delivered_at = models.DateTimeField("resolution delivered", null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    # db_default: so that a release without the columns can still open an alert
    acknowledged_at = models.DateTimeField("acknowledged", null=True, blank=True)
    acknowledged_by = models.CharField(max_length=150, blank=True, db_default="")
    silenced_until = models.DateTimeField(null=True, blank=True, help_text="Nothing is sent until then.")
    silenced_by = models.CharField(max_length=150, blank=True, db_default="")
    note = models.CharField(
        max_length=300, blank=True, db_default="", help_text="Of the person who acknowledged or silenced it."
    )
    assigned_to = models.CharField(max_length=150, blank=True, db_default="", help_text="Who looks after it.")
    assigned_by = models.CharField(max_length=150, blank=True, db_default="")
    assigned_at = models.DateTimeField("assigned", null=True, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["at"], name="alert_at"),
            models.Index(fields=["tenant", "at"], name="alert_tenant_at"),
            models.Index(fields=["pool"], name="alert_open", condition=models.Q(resolved_at=None)),
        ]
        constraints = [
            models.UniqueConstraint(
                name="alert_open_once", fields=["rule", "pool", "subject"], condition=models.Q(resolved_at=None)
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        """``open`` or ``resolved`` of a rule's; :data:`ONE_TIME` of others."""
        if self.resolved_at is not None:
            return "resolved"
        return ONE_TIME if self.rule_id is None else "open"


class AlertDelivery(models.Model):
    """An alert for one channel: what was sent of it, and what stands in the way."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(NotificationChannel, on_delete=models.CASCADE, related_name="deliveries")
    delivered_at = models.DateTimeField("delivered", null=True, blank=True)
    resolution_delivered_at = models.DateTimeField("resolution delivered", null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["alert", "channel"]
        constraints = [models.UniqueConstraint(name="alert_delivery_once", fields=["alert", "channel"])]

    def __str__(self) -> str:
        return f"{self.alert_id} {self.channel_id}"


class PoolEvent(models.Model):
    """Something that changed in a pool at one moment, as its leader saw it (``telemetry/events.py``)."""

    pool = models.CharField(max_length=63)
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)  # leader | backend | policy | state
    subject = models.CharField(max_length=150, blank=True, help_text="The replica or process.")
    line = models.CharField("what", max_length=300)

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [
            models.UniqueConstraint(name="pool_event_once", fields=["pool", "at", "kind", "subject"]),
        ]
        indexes = [models.Index(fields=["at"], name="pool_event_at")]

    def __str__(self) -> str:
        return f"{self.pool} {self.kind} {self.subject}"


class LearnedFactor(models.Model):
    """What a pool's predictions were corrected by at one moment: the past of what the gateways have learned."""

    pool = models.CharField(max_length=63)
    at = models.DateTimeField()
    scope = models.CharField(max_length=12, help_text="category, tenant, model; source: of its 90 % limit.")
    name = models.CharField(max_length=200, blank=True, help_text="The tenant, model or source.")
    category = models.CharField(max_length=16, blank=True)
    factor = models.FloatField()
    observed = models.BigIntegerField(help_text="Answers it was learned from.")

    class Meta:
        ordering = ["pool", "at", "id"]
        indexes = [models.Index(fields=["pool", "at"], name="learned_pool_at")]

    def __str__(self) -> str:
        return f"{self.pool} {self.scope} {self.name or self.category}"
