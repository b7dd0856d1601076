"""The page of bounds says what the code says, and names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

from django.db import models
from django.test.utils import isolate_apps
from rest_framework import serializers as rest

from tenants.api import serializers
from tenants.api.serializers import CatalogSerializer
from tests.support import bounds

ROOT = Path(__file__).parents[3]
# Texts within a body's 2 MiB whose parts are checked where they are read.
CHECKED_ELSEWHERE: set[str] = set()


def test_the_page_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "reference" / "bounds.md").read_text(encoding="utf-8")
    assert page == bounds.page(), "python -m tests.support.bounds > docs/reference/bounds.md"


def test_each_test_that_is_named_exists() -> None:
    for _, rows in bounds.TABLES:
        for row in rows:
            path, _, name = row.test.partition("::")
            tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
            assert any(getattr(node, "name", "") == name for node in ast.walk(tree)), row.test


def test_every_text_that_people_write_by_rest_is_bounded() -> None:
    kinds = [one for one in vars(serializers).values() if isinstance(one, type) and issubclass(one, CatalogSerializer)]
    written = [one for one in kinds if getattr(getattr(one, "Meta", None), "model", None) is not None]
    assert len(written) >= 12
    assert set(bounds.unbounded(written)) <= CHECKED_ELSEWHERE


@isolate_apps()  # so that the model can be made again
def test_a_text_without_a_bound_is_found() -> None:
    class Loose(models.Model):
        text = models.TextField()
        named = models.CharField(max_length=5)

        class Meta:
            app_label = "tests"
            managed = False

    class LooseSerializer(rest.ModelSerializer):
        class Meta:
            model = Loose
            fields = ["text", "named"]

    assert bounds.unbounded([LooseSerializer]) == ["Loose.text"]
