"""What the console takes from Python instead of repeating it.

* ``schema.ts``: the types of the management API's answers, made from the OpenAPI schema by ``openapi-typescript``.
* ``generated.ts``: bounds, defaults, choices, units and help of what can be written, and the reasons by outcome.

Both are committed, so that building the console needs neither Python nor the generator; a test compares them
(``tests/unit/tenants/test_console_types.py``). ``make generated`` writes them anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models.fields import NOT_PROVIDED
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers

from scheduling.core.outcomes import Outcome, Reason
from telemetry.api.alerts import RuleSerializer
from telemetry.api.channels import ChannelSerializer
from tenants.api.serializers import Named, Strict
from tenants.api.urls import router

API = Path(settings.BASE_DIR) / "frontend" / "src" / "api"
TYPES = API / "schema.ts"
DATA = API / "generated.ts"
STAMP = re.compile(r"^// schema (\w+), body (\w+)$", re.M)
_UNITS = {"s": "seconds"}  # as people read them; others are words already
_BRACKETS = re.compile(r" ?\[([a-z][a-z/ ]*)\]")
_LIST_EXAMPLE = re.compile(r", such as \[[^]]*\]")
_UNBOUNDED = 2**31 - 1  # from there on a bound is the database's, and each has its own
_LEFT_OUT = ("minimum", "maximum", "format", "readOnly", "title")  # of a schema: no types, or the database's


# --- types of answers


def answers() -> dict[str, Any]:
    """The schemas of what the API answers, as OpenAPI. Each row has all its fields: only requests leave some out."""
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    components: dict[str, Any] = schema["components"]["schemas"]
    bodies: dict[str, Any] = {}
    todo = list(_references(list(_responses(schema["paths"]))))
    while todo:
        name = todo.pop()
        if name not in bodies:
            bodies[name] = _answered(components[name])
            todo += _references(bodies[name])
    return {
        "openapi": schema["openapi"],
        "info": {"title": schema["info"]["title"], "version": schema["info"]["version"]},
        "paths": {},
        "components": {"schemas": dict(sorted(bodies.items()))},
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, sort_keys=True)


def stamped(body: str) -> str:
    """The generator's output as the file's text: with what it was made from, so that a test needs no Node."""
    head = "// Made by `make generated` from the OpenAPI schema. Not edited by hand."
    return f"{head}\n// schema {digest(as_json(answers()))}, body {digest(body)}\n{body}"


def _responses(paths: dict[str, Any]) -> Iterator[Any]:
    for methods in paths.values():
        for operation in methods.values():
            if isinstance(operation, dict):
                yield operation.get("responses", {})


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _answered(node: Any) -> Any:
    """One schema without what is only written, and without what depends on the database."""
    if isinstance(node, list):
        return [_answered(value) for value in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _answered(v) for key, v in node.items() if key not in _LEFT_OUT}
    if isinstance(node.get("properties"), dict):
        properties = {name: v for name, v in node["properties"].items() if not v.get("writeOnly")}
        kept["properties"] = {name: _answered(v) for name, v in properties.items()}
        optional = kept.pop("x-optional", [])  # true: any of them; else those that may be missing
        if optional is not True:
            kept["required"] = sorted(properties.keys() - set(optional))
    return kept


# --- fields of forms


def resources() -> Mapping[str, serializers.Serializer[Any]]:
    """What can be written over REST, by its route."""
    views: list[tuple[str, Any, str]] = router.registry
    serializers_by_route = {prefix: view.serializer_class() for prefix, view, _ in views}
    return {route: s for route, s in serializers_by_route.items() if isinstance(s, Strict)} | {
        "alert-rules": RuleSerializer(),
        "notification-channels": ChannelSerializer(),
    }


def fields(serializer: serializers.Serializer[Any]) -> dict[str, dict[str, Any]]:
    """What a form needs to know of each field that can be written, by name."""
    fixed = getattr(serializer.Meta.model, "fixed", ())  # type: ignore[attr-defined]
    return {
        name: _field(serializer, field) | ({"fixed": True} if name in fixed else {})
        for name, field in serializer.fields.items()
        if not field.read_only and not isinstance(field, serializers.HiddenField)
    }


def _field(serializer: serializers.Serializer[Any], field: serializers.Field[Any, Any, Any, Any]) -> dict[str, Any]:
    columns = {f.name: f for f in serializer.Meta.model._meta.get_fields()}  # type: ignore[attr-defined]
    model = columns[field.source]
    kind = _kind(field, model)
    # of a relation the API's help says what names it: a form has the rows to choose from
    help_text = str(getattr(model, "help_text", "") if isinstance(field, Named) else field.help_text or model.help_text)
    if kind == "words":  # which a form has with commas between
        help_text = _LIST_EXAMPLE.sub("", help_text)
    unit = _BRACKETS.search(str(model.verbose_name)) or _BRACKETS.search(help_text)
    initial = _initial(field, model)
    nothing = field.allow_null or getattr(field, "allow_blank", False) or kind in ("words", "json", "flag", "secret")
    low, high = getattr(field, "min_value", None), getattr(field, "max_value", None)
    described = {
        "kind": kind,
        "required": not nothing,
        "initial": initial,
        "unit": _UNITS.get(unit[1], unit[1]) if unit else None,
        "min": _plain(low) if low is not None and abs(low) < _UNBOUNDED else None,
        "max": _plain(high) if high is not None and abs(high) < _UNBOUNDED else None,
        "maxLength": getattr(field, "max_length", None),
        "options": _options(field) if kind == "choice" else None,
        "help": _BRACKETS.sub("", help_text) or None,
    }
    return {key: value for key, value in described.items() if value is not None and value is not False}


def _kind(field: serializers.Field[Any, Any, Any, Any], model: Any) -> str:
    if field.field_name == "slug":
        return "slug"
    if field.style.get("input_type") == "password":
        return "secret"
    if isinstance(field, serializers.JSONField):
        return "words" if model.default is list else "json"
    kinds: tuple[tuple[type, str], ...] = (
        (Named, "choice"),
        (serializers.ChoiceField, "choice"),
        (serializers.ManyRelatedField, "words"),
        (serializers.BooleanField, "flag"),
        (serializers.IntegerField, "integer"),
        (serializers.FloatField, "number"),
        (serializers.DecimalField, "number"),
        (serializers.DateTimeField, "moment"),
    )
    return next((kind for of, kind in kinds if isinstance(field, of)), "text")


def _options(field: Any) -> list[dict[str, str]] | None:
    """None for rows of another resource: the form lists those that there are."""
    if not isinstance(field, serializers.ChoiceField):
        return None
    return [{"value": str(value), "label": str(label)} for value, label in field.choices.items()]


def _initial(field: Any, model: Any) -> str | None:
    default = getattr(model, "default", NOT_PROVIDED)
    if isinstance(field.default, int | float | str):
        default = field.default
    if default is NOT_PROVIDED or default is None or callable(default):
        return None
    if isinstance(default, bool):
        return "true" if default else None
    return str(_plain(default))


def _plain(value: Any) -> Any:
    """30.0 is shown as 30; a choice is its value."""
    if isinstance(value, str):
        return str(value)
    return int(value) if value == int(value) else float(value)


def data() -> str:
    """``generated.ts``."""
    reasons = {
        outcome.value: [r.value for r in Reason if r.ending.outcome is outcome and r.ending.recorded]
        for outcome in Outcome
    }
    forms = {route: fields(serializer) for route, serializer in sorted(resources().items())}
    lines = []
    for route, named in forms.items():
        lines.append(f"  {json.dumps(route)}: {{")
        lines += [f"    {name}: {json.dumps(field, ensure_ascii=False)}," for name, field in named.items()]
        lines.append("  },")
    return (
        "// Made by `make generated` from the serializers and scheduling/core/outcomes.py. Not edited by hand.\n\n"
        "/** Reasons that are in the ledger, by outcome. */\n"
        "export const REASONS: Record<string, readonly string[]> = {\n"
        + "".join(f"  {outcome}: {json.dumps(names)},\n" for outcome, names in reasons.items())
        + "};\n\n"
        "/** What can be written, by route and field. */\n"
        "export const FIELDS = {\n" + "\n".join(lines) + "\n} as const;\n"
    )
