"""What the OpenAPI schema says of fields that ``drf_spectacular`` cannot know."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from rest_framework import serializers


class JsonByDefault(OpenApiSerializerFieldExtension):
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
