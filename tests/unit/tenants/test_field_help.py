"""What a field means is written once, at its column: REST, OpenAPI, console and back office read it there."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models
from rest_framework import serializers

from tenants.api import serializers as rows

# Rows of the catalog that people write.
CATALOG = [
    rows.TenantSerializer, rows.SloSerializer, rows.TierSerializer, rows.PoolSerializer, rows.BackendSerializer,
    rows.EntitlementSerializer, rows.QuotaSerializer, rows.BudgetSerializer, rows.PriceSerializer, rows.KeySerializer,
    rows.MembershipSerializer,
    rows.GroupRuleSerializer,
]  # fmt: skip
AMOUNTS = (models.IntegerField, models.FloatField, models.DecimalField)
UNITS = (
    "[tokens]", "[s]", "[bytes]", "[slots]", "tokens", "seconds", "requests", "sequences", "bytes", "slots", "replicas",
    "weight", "0 goes first", "0.2 is 20 %", "layers", "per million", "gpu", "amount a month",
)  # fmt: skip


def columns(serializer: type[Any]) -> list[tuple[str, serializers.Field, models.Field[Any, Any]]]:
    """Writable fields that stand for a column of their own."""
    model = serializer.Meta.model
    found = []
    for name, field in serializer().fields.items():
        if field.read_only or isinstance(field, serializers.RelatedField) or field.source != name:
            continue
        found.append((name, field, model._meta.get_field(name)))
    return found


def named(serializer: type[Any]) -> str:
    return str(serializer.Meta.model.__name__)


@pytest.mark.parametrize("serializer", CATALOG, ids=named)
def test_every_writable_field_says_what_it_means(serializer: type[Any]) -> None:
    fields = serializer().fields.items()
    assert columns(serializer)
    assert [name for name, field in fields if not field.read_only and not field.help_text] == []


@pytest.mark.parametrize("serializer", CATALOG, ids=named)
def test_rest_says_what_the_column_says_and_nothing_else(serializer: type[Any]) -> None:
    differ = {n: f.help_text for n, f, column in columns(serializer) if str(f.help_text) != str(column.help_text)}
    assert differ == {}


@pytest.mark.parametrize("serializer", CATALOG, ids=named)
def test_an_amount_says_what_it_is_counted_in(serializer: type[Any]) -> None:
    silent = [
        name
        for name, _, column in columns(serializer)
        if isinstance(column, AMOUNTS)
        and not any(unit in f"{column.verbose_name} {column.help_text}".lower() for unit in UNITS)
    ]
    assert silent == []
