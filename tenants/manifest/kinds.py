"""The kinds of a manifest: which field of a row stands where, and how it is read and written.

``TokenPool`` and ``TokenEntitlement`` have the shape of the custom resources in the token-pools paper (4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Model
from django.utils.dateparse import parse_datetime

from tenants.manifest.reader import Node
from tenants.models import ApiKey, Backend, Entitlement, Membership, Pool, Price, Quota, Slo, Tenant, Tier


@dataclass(frozen=True, slots=True)
class Field:
    """One value: where it stands below ``spec`` (dots separate levels), and which attribute holds it."""

    path: str
    attribute: str
    type: str  # text, whole, number, money, flag, time, names, params, ref
    ref: type[Model] | None = None
    nullable: bool = False
    required: bool = False

    def read(self, node: Node) -> Any:
        """The value in the form of :meth:`show`. Raises ManifestError."""
        value = node.plain()
        if value is None:
            if self.nullable:
                return None
            raise node.fail("must not be empty; leave the line out to keep what is there")
        wanted, fits = {
            "text": ("a text", isinstance(value, str)),
            "ref": ("a name", isinstance(value, str)),
            "whole": ("a whole number", isinstance(value, int) and not isinstance(value, bool)),
            "money": ("an amount", isinstance(value, int | float) and not isinstance(value, bool)),
            "number": ("a number", isinstance(value, int | float) and not isinstance(value, bool)),
            "flag": ("true or false", isinstance(value, bool)),
            "time": ("a time with zone, such as 2026-11-21T08:00:00Z", _time(value) is not None),
            "names": ("a list of names", isinstance(value, list) and all(isinstance(v, str) for v in value)),
            "params": ("parameters by name", isinstance(value, dict)),
        }[self.type]
        if not fits:
            raise node.fail(f"must be {wanted}, not {value!r}")
        if self.type == "time":
            return _shown_time(_time(value))
        return float(value) if self.type in ("number", "money") else value

    def show(self, instance: Model) -> Any:
        """The row's value as it stands in a file."""
        value = getattr(instance, self.attribute)
        if self.type == "ref":
            return None if value is None else str(value)
        if self.type == "time":
            return _shown_time(value)
        return float(value) if self.type == "money" else value

    def store(self, value: Any) -> Any:
        """A shown value as the attribute wants it; a name stays a name here."""
        if self.type == "money":
            return Decimal(str(value))
        return _time(value) if self.type == "time" and value is not None else value


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    model: type[Model]
    fields: tuple[Field, ...]
    key: str = "slug"  # the attribute that ``metadata.name`` is
    inside: str = ""  # written inside another kind's spec, under this name
    named_by: tuple[str, ...] = ()  # paths that ``metadata.name`` is made of, where ``key`` is "str"
    naming: Callable[[dict[str, Any]], str] | None = None  # from those values
    naming_hint: str = ""
    gone: Mapping[str, str] = field(default_factory=dict)  # fields of older files by path, and what to say of them

    def name_of(self, instance: Model) -> str:
        return str(instance) if self.key == "str" else getattr(instance, self.key)

    def current(self) -> dict[str, Model]:
        """All rows by name."""
        refs = [f.attribute for f in self.fields if f.type == "ref"]
        rows = self.model._default_manager.select_related(*refs) if refs else self.model._default_manager.all()
        if self.model is ApiKey:
            rows = rows.filter(revoked_at__isnull=True)
        if self.model is Backend:
            rows = rows.filter(managed=False)  # a scaling driver's: they come and go by themselves
        return {self.name_of(row): row for row in rows}

    def state(self, instance: Model) -> dict[str, Any]:
        return {field.path: field.show(instance) for field in self.fields}


_DESCRIPTION = Field("description", "description", "text")

BACKEND = Kind(
    "Backend",
    Backend,
    (
        Field("pool", "pool", "ref", Pool, required=True),
        _DESCRIPTION,
        Field("url", "url", "text", required=True),
        Field("slots", "slots", "whole"),
        Field("kvTokens", "kv_tokens", "whole"),
        Field("tokensPerSecond", "tokens_per_s", "number"),
        Field("draining", "draining", "flag"),
        Field("dcgmUrl", "dcgm_url", "text"),
    ),
    inside="backends",
)
POOL = Kind(
    "TokenPool",
    Pool,
    (
        _DESCRIPTION,
        Field("model", "model", "text", required=True),
        Field("upstreamModel", "upstream_model", "text"),
        Field("aliases", "aliases", "names"),
        Field("policy.name", "policy", "text"),
        Field("policy.params", "policy_params", "params"),
        Field("policy.modifiers", "modifiers", "params"),
        Field("policy.routing", "routing", "text"),
        Field("policy.routingParams", "routing_params", "params"),
        Field("limits.maxModelLen", "max_model_len", "whole"),
        Field("limits.defaultOutputTokens", "default_output_tokens", "whole"),
        Field("limits.maxOutputTokens", "max_output_tokens", "whole"),
        Field("limits.queueLimit", "queue_limit", "whole"),
        Field("limits.queueBytes", "queue_bytes", "whole"),
        Field("limits.threshold", "threshold", "number"),
        Field("limits.headroomSlots", "headroom_slots", "whole"),
        Field("kvBytesPerToken", "kv_bytes_per_token", "whole"),
        Field("prefixCache", "prefix_cache", "text"),
        Field("estimates.predictor", "predictor", "text"),
        Field("estimates.tokenizer", "tokenizer", "text"),
        Field("coefficients", "coefficients", "params"),
        Field("sloMeanSeconds", "slo_mean_s", "number", nullable=True),
        Field("scaling.mode", "scaling_mode", "text"),
        Field("scaling.minReplicas", "min_replicas", "whole"),
        Field("scaling.maxReplicas", "max_replicas", "whole"),
        Field("scaling.driver.name", "scaling_driver", "text"),
        Field("scaling.driver.params", "scaling_params", "params"),
        Field("scaling.headroom", "scaling_headroom", "number"),
        Field("scaling.upCooldownSeconds", "scale_up_cooldown_s", "number"),
        Field("scaling.downCooldownSeconds", "scale_down_cooldown_s", "number"),
        Field("scaling.drainLimitSeconds", "drain_limit_s", "number"),
    ),
)


def membership_name(state: dict[str, Any]) -> str:
    """What ``metadata.name`` of a membership has to be."""
    return f"{state['user']}@{state.get('tenantRef.name') or 'all'}"


def _price_name(state: dict[str, Any]) -> str:
    begins = _time(state["validFrom"])
    assert begins is not None
    return f"{state['poolRef.name']}@{begins.astimezone(UTC):%Y-%m-%dT%HZ}"


API_KEY = Kind(
    "ApiKey",
    ApiKey,
    (
        Field("entitlementRef.name", "entitlement", "ref", Entitlement, required=True),
        Field("displayName", "name", "text", required=True),
        Field("expiresAt", "expires_at", "time", nullable=True),
    ),
    key="public_id",
)
MEMBERSHIP = Kind(
    "Membership",
    Membership,
    (
        Field("user", "user", "ref", required=True),  # made where it does not exist
        Field("role", "role", "text", required=True),
        Field("tenantRef.name", "tenant", "ref", Tenant, nullable=True),
    ),
    key="str",
    named_by=("user", "role"),
    naming=membership_name,
    naming_hint="user, @, tenant or 'all'",
)

# In the order in which they need each other.
KINDS: tuple[Kind, ...] = (
    Kind(
        "Slo",
        Slo,
        (
            _DESCRIPTION,
            Field("ttftSeconds", "ttft_s", "number", nullable=True),
            Field("tbtSeconds", "tbt_s", "number", nullable=True),
            Field("ttltSeconds", "ttlt_s", "number", nullable=True),
        ),
    ),
    Kind(
        "Tier",
        Tier,
        (
            _DESCRIPTION,
            Field("serviceClass", "service_class", "text"),
            Field("rank", "rank", "whole"),
            Field("weight", "weight", "number"),
            Field("slo", "slo", "ref", Slo, required=True),
            Field("overLimit", "over_limit", "text"),
            Field("queueLimit", "queue_limit", "whole"),
            Field("maxWaitSeconds", "max_wait_s", "number"),
            Field("maxGrammarBytes", "max_grammar_bytes", "whole"),
        ),
        gone={"safetyFactor": "tiers have no safety factor any more (it changed nothing); take the line out"},
    ),
    POOL,
    BACKEND,
    Kind("Tenant", Tenant, (_DESCRIPTION,)),
    Kind(
        "TokenEntitlement",
        Entitlement,
        (
            _DESCRIPTION,
            Field("tenantRef.name", "tenant", "ref", Tenant, required=True),
            Field("poolRef.name", "pool", "ref", Pool, required=True),
            Field("qos.tier", "tier", "ref", Tier, required=True),
            Field("resources.tokensPerSecond", "tokens_per_s", "number"),
            Field("resources.burstTokens", "burst_tokens", "number"),
            Field("resources.kvCacheTokens", "kv_tokens", "whole"),
            Field("resources.concurrency", "concurrency", "whole"),
            Field("validFrom", "valid_from", "time", nullable=True),
            Field("validUntil", "valid_until", "time", nullable=True),
        ),
    ),
    Kind(
        "Quota",
        Quota,
        (
            Field("tenantRef.name", "tenant", "ref", Tenant, required=True),
            Field("period", "period", "text", required=True),
            Field("softTokens", "soft_tokens", "whole", nullable=True),
            Field("hardTokens", "hard_tokens", "whole", nullable=True),
        ),
        key="str",
        named_by=("tenantRef.name", "period"),
        naming=lambda state: f"{state['tenantRef.name']}/{state['period']}",
        naming_hint="tenant, /, period",
    ),
    Kind(
        "Price",
        Price,
        (
            Field("poolRef.name", "pool", "ref", Pool, required=True),
            Field("validFrom", "valid_from", "time", required=True),
            Field("currency", "currency", "text"),
            Field("perMillionInput", "per_million_input", "money"),
            Field("perMillionOutput", "per_million_output", "money"),
            Field("perGpuSecond", "per_gpu_second", "money"),
            Field("slotsPerGpu", "slots_per_gpu", "whole"),
        ),
        key="str",
        named_by=("poolRef.name", "validFrom"),
        naming=_price_name,
        naming_hint="pool, @, hour",
    ),
    MEMBERSHIP,
    API_KEY,
)
BY_NAME = {kind.name: kind for kind in KINDS}


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        time = parse_datetime(value)
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _shown_time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat().replace("+00:00", "Z")
