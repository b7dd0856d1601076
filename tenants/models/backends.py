"""The servers (replicas) of a pool."""

from __future__ import annotations

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from scheduling.core import types as core
from scheduling.engines.kinds import kind_of
from tenants.models.base import Named
from tenants.models.capacity import Phase, Pool
from tenants.validators import (
    AT_LEAST_ONE,
    LOOPBACK,
    MOST_SLOTS,
    finite,
    place_of,
    validate_base_url,
    validate_http_url,
)

TAKEN = "Another backend has this URL; one engine counts once."


def backend_at(url: str) -> Backend | None:
    """The one with this address, however it is spelt."""
    place = place_of(url)
    alike = _might_be_at(place[0]).values_list("slug", "url")
    slug = next((slug for slug, other in alike if place_of(other) == place), None)
    return None if slug is None else Backend.objects.get(slug=slug)


def _might_be_at(host: str) -> models.QuerySet[Backend]:
    """Few of all: a manifest with thousands of them asks for each. IPv6 has too many spellings to be looked for, and
    databases differ in the case of letters beyond ASCII."""
    if not host.isascii():
        return Backend.objects.all()
    alike = models.Q(url__contains="[")
    for name in LOOPBACK if host in LOOPBACK else [host]:
        alike |= models.Q(url__icontains=name)
    return Backend.objects.filter(alike)


class Backend(Named):
    """One server (replica) of a pool."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="backends")
    url = models.CharField(
        "URL",
        max_length=200,
        unique=True,
        validators=[validate_base_url],
        error_messages={"unique": TAKEN},
        help_text="Scheme, host and port of the engine, such as http://10.0.0.7:8000.",
    )
    slots = models.PositiveIntegerField(
        default=32,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_SLOTS)],
        help_text="Sequences it may run at once (vLLM's --max-num-seqs).",
    )
    kv_tokens = models.PositiveBigIntegerField(
        "KV cache [tokens]",
        default=200_000,
        validators=AT_LEAST_ONE,
        help_text="Tokens its KV cache holds; vLLM logs it at start.",
    )
    api_key = models.CharField(
        "API key",
        max_length=500,
        blank=True,
        default="",
        help_text="Sent to the engine (vLLM's --api-key). Never shown again.",
    )
    draining = models.BooleanField(default=False, help_text="Receives no new requests; running requests finish.")
    phase = models.CharField(
        max_length=8,
        choices=Phase.choices,
        default=Phase.BOTH,
        db_default=Phase.BOTH.value,
        help_text="Which part of a request it does (vLLM with a KV connector). A pool with prefill replicas needs "
        "decode replicas, and the other way round: alone they serve nothing.",
    )
    dcgm_url = models.CharField(
        "GPU exporter URL",
        max_length=200,
        blank=True,
        default="",
        validators=[validate_http_url],
        help_text="DCGM exporter, such as http://10.0.0.7:9400/metrics. Empty: the engine's own /metrics is tried.",
    )

    tokens_per_s = models.FloatField(
        "throughput [tokens/s]",
        default=0.0,
        validators=[finite, MinValueValidator(0.0)],
        help_text="Prompt and answer together, as `manage.py calibrate` measures it. 0: not measured, so no bound.",
    )
    silent_since = models.DateTimeField(null=True, blank=True, editable=False)  # the pool's leader finds it dead
    managed = models.BooleanField(
        default=False,
        help_text="A scaling driver may drain and remove it. Others are never removed automatically.",
    )
    leaving_since = models.DateTimeField(null=True, blank=True, editable=False)  # it drains in order to be removed

    secret: ClassVar[tuple[str, ...]] = ("api_key",)

    class Meta:
        ordering = ["pool__slug", "slug"]
        constraints = [
            models.CheckConstraint(
                name="backend_has_room",
                condition=Q(slots__gte=1, kv_tokens__gte=1),
                violation_error_message="A backend needs at least one slot and one token of KV cache.",
            )
        ]

    def clean(self) -> None:
        self._has_its_own_address()
        if self.phase == Phase.BOTH or self.pool_id is None:
            return
        kind = kind_of(self.pool.engine)
        if not kind.hands_over:
            raise ValidationError(
                {
                    "phase": f"Engines of kind {kind.name!r} cannot hand a prompt's KV cache over: leave it at 'both', "
                    "or set the pool's engine to one that can (docs/guide/prefill-decode.md)."
                }
            )

    def _has_its_own_address(self) -> None:
        """What is as it was stays, so that a backend can be drained whose address an older release let in twice."""
        if not self.url or Backend.objects.filter(pk=self.pk, url=self.url).exists():
            return
        try:
            validate_base_url(self.url)
        except ValidationError:
            return  # which its field says
        other = backend_at(self.url)
        if other is not None and other.pk != self.pk and other.url != self.url:
            raise ValidationError({"url": f"{other.slug} is at {other.url}, which is the same address. {TAKEN}"})

    def spec(self) -> core.BackendSpec:
        """The row as the core knows it."""
        return core.BackendSpec(
            id=self.slug,
            pool=self.pool.slug,
            url=self.url,
            slots=self.slots,
            kv_tokens=self.kv_tokens,
            api_key=self.api_key,
            draining=self.draining,
            dcgm_url=self.dcgm_url,
            managed=self.managed,
            leaving_since_s=self.leaving_since.timestamp() if self.leaving_since else None,
            tokens_per_s=self.tokens_per_s,
            phase=core.Phase(self.phase),
        )
