"""Whole numbers have the same bounds on SQLite as on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.core.validators import MaxValueValidator
from django.db import connection, models
from rest_framework.test import APIClient

from tenants import manifest
from tenants.models import Pool
from tests.support import worlds

pytestmark = pytest.mark.django_db

MOST = 2**31 - 1


@pytest.fixture
def adam() -> APIClient:
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {worlds.build().tokens['adam'].credential.text}")


@pytest.mark.parametrize("value", [MOST + 1, 2**62])
def test_a_number_that_postgresql_has_no_room_for_is_refused_on_both_databases(
    adam: APIClient, tmp_path: Path, value: int
) -> None:
    before = Pool.objects.get(slug="llama").queue_limit
    refused = adam.patch("/api/v1/pools/llama", {"queue_limit": value}, format="json")
    assert refused.status_code == 400
    assert refused.json() == {"queue_limit": [f"Ensure this value is less than or equal to {MOST}."]}
    text = manifest.export().replace(f"queueLimit: {before}", f"queueLimit: {value}", 1)
    assert str(value) in text
    (tmp_path / "catalog.yaml").write_text(text)
    with pytest.raises(CommandError, match=f"less than or equal to {MOST}"):
        call_command("apply", "-f", str(tmp_path / "catalog.yaml"), "--yes")
    assert adam.patch("/api/v1/pools/llama", {"queue_limit": MOST}, format="json").status_code == 200


def test_each_whole_number_of_a_pool_is_bounded_by_what_its_column_holds() -> None:
    fields = [field for field in Pool._meta.concrete_fields if type(field) is models.PositiveIntegerField]
    assert len(fields) > 5
    for field in fields:
        bounds = [v.limit_value for v in field.validators if isinstance(v, MaxValueValidator)]
        assert bounds, field.name
        assert min(bounds) <= MOST, field.name
    assert connection.ops.integer_field_range("PositiveIntegerField") == (0, MOST)
