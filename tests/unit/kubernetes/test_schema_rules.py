"""A definition refuses what the catalog's own rules refuse, and nothing else: each field's schema beside its column."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from django.core.exceptions import ValidationError
from django.db import models

from controlplane.kubernetes.resources import RESOURCES, definition
from tenants.manifest.kinds import BACKEND, Field, Kind
from tenants.validators import slug_validator

TEXTS = (
    "", "x", "llama-8b", "meta-llama/Llama-3.1-8B", "UPPER", "-lead", "trail-", "a.b", "has space", "tab\there", "ä",
    "a\nb", "a" * 63, "a" * 64, "a" * 100, "a" * 101, "a" * 200, "a" * 201, "a" * 300, "a" * 301, "a" * 500, "a" * 501,
    "http://10.0.0.9:8000", "https://[::1]:8000", "HTTP://Host:80", "http://10.0.0.9:8000/", "http://h:1/metrics",
    "http://h:1/metrics?x=1", "http://h:1#f", "http://h?x", "ftp://h:1", "http://u:p@h:1", "http://", "http:// h:1",
    "h:8000",
)  # fmt: skip
MANY = {f"name-{number}": "llama" for number in range(101)}
OBJECTS: dict[tuple[str, str], list[Any]] = {
    ("TokenPool", "aliases"): [[], ["a"], ["a", "b/C"], ["a", "a"], ["has space"], [""], ["a" * 201]],
    ("TokenPool", "modifiers"): [{}, {"fair": {}}, {"fair": 3}, {"fair": []}],
    ("Project", "aliases"): [{}, {"gpt-4o": "llama-8b"}, {"gpt-4o": "has space"}, {"gpt-4o": ""}, MANY],
    ("Project", "fallbacks"): [
        {},
        {"a": {"to": "b", "when": ["unavailable"]}},
        {"a": {"to": "b", "when": ["no_room", "too_long"]}},
        {"a": {"to": "b", "when": []}},
        {"a": {"to": "b", "when": ["never"]}},
        {"a": {"to": "has space", "when": ["no_room"]}},
        {"a": {"to": "b"}},
        {"a": {"when": ["no_room"]}},
    ],
    ("ApiKey", "entitlements"): [[], ["a"], ["a", "b"], ["a", "a"], [""], ["a" * 64], [*MANY]],
}


def schema_of(kind: str, path: str) -> dict[str, Any]:
    outer = "TokenPool" if kind == "Backend" else kind
    [resource] = [one for one in RESOURCES if one.kind == outer]
    node = definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if kind == "Backend":
        node = node["properties"]["backends"]["items"]
    for name in path.split("."):
        node = node["properties"][name]
    assert isinstance(node, dict)
    return node


def refused_by_schema(schema: dict[str, Any], value: Any) -> bool:
    if schema.get("x-kubernetes-list-type") == "set":  # as Kubernetes says it
        schema = schema | {"uniqueItems": True}
    return not jsonschema.Draft7Validator(schema).is_valid(value)


def refused_by_column(column: models.Field[Any, Any], value: Any) -> bool:
    if isinstance(column, models.ForeignKey):
        try:
            slug_validator(value)
        except ValidationError:
            return True
        return False
    try:
        column.clean(value, None)
    except ValidationError:
        return True
    return False


def values(kind: str, field: Field, column: models.Field[Any, Any]) -> list[Any]:
    """Of the type that the field takes."""
    if field.type in ("text", "ref"):
        return [*TEXTS, *(value for value, _ in column.flatchoices or ())]
    if field.type in ("whole", "number"):
        bounds = [v.limit_value for v in column.validators if hasattr(v, "limit_value")]
        step = 1 if field.type == "whole" else 0.0001
        near = {bound + change for bound in bounds for change in (-step, 0, step)} | {-1, 0, 1}
        return sorted(value for value in near if abs(value) < 2**53)
    return OBJECTS.get((kind, field.attribute), [])


KINDS: list[tuple[str, Kind]] = [*((one.kind, one.fields) for one in RESOURCES), ("Backend", BACKEND)]


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=[name for name, _ in KINDS])
def test_the_schema_of_a_field_refuses_what_its_column_refuses_and_nothing_else(name: str, kind: Kind) -> None:
    compared, different = 0, []
    for field in kind.fields:
        if name == "Backend" and field.path == "pool":
            continue  # a backend stands inside its pool
        column = kind.model._meta.get_field(field.attribute)
        assert isinstance(column, models.Field)
        schema = schema_of(name, field.path)
        for value in values(name, field, column):
            compared += 1
            theirs, ours = refused_by_schema(schema, value), refused_by_column(column, value)
            if theirs != ours:
                different.append((field.path, value, "schema refuses" if theirs else "column refuses"))
    assert not different
    assert compared >= len(TEXTS)
