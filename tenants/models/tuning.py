"""Versions of a pool's policy, and trials of new ones: what was tried, its result, and by whom it was decided."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, Value

from scheduling.tuning.settings import LoopSettings, read_settings
from tenants.models.capacity import Pool


class TuningMode(models.TextChoices):
    OFF = "off", "off: no tuning"
    ADVISE = "advise", "advise: candidates are tried on recordings and listed, nothing is changed"
    AUTOMATIC = "automatic", "automatic: winners become canaries, and are kept or rolled back"


class Author(models.TextChoices):
    PERSON = "person", "a person"
    OPTIMISER = "optimiser", "the optimiser"


def validate_settings(value: object) -> None:
    """Those of :class:`scheduling.tuning.settings.LoopSettings`."""
    try:
        read_settings(value)
    except ValueError as error:
        raise ValidationError(f"{error}.") from error


class Tuning(models.Model):
    """How a pool is tuned. A pool without one is advised, with the default settings."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="tuning")
    mode = models.CharField(max_length=9, choices=TuningMode.choices, default=TuningMode.ADVISE)
    settings = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_settings],
        help_text='Where they differ from the defaults (docs/guide/tuning.md), such as {"interval_s": 600}.',
    )

    class Meta:
        verbose_name = "tuning"
        verbose_name_plural = "tuning"

    def __str__(self) -> str:
        return self.pool.slug

    @property
    def loop(self) -> LoopSettings:
        """The defaults where an earlier release has taken what cannot be gone by."""
        try:
            return read_settings(self.settings)
        except ValueError:
            return LoopSettings()


class PolicyVersion(models.Model):
    """What decided in a pool from a moment on. Never changed, never deleted while its pool is there."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField(help_text="The pool's policy version.")
    parent = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="children")
    restores = models.PositiveIntegerField(null=True, help_text="The version whose content this one restores.")
    at = models.DateTimeField(auto_now_add=True)
    author_kind = models.CharField(max_length=9, choices=Author.choices)
    author = models.CharField(max_length=150)
    reason = models.CharField(max_length=300, blank=True)
    policy = models.CharField(max_length=63)
    policy_params = models.JSONField(default=dict)
    modifiers = models.JSONField(default=dict)
    routing = models.CharField(max_length=63)
    routing_params = models.JSONField(default=dict)
    room = models.JSONField(
        null=True,
        help_text="The pool's prefill credit and headroom, null where they are automatic. Null as a whole: written by "
        "a release that did not keep them, and left as they are when this version is restored.",
    )
    changes = models.JSONField(default=dict, help_text="Field or parameter: [before, after].")

    content: ClassVar[tuple[str, ...]] = ("policy", "policy_params", "modifiers", "routing", "routing_params", "room")

    class Meta:
        ordering = ["pool", "-number"]
        constraints = [models.UniqueConstraint(name="policy_version_once", fields=["pool", "number"])]

    def __str__(self) -> str:
        return f"{self.pool.slug} {self.policy}@{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise ValueError("a policy version is never changed; make another one")
        super().save(*args, **kwargs)

    @property
    def partition(self) -> str:
        """Queue boundaries [tokens], of a policy that has any."""
        return str(self.policy_params.get("partition", ""))


class TrialState(models.TextChoices):
    PROPOSED = "proposed", "proposed: tried on a recording, or waiting to be started"
    REJECTED = "rejected", "rejected: it did not win on the recording"
    CANARY = "canary", "canary: active under guard rails"
    PROMOTED = "promoted", "promoted: it is kept"
    ROLLED_BACK = "rolled_back", "rolled back: the version before is active again"
    ABORTED = "aborted", "aborted: it could not be judged, the version before is active"


class StudyState(models.TextChoices):
    RUNNING = "running", "running: candidates are being replayed"
    ENDED = "ended", "ended: it has a result"
    STOPPED = "stopped", "stopped: by a person, by a change of the policy, or because it took too long"


class Study(models.Model):
    """One search for a better setting on one window of traffic, as far as it has come: replays are its only state."""

    # Without constraints of the database, so that an older release, which does not know this table, can delete a pool.
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="studies", db_constraint=False)
    at = models.DateTimeField("began")
    base = models.ForeignKey(PolicyVersion, on_delete=models.CASCADE, related_name="+", db_constraint=False)
    state = models.CharField(max_length=7, choices=StudyState.choices, default=StudyState.RUNNING)
    window_from = models.DateTimeField()
    window_until = models.DateTimeField()
    requests = models.PositiveIntegerField(default=0, help_text="Requests of the window.")
    done = models.PositiveIntegerField(default=0, help_text="Replays so far.")
    total = models.PositiveIntegerField(default=0, help_text="Replays that it takes at most.")
    replays = models.JSONField(default=list, db_column="told", help_text="What each replay came to, in order.")
    in_flight = models.JSONField(
        default=list,
        db_default=Value([], models.JSONField()),  # so that a release without the column can still begin a study
        help_text="What waited and ran when it began, while it runs: its window has them too.",
    )
    engines = models.JSONField(
        default=dict,
        db_default=Value({}, models.JSONField()),  # likewise
        help_text="The replicas that it replays on, as they were known when it began, while it runs.",
    )
    result = models.CharField(max_length=300, blank=True)
    cpu_s = models.FloatField(default=0.0, help_text="Processor time that it has taken [s].")
    heard_at = models.DateTimeField(null=True, help_text="When it last went on.")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["pool", "-at"]
        verbose_name_plural = "studies"
        constraints = [
            models.UniqueConstraint(name="study_once", fields=["pool", "at"]),
            models.UniqueConstraint(name="one_study", fields=["pool"], condition=Q(state="running")),
        ]

    def __str__(self) -> str:
        return f"{self.pool.slug} {self.at:%Y-%m-%dT%H:%M:%S}"


class Trial(models.Model):
    """One candidate, from proposal to its end."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="trials")
    at = models.DateTimeField("proposed")
    state = models.CharField(max_length=11, choices=TrialState.choices, default=TrialState.PROPOSED)
    reason = models.CharField("why it is in this state", max_length=300, blank=True)
    study = models.DateTimeField(help_text="Start of its study: one window, several trials.")
    number = models.PositiveIntegerField(help_text="In its study, from 0: the active version.")
    base = models.ForeignKey(PolicyVersion, on_delete=models.CASCADE, related_name="+")
    version = models.ForeignKey(PolicyVersion, on_delete=models.CASCADE, null=True, related_name="+")
    values = models.JSONField(default=dict, help_text="The knobs.")
    params = models.JSONField(default=dict, help_text="The policy's parameters that follow from them.")
    setting = models.JSONField(
        null=True,
        help_text="All that it changes of the pool: policy, parameters, modifiers, routing and room. Null: only the "
        "parameters.",
    )
    window_from = models.DateTimeField()
    window_until = models.DateTimeField()
    requests = models.PositiveIntegerField(default=0, help_text="Requests of the recording it was tried on.")
    reward = models.FloatField(null=True)
    parts = models.JSONField(default=dict, help_text="Of the reward.")
    gate = models.JSONField(default=dict, help_text="Result of the replay against the active version.")
    guard = models.JSONField(default=dict, help_text="Result of the guard rails for the canary.")
    canary_at = models.DateTimeField(null=True)
    canary_until = models.DateTimeField(null=True)
    watched_at = models.DateTimeField(null=True, help_text="When the canary was last judged.")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [
            models.UniqueConstraint(name="trial_once", fields=["pool", "study", "number"]),
            models.UniqueConstraint(name="one_canary", fields=["pool"], condition=Q(state="canary")),
        ]

    def __str__(self) -> str:
        return f"{self.pool.slug} {self.study:%Y-%m-%dT%H:%M:%S} {self.number}"
