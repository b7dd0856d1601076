"""How the catalog looks as JSON. Relations are names, secrets are write-only, unknown fields are errors."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django.contrib.auth import get_user_model
from django.db.models import Model, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.core.capacity.pool import DIMENSIONS
from scheduling.core.policies.parameters import NO_UNIT, Choices, Parameter, Range
from tenants import audit_chain, binding, promises
from tenants.access import scope_of
from tenants.api.inputs import Timed
from tenants.api.numbers import VeiledNumber, sees_numbers
from tenants.api.parameters import refuse_unknown
from tenants.models import (
    AccessToken,
    Adapter,
    ApiKey,
    AuditEntry,
    Backend,
    Budget,
    Entitlement,
    GroupRule,
    Membership,
    Owner,
    Pool,
    Price,
    Project,
    Quota,
    Slo,
    Tenant,
    Tier,
)
from tenants.models.credentials import reachable
from tenants.models.limits import ALL_OF_KEY, OF_USER
from tenants.ownership import resource_of


# Refuses fields it does not know: a misspelt one would otherwise change nothing, silently. (A docstring would describe
# each class in the schema that has none of its own.)
class Strict(serializers.Serializer[Any]):
    # no docstring: the schema would describe every body without one by it
    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            writable = [field for field, rule in self.fields.items() if not rule.read_only]
            refuse_unknown([name for name in data if name not in self.fields], writable, "field")
        return super().to_internal_value(data)


class CatalogSerializer(Strict, Timed):
    """A row of the catalog."""


class Named(serializers.SlugRelatedField[Model]):
    """A relation by name, among what the user can see."""

    def __init__(self, model: type[Model] | None = None, **kwargs: Any) -> None:
        self.model = model
        if model is not None and not kwargs.get("read_only"):
            kwargs["queryset"] = model._default_manager.none()  # replaced per request below
        super().__init__(slug_field="slug", **kwargs)
        if model is not None:
            unknown = f"There is no {model._meta.verbose_name} {{value!r}}. Use the name of one that exists."
            self.error_messages = self.error_messages | {"does_not_exist": unknown}

    def get_queryset(self) -> QuerySet[Model] | None:
        request = self.context.get("request")
        if request is None or self.model is None:
            return super().get_queryset()
        return scope_of(request).visible(self.model)


class TenantSerializer(CatalogSerializer):
    class Meta:
        model = Tenant
        fields = ["slug", "description", "created_at", "paused_since", "paused_reason"]
        read_only_fields = ["paused_since", "paused_reason"]


class PauseSerializer(Strict):
    reason = serializers.CharField(max_length=200, required=False, allow_blank=True, help_text="For the audit log.")


class RevokeUserSerializer(Strict):
    user = serializers.CharField(max_length=64, help_text="As it stands in the keys.")


class RevokedSerializer(serializers.Serializer[dict[str, Any]]):
    """The keys that ended."""

    revoked = serializers.ListField(child=serializers.CharField(), help_text="Their ids.")


class SloSerializer(CatalogSerializer):
    class Meta:
        model = Slo
        fields = ["slug", "description", "ttft_s", "tbt_s", "ttlt_s"]


class TierSerializer(CatalogSerializer):
    slo = Named(Slo, help_text="Name of the SLO.")

    class Meta:
        model = Tier
        fields = [
            "slug", "description", "service_class", "rank", "weight", "slo", "over_limit", "queue_limit",
            "max_wait_s", "max_grammar_bytes",
        ]  # fmt: skip


# Where a pool's engines come from and how it is run is the operators' business: addresses and paths of the
# installation, and settings that are learned from everybody's traffic.
_NOT_FOR_MEMBERS = (
    "engine", "upstream_model", "load_adapters", "policy_params", "modifiers", "routing", "routing_params",
    "coefficients", "tokenizer", "queue_bytes", "kv_bytes_per_token", "slo_mean_s", "prefill_credit", "threshold",
    "headroom_slots", "scaling_mode", "min_replicas", "max_replicas", "scaling_driver", "scaling_params",
    "scaling_headroom", "scale_up_cooldown_s", "scale_down_cooldown_s", "drain_limit_s", "sleep_after_s", "wakes_in_s",
)  # fmt: skip


_AMOUNTS = {
    "type": "object",
    "nullable": True,
    "x-optional": True,
    "properties": {dimension: {"type": "number"} for dimension in DIMENSIONS},
}


class PoolSerializer(CatalogSerializer):
    slots = serializers.SerializerMethodField(help_text="Sequences that may run at once, draining backends left out.")
    kv_tokens = serializers.SerializerMethodField(help_text="KV cache [tokens], draining backends left out.")

    promised = serializers.SerializerMethodField(help_text="Reserved and elastic shares together, by dimension.")
    provisionable = serializers.SerializerMethodField(
        help_text="What the planner may bring the pool to with max_replicas; null while scaling is off."
    )

    class Meta:
        model = Pool
        fields = [
            "slug", "description", "model", "engine", "upstream_model", "aliases", "load_adapters",
            "policy", "policy_params", "modifiers",
            "routing", "routing_params", "policy_version",
            "max_model_len", "default_output_tokens", "max_output_tokens", "queue_limit", "queue_bytes", "threshold",
            "headroom_slots", "kv_bytes_per_token", "predictor", "tokenizer", "prefix_cache", "prefill_credit",
            "coefficients", "slo_mean_s",
            "scaling_mode", "min_replicas", "max_replicas", "scaling_driver", "scaling_params",
            "scaling_headroom", "scale_up_cooldown_s", "scale_down_cooldown_s", "drain_limit_s",
            "sleep_after_s", "wakes_in_s", "slots", "kv_tokens", "promised", "provisionable",
        ]  # fmt: skip
        read_only_fields = ["policy_version"]

    def to_representation(self, instance: Pool) -> dict[str, Any]:
        row: dict[str, Any] = super().to_representation(instance)
        if not self._for_staff():
            for name in _NOT_FOR_MEMBERS:
                del row[name]
        return row

    def get_slots(self, pool: Pool) -> int:
        return sum(backend.slots for backend in pool.backends.all() if not backend.draining)

    def get_kv_tokens(self, pool: Pool) -> int:
        return sum(backend.kv_tokens for backend in pool.backends.all() if not backend.draining)

    def _for_staff(self) -> bool:
        """What others were promised is no tenant's business."""
        request = self.context.get("request")
        return request is not None and scope_of(request).sees_all

    @extend_schema_field(_AMOUNTS)
    def get_promised(self, pool: Pool) -> dict[str, float] | None:
        return promises.promised(pool).as_dict() if self._for_staff() else None

    @extend_schema_field(_AMOUNTS)
    def get_provisionable(self, pool: Pool) -> dict[str, float] | None:
        capacity = promises.provisionable(pool) if self._for_staff() else None
        return None if capacity is None else capacity.as_dict()


class PolicySerializer(Strict):
    """A policy with its parameters."""

    policy = serializers.CharField(help_text="Name of the policy; GET /policies lists them.")
    params = serializers.DictField(required=False, default=dict, help_text="Parameters by name; others take defaults.")
    modifiers = serializers.DictField(required=False, help_text="Around it, by name. Left out: as they are.")
    routing = serializers.CharField(required=False, help_text="Name of the routing. Left out: as it is.")
    routing_params = serializers.DictField(required=False, help_text="Its parameters. Left out: as they are.")
    replaces = serializers.IntegerField(
        required=False, min_value=1, help_text="The pool's policy version as it was read: 409 if another one serves. "
        "Left out: any is replaced."
    )  # fmt: skip


class PolicyParameterSerializer(serializers.Serializer[Parameter]):
    """What a parameter of a policy means and what it may be, as its policy declares it."""

    name = serializers.CharField()
    type = serializers.CharField(help_text="int, float or str.")
    default = serializers.JSONField()
    meaning = serializers.CharField(help_text="One sentence.")
    unit = serializers.SerializerMethodField(help_text="null for a plain number or a word.")
    allowed = serializers.CharField(help_text="What it may be, for people, such as: above 0.")
    minimum = serializers.SerializerMethodField(help_text="null where there is no bound on this side, or no number.")
    maximum = serializers.SerializerMethodField(help_text="null where there is no bound on this side, or no number.")
    exclusive_minimum = serializers.SerializerMethodField(help_text="Whether the minimum itself is refused.")
    exclusive_maximum = serializers.SerializerMethodField(help_text="Whether the maximum itself is refused.")
    choices = serializers.SerializerMethodField(
        help_text="All values that it may have, where these are few, else null."
    )

    def get_unit(self, parameter: Parameter) -> str | None:
        return None if parameter.unit == NO_UNIT else parameter.unit

    def get_minimum(self, parameter: Parameter) -> float | None:
        return parameter.allowed.minimum if isinstance(parameter.allowed, Range) else None

    def get_maximum(self, parameter: Parameter) -> float | None:
        return parameter.allowed.maximum if isinstance(parameter.allowed, Range) else None

    def get_exclusive_minimum(self, parameter: Parameter) -> bool:
        return isinstance(parameter.allowed, Range) and parameter.allowed.exclusive_minimum

    def get_exclusive_maximum(self, parameter: Parameter) -> bool:
        return isinstance(parameter.allowed, Range) and parameter.allowed.exclusive_maximum

    @extend_schema_field(
        {"type": "array", "items": {"oneOf": [{"type": "integer"}, {"type": "string"}]}, "nullable": True}
    )
    def get_choices(self, parameter: Parameter) -> list[int | str] | None:
        return list(parameter.allowed.values) if isinstance(parameter.allowed, Choices) else None


class PolicyInfoSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=["ordering", "modifier", "routing"])
    question = serializers.CharField(help_text="What it decides, in one line.")
    params = PolicyParameterSerializer(many=True)


class BackendSerializer(CatalogSerializer):
    pool = Named(Pool, help_text="Name of the pool.")
    has_api_key = serializers.SerializerMethodField(help_text="Whether a key for the engine is stored.")

    class Meta:
        model = Backend
        fields = [
            "slug", "description", "pool", "url", "slots", "kv_tokens", "api_key", "has_api_key", "draining",
            "phase", "dcgm_url", "tokens_per_s", "silent_since", "managed", "leaving_since",
        ]  # fmt: skip
        read_only_fields = ["silent_since", "leaving_since"]
        extra_kwargs = {"api_key": {"write_only": True, "style": {"input_type": "password"}}}

    def get_has_api_key(self, backend: Backend) -> bool:
        return bool(backend.api_key)


class AdapterSerializer(CatalogSerializer):
    pool = Named(Pool, help_text="Name of the pool.")

    class Meta:
        model = Adapter
        fields = ["slug", "description", "pool", "model", "upstream_model", "source"]

    def to_representation(self, instance: Adapter) -> dict[str, Any]:
        row: dict[str, Any] = super().to_representation(instance)
        request = self.context.get("request")
        if request is None or not scope_of(request).sees_all:
            del row["upstream_model"], row["source"]  # what engines know and where it lies is the operators' business
        return row


class EntitlementSerializer(CatalogSerializer):
    tenant = Named(Tenant, help_text="Name of the tenant.")
    project = Named(
        Project, required=False, allow_null=True, help_text="Whose keys open it. null: those of all projects."
    )
    pool = Named(Pool, help_text="Name of the pool.")
    adapter = Named(
        Adapter, required=False, allow_null=True, help_text="The adapter that it is for. null: the pool's own model."
    )
    tier = Named(Tier, help_text="Name of the tier.")
    state = serializers.SerializerMethodField(help_text="pending, bound, degraded or expired.")

    class Meta:
        model = Entitlement
        fields = [
            "slug", "description", "tenant", "project", "pool", "adapter", "tier", "tokens_per_s", "burst_tokens",
            "kv_tokens", "concurrency", "valid_from", "valid_until", "state", "state_reason",
        ]  # fmt: skip
        read_only_fields = ["state_reason"]

    def to_representation(self, instance: Entitlement) -> dict[str, Any]:
        row: dict[str, Any] = super().to_representation(instance)
        request = self.context.get("request")
        if request is None or not scope_of(request).sees_all:
            row["state_reason"] = binding.for_members(row["state_reason"])
        return row

    @extend_schema_field(serializers.ChoiceField(choices=["pending", "bound", "degraded", "expired"]))
    def get_state(self, entitlement: Entitlement) -> str:
        return str(entitlement.state_at(timezone.now()))


class ProjectSerializer(CatalogSerializer):
    tenant = Named(Tenant, help_text="Name of the tenant.")

    class Meta:
        model = Project
        fields = ["slug", "description", "tenant", "aliases", "default_model", "fallbacks", *OF_USER, "created_at"]


class QuotaSerializer(CatalogSerializer):
    tenant = Named(Tenant, help_text="Name of the tenant.")

    class Meta:
        model = Quota
        fields = ["id", "tenant", "period", "soft_tokens", "hard_tokens"]
        validators: ClassVar[list[Any]] = []  # the model's own constraints say it better


class PriceSerializer(CatalogSerializer):
    pool = Named(Pool, help_text="Name of the pool.")

    class Meta:
        model = Price
        fields = [
            "id", "pool", "model", "valid_from", "currency", "per_million_input", "per_million_cached",
            "per_million_output", "per_gpu_second", "slots_per_gpu", "per_reserved_used_second",
            "per_reserved_idle_second",
        ]  # fmt: skip
        validators: ClassVar[list[Any]] = []


class BudgetSerializer(CatalogSerializer):
    tenant = Named(Tenant, help_text="Name of the tenant.")

    class Meta:
        model = Budget
        fields = ["id", "tenant", "scope", "name", "currency", "soft_amount", "hard_amount", "alert_at"]
        validators: ClassVar[list[Any]] = []


class _CredentialSerializer(CatalogSerializer):
    id = serializers.CharField(source="public_id", read_only=True, help_text="The public part.")
    status = serializers.SerializerMethodField(help_text="active, expired or revoked.")

    @extend_schema_field(serializers.ChoiceField(choices=["active", "expired", "revoked"]))
    def get_status(self, row: ApiKey | AccessToken) -> str:
        return row.status_at(timezone.now())


class KeySerializer(_CredentialSerializer):
    entitlement = Named(
        Entitlement, required=False, allow_null=True, help_text="Name of the only entitlement it opens. Or a project."
    )
    project = Named(
        Project, required=False, allow_null=True, help_text="Name of the project whose entitlements it opens."
    )
    opens = serializers.SerializerMethodField(help_text="Names of all entitlements that it opens now.")
    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    created_by = serializers.CharField(source="created_by.username", read_only=True, default=None, allow_null=True)

    class Meta:
        model = ApiKey
        fields = [
            "id", "name", "entitlement", "project", "entitlements", "opens", "user", *ALL_OF_KEY, "tenant",
            "status", "created_at", "created_by", "expires_at", "revoked_at",
        ]  # fmt: skip
        read_only_fields = ["revoked_at"]
        validators: ClassVar[list[Any]] = []  # the model's own constraints say it better

    def get_opens(self, key: ApiKey) -> list[str]:
        if key.entitlement is not None:
            return [key.entitlement.slug]
        assert key.project is not None
        # once per answer, not per key
        by_owner: dict[int, list[str]] = cast(dict[str, Any], self.context).setdefault("reachable", {})
        reach = by_owner.get(key.project.pk)
        if reach is None:
            reach = by_owner[key.project.pk] = reachable(key.project)
        return [name for name in reach if not key.entitlements or name in key.entitlements]


class IssuedKeySerializer(KeySerializer):
    """A fresh key, with its secret for the only time."""

    key = serializers.CharField(read_only=True, help_text="The whole key. Shown only in this answer: keep it now.")

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "key"]


class RotateSerializer(Strict):
    overlap_s = serializers.FloatField(
        required=False,
        default=0.0,
        min_value=0,
        max_value=30 * 86_400,
        help_text="For how long the old key works on [s].",
    )


class TokenSerializer(_CredentialSerializer):
    user = serializers.CharField(source="user.username", read_only=True, help_text="In whose name it acts.")
    made_with = serializers.CharField(
        source="made_with.public_id",
        read_only=True,
        default=None,
        allow_null=True,
        help_text="Id of the token it was made with, and ends with. null: made by a session or a command.",
    )

    class Meta:
        model = AccessToken
        fields = ["id", "name", "user", "scope", "made_with", "status", "created_at", "expires_at", "revoked_at"]
        read_only_fields = ["revoked_at"]


class IssuedTokenSerializer(TokenSerializer):
    """A fresh token, with its secret for the only time."""

    token = serializers.CharField(read_only=True, help_text="The whole token. Shown only in this answer: keep it now.")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]


class MembershipSerializer(VeiledNumber, CatalogSerializer):
    user = serializers.SlugRelatedField(
        slug_field="username",
        queryset=get_user_model()._default_manager.all(),
        help_text="Name of an existing user.",
        error_messages={"does_not_exist": "There is no user {value!r}. An admin makes users in the back office."},
    )
    tenant = Named(Tenant, required=False, allow_null=True, help_text="Null for admins and operators.")

    class Meta:
        model = Membership
        fields = ["id", "user", "tenant", "role", "from_groups", "created_at"]
        read_only_fields = ["from_groups"]
        validators: ClassVar[list[Any]] = []  # the model's own constraints say it better


class GroupRuleSerializer(CatalogSerializer):
    tenant = Named(Tenant, required=False, allow_null=True, help_text="Null for admins and operators.")

    class Meta:
        model = GroupRule
        fields = ["id", "group", "role", "tenant", "created_at"]
        validators: ClassVar[list[Any]] = []  # the model's own constraints say it better


class AuditSerializer(VeiledNumber, serializers.ModelSerializer[AuditEntry]):
    object = serializers.CharField(source="object_id", read_only=True)
    tenant = serializers.CharField(source="tenant.slug", read_only=True, default=None, allow_null=True)

    class Meta:
        model = AuditEntry
        fields = [
            "id", "at", "actor", "via", "action", "kind", "object", "tenant", "before", "after", "request_id",
            "address", "outcome", "number", "digest",
        ]  # fmt: skip

    def to_representation(self, instance: AuditEntry) -> dict[str, Any]:
        told = super().to_representation(instance)
        if not sees_numbers(self.context.get("request")):
            told |= audit_chain.UNCHAINED
        return told


class OwnerSerializer(serializers.ModelSerializer[Owner]):
    resource = serializers.SerializerMethodField(help_text="The resource in the cluster: kind, namespace and name.")
    fields_set = serializers.ListField(
        source="attributes",
        child=serializers.CharField(),
        read_only=True,
        help_text="Fields of the row that it sets: they are changed there. The others are free.",
    )

    class Meta:
        model = Owner
        fields = ["kind", "name", "namespace", "resource", "fields_set"]

    def get_resource(self, row: Owner) -> str:
        return str(resource_of(row))


class MeTenantSerializer(serializers.Serializer[dict[str, Any]]):
    slug = serializers.CharField()
    description = serializers.CharField()


class MeSerializer(serializers.Serializer[dict[str, Any]]):
    """Who is signed in, and what that allows."""

    username = serializers.CharField()
    role = serializers.ChoiceField(choices=["admin", "operator", "member"])
    tenants = MeTenantSerializer(many=True, help_text="Tenants the user is a member of.")
    may_write = serializers.BooleanField(help_text="Everything: admin.")
    may_operate = serializers.BooleanField(help_text="Policies and draining: admin and operator.")
    sees_all = serializers.BooleanField(help_text="Not only its own tenants: admin and operator.")
