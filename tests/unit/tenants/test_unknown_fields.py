"""A body's unknown fields are refused by name, and many of them cost no more than a few."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator
from rest_framework.serializers import Serializer

from tenants.api.parameters import NAMED
from tenants.api.serializers import TenantSerializer

pytestmark = pytest.mark.django_db
OURS = ("tenants", "telemetry", "controlplane")


def refusal(*names: str) -> dict[str, list[str]]:
    serializer = TenantSerializer(data={"slug": "acme", **dict.fromkeys(names, 1)})
    assert not serializer.is_valid()
    return {name: [str(told) for told in errors] for name, errors in serializer.errors.items()}


def test_a_misspelt_field_is_told_with_the_one_that_was_meant() -> None:
    (told,) = refusal("desciption")["desciption"]
    assert "Did you mean 'description'?" in told


def test_thousands_of_unknown_fields_are_answered_with_a_few_and_how_many_more() -> None:
    told = refusal(*(f"f{n}" for n in range(20_000)))
    assert len(told) == NAMED + 1
    assert told["non_field_errors"] == [f"{20_000 - NAMED} more fields are unknown."]
    assert len(json.dumps(told)) < 20_000, "the answer grows with what was sent"


def _bodies() -> set[type[Serializer[Any]]]:
    """What views read: the classes that the schema names for request bodies."""
    named = {
        ref.rpartition("/")[2].removeprefix("Patched").removesuffix("Request")
        for operations in SchemaGenerator().get_schema(public=True)["paths"].values()
        for operation in operations.values()
        for ref in re.findall(r"#/components/schemas/\w+", json.dumps(operation.get("requestBody", {})))
    }
    found, rest = set(), [Serializer]
    while rest:
        for one in rest.pop().__subclasses__():
            rest.append(one)
            if one.__name__.removesuffix("Serializer") in named and one.__module__.split(".")[0] in OURS:
                found.add(one)
    return found


def test_no_body_of_the_api_takes_a_field_that_it_does_not_know() -> None:
    """A reset with "categry" forgot every category."""
    bodies = _bodies()
    assert {"RuleSerializer", "ResetQuery", "NewRun", "TenantSerializer"} <= {each.__name__ for each in bodies}
    lax = []
    for each in bodies:
        serializer = each(data={"no_such_field": 1}, partial=True)
        if serializer.is_valid() or "no_such_field" not in serializer.errors:
            lax.append(each.__name__)
    assert lax == []
