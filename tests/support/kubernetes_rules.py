"""Values, good and bad, for each field of the resources that people write most, and what an API server does with them.

A case is one object that is made anew, as REST takes it and as a custom resource has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
from django.db import models
from django.utils.dateparse import parse_datetime

from controlplane.kubernetes.resources import API_VERSION, BY_KIND, definition
from tenants.manifest.kinds import Field

MISSING = object()

ROUTES = {"TokenPool": "pools", "TokenEntitlement": "entitlements", "Tier": "tiers"}
BASE: dict[str, dict[str, Any]] = {
    "TokenPool": {"model": "meta/new"},
    "TokenEntitlement": {"tenant": "acme", "pool": "llama", "tier": "premium", "concurrency": 1},
    "Tier": {"slo": "interactive"},
}
# Beside a value, what makes it one that could be meant: a rule about two fields is a case of its own below.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("TokenEntitlement", "tokens_per_s"): {"burst_tokens": 10.0},
    ("TokenEntitlement", "burst_tokens"): {"tokens_per_s": 1.0},
    ("TokenPool", "policy_params"): {"policy": "weighted"},
}
NAMES = ("new", "a", "a" * 63, "a" * 64, "UPPER", "-lead", "trail-", "a.b", "has space", "ä", "")
TEXTS = ("", "x", "llama-8b", "meta/llama", "UPPER", "has space", " around ", "ä", "a\nb", "a\0b", 5, True, [], {})
TIMES = (
    "2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", "2030-01-01T00:00:00.5Z", "2030-01-01T00:00:00", "2030-01-01",
    "2030-13-01T00:00:00Z", "2030-01-01 00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59Z", "tomorrow", "", 5,
)  # fmt: skip
OF_TYPE: dict[str, tuple[Any, ...]] = {
    "text": TEXTS,
    "ref": ("nobody", "has space", "UPPER", "", 5, [], {}),
    "whole": (-1, 0, 1, 2, 5.0, 1.5, 2**31 - 1, 2**31, 2**63 - 1, "5", "x", "", True, [], {}),
    "number": (-1, 0, 0.0, 0.5, 1, 1e300, "0.5", "x", "", True, [], {}),
    "flag": (True, False, "true", "yes", "x", "", 0, 1, 2, []),
    "time": TIMES,
    "names": ([], ["a"], ["a", "b/c"], ["a", "a"], ["has space"], [""], ["a" * 201], ["a\0b"], [5], "a", {}, 5),
    "shares": ([], [1], [50, 100], [0], [-1], ["x"], [1.5], "50", {}, 5),
    "params": ({}, {"x": 1}, {"x": {}}, {"x": None}, {"x": "a\0b"}, {"a\0b": 1}, [], "x", 5),
}
OF_FIELD: dict[tuple[str, str], tuple[Any, ...]] = {
    ("TokenEntitlement", "project"): ("web", "elsewhere"),
    ("TokenEntitlement", "adapter"): ("tuned", "strange"),
    ("TokenEntitlement", "tenant"): ("acme", "globex"),
    ("TokenEntitlement", "tier"): ("premium", "standard"),
    ("TokenPool", "modifiers"): ({"fair": {}}, {"fair": 3}, {"nothing": {}}),
    ("TokenPool", "policy"): ("fifo", "weighted", "nothing"),
    ("TokenPool", "scaling_params"): ({"replicas": 1},),
    ("TokenPool", "policy_params"): ({"nothing": 1},),
}
TOGETHER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("TokenEntitlement", {"tokens_per_s": 5.0}),  # a budget without depth
    ("TokenEntitlement", {"tokens_per_s": 5.0, "burst_tokens": 50.0, "kv_tokens": 1000}),
    ("TokenEntitlement", {"valid_from": "2030-01-02T00:00:00Z", "valid_until": "2030-01-01T00:00:00Z"}),
    ("TokenEntitlement", {"valid_from": "2030-01-01T00:00:00Z", "valid_until": "2030-01-02T00:00:00Z"}),
    ("TokenEntitlement", {"tenant": "globex", "project": "web"}),  # of another tenant
    ("TokenEntitlement", {"tenant": MISSING}),
    ("TokenEntitlement", {"pool": MISSING}),
    ("TokenEntitlement", {"tier": MISSING}),
    ("TokenEntitlement", {"concurrency": MISSING}),
    ("TokenPool", {"model": MISSING}),
    ("TokenPool", {"min_replicas": 3, "max_replicas": 1}),
    ("TokenPool", {"scaling_mode": "act"}),
    ("TokenPool", {"scaling_mode": "act", "scaling_driver": "kubernetes", "max_replicas": 2}),
    ("TokenPool", {"max_model_len": 100, "max_output_tokens": 200}),
    ("TokenPool", {"default_output_tokens": 200, "max_output_tokens": 100}),
    ("TokenPool", {"model": "meta/llama"}),  # another pool has it
    ("Tier", {"slo": MISSING}),
    ("Tier", {"service_class": "spot", "rank": 0, "weight": 0.5, "over_limit": "wait", "max_wait_s": 86400}),
    *((kind, {"unheard_of": 1}) for kind in ROUTES),
)


@dataclass(frozen=True, slots=True)
class Case:
    """``attributes``: as REST has them, without the name."""

    kind: str
    attributes: Mapping[str, Any]
    about: tuple[str, ...]  # attributes that the case is about
    name: str = "new"

    @property
    def value(self) -> Any:
        return self.attributes.get(self.about[0]) if self.about else None

    def __str__(self) -> str:
        said = ", ".join(f"{name}={_short(self.attributes.get(name, MISSING))}" for name in self.about)
        return f"{self.kind} {said or repr(self.name)[:80]}"

    def rest(self) -> dict[str, Any]:
        return {"slug": self.name, **self.attributes}

    def resource(self) -> dict[str, Any]:
        paths = {field.attribute: field.path for field in BY_KIND[self.kind].fields.fields}
        spec: dict[str, Any] = {}
        for attribute, value in self.attributes.items():
            *groups, leaf = paths.get(attribute, attribute).split(".")
            level = spec
            for group in groups:
                level = level.setdefault(group, {})
            level[leaf] = value
        return {"apiVersion": API_VERSION, "kind": self.kind, "metadata": {"name": self.name}, "spec": spec}

    def type_of(self) -> str:
        """The type of the field that it is about; empty where it is about several, none or the name."""
        found = [field.type for field in BY_KIND[self.kind].fields.fields if self.about == (field.attribute,)]
        return found[0] if found else ""


def _short(value: Any) -> str:
    text = "left out" if value is MISSING else repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)})"


def cases() -> Iterator[Case]:
    for kind, base in BASE.items():
        for name in NAMES:
            yield Case(kind, base, (), name)
        for field in BY_KIND[kind].fields.fields:
            for value in values(kind, field):
                beside = BESIDE.get((kind, field.attribute), {})
                yield Case(kind, base | beside | {field.attribute: value}, (field.attribute,))
    for kind, changes in TOGETHER:
        attributes = {name: value for name, value in (BASE[kind] | changes).items() if value is not MISSING}
        yield Case(kind, attributes, tuple(changes))


def values(kind: str, field: Field) -> list[Any]:
    column = BY_KIND[kind].fields.model._meta.get_field(field.attribute)
    assert isinstance(column, models.Field)
    found = [*OF_TYPE[field.type], None, *OF_FIELD.get((kind, field.attribute), ())]
    found += [value for value, _ in column.flatchoices or ()] if field.type == "text" else []
    if column.max_length and not column.flatchoices:
        found += ["a" * column.max_length, "a" * (column.max_length + 1)]
    if field.type in ("whole", "number"):
        step = 1 if field.type == "whole" else 0.0001
        limits = [v.limit_value for v in column.validators if isinstance(getattr(v, "limit_value", None), int | float)]
        found += [limit + change for limit in limits if abs(limit) < 2**53 for change in (-step, 0, step)]
    kept: list[Any] = []
    for value in found:  # 1, 1.0 and True are three values here
        if not any(type(value) is type(other) and value == other for other in kept):
            kept.append(value)
    return kept


# --- what an API server does


_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _is_time(text: str) -> bool:
    try:
        return bool(_DATE_TIME.fullmatch(text)) and parse_datetime(text) is not None
    except ValueError:
        return False


def stored(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The ``spec`` as it is kept; None where the definition refuses the object."""
    schema, validator = _rules(body["kind"])
    kept = _pruned(dict(body), schema)
    spec = kept["spec"]
    assert isinstance(spec, dict)
    return spec if validator.is_valid(kept) else None


@cache
def _rules(kind: str) -> tuple[Mapping[str, Any], jsonschema.Draft7Validator]:
    """Which fields a definition has, and which values."""
    [version] = definition(BY_KIND[kind])["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time")(lambda text: not isinstance(text, str) or _is_time(text))
    validator = jsonschema.Draft7Validator(_as_json_schema(schema), format_checker=formats)
    return schema | {"properties": schema["properties"] | _ANY}, validator


_ANY = {name: {"x-kubernetes-preserve-unknown-fields": True} for name in ("apiVersion", "kind", "metadata")}


def _pruned(value: Any, schema: Mapping[str, Any]) -> Any:
    """Fields that the schema does not know go, and so does null where it is not allowed; 5.0 is kept as 5."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_pruned(one, schema.get("items") or {}) for one in value]
    if not isinstance(value, dict) or schema.get("type") not in ("object", None):
        return value
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    free = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    kept = {}
    for name, one in value.items():
        inner = known.get(name) or (more if isinstance(more, Mapping) else None)
        if inner is None and not free:
            continue
        if one is None and inner is not None and not inner.get("nullable"):
            continue
        kept[name] = _pruned(one, inner if inner is not None else {"x-kubernetes-preserve-unknown-fields": True})
    return kept


def _as_json_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_as_json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _as_json_schema(one) for name, one in schema.items()}
    if schema.get("x-kubernetes-list-type") == "set":
        plain["uniqueItems"] = True
    return {"anyOf": [{"type": "null"}, plain]} if schema.get("nullable") is True else plain
