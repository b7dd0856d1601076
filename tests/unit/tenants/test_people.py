"""People of an identity provider: what groups give and take, and what is left of somebody who was removed there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount, SocialLogin
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest
from django.test import Client, override_settings
from django.utils import timezone

from controlplane.signin.adapters import ProviderAdapter
from controlplane.signin.provider import Gone, There, Unknown
from controlplane.signin.recheck import Recheck
from tenants import people, services
from tenants.access import Role, scope_for
from tenants.audit import SYSTEM, Actor
from tenants.models import AccessToken, ApiKey, AuditEntry, GroupRule, Identity, Membership
from tests.support import worlds

pytestmark = pytest.mark.django_db
ISSUER = "https://login.example.org"


@pytest.fixture(autouse=True)
def configured(settings: Any) -> None:
    settings.QUARTERMASTER_OIDC_ISSUER = ISSUER


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def rule(group: str, role: str, tenant: Any = None) -> None:
    services.save(actor=SYSTEM, instance=GroupRule(group=group, role=role, tenant=tenant))


def come_in(name: str, *groups: str) -> Identity:
    user, made = User.objects.get_or_create(username=name, email=f"{name}@example.org")
    if made:
        user.set_unusable_password()
        user.save()
    return people.signed_in(
        user=user,
        issuer=ISSUER,
        subject=f"id-of-{name}",
        groups=list(groups),
        grant=people.Grant("access", "refresh"),
        due_at=timezone.now(),
    )


class Answers:
    """A provider that always says the same."""

    def __init__(self, answer: There | Gone | Unknown) -> None:
        self.answer = answer
        self.asked: list[tuple[str, people.Grant]] = []

    def ask(self, subject: str, grant: people.Grant) -> There | Gone | Unknown:
        self.asked.append((subject, grant))
        return self.answer

    def close(self) -> None: ...


def look(identity: Identity, answer: There | Gone | Unknown) -> Identity:
    Recheck(Answers(answer), 30, "groups").look(identity)  # type: ignore[arg-type]
    return Identity.objects.select_related("user").get(pk=identity.pk)


@pytest.mark.parametrize(
    ("claims", "claim", "groups"),
    [
        ({"groups": ["b", "a", "a"]}, "groups", ["a", "b"]),
        ({"groups": "one"}, "groups", ["one"]),
        ({"realm_access": {"roles": ["x"]}}, "realm_access.roles", ["x"]),
        ({"https://example.org/groups": ["x"]}, "https://example.org/groups", ["x"]),
        ({"groups": [1, None, "", "x" * 201, {"a": 1}, "ok"]}, "groups", ["ok"]),
        ({"groups": ["a\0b", "a\ud800", "\udfffb", "ok"]}, "groups", ["ok"]),
        ({"groups": []}, "groups", []),
        ({"groups": None}, "groups", []),
        ({}, "groups", None),
        ({"groups": {"a": 1}}, "groups", None),
        ({"realm_access": 7}, "realm_access.roles", None),
    ],
)
def test_groups_are_read_from_claims(claims: dict[str, Any], claim: str, groups: list[str] | None) -> None:
    assert people.groups_in(claims, claim) == groups


def test_the_groups_of_one_person_are_bounded() -> None:
    assert len(people.groups_in({"groups": [f"g{n}" for n in range(5_000)]}, "groups") or []) == people.MOST_GROUPS


def test_groups_give_roles_and_the_higher_one_for_everything(world: worlds.World) -> None:
    rule("ops", "operator")
    rule("chiefs", "admin")
    rule("acme", "member", world.tenants["acme"])
    user = come_in("ada", "ops", "chiefs", "acme", "unknown").user
    scope = scope_for(user)
    assert scope.role == Role.ADMIN
    assert scope.tenant_ids == {world.tenants["acme"].pk}
    assert Membership.objects.filter(user=user, role="operator").count() == 0


def test_a_role_that_an_admin_gave_stays_when_groups_change(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    by_hand = Membership(user=identity.user, tenant=world.tenants["globex"], role="member")
    services.save(actor=SYSTEM, instance=by_hand)
    identity = look(identity, There({"groups": []}))
    assert identity.ended_at is None
    assert scope_for(identity.user).tenant_ids == {world.tenants["globex"].pk}


def test_groups_that_are_not_named_are_not_taken_away(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = look(come_in("ada", "acme"), There({"sub": "id-of-ada"}))
    assert scope_for(identity.user).tenant_ids == {world.tenants["acme"].pk}


def answered(looks: Recheck, identity: Identity, claims: dict[str, Any], source: str = "userinfo") -> Identity:
    looks._provider = Answers(There(claims, None, {source: claims}))  # type: ignore[assignment]
    looks.look(Identity.objects.get(pk=identity.pk))
    return Identity.objects.select_related("user").get(pk=identity.pk)


@pytest.mark.parametrize("source", ["userinfo", "token"])
def test_who_left_their_last_group_loses_its_role_where_a_provider_leaves_an_empty_claim_out(
    world: worlds.World, source: str
) -> None:
    rule("chiefs", "admin")
    ada, bea = come_in("ada", "chiefs"), come_in("bea", "chiefs")
    looks = Recheck(None, 30, "groups")
    for person in (ada, bea):
        answered(looks, person, {"groups": ["chiefs"]}, source)
    for _ in range(2):
        ada = answered(looks, ada, {}, source)
        assert ada.user.is_active, "the claim may be missing of everybody"
    assert answered(looks, bea, {"groups": ["chiefs"]}, source).user.is_active
    ada = answered(looks, ada, {}, source)
    assert (ada.user.is_active, ada.groups, scope_for(ada.user).role) == (False, [], None)


def test_a_claim_that_a_provider_leaves_out_for_everybody_or_names_elsewhere_ends_nobody(world: worlds.World) -> None:
    rule("chiefs", "admin")
    ada, bea, cleo = (come_in(name, "chiefs") for name in ("ada", "bea", "cleo"))
    looks = Recheck(None, 30, "groups")
    for person in (ada, bea):
        answered(looks, person, {"groups": ["chiefs"]})
    for person in (ada, bea, ada, bea):  # a mapper is not there any more
        assert answered(looks, person, {}).user.is_active
    answered(looks, bea, {"groups": ["chiefs"]})
    for _ in range(2):  # too many groups for a token of Entra ID, and somebody of whom this source never spoke
        assert answered(looks, ada, {"_claim_names": {"groups": "src1"}}).user.is_active
        assert answered(looks, cleo, {}).user.is_active
        assert answered(looks, ada, {}, "token").user.is_active


@pytest.mark.parametrize(("issuer", "asked"), [("https://former.example", False), (f"{ISSUER}/", True), (ISSUER, True)])
def test_tokens_of_a_provider_go_to_that_provider_alone(world: worlds.World, issuer: str, asked: bool) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    Identity.objects.update(issuer=issuer)
    provider = Answers(Gone("It does not know them."))
    Recheck(provider, 30, "groups").look(Identity.objects.get())  # type: ignore[arg-type]
    assert (bool(provider.asked), Identity.objects.get(pk=identity.pk).ended_at is not None) == (asked, asked)


def test_a_group_that_no_database_keeps_holds_up_no_change_of_roles(world: worlds.World) -> None:
    """Whoever may name a group at the provider could have kept their roles here by it."""
    rule("chiefs", "admin")
    rule("acme", "member", world.tenants["acme"])
    identity = look(come_in("ada", "chiefs", "acme"), There({"groups": ["acme", "a\ud800", "a\0b", "a\u202eb"]}))
    assert identity.groups == ["acme"]
    assert scope_for(identity.user).role == Role.MEMBER
    identity = look(identity, There({"groups": ["a\ud800"]}))
    assert not identity.user.is_active


def test_a_rule_that_is_taken_back_ends_whom_it_had_let_in(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    GroupRule.objects.all().delete()
    identity = look(identity, There({"groups": ["acme"]}))
    assert identity.ended_because == "No group of theirs has a role here any more."
    assert not identity.user.is_active


@pytest.mark.parametrize("keys", [False, True])
def test_who_is_removed_there_loses_sessions_tokens_and_by_setting_keys(world: worlds.World, keys: bool) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    browser = Client()
    browser.force_login(identity.user)
    services.issue_token(actor=SYSTEM, user=identity.user, name="mine")
    made = services.issue_key(actor=SYSTEM, name="k", entitlement=world.entitlements["acme"], user="ada@example.org")
    other = services.issue_key(actor=SYSTEM, name="o", entitlement=world.entitlements["acme"], user="bea@example.org")
    assert browser.get("/api/v1/me").status_code == 200
    session = UserSession.objects.get(user=identity.user).session_key

    with override_settings(QUARTERMASTER_OIDC_END_KEYS=keys):
        identity = look(identity, Gone("gone"))
        assert look(identity, Gone("gone again")).ended_because == "gone"

    assert browser.get("/api/v1/me").status_code == 401
    assert not SessionStore().exists(session)
    assert AccessToken.active_at(timezone.now()).filter(user=identity.user).count() == 0
    assert scope_for(identity.user).role is None
    assert (ApiKey.objects.get(pk=made.row.pk).revoked_at is not None) is keys
    assert ApiKey.objects.get(pk=other.row.pk).revoked_at is None
    (entry,) = AuditEntry.objects.filter(action="end")
    assert entry.after == {"reason": "gone", "sessions": 1, "access_tokens": 1, "api_keys": int(keys)}


@pytest.mark.parametrize("how", ["removed there", "taken out of the groups"])
@override_settings(QUARTERMASTER_OIDC_END_KEYS=True)
def test_a_name_that_people_choose_ends_keys_only_where_they_had_a_role(world: worlds.World, how: str) -> None:
    """Whoever calls themselves as another tenant's keys are labelled would end those by leaving."""
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    name = identity.user.get_username()

    def issued(tenant: str, **more: Any) -> ApiKey:
        return services.issue_key(actor=SYSTEM, name="k", entitlement=world.entitlements[tenant], user=name, **more).row

    ours, theirs = issued("acme"), issued("globex")
    made = services.issue_key(
        actor=Actor(name, "test", identity.user), name="made", entitlement=world.entitlements["globex"]
    ).row
    identity = look(identity, Gone("gone") if how == "removed there" else There({"groups": []}))
    assert identity.ended_at is not None
    assert [ApiKey.objects.get(pk=key.pk).revoked_at is not None for key in (ours, theirs, made)] == [True, False, True]


def test_the_last_admin_is_removed_too(world: worlds.World) -> None:
    rule("chiefs", "admin")
    identity = come_in("ada", "chiefs")
    User.objects.filter(is_superuser=True).update(is_active=False)
    Membership.objects.filter(role="admin").exclude(user=identity.user).delete()
    identity = look(identity, Gone("gone"))
    assert scope_for(identity.user).role is None
    assert not identity.user.is_staff


def test_a_provider_that_does_not_say_removes_nobody_and_the_reason_is_kept(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = look(come_in("ada", "acme"), Unknown("It is away."))
    assert (identity.ended_at, identity.trouble, identity.user.is_active) == (None, "It is away.", True)
    assert look(identity, There({"groups": ["acme"]})).trouble == ""


def test_what_the_provider_gave_is_sealed_and_a_renewed_one_replaces_it(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    assert "refresh" not in identity.grant
    identity = look(identity, There({"groups": ["acme"]}, people.Grant("a2", "r2")))
    assert people.Grant.opened(identity.grant) == people.Grant("a2", "r2")


def test_under_another_key_of_the_instance_people_sign_in_anew(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    with override_settings(SECRET_KEY="x" * 40):
        identity = look(identity, There({"groups": ["acme"]}))
    assert identity.ended_at is not None


def test_who_was_removed_may_come_back_and_old_tokens_stay_ended(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    services.issue_token(actor=SYSTEM, user=identity.user, name="mine")
    look(identity, Gone("gone"))
    user = come_in("ada", "acme").user
    assert User.objects.get(pk=user.pk).is_active
    assert AccessToken.active_at(timezone.now()).filter(user=user).count() == 0


@pytest.mark.parametrize("first", ["the admin", "the provider"])
def test_whom_an_admin_has_disabled_stays_out_whatever_the_provider_ends_and_who_returns(
    world: worlds.World, first: str
) -> None:
    """Who is disabled could log out at the provider, which ends them here too, and sign in again."""
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    if first == "the provider":
        identity = look(identity, Gone("logged out there"))
    people.set_active(actor=SYSTEM, user=identity.user, active=False)
    identity = look(Identity.objects.select_related("user").get(pk=identity.pk), Gone("logged out there"))
    assert Membership.objects.filter(user=identity.user).count() == 0
    come_in("ada", "acme")
    assert not User.objects.get(pk=identity.user.pk).is_active


def test_the_back_office_keeps_out_whom_it_disables_like_the_page_people(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = look(come_in("ada", "acme"), Gone("gone"))
    browser = Client()
    browser.force_login(world.users["adam"])
    page = f"/admin/auth/user/{identity.user.pk}/change/"
    form = {
        "username": "ada",
        "email": "ada@example.org",
        "memberships-TOTAL_FORMS": "0",
        "memberships-INITIAL_FORMS": "0",
    }
    for tick in ({"is_active": "on"}, {}):
        assert browser.post(page, form | tick).status_code == 302
    come_in("ada", "acme")
    assert not User.objects.get(pk=identity.user.pk).is_active


@pytest.mark.parametrize(("verified", "taken"), [(True, True), (None, True), (False, False), ("false", False)])
def test_nobody_gets_an_address_that_the_provider_has_not_verified_and_so_none_of_its_keys_to_end(
    verified: Any, taken: bool
) -> None:
    """Who may write any address there could, by leaving, end the keys of whose address it is."""
    said = {"sub": "1", "email": "boss@example.org"} | ({} if verified is None else {"email_verified": verified})
    login = SocialLogin(user=User(), account=SocialAccount(provider="sso", uid="1", extra_data={"userinfo": said}))
    user = ProviderAdapter().populate_user(HttpRequest(), login, {"username": "eve", "email": said["email"]})
    assert (user.username, user.email) == ("eve", "boss@example.org" if taken else "")


def test_each_person_is_asked_about_once_when_due_by_however_many_processes(world: worlds.World) -> None:
    rule("acme", "member", world.tenants["acme"])
    identity = come_in("ada", "acme")
    now = timezone.now()
    first, second = (Recheck(Answers(Unknown("away")), 30, "groups") for _ in range(2))  # type: ignore[arg-type]
    asked: list[int] = []
    first._one = second._one = asked.append  # type: ignore[assignment]
    assert (first.turn(), second.turn()) == (1, 0)
    assert asked == [identity.pk]
    Identity.objects.update(due_at=now - timedelta(seconds=1))
    assert second.turn() == 1


def test_the_oldest_of_too_many_sessions_ends(world: worlds.World) -> None:
    browsers = [Client() for _ in range(people.MOST_SESSIONS + 1)]
    for browser in browsers:
        browser.force_login(world.users["alice"])
    assert [browser.get("/api/v1/me").status_code for browser in browsers[:2]] == [401, 200]
    assert UserSession.objects.filter(user=world.users["alice"]).count() == people.MOST_SESSIONS
