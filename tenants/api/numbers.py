"""Rows whose numbers members are told veiled (:mod:`tenants.veiled`): what goes out, and what comes back in a path."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from rest_framework import serializers
from rest_framework.request import Request

from tenants.access import scope_of
from tenants.veiled import unveil, veil


def sees_numbers(request: Request | None) -> bool:
    """Whether this user sees the rows of everybody, and so may count them."""
    return request is not None and scope_of(request).sees_all


# Mixed into serializers of a model that show ``id``. (A docstring would describe them in the schema.)
class VeiledNumber(serializers.Serializer[Any]):
    def to_representation(self, instance: Any) -> dict[str, Any]:
        told = super().to_representation(instance)
        if not sees_numbers(self.context.get("request")):
            told["id"] = veil(type(instance), told["id"])
        return told


def number_of(request: Request, model: type[Model], told: Any) -> int:
    """The row's number, by what a path has of it."""
    return int(told) if sees_numbers(request) else unveil(model, int(told))
