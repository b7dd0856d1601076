"""The back office: every page opens, every write is audited, secrets show once, roles hold."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from django.utils.formats import localize

from tenants import keys, services
from tenants.audit import SYSTEM
from tenants.models import (
    Adapter,
    ApiKey,
    AuditEntry,
    Backend,
    Budget,
    CatalogVersion,
    Entitlement,
    GroupRule,
    Membership,
    Pool,
    Price,
    Project,
    Quota,
    Tenant,
)
from tests.support import worlds

pytestmark = pytest.mark.django_db

PAGES = sorted(
    f"{model._meta.app_label}_{model._meta.model_name}"
    for model in admin.site._registry
    if model._meta.app_label in ("tenants", "auth")
)


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def _client(world: worlds.World, who: str) -> Client:
    client = Client()
    client.force_login(world.users[who])
    return client


def _form(client: Client, url: str) -> dict[str, Any]:
    """What a browser would send back from a page without touching anything."""
    context = client.get(url).context
    values: dict[str, Any] = {}
    forms = [context["adminform"].form]
    for formset in (inline.formset for inline in context["inline_admin_formsets"]):
        forms += [formset.management_form, *formset.forms]
    for form in forms:
        for bound in form:
            value = bound.value()
            if isinstance(value, bool):
                value = "on" if value else None
            if value is not None:
                values[bound.html_name] = (
                    value if isinstance(value, str | int | float) else bound.field.prepare_value(value)
                )
    return values


def _one(page: str, world: worlds.World) -> Any:
    """A row of a kind that the world has none of."""
    row = {
        "tenants_adapter": Adapter(slug="sql", pool=world.pool, model="llama-sql"),
        "tenants_project": Project(slug="chat", tenant=world.tenants["acme"]),
        "tenants_grouprule": GroupRule(group="ops", role="operator"),
        "tenants_quota": Quota(tenant=world.tenants["acme"], hard_tokens=1000),
        "tenants_budget": Budget(tenant=world.tenants["acme"], hard_amount=1000),
        "tenants_price": Price(pool=world.pool, per_million_output=2),
    }[page]
    return services.save(actor=SYSTEM, instance=row)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("who", ["adam", "olga"])
def test_list_and_change_pages_open_for_admins_and_operators(page: str, who: str, world: worlds.World) -> None:
    client = _client(world, who)
    listed = client.get(reverse(f"admin:{page}_changelist"), {"q": "a"})
    assert listed.status_code == 200
    model = next(m for m in admin.site._registry if f"{m._meta.app_label}_{m._meta.model_name}" == page)
    row = model._default_manager.filter(user=world.users[who]).first() if page.endswith("token") else None
    row = row or model._default_manager.first() or _one(page, world)
    assert client.get(reverse(f"admin:{page}_change", args=[row.pk])).status_code == 200


def test_an_operator_sees_no_password_hash(world: worlds.World) -> None:
    world.users["adam"].set_password("correct horse 42")
    world.users["adam"].save()
    shown = _client(world, "olga").get(reverse("admin:auth_user_change", args=[world.users["adam"].pk]))
    assert "adam" in shown.content.decode()
    assert "pbkdf2" not in shown.content.decode()


@pytest.mark.parametrize("page", PAGES)
def test_adding_is_for_admins_alone(page: str, world: worlds.World) -> None:
    url = reverse(f"admin:{page}_add")
    for_admin = _client(world, "adam").get(url).status_code
    for_operator = _client(world, "olga").get(url).status_code
    if page == "tenants_auditentry":
        assert (for_admin, for_operator) == (403, 403)
    elif page == "tenants_accesstoken":
        assert (for_admin, for_operator) == (200, 200)
    else:
        assert (for_admin, for_operator) == (200, 403)


@pytest.mark.parametrize("named", ["acme", "-1", "9" * 30, "1e308", "x" * 5000])
@pytest.mark.parametrize("page", ["tenants_entitlement", "tenants_apikey", "tenants_quota", "tenants_membership"])
def test_what_is_no_key_of_a_row_is_not_chosen_in_a_form(page: str, named: str, world: worlds.World) -> None:
    client, url = _client(world, "adam"), reverse(f"admin:{page}_add")
    names = dict.fromkeys(("tenant", "project", "pool", "adapter", "entitlement", "user"), named)
    assert client.get(url, names).status_code == 200
    refused = client.post(url, names)
    assert (refused.status_code, bool(refused.context["adminform"].form.errors)) == (200, True)
    chosen = client.get(reverse("admin:tenants_quota_add"), {"tenant": world.tenants["acme"].pk})
    assert f'<option value="{world.tenants["acme"].pk}" selected' in chosen.content.decode()


@pytest.mark.parametrize("who", ["alice", "nora"])
def test_members_have_no_back_office(who: str, world: worlds.World) -> None:
    client = _client(world, who)
    assert client.get("/admin/").status_code == 302
    for page in PAGES:
        assert client.get(reverse(f"admin:{page}_changelist")).status_code == 302


def test_a_write_is_audited_with_its_author_and_bumps_the_catalog(world: worlds.World) -> None:
    before = CatalogVersion.objects.get().version
    _client(world, "adam").post(reverse("admin:tenants_tenant_add"), {"slug": "initech", "description": "paper"})
    assert Tenant.objects.filter(slug="initech").exists()
    entry = AuditEntry.objects.get(kind="tenant", object_id="initech")
    assert (entry.actor, entry.via, entry.action) == ("adam", "admin", "create")
    assert CatalogVersion.objects.get().version == before + 1


def test_a_pool_and_its_backends_are_changed_on_one_page(world: worlds.World) -> None:
    client, url = _client(world, "adam"), reverse("admin:tenants_pool_change", args=[world.pool.pk])
    values = _form(client, url)
    values |= {"backends-0-slots": "64", "policy": "fifo", "aliases": '["default"]', "policy_params": "{}"}
    assert client.post(url, values).status_code == 302
    pool = Pool.objects.get()
    assert (pool.policy, pool.policy_version, pool.aliases) == ("fifo", 2, ["default"])
    assert Backend.objects.get().slots == 64
    assert {e.kind for e in AuditEntry.objects.filter(actor="adam")} == {"pool", "backend"}


def test_an_operator_changes_the_policy_and_nothing_else_of_a_pool(world: worlds.World) -> None:
    client, url = _client(world, "olga"), reverse("admin:tenants_pool_change", args=[world.pool.pk])
    posted = {"policy": "fifo", "policy_params": "{}", "model": "other", "max_model_len": "1", "slug": "other"}
    posted |= {"modifiers": '{"bands": {}}', "routing": "prefix_affinity", "routing_params": "{}"}
    assert client.post(url, posted | _management()).status_code == 302
    pool = Pool.objects.get()
    assert (pool.modifiers, pool.routing) == ({"bands": {}}, "prefix_affinity")
    assert (pool.policy, pool.model, pool.slug, pool.max_model_len) == ("fifo", "meta/llama", "llama", 8192)


def test_a_wrong_policy_parameter_is_shown_beside_its_field(world: worlds.World) -> None:
    client, url = _client(world, "adam"), reverse("admin:tenants_pool_change", args=[world.pool.pk])
    values = _form(client, url) | {"policy_params": '{"alpah": 1}', "aliases": "[]"}
    answer = client.post(url, values)
    assert answer.status_code == 200
    assert "alpah" in str(answer.context["adminform"].form.errors["policy_params"])
    assert Pool.objects.get().policy_version == 1


@pytest.mark.parametrize("name", ["policy_params", "modifiers", "routing_params", "scaling_params", "aliases"])
@pytest.mark.parametrize("typed", ["5", "-1.5", "[1]", '"a word"', "true", '{"a": {"b": 1}}'])
def test_parameters_that_are_none_are_refused_beside_their_field(world: worlds.World, name: str, typed: str) -> None:
    client, url = _client(world, "adam"), reverse("admin:tenants_pool_change", args=[world.pool.pk])
    values = _form(client, url) | dict.fromkeys(("policy_params", "modifiers", "routing_params"), "{}")
    answer = client.post(url, values | {"aliases": "[]", "scaling_params": "{}", name: typed})
    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors[name]


def test_an_operator_reads_the_requests(world: worlds.World) -> None:
    assert _client(world, "olga").get(reverse("admin:telemetry_ledgerentry_changelist")).status_code == 200


def test_an_operator_drains_a_backend(world: worlds.World) -> None:
    client = _client(world, "olga")
    client.post(reverse("admin:tenants_backend_changelist"), {"action": "drain", "_selected_action": world.backend.pk})
    assert Backend.objects.get().draining
    client.post(
        reverse("admin:tenants_backend_changelist"), {"action": "undrain", "_selected_action": world.backend.pk}
    )
    assert not Backend.objects.get().draining


def test_an_engines_key_is_kept_when_left_empty_removed_when_asked_and_never_shown(world: worlds.World) -> None:
    client, url = _client(world, "adam"), reverse("admin:tenants_backend_change", args=[world.backend.pk])
    assert client.post(url, _form(client, url) | {"api_key": "canary-engine-key"}).status_code == 302
    assert Backend.objects.get().api_key == "canary-engine-key"
    assert "canary" not in client.get(url).content.decode()
    assert "canary" not in _client(world, "olga").get(url).content.decode()
    client.post(url, _form(client, url) | {"slots": "16"})
    assert (Backend.objects.get().api_key, Backend.objects.get().slots) == ("canary-engine-key", 16)
    assert not any("canary" in str((e.before, e.after)) for e in AuditEntry.objects.all())
    client.post(url, _form(client, url) | {"forget_api_key": "on"})
    assert Backend.objects.get().api_key == ""


def test_a_new_key_is_shown_once_and_works(world: worlds.World) -> None:
    client = _client(world, "adam")
    posted = {"entitlement": world.entitlements["acme"].pk, "name": "ci", "expires_at_0": "", "expires_at_1": ""}
    answer = client.post(reverse("admin:tenants_apikey_add"), posted)
    assert answer.status_code == 200
    assert "no-store" in answer.headers["Cache-Control"]
    secret = re.search(r"data-secret>([^<]+)<", answer.content.decode())[1]
    row = ApiKey.objects.get(name="ci")
    assert keys.matches(keys.parse(secret), row.digest)
    assert row.created_by == world.users["adam"]
    for page in ("apikey_changelist", "auditentry_changelist"):
        assert secret not in client.get(reverse(f"admin:tenants_{page}")).content.decode()
    assert secret not in client.get(reverse("admin:tenants_apikey_change", args=[row.pk])).content.decode()


def test_keys_are_revoked_and_rotated_from_the_list(world: worlds.World) -> None:
    client, url = _client(world, "adam"), reverse("admin:tenants_apikey_changelist")
    first, second = (world.keys[t].row for t in ("acme", "globex"))
    shown = client.post(url, {"action": "rotate", "_selected_action": [first.pk, second.pk]})
    assert len(re.findall(r"data-secret>qm-", shown.content.decode())) == 2
    client.post(url, {"action": "revoke", "_selected_action": first.pk})
    first.refresh_from_db()
    second.refresh_from_db()
    assert first.revoked_at is not None
    assert second.revoked_at is None
    assert second.expires_at is not None
    again = client.post(url, {"action": "rotate", "_selected_action": first.pk}, follow=True)
    assert "This key is revoked" in again.content.decode()


def test_a_key_s_name_and_limits_change_and_what_it_opens_and_a_revoked_one_do_not(world: worlds.World) -> None:
    client, row = _client(world, "adam"), world.keys["acme"].row
    url = reverse("admin:tenants_apikey_change", args=[row.pk])
    client.post(url, _form(client, url) | {"name": "search", "requests_per_minute": "7", "entitlement": "0"})
    changed = ApiKey.objects.get(pk=row.pk)
    assert (changed.name, changed.requests_per_minute, changed.entitlement_id) == ("search", 7, row.entitlement_id)
    assert (changed.digest, changed.public_id) == (row.digest, row.public_id)
    assert _client(world, "olga").post(url, {"name": "hers"}).status_code == 403
    services.revoke_key(actor=SYSTEM, key=changed)
    assert client.post(url, {"name": "again"}).status_code == 403
    assert ApiKey.objects.get(pk=row.pk).name == "search"


def test_an_operator_cannot_revoke(world: worlds.World) -> None:
    client, url = _client(world, "olga"), reverse("admin:tenants_apikey_changelist")
    client.post(url, {"action": "revoke", "_selected_action": world.keys["acme"].row.pk})
    assert ApiKey.objects.get(pk=world.keys["acme"].row.pk).revoked_at is None


def test_deleting_an_entitlement_takes_its_keys_and_says_so_in_the_audit(world: worlds.World) -> None:
    client = _client(world, "adam")
    url = reverse("admin:tenants_entitlement_delete", args=[world.entitlements["acme"].pk])
    assert str(world.keys["acme"].row) in client.get(url).content.decode()
    client.post(url, {"post": "yes"})
    assert not Entitlement.objects.filter(slug="acme-llama").exists()
    gone = AuditEntry.objects.filter(action="delete").values_list("kind", flat=True)
    assert sorted(gone) == ["apikey", "entitlement"]


def test_what_is_needed_elsewhere_is_not_deleted(world: worlds.World) -> None:
    client = _client(world, "adam")
    url = reverse("admin:tenants_pool_changelist")
    client.post(url, {"action": "delete_selected", "_selected_action": world.pool.pk, "post": "yes"})
    assert Pool.objects.exists()


def test_an_admin_makes_a_user_gives_a_role_and_a_password(world: worlds.World) -> None:
    client = _client(world, "adam")
    posted = {
        "username": "dora",
        "usable_password": "true",
        "password1": "correct horse 42",
        "password2": "correct horse 42",
    }
    assert client.post(reverse("admin:auth_user_add"), posted).status_code == 302
    posted = {"user": world.users["nora"].pk, "role": "operator", "tenant": ""}
    assert client.post(reverse("admin:tenants_membership_add"), posted).status_code == 302
    assert Membership.objects.get(user=world.users["nora"]).role == "operator"
    world.users["nora"].refresh_from_db()
    assert world.users["nora"].is_staff
    url = reverse("admin:auth_user_password_change", args=[world.users["nora"].pk])
    assert (
        client.post(
            url, {"usable_password": "true", "password1": "another horse 43", "password2": "another horse 43"}
        ).status_code
        == 302
    )
    done = AuditEntry.objects.filter(actor="adam").values_list("kind", "action")
    assert ("user", "password") in done
    assert "horse" not in str(list(AuditEntry.objects.values()))


def test_a_member_role_needs_a_tenant_and_the_page_says_so(world: worlds.World) -> None:
    posted = {"user": world.users["nora"].pk, "role": "member", "tenant": ""}
    answer = _client(world, "adam").post(reverse("admin:tenants_membership_add"), posted)
    assert "A member needs a tenant" in answer.content.decode()


def test_the_last_admin_cannot_be_deleted(world: worlds.World) -> None:
    client, adam = _client(world, "adam"), world.users["adam"]
    one = client.post(reverse("admin:auth_user_delete", args=[adam.pk]), {"post": "yes"}, follow=True)
    assert "leave no one with the admin role" in one.content.decode()
    selected = {"action": "delete_selected", "_selected_action": adam.memberships.get().pk, "post": "yes"}
    many = client.post(reverse("admin:tenants_membership_changelist"), selected, follow=True)
    assert "leave no one with the admin role" in many.content.decode()
    assert adam.memberships.exists()


def test_writes_need_a_csrf_token(world: worlds.World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.users["adam"])
    for page in PAGES:
        assert client.post(reverse(f"admin:{page}_add"), {}).status_code == 403
        assert client.post(reverse(f"admin:{page}_changelist"), {"action": "revoke"}).status_code == 403


def _management() -> dict[str, str]:
    return {
        "backends-TOTAL_FORMS": "0",
        "backends-INITIAL_FORMS": "0",
        "backends-MIN_NUM_FORMS": "0",
        "backends-MAX_NUM_FORMS": "0",
    }


def test_times_are_written_with_their_seconds_and_their_zone() -> None:
    assert localize(datetime(2026, 11, 21, 9, 5, 7, tzinfo=UTC)) == "21 Nov 2026, 09:05:07 UTC"
