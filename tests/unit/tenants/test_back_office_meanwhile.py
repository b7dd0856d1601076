"""Two admins have the same page of the back office open: what each saves, and what they are told."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tenants.models import Backend, Entitlement, Pool, Tier
from tests.support import worlds

pytestmark = pytest.mark.django_db
INPUT = re.compile(r'<input[^>]*name="([^"]+)"[^>]*>')
CHOSEN = re.compile(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', re.S)
TEXT = re.compile(r'<textarea[^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>', re.S)


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def admin(world: worlds.World) -> Client:
    client = Client()
    client.force_login(world.users["adam"])
    return client


def opened(admin: Client, row: Any) -> tuple[str, dict[str, str]]:
    """The page of a row, and what its form sends untouched."""
    address = f"/admin/tenants/{row._meta.model_name}/{row.pk}/change/"
    return address, sends(admin.get(address).content.decode())


def sends(page: str) -> dict[str, str]:
    page = page[page.index('method="post"', page.index("_form") - 400) :]
    sent = {}
    for tag in INPUT.finditer(page):
        checked = 'type="checkbox"' not in tag[0] or re.search(r"\schecked[\s>]", tag[0])
        value = re.search(r' value="([^"]*)"', tag[0])
        if checked and tag[1] not in ("_save", "_continue", "_addanother"):
            sent[tag[1]] = unescape(value[1]) if value else "on" if 'type="checkbox"' in tag[0] else ""
    for tag in CHOSEN.finditer(page):
        choice = re.search(r'<option value="([^"]*)"[^>]* selected', tag[2])
        sent[tag[1]] = unescape(choice[1]) if choice else ""
    return sent | {tag[1]: unescape(tag[2]) for tag in TEXT.finditer(page)}


def test_what_somebody_else_changed_stays_where_it_was_not_touched(world: worlds.World, admin: Client) -> None:
    tier = Tier.objects.get(pk=next(iter(world.entitlements.values())).tier_id)
    address, form = opened(admin, tier)
    Tier.objects.filter(pk=tier.pk).update(weight=57, queue_limit=77)
    answer = admin.post(address, form | {"description": "mine", "_save": ""})
    assert answer.status_code == 302, answer.content.decode()
    tier.refresh_from_db()
    assert (tier.description, tier.weight, tier.queue_limit) == ("mine", 57, 77)


def test_a_field_that_both_changed_is_named_and_saving_again_replaces_it(world: worlds.World, admin: Client) -> None:
    tier = Tier.objects.get(pk=next(iter(world.entitlements.values())).tier_id)
    address, form = opened(admin, tier)
    Tier.objects.filter(pk=tier.pk).update(weight=57, rank=9)
    answer = admin.post(address, form | {"weight": "60", "_save": ""})
    page = unescape(answer.content.decode())
    assert answer.status_code == 200
    assert "Another user changed this to “57.0” meanwhile. Save again to replace that." in page
    again = sends(page)
    assert (again["weight"], again["initial-weight"]) == ("60", "57.0")
    assert admin.post(address, again | {"_save": ""}).status_code == 302
    tier.refresh_from_db()
    assert (tier.weight, tier.rank) == (60, 9)


def test_moments_choices_and_json_are_compared_too(world: worlds.World, admin: Client) -> None:
    entitlement, pool = Entitlement.objects.order_by("pk").first(), world.pool
    assert entitlement is not None
    ends = timezone.now().replace(microsecond=0) + timedelta(days=3)
    address, form = opened(admin, entitlement)
    Entitlement.objects.filter(pk=entitlement.pk).update(valid_until=ends, concurrency=3)
    answer = admin.post(address, form | {"description": "mine", "_save": ""})
    assert answer.status_code == 302, answer.content.decode()
    entitlement.refresh_from_db()
    assert (entitlement.valid_until, entitlement.concurrency, entitlement.description) == (ends, 3, "mine")

    address, form = opened(admin, pool)
    Pool.objects.filter(pk=pool.pk).update(policy_params={"relegate": 2})
    Backend.objects.update(slots=33)
    changes = {"description": "mine", "backends-0-kv_tokens": "123456", "_save": ""}
    assert admin.post(address, form | changes).status_code == 302
    pool.refresh_from_db()
    assert (pool.policy_params, pool.description) == ({"relegate": 2}, "mine")
    assert [(backend.slots, backend.kv_tokens) for backend in Backend.objects.all()] == [(33, 123456)]


def test_no_secret_is_among_what_a_page_held(world: worlds.World, admin: Client) -> None:
    backend = Backend.objects.order_by("pk").first()
    assert backend is not None
    backend.api_key = "a-secret-of-the-engine"
    backend.save()
    address, form = opened(admin, backend)
    assert "initial-url" in form
    assert "initial-api_key" not in form
    assert backend.api_key not in admin.get(address).content.decode()
    _, form = opened_user(admin, world)
    assert "initial-email" in form
    assert "initial-password" not in form


def opened_user(admin: Client, world: worlds.World) -> tuple[str, dict[str, str]]:
    user = world.users["adam"]
    address = f"/admin/auth/user/{user.pk}/change/"
    page = admin.get(address).content.decode()
    assert user.password not in page
    return address, sends(page)


def test_who_was_switched_off_meanwhile_stays_so(world: worlds.World, admin: Client) -> None:
    user = world.users["alice"]
    address = f"/admin/{user._meta.app_label}/{user._meta.model_name}/{user.pk}/change/"
    form = sends(admin.get(address).content.decode())
    type(user).objects.filter(pk=user.pk).update(is_active=False)
    form["memberships-0-tenant"] = form["initial-memberships-0-tenant"]  # a select that this reading does not see
    answer = admin.post(address, form | {"email": "alice@corp.example", "_save": ""})
    assert answer.status_code == 302, answer.content.decode()
    user.refresh_from_db()
    assert (user.email, user.is_active) == ("alice@corp.example", False)
