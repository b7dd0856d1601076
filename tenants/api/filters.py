"""``?tenant=acme&state=bound``: exact filters that a view lists, with an error instead of silence for a bad value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.filters import BaseFilterBackend
from rest_framework.request import Request

from tenants.api.inputs import moment

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Filter:
    """One query parameter: which rows it keeps."""

    lookup: str  # several, with commas: one of them has to fit
    doc: str
    kind: str = "string"  # string | boolean | date-time
    negated: bool = False  # of a boolean: true keeps the rows for which the lookup is false

    def parse(self, name: str, raw: str) -> Any:
        if self.kind == "boolean":
            if raw.lower() not in _BOOLEANS:
                raise ValidationError({name: f"Use true or false, not {raw!r}."})
            return _BOOLEANS[raw.lower()] is not self.negated
        if self.kind == "date-time":
            value = moment(raw)
            if value is None:
                raise ValidationError({name: f"Use a time with zone such as 2026-11-21T08:00:00Z, not {raw!r}."})
            return value
        return raw


M = TypeVar("M", bound=Model)
R = TypeVar("R")


class ListedFilters(BaseFilterBackend):
    """Applies the view's ``filters``."""

    def filter_queryset(self, request: Request, queryset: QuerySet[M, R], view: Any) -> QuerySet[M, R]:
        for name, rule in getattr(view, "filters", {}).items():
            raw = request.query_params.get(name)
            if raw is not None:
                value = rule.parse(name, raw)
                fits = [Q(**{lookup: value}) for lookup in rule.lookup.split(",")]
                queryset = queryset.filter(reduce(or_, fits))
        return queryset

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        types = {
            "string": {"type": "string"},
            "boolean": {"type": "boolean"},
            "date-time": {"type": "string", "format": "date-time"},
        }
        return [
            {"name": name, "in": "query", "required": False, "description": rule.doc, "schema": types[rule.kind]}
            for name, rule in getattr(view, "filters", {}).items()
        ]
