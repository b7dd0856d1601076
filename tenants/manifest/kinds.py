"""The kinds of a manifest: which field of a row stands where, and how it is read and written.

``TokenPool`` and ``TokenEntitlement`` have the shape of the custom resources in the token-pools paper (4.2).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.db import models
from django.db.models import Model
from django.utils.dateparse import parse_datetime

from tenants.manifest.reader import Node
from tenants.models import (
    Adapter,
    ApiKey,
    Backend,
    Budget,
    Entitlement,
    GroupRule,
    Membership,
    Pool,
    Price,
    Project,
    Quota,
    Slo,
    Tenant,
    Tier,
)
from tenants.models.limits import OF_KEY, OF_USER
from tenants.validators import EARLIEST, LATEST, NUL, TIME_BOUNDS, validate_shares


@dataclass(frozen=True, slots=True)
class Field:
    """One value: where it stands below ``spec`` (dots separate levels), and which attribute holds it."""

    path: str
    attribute: str
    type: str  # text, whole, number, money, flag, time, names, shares, params, ref
    ref: builtins.type[Model] | None = None
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
            "shares": ("a list of whole numbers", isinstance(value, list) and all(type(v) is int for v in value)),
            "params": ("parameters by name", isinstance(value, dict)),
        }[self.type]
        if not fits:
            raise node.fail(f"must be {wanted}, not {value!r}")
        if self.type == "time":
            moment = _time(value)
            if moment is None or not EARLIEST <= moment <= LATEST:
                raise node.fail(TIME_BOUNDS)
            return _shown_time(moment)
        if _has_nul(value):
            raise node.fail(NUL)
        return float(value) if self.type in ("number", "money") else value

    def show(self, instance: Model) -> Any:
        """The row's value as it stands in a file."""
        value = getattr(instance, self.attribute)
        if self.type == "ref":
            return None if value is None else str(value)
        if self.type == "time":
            return _shown_time(value)
        return float(value) if self.type == "money" and value is not None else value

    def store(self, value: Any) -> Any:
        """A shown value as the attribute wants it; a name stays a name here."""
        if value is None:
            return None
        if self.type == "money":
            return Decimal(str(value))
        return _time(value) if self.type == "time" else value


# By column, the first that fits: what a value in a file has to be.
_TYPES: tuple[tuple[type[models.Field[Any, Any]], str], ...] = (
    (models.ForeignKey, "ref"),
    (models.BooleanField, "flag"),
    (models.DateTimeField, "time"),
    (models.DecimalField, "money"),
    (models.FloatField, "number"),
    (models.IntegerField, "whole"),
    (models.CharField, "text"),
)


def path_of(attribute: str) -> str:
    """``max_wait_s`` is written ``maxWaitSeconds``."""
    words = attribute.removesuffix("_s").split("_") + (["seconds"] if attribute.endswith("_s") else [])
    if words[-2:] == ["per", "seconds"]:
        words[-1] = "second"
    return words[0] + "".join(word.capitalize() for word in words[1:])


def field_of(model: type[Model], attribute: str, path: str, names: bool) -> Field:
    """What the model's column says of a value. One that the row's name is made of has to be there."""
    column = model._meta.get_field(attribute)
    assert isinstance(column, models.Field)
    if isinstance(column, models.JSONField):
        kind = "shares" if validate_shares in column.validators else "names" if column.default is list else "params"
        return Field(path, attribute, kind)
    kind = next(kind for of, kind in _TYPES if isinstance(column, of))
    ref = column.related_model if kind == "ref" else None
    return Field(
        path,
        attribute,
        kind,
        ref if isinstance(ref, type) and ref._meta.app_label == model._meta.app_label else None,
        nullable=column.null,
        required=names or not (column.null or column.blank or column.has_default()),
    )


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    model: type[Model]
    declared: tuple[str | tuple[str, str], ...]  # attributes, with the path where it is not the attribute's name
    key: str = "slug"  # the attribute that ``metadata.name`` is
    inside: str = ""  # written inside another kind's spec, under this name
    named_by: tuple[str, ...] = ()  # paths that ``metadata.name`` is made of, where ``key`` is "str"
    naming: Callable[[dict[str, Any]], str] | None = None  # from those values
    naming_hint: str = ""
    gone: Mapping[str, str] = field(default_factory=dict)  # fields of older files by path, and what to say of them

    fields: tuple[Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        pairs = [(path_of(entry), entry) if isinstance(entry, str) else entry for entry in self.declared]
        fields = tuple(field_of(self.model, attribute, path, path in self.named_by) for path, attribute in pairs)
        object.__setattr__(self, "fields", fields)

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


BACKEND = Kind(
    "Backend",
    Backend,
    ("pool", "description", "url", "slots", "kv_tokens", "tokens_per_s", "draining", "phase", "dcgm_url"),
    inside="backends",
)
POOL = Kind(
    "TokenPool",
    Pool,
    (
        "description",
        "model",
        "engine",
        "upstream_model",
        "aliases",
        "load_adapters",
        ("policy.name", "policy"),
        ("policy.params", "policy_params"),
        ("policy.modifiers", "modifiers"),
        ("policy.routing", "routing"),
        ("policy.routingParams", "routing_params"),
        ("limits.maxModelLen", "max_model_len"),
        ("limits.defaultOutputTokens", "default_output_tokens"),
        ("limits.maxOutputTokens", "max_output_tokens"),
        ("limits.queueLimit", "queue_limit"),
        ("limits.queueBytes", "queue_bytes"),
        ("limits.threshold", "threshold"),
        ("limits.headroomSlots", "headroom_slots"),
        "kv_bytes_per_token",
        "prefill_credit",
        "prefix_cache",
        ("estimates.predictor", "predictor"),
        ("estimates.tokenizer", "tokenizer"),
        "coefficients",
        "slo_mean_s",
        ("scaling.mode", "scaling_mode"),
        ("scaling.minReplicas", "min_replicas"),
        ("scaling.maxReplicas", "max_replicas"),
        ("scaling.driver.name", "scaling_driver"),
        ("scaling.driver.params", "scaling_params"),
        ("scaling.headroom", "scaling_headroom"),
        ("scaling.upCooldownSeconds", "scale_up_cooldown_s"),
        ("scaling.downCooldownSeconds", "scale_down_cooldown_s"),
        ("scaling.drainLimitSeconds", "drain_limit_s"),
        ("scaling.sleepAfterSeconds", "sleep_after_s"),
        ("scaling.wakesInSeconds", "wakes_in_s"),
    ),
)


def membership_name(state: dict[str, Any]) -> str:
    """What ``metadata.name`` of a membership has to be."""
    return f"{state['user']}@{state.get('tenantRef.name') or 'all'}"


def _price_name(state: dict[str, Any]) -> str:
    begins = _time(state["validFrom"])
    assert begins is not None
    of = f"{state['poolRef.name']}/{state['model']}" if state.get("model") else state["poolRef.name"]
    return f"{of}@{begins.astimezone(UTC):%Y-%m-%dT%HZ}"


def _budget_name(state: dict[str, Any]) -> str:
    return "/".join(filter(None, (state["tenantRef.name"], state["scope"], state.get("subject"))))


API_KEY = Kind(
    "ApiKey",
    ApiKey,
    (
        ("entitlementRef.name", "entitlement"),
        ("projectRef.name", "project"),
        "entitlements",
        ("displayName", "name"),
        "user",
        *((f"limits.{path_of(name)}", name) for name in (*OF_KEY, "tokens_per_day")),
        *((f"userLimits.{path_of(name.removeprefix('user_'))}", name) for name in OF_USER),
        "expires_at",
    ),
    key="public_id",
)
MEMBERSHIP = Kind(
    "Membership",
    Membership,
    (
        "user",  # made where it does not exist
        "role",
        ("tenantRef.name", "tenant"),
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
        ("description", "ttft_s", "tbt_s", "ttlt_s"),
    ),
    Kind(
        "Tier",
        Tier,
        (
            "description",
            "service_class",
            "rank",
            "weight",
            "slo",
            "over_limit",
            "queue_limit",
            "max_wait_s",
            "max_grammar_bytes",
        ),
        gone={"safetyFactor": "tiers have no safety factor any more (it changed nothing); take the line out"},
    ),
    POOL,
    BACKEND,
    Kind("Adapter", Adapter, ("description", ("poolRef.name", "pool"), "model", "upstream_model", "source")),
    Kind("Tenant", Tenant, ("description",)),
    Kind(
        "Project",
        Project,
        (
            "description",
            ("tenantRef.name", "tenant"),
            "aliases",
            "default_model",
            "fallbacks",
            *((f"userLimits.{path_of(name.removeprefix('user_'))}", name) for name in OF_USER),
        ),
    ),
    Kind(
        "TokenEntitlement",
        Entitlement,
        (
            "description",
            ("tenantRef.name", "tenant"),
            ("projectRef.name", "project"),
            ("poolRef.name", "pool"),
            ("adapterRef.name", "adapter"),
            ("qos.tier", "tier"),
            ("resources.tokensPerSecond", "tokens_per_s"),
            ("resources.burstTokens", "burst_tokens"),
            ("resources.kvCacheTokens", "kv_tokens"),
            ("resources.concurrency", "concurrency"),
            "valid_from",
            "valid_until",
        ),
    ),
    Kind(
        "Quota",
        Quota,
        (
            ("tenantRef.name", "tenant"),
            "period",
            "soft_tokens",
            "hard_tokens",
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
            ("poolRef.name", "pool"),
            "model",
            "valid_from",
            "currency",
            "per_million_input",
            "per_million_cached",
            "per_million_output",
            "per_gpu_second",
            "slots_per_gpu",
            "per_reserved_used_second",
            "per_reserved_idle_second",
        ),
        key="str",
        named_by=("poolRef.name", "validFrom"),
        naming=_price_name,
        naming_hint="pool, for an adapter / and its name, @, hour",
    ),
    Kind(
        "Budget",
        Budget,
        (
            ("tenantRef.name", "tenant"),
            "scope",
            ("subject", "name"),
            "currency",
            "soft_amount",
            "hard_amount",
            "alert_at",
        ),
        key="str",
        named_by=("tenantRef.name", "scope"),
        naming=_budget_name,
        naming_hint="tenant, /, scope, and for all but the tenant's / and the name",
    ),
    MEMBERSHIP,
    Kind(
        "GroupRule",
        GroupRule,
        ("group", "role", ("tenantRef.name", "tenant")),
        key="str",
        named_by=("group", "role"),
        naming=lambda state: f"{state['group']}@{state.get('tenantRef.name') or 'all'}",
        naming_hint="group, @, tenant or 'all'",
    ),
    API_KEY,
)
BY_NAME = {kind.name: kind for kind in KINDS}


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_nul(name) or _has_nul(inner) for name, inner in value.items())
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value


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
