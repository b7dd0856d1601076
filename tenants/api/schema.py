"""What the OpenAPI schema says of fields that ``drf_spectacular`` cannot know."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from rest_framework import serializers


class JsonByDefault(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """A model's JSON holds what its default says: names, or parameters by name."""

    target_class = serializers.JSONField

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        model = getattr(getattr(self.target.parent, "Meta", None), "model", None)
        model_fields = {f.name: f for f in model._meta.get_fields()} if model else {}
        default = getattr(model_fields.get(self.target.source), "default", None)
        if default is list:
            return {"type": "array", "items": {"type": "string"}}
        if default is dict:
            return {"type": "object", "additionalProperties": {}}
        return {}


_ANY = {"type": "object", "additionalProperties": {}}
_EFFECTS = {
    "type": "object",
    "description": "What a change would do, had it not been tried only (`dry_run=true`).",
    "required": ["pools", "changes"],
    "properties": {
        "pools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pool", "before", "after", "entitlements"],
                "properties": {
                    "pool": {"type": "string"},
                    "before": {**_ANY, "nullable": True},
                    "after": {**_ANY, "nullable": True},
                    "entitlements": {"type": "array", "items": _ANY},
                },
            },
        },
        "changes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["action", "kind", "object", "before", "after"],
                "properties": {
                    "action": {"type": "string"},
                    "kind": {"type": "string"},
                    "object": {"type": "string"},
                    "before": {**_ANY, "nullable": True},
                    "after": {**_ANY, "nullable": True},
                },
            },
        },
    },
}


def say_trials(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A change that is only tried is answered 200 with what it would do, whatever it is answered otherwise."""
    effects = {"$ref": "#/components/schemas/Effects"}
    result["components"]["schemas"]["Effects"] = _EFFECTS
    for operations in result["paths"].values():
        for operation in operations.values():
            if not any(each["name"] == "dry_run" for each in operation.get("parameters", ())):
                continue
            answers = operation["responses"]
            content = answers.get("200", {}).get("content", {}).get("application/json")
            if content is None:
                answers["200"] = {"content": {"application/json": {"schema": effects}}, "description": "Only tried."}
            else:
                content["schema"] = {"oneOf": [content["schema"], effects]}
    return result


def say_optional(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Fields that an answer may lack (``x-optional``) are not required of it."""
    for schema in result["components"]["schemas"].values():
        optional = schema.get("x-optional", [])
        if optional and "required" in schema:
            left = [] if optional is True else [name for name in schema["required"] if name not in optional]
            schema["required"] = left
            if not left:
                del schema["required"]
    return result
