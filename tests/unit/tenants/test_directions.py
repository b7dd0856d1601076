"""Texts cannot turn round what a page says after them, by Unicode's overrides, embeddings and isolates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from rest_framework.test import APIClient

from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Tenant
from tests.support import worlds

pytestmark = pytest.mark.django_db

TURN = [chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]


@pytest.mark.parametrize("turn", TURN, ids=ascii)
def test_a_description_that_turns_the_text_after_it_is_refused(turn: str) -> None:
    with pytest.raises(ValidationError) as refused:
        services.save(actor=SYSTEM, instance=Tenant(slug="acme", description=f"evil{turn}txet"))
    assert "direction of text" in str(refused.value.message_dict["description"])


def test_right_to_left_words_with_their_marks_and_joined_letters_are_kept() -> None:
    for n, text in enumerate(("פרויקט\u200f (1)", "مشروع\u200e 2", "می\u200cخواهم", "👩\u200d💻")):
        row = services.save(actor=SYSTEM, instance=Tenant(slug=f"t-{n}", description=text))
        assert Tenant.objects.get(pk=row.pk).description == text


def test_a_text_of_an_older_release_stands_in_the_way_of_no_other_change() -> None:
    old = Tenant.objects.create(slug="acme", description="evil\u202etxet")
    assert services.pause_tenant(actor=SYSTEM, tenant=old, reason="unpaid").paused_since is not None
    old.refresh_from_db()
    old.description = "another\u202eone"
    with pytest.raises(ValidationError):
        services.save(actor=SYSTEM, instance=old)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("tenants", {"slug": "x", "description": "a\u202eb"}, "description"),
        ("alert-rules", {"name": "a\u2066b", "kind": "queue_age", "threshold": 30, "severity": "warning"}, "name"),
        ("saved-views", {"name": "a\u202db", "query": "tier=premium"}, "name"),
    ],
)
def test_the_api_refuses_such_a_text_and_names_its_field(path: str, body: dict[str, Any], field: str) -> None:
    worlds.build()
    client = APIClient()
    client.force_authenticate(User.objects.get(username="adam"))
    for ascii_only in (True, False):  # as an escape and as itself
        text = json.dumps(body, ensure_ascii=ascii_only)
        answer = client.post(f"/api/v1/{path}", text, content_type="application/json")
        assert answer.status_code == 400, answer.content
        assert "direction of text" in str(answer.json()), answer.json()
        assert field in str(answer.json())
