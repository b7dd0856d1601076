"""Pools (one model behind one capacity) and the adapters of their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from scheduling.core import types as core
from scheduling.core.policies.compose import compose
from scheduling.core.policies.registry import PolicyError, make_ordering, make_routing, orderings, routings
from scheduling.engines.kinds import VLLM, kind_of, kinds
from tenants.models.base import Named
from tenants.validators import (
    AT_LEAST_ONE,
    finite,
    model_name_validator,
    validate_aliases,
    validate_coefficients,
    validate_modifiers,
    validate_policy_params,
    validate_scaling_params,
)

ROOM = ("prefill_credit", "headroom_slots")
ENGINE_COUNTS = "backend"  # a pool's ``tokenizer``: its engines count


def engine_choices() -> list[tuple[str, str]]:
    """The kinds of engine, asked for when a form or schema is made: a new kind needs no migration."""
    return [(kind.name, f"{kind.name}: {kind.label}") for kind in kinds().values()]


class ScalingMode(models.TextChoices):
    OFF = core.ScalingMode.OFF.value, "off"
    ADVISE = core.ScalingMode.ADVISE.value, "advise: proposals are stored and shown, nothing is done"
    AUTOMATIC = core.ScalingMode.AUTOMATIC.value, "automatic: the driver carries proposals out"


class ScalingDriver(models.TextChoices):
    NONE = "", "none"
    LOCAL = "local", "local: processes on the machine of `make up`"
    KUBERNETES = "kubernetes", "kubernetes: the scale of a Deployment"
    WEBHOOK = "webhook", "webhook: a signed call to your own program"
    EXTERNAL = "external", "external: KEDA or an HPA reads the proposed replicas from the API"


class Predictor(models.TextChoices):
    OFF = core.PredictorMode.OFF.value, "off: every answer is expected to reach its bound"
    HISTORY = core.PredictorMode.HISTORY.value, "history: the key's past answers, else the prompt's category"
    SIMILAR = core.PredictorMode.SIMILAR.value, "similar: answers to similar prompts, else as history"


class PrefixCache(models.TextChoices):
    ISOLATED = core.PrefixCache.ISOLATED.value, "isolated: each tenant finds only its own prompts"
    SHARED = core.PrefixCache.SHARED.value, "shared: tenants find each other's prompts, and can time them"
    UNSALTED = core.PrefixCache.UNSALTED.value, "unsalted: for engines that refuse cache_salt; shared if they cache"


class Phase(models.TextChoices):
    BOTH = core.Phase.BOTH.value, "both: prompts and answers"
    PREFILL = core.Phase.PREFILL.value, "prefill: computes prompts, and hands their KV cache to a decode replica"
    DECODE = core.Phase.DECODE.value, "decode: takes that KV cache and writes the answer"


class Pool(Named):
    """One model behind one capacity: that of its backends together."""

    model = models.CharField(
        max_length=200, validators=[model_name_validator], help_text="The model name that clients send."
    )
    upstream_model = models.CharField(
        max_length=200,
        blank=True,
        validators=[model_name_validator],
        help_text="The model name that the engines use. Empty: the same.",
    )
    engine = models.CharField(
        max_length=32,
        choices=engine_choices,
        default=VLLM,
        db_default=VLLM,  # so that a release without the column can still add a pool
        help_text="The software of its backends: what they report of themselves and which request fields they take.",
    )
    aliases = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_aliases],
        help_text='Other model names that clients may send, such as ["default"].',
    )
    load_adapters = models.BooleanField(
        default=False,
        db_default=False,  # so that a release without the column can still add a pool
        help_text="Engines are asked to load adapters that they lack. Off: an engine that allows this lets everyone "
        "who can reach it load files, so it is a decision about your network.",
    )
    policy = models.CharField(max_length=63, default="unified", help_text="The rule that orders the queue.")
    policy_params = models.JSONField(
        "policy parameters",
        default=dict,
        blank=True,
        validators=[validate_policy_params],
        help_text='The policy\'s parameters by name, such as {"alpha": 0.5}.',
    )
    modifiers = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_modifiers],
        help_text='Layers around the policy, by name with parameters, such as {"bands": {}, "fair": {}}.',
    )
    routing = models.CharField(max_length=63, default="prefix_affinity", help_text="The rule that chooses the backend.")
    routing_params = models.JSONField(
        "routing parameters",
        default=dict,
        blank=True,
        validators=[validate_policy_params],
        help_text='The routing\'s parameters by name, such as {"skew_tokens": 100000}.',
    )
    policy_version = models.PositiveIntegerField(
        default=1,
        editable=False,
        help_text="Counts changes of policy, modifiers, routing, their parameters, prefill credit or headroom.",
    )
    max_model_len = models.PositiveIntegerField(
        "context length [tokens]",
        default=8192,
        validators=AT_LEAST_ONE,
        help_text="Prompt and answer together [tokens].",
    )
    default_output_tokens = models.PositiveIntegerField(
        "default output bound [tokens]",
        default=512,
        validators=AT_LEAST_ONE,
        help_text="Used when a client sends no max_tokens [tokens].",
    )
    max_output_tokens = models.PositiveIntegerField(
        "largest output bound [tokens]",
        default=4096,
        validators=AT_LEAST_ONE,
        help_text="A larger max_tokens is refused [tokens].",
    )
    queue_limit = models.PositiveIntegerField(default=10_000, help_text="Requests that may wait in the pool.")
    queue_bytes = models.PositiveBigIntegerField(
        "queue size [bytes]",
        default=256 * 1024 * 1024,
        validators=AT_LEAST_ONE,
        help_text="Bodies of waiting requests, over all gateways [bytes].",
    )
    threshold = models.FloatField(
        default=0.0,
        validators=[finite, MinValueValidator(0.0)],
        help_text="While the pool is contended, requests below this weight are refused. 0: none.",
    )
    headroom_slots = models.PositiveIntegerField(
        "headroom [slots]",
        null=True,
        blank=True,
        validators=[MaxValueValidator(100_000)],
        help_text=(
            "Free slots kept for requests within a dedicated, guaranteed or elastic baseline, so that these need not "
            "wait for one to end. Empty: a sixth of the slots, at most all baselines, where others could take them. "
            "0: all idle slots are lent."
        ),
    )
    kv_bytes_per_token = models.PositiveIntegerField(
        "KV bytes per token",
        default=131_072,
        validators=AT_LEAST_ONE,
        help_text="2 x layers x KV heads x head size x bytes: 131072 for Llama-3-8B in 16 bit.",
    )
    coefficients = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_coefficients],
        help_text=(
            'For weight, debt and burst, if they differ from the defaults, such as {"debt": 4.0, "gamma_debt": 0.7, '
            '"class_weights": {"elastic": 100}}.'
        ),
    )
    slo_mean_s = models.FloatField(
        "mean SLO [s]",
        null=True,
        blank=True,
        validators=[finite, MinValueValidator(0.001)],
        help_text=(
            "What an entitlement's SLO target is compared with in its weight [s]. Empty: the mean over those bound, so "
            "that every tenant that joins moves all weights a little."
        ),
    )
    predictor = models.CharField(
        max_length=16,
        choices=Predictor.choices,
        default=Predictor.SIMILAR,
        help_text="How output lengths are predicted. They order the queue; the bound is reserved and charged.",
    )
    tokenizer = models.CharField(
        max_length=300,
        blank=True,
        default="",
        help_text="Counts input tokens: the path of a tokenizer.json on the gateways, or 'backend' to ask an engine. "
        "Empty: estimated from words and bytes.",
    )
    prefix_cache = models.CharField(
        max_length=16,
        choices=PrefixCache.choices,
        default=PrefixCache.ISOLATED,
        help_text="Whose prompts an engine may reuse from its prefix cache: each tenant's requests carry a salt of "
        "their own (vLLM's cache_salt), or all tenants share.",
    )
    prefill_credit = models.PositiveIntegerField(
        "prefill credit [tokens]",
        null=True,
        blank=True,
        validators=[MaxValueValidator(1_000_000)],
        help_text="Prompt tokens that a backend may have before their first output token. Empty: adjusted "
        "automatically. 0: no bound, requests then wait inside the engine.",
    )
    scaling_mode = models.CharField(
        max_length=9,
        choices=ScalingMode.choices,
        default=ScalingMode.OFF,
        help_text="What proposals of the planner lead to.",
    )
    min_replicas = models.PositiveIntegerField(
        default=1,
        help_text="The planner never proposes fewer. 0: the pool may sleep without any, and the first request brings "
        "one; how long it is idle before, and how long a replica takes, have to be set.",
    )
    max_replicas = models.PositiveIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(10_000)],
        help_text="The planner never proposes more. While scaling is on, it limits what may be reserved.",
    )
    scaling_driver = models.CharField(
        max_length=16,
        choices=ScalingDriver.choices,
        blank=True,
        default="",
        help_text="Who adds and removes replicas.",
    )
    scaling_params = models.JSONField(
        "driver parameters",
        default=dict,
        blank=True,
        validators=[validate_policy_params],
        help_text='The driver\'s parameters by name, such as {"deployment": "vllm-llama"} (docs/guide/scaling.md).',
    )
    scaling_headroom = models.FloatField(
        "headroom",
        default=0.2,
        validators=[finite, MinValueValidator(0.0), MaxValueValidator(10.0)],
        help_text="Capacity kept free above the demand: 0.2 is 20 %.",
    )
    scale_up_cooldown_s = models.FloatField(
        "cooldown up [s]",
        default=30.0,
        validators=[finite, MinValueValidator(1.0), MaxValueValidator(86_400)],
        help_text="Minimum time between two increases [s].",
    )
    scale_down_cooldown_s = models.FloatField(
        "cooldown down [s]",
        default=300.0,
        validators=[finite, MinValueValidator(1.0), MaxValueValidator(86_400)],
        help_text="Replicas are removed after fewer have sufficed for this long [s], without another change.",
    )
    sleep_after_s = models.FloatField(
        "sleeps after [s]",
        null=True,
        blank=True,
        default=None,
        validators=[finite, MinValueValidator(10.0), MaxValueValidator(30 * 86_400)],
        help_text="Without any request for this long [s], its replicas are removed where min replicas is 0, and else "
        "put to sleep if their engines can. Empty: never.",
    )
    wakes_in_s = models.FloatField(
        "wakes in [s]",
        null=True,
        blank=True,
        default=None,
        validators=[finite, MinValueValidator(1.0), MaxValueValidator(3600)],
        help_text="Seconds a sleeping pool takes until it serves; what is measured replaces it. A request that may not "
        "wait as long is refused with a time to retry. Empty: 20 s for engines that sleep.",
    )
    drain_limit_s = models.FloatField(
        "longest drain [s]",
        default=600.0,
        validators=[finite, MinValueValidator(1.0), MaxValueValidator(86_400)],
        help_text="A draining replica is stopped after this long [s], even if requests still run there.",
    )

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.CheckConstraint(
                name="pool_output_bounds_ordered",
                condition=Q(default_output_tokens__lte=F("max_output_tokens"))
                & Q(max_output_tokens__lte=F("max_model_len")),
                violation_error_message=(
                    "The default output bound must not exceed the largest output bound, "
                    "nor that the context length (all in tokens)."
                ),
            ),
            models.CheckConstraint(
                name="pool_figures_in_range",
                condition=Q(threshold__gte=0, kv_bytes_per_token__gte=1, default_output_tokens__gte=1),
                violation_error_message="Threshold must be 0 or more; token and byte figures must be 1 or more.",
            ),
            models.CheckConstraint(
                name="pool_replicas_ordered",
                condition=Q(max_replicas__gte=1) & Q(max_replicas__gte=F("min_replicas")),
                violation_error_message="Max replicas must be 1 or more, and not less than min replicas.",
            ),
            models.CheckConstraint(
                name="pool_sleep_is_timed",
                condition=Q(min_replicas__gte=1) | Q(sleep_after_s__isnull=False, wakes_in_s__isnull=False),
                violation_error_message="A pool that may have no replica (min replicas 0) needs both times: after how "
                "many idle seconds it sleeps, and in how many it wakes.",
            ),
        ]

    @property
    def room(self) -> dict[str, int | None]:
        """How much is granted ahead and kept free, as a policy version keeps it; None where it is automatic."""
        return {name: getattr(self, name) for name in ROOM}

    @room.setter
    def room(self, value: Mapping[str, int | None] | None) -> None:
        """None leaves both as they are."""
        for name in ROOM:
            if value is not None and name in value:
                setattr(self, name, value[name])

    def clean(self) -> None:
        if self._malformed():
            return  # each field says what is wrong with it; together they mean nothing yet
        if self.model in (self.aliases or []):
            raise ValidationError({"aliases": f"{self.model!r} is the model's own name; leave it out of the aliases."})
        wrong: dict[str, str] = {}
        for field, names in (("model", [self.model]), ("aliases", self.aliases or [])):
            taken = Adapter.objects.filter(model__in=names).first()
            if taken is not None:
                wrong[field] = f"{taken.model!r} is the name of adapter {taken.slug!r} of pool {taken.pool}."
        try:
            ordering = make_ordering(self.policy, self.policy_params)
        except PolicyError as error:
            wrong["policy_params" if error.param or self.policy in orderings() else "policy"] = f"{error}."
        else:
            try:
                compose(ordering, self.modifiers)
            except PolicyError as error:
                wrong["modifiers"] = f"{error}."
        try:
            make_routing(self.routing, self.routing_params)
        except PolicyError as error:
            wrong["routing_params" if error.param or self.routing in routings() else "routing"] = f"{error}."
        wrong |= self._unfit_for_engine()
        if wrong:
            raise ValidationError(wrong)
        if self.scaling_mode == ScalingMode.AUTOMATIC and not self.scaling_driver:
            raise ValidationError({"scaling_driver": "Automatic scaling needs a driver; choose one, or 'advise'."})
        validate_scaling_params(self.scaling_driver, self.scaling_params, to_zero=self.min_replicas == 0)

    def _malformed(self) -> bool:
        """Whether a value is not even of the kind that its field holds."""
        shaped = ("aliases", "policy_params", "modifiers", "routing_params", "scaling_params", "scaling_driver")
        for field in self._meta.fields:
            if field.name in shaped:
                try:
                    field.clean(getattr(self, field.name), self)
                except ValidationError:
                    return True
        return False

    def _unfit_for_engine(self) -> dict[str, str]:
        """What its kind of engine cannot do, by field."""
        try:
            kind = kind_of(self.engine)
        except LookupError as error:
            return {"engine": str(error)[0].upper() + str(error)[1:]}
        wrong: dict[str, str] = {}
        if not kind.takes_cache_salt and self.prefix_cache != PrefixCache.UNSALTED:
            wrong["prefix_cache"] = (
                f"Engines of kind {kind.name!r} take no cache_salt, so tenants cannot be kept apart in a prefix cache: "
                "set 'unsalted', and switch the engines' prefix cache off where that matters."
            )
        if not kind.reports and self.prefill_credit:
            wrong["prefill_credit"] = (
                f"Engines of kind {kind.name!r} do not report how far they are with prompts, so no credit can be kept: "
                "leave it empty or set 0."
            )
        if not kind.loads_adapters and self.load_adapters:
            wrong["load_adapters"] = f"Engines of kind {kind.name!r} cannot be asked to load adapters: leave it off."
        if not kind.hands_over and self.pk and self.backends.exclude(phase=Phase.BOTH).exists():
            wrong["engine"] = (
                f"Engines of kind {kind.name!r} cannot hand a prompt's KV cache over, and backends of this pool are "
                "for one phase: set their phase to 'both' first."
            )
        if not kind.tokenizes and self.tokenizer == ENGINE_COUNTS:
            wrong["tokenizer"] = (
                f"Engines of kind {kind.name!r} count no tokens: give the path of a tokenizer.json, or leave it empty."
            )
        return wrong


class Adapter(Named):
    """A LoRA adapter of a pool's model: a model name of its own, on the pool's capacity."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="adapters")
    model = models.CharField(
        max_length=200,
        unique=True,
        validators=[model_name_validator],
        error_messages={"unique": "Another adapter has this name."},
        help_text="The model name that clients send. No pool and no other adapter may have it.",
    )
    upstream_model = models.CharField(
        max_length=200,
        blank=True,
        default="",
        validators=[model_name_validator],
        help_text="The name under which engines list it. Empty: the same.",
    )
    source = models.CharField(
        max_length=500,
        blank=True,
        default="",
        help_text="Where engines find its weights, such as a path on their disks. Empty: it is never loaded from here.",
    )

    fixed: ClassVar[tuple[str, ...]] = ("slug", "pool")

    class Meta:
        ordering = ["pool__slug", "slug"]

    def clean(self) -> None:
        wrong: dict[str, str] = {}
        for slug, model, aliases in Pool.objects.values_list("slug", "model", "aliases"):
            if self.model == model or self.model in aliases:
                wrong["model"] = f"{self.model!r} is a name of pool {slug!r}."
        if self.pool_id is not None:
            others = Adapter.objects.filter(pool_id=self.pool_id).exclude(pk=self.pk)
            named = {other.spec().name: other for other in others} | {self.pool.upstream_model or self.pool.model: None}
            if self.spec().name in named:
                other = named[self.spec().name]
                whose = "the pool's model" if other is None else f"adapter {other.slug!r}"
                wrong["upstream_model"] = f"{self.spec().name!r} is already the name of {whose} on the engines."
        if wrong:
            raise ValidationError(wrong)

    def spec(self) -> core.AdapterSpec:
        """The row as the core knows it."""
        return core.AdapterSpec(self.slug, self.model, self.upstream_model or self.model, self.source)
