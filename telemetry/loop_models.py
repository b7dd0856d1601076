"""What controlplane's loops have done and learned: scaling decisions, samples, calibrations, lab runs.

Kept here as all records are; the loops themselves are in ``controlplane``. Import them from ``telemetry.models``.
"""

from __future__ import annotations

from django.db import models


class _Seen(models.Model):
    """What a planner saw, in the dimension that decides (``scheduling/core/capacity/planner.py``)."""

    pool = models.CharField(max_length=63)
    at = models.DateTimeField()
    epoch = models.BigIntegerField(help_text="The leadership under which it was made.")
    reason = models.CharField(max_length=300)
    dimension = models.CharField(max_length=16, blank=True, help_text="Slots, KV tokens or tokens/s: what is tightest.")
    used = models.FloatField(default=0.0)
    waiting = models.FloatField(default=0.0)
    refused = models.FloatField(default=0.0, help_text="Refused for lack of capacity, as capacity.")
    entitled = models.FloatField(default=0.0)
    per_replica = models.FloatField(default=0.0)
    slo_met = models.IntegerField("SLO met", default=0)
    slo_total = models.IntegerField("SLO known", default=0)

    class Meta:
        abstract = True


class ScalingState(_Seen):
    """What the planner last thought of a pool: what KEDA reads, and what the pool's page shows."""

    pool = models.CharField(max_length=63, unique=True)
    mode = models.CharField(max_length=9)
    current = models.PositiveIntegerField(help_text="Replicas, without draining ones.")
    leaving = models.PositiveIntegerField(default=0, help_text="Replicas that drain before removal.")
    wanted = models.PositiveIntegerField(help_text="Replicas that the planner proposes now.")

    def __str__(self) -> str:
        return f"{self.pool}: {self.current} -> {self.wanted}"


class ScalingDecision(_Seen):
    """A proposal to have more or fewer replicas, and what became of it."""

    OUTCOMES = (
        ("advised", "advised: not carried out"),
        ("running", "running: the driver carries it out"),
        ("done", "done"),
        ("failed", "failed"),
        ("superseded", "superseded: replaced by a later decision"),
    )

    from_replicas = models.PositiveIntegerField("from")
    to_replicas = models.PositiveIntegerField("to")
    applied = models.BooleanField(default=False, help_text="Whether the driver was called.")
    outcome = models.CharField(max_length=10, choices=OUTCOMES)
    detail = models.CharField(max_length=300, blank=True)
    finished_at = models.DateTimeField("finished", null=True, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["pool", "at"], name="scaling_pool_at")]

    def __str__(self) -> str:
        return f"{self.pool}: {self.from_replicas} -> {self.to_replicas}"


class Sampled(models.Model):
    """One request of a pool's long-term sample, kept beyond the ledger's retention (``controlplane/tuning/recent.py``).

    Sizes, times and names; nothing of what was said.
    """

    pool = models.CharField(max_length=63)
    place = models.PositiveIntegerField()  # in the sample
    at = models.DateTimeField("received")
    tenant = models.CharField(max_length=63)
    tier = models.CharField(max_length=63)
    category = models.CharField(max_length=16, blank=True)
    input_tokens = models.BigIntegerField("input [tokens]")
    output_tokens = models.BigIntegerField("output [tokens]")
    wait_s = models.FloatField("waited [s]", null=True)
    ttft_s = models.FloatField("TTFT [s]", null=True)
    ttlt_s = models.FloatField("TTLT [s]")

    class Meta:
        constraints = [models.UniqueConstraint(name="sampled_place_once", fields=["pool", "place"])]

    def __str__(self) -> str:
        return f"{self.pool} {self.place}"


class SampleMark(models.Model):
    """How far a pool's ledger has been sampled."""

    pool = models.CharField(max_length=63, unique=True)
    last_id = models.BigIntegerField(default=0)  # the newest ledger row that was looked at
    seen = models.BigIntegerField(default=0)  # requests that could have come into the sample

    def __str__(self) -> str:
        return f"{self.pool}: {self.seen}"


class Calibration(models.Model):
    """How fast a pool's engines were found to be (``scheduling/tuning/step_time_fit.py``): what labs replay with."""

    pool = models.CharField(max_length=63)
    at = models.DateTimeField()
    step_time = models.JSONField(help_text="Coefficients [s]: t0, a, b, c, e, knee, a2.")
    overhead_s = models.FloatField("overhead [s]", help_text="Of gateway and network, on every first token.")
    token_budget = models.PositiveIntegerField("tokens per step", default=2048)
    error = models.FloatField(help_text="Mean relative error of the time per token.")
    requests = models.PositiveIntegerField()
    trust = models.JSONField(default=dict, help_text="Simulated against live, on the window before this fit.")

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["pool", "at"], name="calibration_pool_at")]

    def __str__(self) -> str:
        return f"{self.pool} {self.at:%Y-%m-%dT%H:%M:%S}"


class LabRecording(models.Model):
    """A recording that labs can choose: a pool's last minutes, or a trace that somebody brought."""

    name = models.CharField(max_length=100, unique=True)
    pool = models.CharField(max_length=63, blank=True)
    at = models.DateTimeField(auto_now_add=True)
    author = models.CharField(max_length=150)
    requests = models.PositiveIntegerField()
    span_s = models.FloatField("span [s]")
    packed = models.BinaryField(help_text="The recording, gzipped.")

    class Meta:
        ordering = ["-at", "-id"]

    def __str__(self) -> str:
        return self.name


class LabRun(models.Model):
    """A comparison of policies on one recording: its input, its progress, its results."""

    STATES = (
        ("queued", "queued"),
        ("running", "running"),
        ("done", "done"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    )

    name = models.CharField(max_length=100)
    recording = models.ForeignKey(LabRecording, on_delete=models.PROTECT, related_name="runs")
    pool = models.CharField(max_length=63, help_text="The pool whose engines, limits and policy are used.")
    author = models.CharField(max_length=150)
    at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(max_length=9, choices=STATES, default="queued")
    problem = models.CharField(max_length=300, blank=True)
    asked = models.JSONField(help_text="Policies, variants, replicas, SLOs.")
    figures = models.JSONField(default=dict, db_column="found", help_text="Policy and variant -> figures.")
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField()
    moved_at = models.DateTimeField(null=True, help_text="When a worker last made progress.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-at", "-id"]

    def __str__(self) -> str:
        return self.name
