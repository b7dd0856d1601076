"""Custom resources, made from the kinds of the manifest; ``manage.py crds DIRECTORY`` writes their definitions.

One declaration: a field of ``tenants.manifest.kinds`` is a field of ``spec``, with the type, bounds, choices and help
text of its column. ``TokenPool`` and ``TokenEntitlement`` have the shape of the token-pools paper, 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import yaml
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from controlplane.kubernetes import replicas
from tenants import manifest
from tenants.manifest.kinds import BACKEND, BY_NAME, Field, Kind
from tenants.models import Owner
from tenants.validators import SCHEMAS, json_pattern, slug_validator

GROUP = "quartermaster.dev"
VERSION = "v1alpha1"
SECRET = "secret"  # noqa: S105  the field of an ApiKey's spec
DEFAULT_KEY = "api-key"  # of that Secret
LONGEST_S = 10 * 365 * 86_400  # between two rotations of a key
API_VERSION = f"{GROUP}/{VERSION}"
AMOUNTS = {"slots": "slots", "kv_tokens": "kvTokens", "tokens_per_s": "tokensPerSecond"}  # as a status names them
NAME: dict[str, Any] = {"maxLength": 63, "pattern": json_pattern(slug_validator)}  # of a row


@dataclass(frozen=True, slots=True)
class Resource:
    """How a kind of the manifest is served by Kubernetes."""

    kind: str
    plural: str
    columns: tuple[tuple[str, str, str], ...] = ()  # printer columns: name, type, JSON path

    @property
    def fields(self) -> Kind:
        return BY_NAME[self.kind]


_STATE = (("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),)
RESOURCES: tuple[Resource, ...] = (
    Resource("Slo", "slos", _STATE),
    Resource("Tier", "tiers", (("Class", "string", ".spec.serviceClass"), ("Rank", "integer", ".spec.rank"), *_STATE)),
    Resource(
        "TokenPool",
        "tokenpools",
        (
            ("Model", "string", ".spec.model"),
            ("Backends", "string", ".status.backends"),
            ("Slots", "number", ".status.capacity.slots"),
            *_STATE,
        ),
    ),
    Resource(
        "Adapter", "adapters", (("Pool", "string", ".spec.poolRef.name"), ("Model", "string", ".spec.model"), *_STATE)
    ),
    Resource("Tenant", "tenants", _STATE),
    Resource("Project", "projects", (("Tenant", "string", ".spec.tenantRef.name"), *_STATE)),
    Resource(
        "TokenEntitlement",
        "tokenentitlements",
        (
            ("Tenant", "string", ".spec.tenantRef.name"),
            ("Pool", "string", ".spec.poolRef.name"),
            ("Tier", "string", ".spec.qos.tier"),
            ("State", "string", ".status.state"),
            *_STATE,
        ),
    ),
    Resource(
        "ApiKey",
        "apikeys",
        (("Key", "string", ".status.keyId"), ("Secret", "string", ".spec.secret.name"), *_STATE),
    ),
)
BY_KIND = {resource.kind: resource for resource in RESOURCES}


_SECRET: dict[str, Any] = {
    "type": "object",
    "description": "Where the value of the key is, in the namespace of this resource.",
    "required": ["name"],
    "properties": {
        "name": {
            "type": "string", "minLength": 1, "maxLength": 253, "pattern": replicas.OBJECT_NAME,
            "description": "Made with a fresh value where there is none; a value that is there is taken.",
        },
        "key": {"type": "string", "pattern": "^[-._a-zA-Z0-9]{1,253}$", "description": f"Empty: {DEFAULT_KEY}."},
        "rotate": {
            "type": "string", "maxLength": 100, "description": "Any text; another one makes another value.",
        },
        "rotateEverySeconds": {
            "type": "integer", "minimum": 3600, "maximum": LONGEST_S,
            "description": "Another value is made by itself after so long.",
        },
        "overlapSeconds": {
            "type": "integer", "minimum": 0, "maximum": 30 * 86_400,
            "description": "So long the value before goes on to work after a rotation. Empty: not at all.",
        },
    },
}  # fmt: skip


def definition(resource: Resource) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    columns: list[dict[str, Any]] = [{"name": n, "type": kind, "jsonPath": path} for n, kind, path in resource.columns]
    columns.append({"name": "Reason", "type": "string", "jsonPath": ".status.reason", "priority": 1})
    columns.append({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "categories": ["quartermaster"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": _metadata(resource.kind)
                            | {"spec": _spec(resource.fields), "status": _status(resource.kind)},
                        }
                    },
                }
            ],
        },
    }


def _metadata(kind: str) -> dict[str, Any]:
    """A resource is called like its row; keys have ids of their own."""
    if kind == "ApiKey":
        return {}
    return {"metadata": {"type": "object", "properties": {"name": {"type": "string"} | NAME}}}


def _spec(kind: Kind) -> dict[str, Any]:
    tree: dict[str, Any] = {"type": "object", "properties": {}}
    fixed = getattr(kind.model, "fixed", ())
    for field in kind.fields:
        *parents, name = field.path.split(".")
        node = tree
        for parent in parents:
            node = node["properties"].setdefault(parent, {"type": "object", "properties": {}})
        node["properties"][name] = _field(kind, field, fixed=field.attribute in fixed)
        if field.required:
            node.setdefault("required", []).append(name)
    if kind.name == "TokenPool":
        inner = _spec(BACKEND)
        inner["properties"].pop("pool")
        inner["required"] = ["name", *(r for r in inner.get("required", []) if r != "pool")]
        inner["properties"] = {"name": {"type": "string"} | NAME} | inner["properties"]
        tree["properties"][replicas.SPEC] = replicas.SCHEMA
        tree["properties"]["backends"] = {
            "type": "array", "maxItems": replicas.MOST_REPLICAS, "items": inner,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        }  # fmt: skip
    if kind.name == "ApiKey":
        tree["properties"][SECRET] = _SECRET
        tree["required"] = [SECRET]  # without a displayName it is called like its resource
    # A reference that has to be there makes what it is in required as well.
    for name, node in tree["properties"].items():
        if node.get("required") and node.get("properties"):
            tree.setdefault("required", []).append(name)
    return tree


def _field(kind: Kind, field: Field, *, fixed: bool) -> dict[str, Any]:
    """The column's type, and those of its rules that a schema can say."""
    column = kind.model._meta.get_field(field.attribute)
    assert isinstance(column, models.Field)
    types: dict[str, dict[str, Any]] = {
        "text": {"type": "string"},
        "ref": {"type": "string"} | NAME,
        "whole": {"type": "integer", "format": "int64"},
        "number": {"type": "number"},
        "money": {"type": "number"},
        "flag": {"type": "boolean"},
        "time": {"type": "string", "format": "date-time"},
        "names": {"type": "array", "items": {"type": "string"}, "maxItems": 1000},
        "shares": {"type": "array", "items": {"type": "integer"}, "maxItems": 8},
        "params": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    schema = dict(types[field.type])
    if column.help_text:
        schema = {"description": str(column.help_text)} | schema
    if field.type == "text" and column.choices:
        schema["enum"] = [str(value) for value, _ in column.flatchoices if value is not None]
    elif field.type == "text":
        schema |= {"maxLength": column.max_length} if column.max_length else {}
        schema |= {} if column.blank else {"minLength": 1}
    for validator in column.validators:
        schema |= _rule(validator, schema, blank=column.blank)
    if field.nullable:
        schema["nullable"] = True
    if fixed:
        message = "cannot change after creation: make a new object and delete this one"
        schema["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": message}]
    return schema


def _rule(validator: Any, schema: dict[str, Any], *, blank: bool) -> dict[str, Any]:
    """What one rule adds to a schema; nothing where it cannot be said in one."""
    if isinstance(validator, RegexValidator):
        return {"pattern": json_pattern(validator, blank=blank)}
    if isinstance(validator, MinValueValidator):
        return {"minimum": max(schema.get("minimum", validator.limit_value), validator.limit_value)}
    if isinstance(validator, MaxValueValidator) and validator.limit_value < 2**53:  # beyond, it is the type's own
        return {"maximum": min(schema.get("maximum", validator.limit_value), validator.limit_value)}
    said = deepcopy(SCHEMAS.get(validator, {})) if isinstance(validator, FunctionType) else {}
    if "additionalProperties" in said:
        schema.pop("x-kubernetes-preserve-unknown-fields")
    return said | {"pattern": f"^$|{said['pattern']}"} if blank and "pattern" in said else said


def _status(kind: str) -> dict[str, Any]:
    text, number = {"type": "string"}, {"type": "number"}
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text,
            "message": text,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    }
    properties: dict[str, Any] = {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "reason": text,
        "conditions": {
            "type": "array", "items": condition,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        },
    }  # fmt: skip
    amounts = {"type": "object", "properties": dict.fromkeys(AMOUNTS.values(), number)}
    if kind == "TokenPool":
        counts = {"type": "object", "properties": {"found": {"type": "integer"}, "ready": {"type": "integer"}}}
        properties |= {
            "replicas": counts,
            "backends": text,
            "node": text,
            "capacity": amounts,
            "answering": amounts,
            "reserved": amounts,
        }
    if kind == "ApiKey":
        properties |= {"keyId": text}
    if kind == "TokenEntitlement":
        properties |= {"state": text, "lease": text}
    # kopf keeps nothing here; other operators may.
    return {"type": "object", "properties": properties}


def documents() -> Iterator[tuple[str, str]]:
    """File name and text of each definition."""
    for resource in RESOURCES:
        head = "# Made from tenants/manifest/kinds.py: `make generated` writes it anew.\n"
        yield f"{resource.plural}.yaml", head + yaml.safe_dump(definition(resource), sort_keys=False, width=120)


def export(namespace: str) -> str:
    """The catalog as custom resources, one YAML document each. What the cluster does not serve (quotas, prices, roles)
    is left out, and so are keys: their values are not known. So are pools whose replicas a resource finds: it is said
    where in the cluster only, and without it their replicas would go."""
    items = yaml.safe_load(manifest.export())["items"]
    found = [owner for owner in Owner.objects.filter(kind="TokenPool") if replicas.SPEC in owner.attributes]
    left_out = {("TokenPool", owner.name) for owner in found}
    served = [item for item in items if item["kind"] in BY_KIND and item["kind"] != "ApiKey"]
    served = [item for item in served if (item["kind"], item["metadata"]["name"]) not in left_out]
    documents = [
        {"apiVersion": API_VERSION, "kind": item["kind"], "metadata": item["metadata"] | {"namespace": namespace}}
        | {"spec": item["spec"]}
        for item in served
    ]
    notes = [
        f"# Left out: {owner}, whose spec.replicas only the cluster has (kubectl get -o yaml).\n" for owner in found
    ]
    return "".join(notes) + yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)
