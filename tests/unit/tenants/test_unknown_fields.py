"""A body's unknown fields are refused by name, and many of them cost no more than a few."""

from __future__ import annotations

import json

import pytest

from tenants.api.serializers import UNKNOWN_NAMED, TenantSerializer

pytestmark = pytest.mark.django_db


def refusal(*names: str) -> dict[str, list[str]]:
    serializer = TenantSerializer(data={"slug": "acme", **dict.fromkeys(names, 1)})
    assert not serializer.is_valid()
    return {name: [str(told) for told in errors] for name, errors in serializer.errors.items()}


def test_a_misspelt_field_is_told_with_the_one_that_was_meant() -> None:
    (told,) = refusal("desciption")["desciption"]
    assert "Did you mean 'description'?" in told


def test_thousands_of_unknown_fields_are_answered_with_a_few_and_how_many_more() -> None:
    told = refusal(*(f"f{n}" for n in range(20_000)))
    assert len(told) == UNKNOWN_NAMED + 1
    assert told["non_field_errors"] == [f"{20_000 - UNKNOWN_NAMED} more fields are unknown."]
    assert len(json.dumps(told)) < 20_000, "the answer grows with what was sent"
