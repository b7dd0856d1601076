"""Invitations, service accounts, sessions and access tokens: each bounded, each ended by who may."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client, override_settings
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import people, services
from tenants.access import scope_for
from tenants.audit import SYSTEM
from tenants.models import AccessToken, ApiKey, AuditEntry, Budget, Invitation, Membership, Role
from tenants.models.metering import BudgetScope
from tenants.veiled import unveil
from tests.support import worlds

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def api_of(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    api.force_login(world.users[who])
    return api


def join(link: str, name: str) -> tuple[int, Client]:
    browser = Client()
    form = {"username": name, "password1": PASSWORD, "password2": PASSWORD}
    return browser.post(link, form).status_code, browser


def test_an_invitation_makes_one_account_with_its_role_once(world: worlds.World) -> None:
    asked = {"name": "Ada", "role": "member", "tenant": "acme"}
    made = api_of(world, "adam").post("/api/v1/invitations", asked, format="json")
    link = made.json()["link"].removeprefix("http://testserver")
    status, browser = join(link, "ada")
    assert status == 302
    told = browser.get("/api/v1/me").json()
    assert (told["role"], [tenant["slug"] for tenant in told["tenants"]]) == ("member", ["acme"])
    assert join(link, "eve")[0] == 410
    assert not User.objects.filter(username="eve").exists()
    row = Invitation.objects.get()
    assert (row.used_by, row.status_at(timezone.now())) == ("ada", "used")
    assert link.partition(".")[2] not in str(AuditEntry.objects.values_list("before", "after"))


def test_an_invitation_leads_to_the_public_address_however_its_maker_came_here(
    world: worlds.World, settings: Any
) -> None:
    """An admin may use another name (a port forwarding, a proxy that drops the port) than those who are invited."""
    settings.QUARTERMASTER_PUBLIC_URL = "https://llm.example.org:8443/"
    asked = {"name": "Ada", "role": "member", "tenant": "acme"}
    link = api_of(world, "adam").post("/api/v1/invitations", asked, format="json").json()["link"]
    assert link.startswith("https://llm.example.org:8443/join/")
    assert join(link.removeprefix("https://llm.example.org:8443"), "ada")[0] == 302


@pytest.mark.parametrize("how", ["revoked", "expired", "another secret"])
def test_an_invitation_that_is_over_opens_nothing(world: worlds.World, how: str) -> None:
    issued = people.invite(actor=SYSTEM, name="Ada", role="operator", tenant=None)
    text = issued.credential.text
    if how == "revoked":
        people.revoke_invitation(actor=SYSTEM, invitation=Invitation.objects.get())
    elif how == "expired":
        Invitation.objects.update(expires_at=timezone.now())
    else:
        text = text[:-4] + ("AAAA" if text[-4:] != "AAAA" else "BBBB")
    assert join(f"/join/{text}", "ada")[0] == 410
    assert not User.objects.filter(username="ada").exists()


def test_invitations_are_bounded_in_life_and_number(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (timezone.now() - timedelta(seconds=1), timezone.now() + timedelta(days=31)):
        with pytest.raises(ValidationError):
            people.invite(actor=SYSTEM, name="x", role="operator", tenant=None, expires_at=wrong)
    monkeypatch.setattr(people, "MOST_INVITATIONS", 1)
    people.invite(actor=SYSTEM, name="x", role="operator", tenant=None)
    with pytest.raises(ValidationError, match="the most"):
        people.invite(actor=SYSTEM, name="y", role="operator", tenant=None)


@pytest.mark.parametrize("ends", ["disabled", "demoted", "deleted", "token revoked"])
def test_an_invitation_ends_with_the_right_of_who_made_it(world: worlds.World, ends: str) -> None:
    """A link that was kept for oneself, or made with a stolen token, would be the way back in."""
    rogue = User.objects.create_user("rogue", password=PASSWORD)
    role = services.save(actor=SYSTEM, instance=Membership(user=rogue, role=Role.ADMIN))
    token = services.issue_token(actor=SYSTEM, user=rogue, name="x")
    api = APIClient()
    if ends == "token revoked":
        api.credentials(HTTP_AUTHORIZATION=f"Bearer {token.credential.text}")
    else:
        api.force_login(rogue)
    made = api.post("/api/v1/invitations", {"name": "x", "role": "admin"}, format="json").json()
    match ends:
        case "disabled":
            people.set_active(actor=SYSTEM, user=rogue, active=False)
        case "demoted":
            services.delete(actor=SYSTEM, instance=role)
        case "deleted":
            services.delete(actor=SYSTEM, instance=rogue)
        case "token revoked":
            services.revoke_token(actor=SYSTEM, token=token.row)
    assert join(made["link"].removeprefix("http://testserver"), "eve")[0] == 410
    assert not User.objects.filter(username="eve").exists()
    assert not Invitation.open_at(timezone.now()).exists()
    listed = api_of(world, "adam").get("/api/v1/invitations").json()["results"]
    assert [row["status"] for row in listed] == ([] if ends == "deleted" else ["revoked"])


@pytest.mark.parametrize("by", ["session", "token"])
def test_what_invitations_made_is_told_when_their_maker_is_deleted(world: worlds.World, by: str) -> None:
    """One that was used stays, as it says where an account comes from; of an open one the audit log has the end."""
    maker = User.objects.create_user("maker", password=PASSWORD)
    services.save(actor=SYSTEM, instance=Membership(user=maker, role=Role.ADMIN))
    token = services.issue_token(actor=SYSTEM, user=maker, name="x")
    api = APIClient()
    if by == "token":
        api.credentials(HTTP_AUTHORIZATION=f"Bearer {token.credential.text}")
    else:
        api.force_login(maker)
    links = [
        api.post("/api/v1/invitations", {"name": name, "role": "operator"}, format="json").json()["link"]
        for name in ("used", "open")
    ]
    assert join(links[0].removeprefix("http://testserver"), "eve")[0] == 302
    services.delete(actor=SYSTEM, instance=maker)
    assert list(Invitation.objects.values_list("used_by", flat=True)) == ["eve"]
    assert AuditEntry.objects.filter(action="delete", kind="invitation").count() == 1


@pytest.mark.parametrize("name", ["adam", "Adam", "quartermaster"])
def test_a_taken_user_name_leaves_the_invitation_open(world: worlds.World, name: str) -> None:
    issued = people.invite(actor=SYSTEM, name="Ada", role="operator", tenant=None)
    assert join(f"/join/{issued.credential.text}", name)[0] == 200
    assert not User.objects.filter(username=name).exclude(username="adam").exists()
    assert Invitation.open_at(timezone.now()).count() == 1


def test_a_token_for_reading_changes_nothing_and_makes_no_token_for_more(world: worlds.World) -> None:
    made = api_of(world, "adam").post("/api/v1/tokens", {"name": "r", "scope": "read"}, format="json").json()
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {made['token']}")
    assert api.get("/api/v1/tenants").status_code == 200
    refused = api.post("/api/v1/tenants", {"slug": "new"}, format="json")
    assert (refused.status_code, "for reading only" in refused.json()["detail"]) == (403, True)
    row = AccessToken.objects.get(public_id=made["id"])
    with pytest.raises(ValidationError, match="makes no token for more"):
        services.issue_token(actor=SYSTEM, user=world.users["adam"], name="x", made_with=row)


def test_tokens_live_no_longer_than_the_setting_says(world: worlds.World) -> None:
    user = world.users["adam"]
    with override_settings(QUARTERMASTER_TOKEN_DAYS=30):
        row = services.issue_token(actor=SYSTEM, user=user, name="x").row
        assert row.expires_at is not None
        assert row.expires_at <= timezone.now() + timedelta(days=30)
        with pytest.raises(ValidationError, match="30 days at most"):
            services.issue_token(actor=SYSTEM, user=user, name="y", expires_at=timezone.now() + timedelta(days=31))


def test_one_tenant_has_a_bounded_number_of_keys_and_rotates_the_last_all_the_same(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_KEYS", 2)
    member, path = api_of(world, "alice"), "/api/v1/keys"
    asked = {"name": "k", "entitlement": "acme-llama"}
    made = member.post(path, asked, format="json")
    refused = member.post(path, asked, format="json")
    assert (made.status_code, refused.status_code) == (201, 400)
    assert "the most" in refused.content.decode()
    rotated = member.post(f"{path}/{made.json()['id']}/rotate", {"overlap_s": 60}, format="json")
    assert rotated.status_code == 201
    assert member.post(path, asked, format="json").status_code == 400
    for key in (made, rotated):
        assert member.post(f"{path}/{key.json()['id']}/revoke").status_code == 200
    assert member.post(path, asked, format="json").status_code == 201
    assert services.issue_key(actor=SYSTEM, name="other", entitlement=world.entitlements["globex"])


def test_keys_that_work_no_more_are_listed_in_a_bounded_number_and_audited_for_ever(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_ENDED", 2)
    acme = world.entitlements["acme"]

    def ended() -> str:
        return str(services.revoke_key(actor=SYSTEM, key=issue().row).public_id)  # type: ignore[arg-type]

    def issue(**options: Any) -> services.Issued:
        return services.issue_key(actor=SYSTEM, name="k", entitlement=acme, **options)

    other = services.issue_key(actor=SYSTEM, name="other", entitlement=world.entitlements["globex"]).row
    services.revoke_key(actor=SYSTEM, key=other)  # type: ignore[arg-type]
    budgeted = ended()
    services.save(
        actor=SYSTEM,
        instance=Budget(
            tenant=acme.tenant, scope=BudgetScope.KEY, name=budgeted, hard_amount=Decimal(1), currency="EUR"
        ),
    )
    expired = issue(expires_at=timezone.now() + timedelta(hours=1)).row.public_id
    ApiKey.objects.filter(public_id=expired).update(expires_at=timezone.now() - timedelta(hours=1))
    revoked = [ended() for _ in range(4)]
    works = issue().row.public_id
    left = set(ApiKey.objects.filter(entitlement=acme, name="k").values_list("public_id", flat=True))
    assert left == {budgeted, *revoked[-2:], works}  # the oldest went, but for the one that a budget names
    assert ApiKey.objects.filter(pk=other.pk).exists()
    gone = AuditEntry.objects.filter(kind="apikey", action="delete").order_by("pk").values_list("object_id", flat=True)
    assert list(gone) == [f"qm-{name}" for name in (expired, *revoked[:2])]


def test_tokens_that_work_no_more_are_listed_in_a_bounded_number(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_ENDED", 1)
    bob, rows = world.users["bob"], []
    before = set(AccessToken.objects.values_list("pk", flat=True))
    for name in ("first", "second", "third"):
        row = services.issue_token(actor=SYSTEM, user=bob, name=name).row
        rows.append(services.revoke_token(actor=SYSTEM, token=row))  # type: ignore[arg-type]
    services.issue_token(actor=SYSTEM, user=bob, name="works")
    left = AccessToken.objects.exclude(pk__in=before).order_by("pk")
    assert [row.name for row in left] == ["third", "works"]


def test_one_user_has_a_bounded_number_of_tokens(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_TOKENS", AccessToken.objects.filter(user=world.users["adam"]).count() + 1)
    services.issue_token(actor=SYSTEM, user=world.users["adam"], name="x")
    with pytest.raises(ValidationError, match="the most"):
        services.issue_token(actor=SYSTEM, user=world.users["adam"], name="y")


MIXED = "\u0430dmin"  # begins with a Cyrillic letter


def test_a_user_name_that_mixes_scripts_is_refused_wherever_it_is_chosen(world: worlds.World) -> None:
    link = people.invite(actor=SYSTEM, name="new colleague", role="operator", tenant=None).credential.text
    form = {"username": MIXED, "password1": PASSWORD, "password2": PASSWORD}
    again = Client().post(f"/join/{link}", form)
    assert (again.status_code, "mixes Cyrillic and Latin" in again.content.decode()) == (200, True)
    refused = api_of(world, "adam").post("/api/v1/people", {"username": MIXED, "description": ""}, format="json")
    assert refused.status_code == 400
    assert "mixes Cyrillic and Latin" in refused.json()["username"][0]
    assert not User.objects.filter(username=MIXED).exists()


@pytest.mark.parametrize(
    "name", ["\u0430\u043d\u043d\u0430", "J\u00fcrgen.2", "\u7530\u4e2d\u3055\u3093.tanaka", "\ud55c\uae00"]
)
def test_user_names_are_taken_in_any_script(world: worlds.World, name: str) -> None:
    people.make_service_account(actor=SYSTEM, username=name, description="")
    assert User.objects.filter(username=name).exists()


def test_an_account_with_such_a_name_can_be_changed_and_disabled(world: worlds.World) -> None:
    user = User.objects.create(username=MIXED, password="!")
    assert not people.set_active(actor=SYSTEM, user=user, active=False).is_active


def test_a_service_account_has_no_password_and_admins_make_its_tokens_but_nobody_elses(world: worlds.World) -> None:
    api = api_of(world, "adam")
    made = api.post("/api/v1/people", {"username": "ci", "description": "builds"}, format="json").json()
    assert made["kind"] == "service"
    assert not User.objects.get(username="ci").has_usable_password()
    issued = api.post(f"/api/v1/people/{made['id']}/token", {"name": "t", "scope": "read"}, format="json")
    assert (issued.status_code, issued.json()["user"]) == (201, "ci")
    person = world.users["alice"].pk
    assert api.post(f"/api/v1/people/{person}/token", {"name": "t"}, format="json").status_code == 400


def test_a_disabled_account_has_no_sessions_and_tokens_and_the_last_admin_cannot_be_disabled(
    world: worlds.World,
) -> None:
    browser = Client()
    browser.force_login(world.users["alice"])
    api = api_of(world, "adam")
    assert api.post(f"/api/v1/people/{world.users['alice'].pk}/disable").json()["active"] is False
    assert browser.get("/api/v1/me").status_code == 401
    assert AccessToken.active_at(timezone.now()).filter(user=world.users["alice"]).count() == 0
    assert api.post(f"/api/v1/people/{world.users['alice'].pk}/enable").json()["active"] is True
    admins = [user for user in User.objects.filter(is_active=True) if scope_for(user).may_write]
    assert [admin.username for admin in admins] == ["adam"]
    assert api.post(f"/api/v1/people/{admins[0].pk}/disable").status_code == 400


def test_a_session_is_ended_by_its_owner_and_by_admins_only(world: worlds.World) -> None:
    browser = Client()
    browser.force_login(world.users["alice"])
    own = api_of(world, "alice")
    (row, _) = sorted(own.get("/api/v1/sessions").json()["results"], key=lambda one: one["current"])
    assert api_of(world, "bob").post(f"/api/v1/sessions/{row['id']}/revoke").status_code == 404
    assert browser.get("/api/v1/me").status_code == 200
    stored = unveil(UserSession, row["id"])
    assert api_of(world, "adam").post(f"/api/v1/sessions/{stored}/revoke").status_code == 204
    assert browser.get("/api/v1/me").status_code == 401
    assert AuditEntry.objects.filter(action="end session", object_id="alice").count() == 1
