"""Who may do what, on every route of the management API.

The table is compared with the URLconf: a route or verb without a row fails. Each row is tried by everybody, on a row of
acme's (or of nobody's, for what all share). 404 for Carol means that acme's things do not exist for her.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import Group
from django.db import transaction
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from pytest_django import DjangoDbBlocker
from rest_framework.test import APIClient

from tenants import people, services
from tenants.access import Scope
from tenants.audit import SYSTEM
from tenants.models import (
    Adapter,
    AuditEntry,
    Budget,
    Entitlement,
    GroupRule,
    Membership,
    Price,
    Project,
    Quota,
    Role,
    Tenant,
)
from tenants.veiled import veil
from tests.support import worlds

pytestmark = pytest.mark.django_db

VERBS = ("get", "post", "put", "patch", "delete")
CAST = ("anonymous", "nora", "carol", "alice", "bob", "olga", "adam")

# Answers in the order of CAST. A list (200) is checked for strangers' rows as well, below.
EVERY_ROLE = (401, 403, 200, 200, 200, 200, 200)
ACMES = (401, 403, 404, 200, 200, 200, 200)  # Carol is of another tenant
SHARED = (401, 403, 200, 200, 200, 200, 200)  # both tenants use it
STAFF_SEES = (401, 403, 404, 404, 404, 200, 200)
STAFF_DOES = (401, 403, 404, 404, 404, 200, 200)
ADMIN_MAKES = (401, 403, 403, 403, 403, 403, 201)
OWN_OR_ADMIN = (401, 403, 404, 200, 404, 404, 200)  # Alice's token is tried by id: she has it, admins can end it


def _admin_changes(sight: tuple[int, ...], done: int = 200) -> tuple[int, ...]:
    """Whoever sees it is forbidden to change it, except admins."""
    return (*tuple(403 if answer == 200 else answer for answer in sight[:-1]), done)


TENANT = {"slug": "umbrella"}
SLO = {"slug": "quick", "ttft_s": 0.5, "tbt_s": 0.05}
TIER = {"slug": "gold", "slo": "interactive"}
POOL = {"slug": "qwen", "model": "qwen3-8b"}
BACKEND = {"slug": "gpu-2", "pool": "llama", "url": "http://10.0.0.2:8000"}
ENTITLEMENT = {"slug": "acme-second", "tenant": "acme", "pool": "llama", "tier": "standard"}
TEXT = {"description": "changed"}

# (route, verb): (answers, body)
MATRIX: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {
    ("", "get"): (EVERY_ROLE, None),
    ("me", "get"): (EVERY_ROLE, None),
    ("policies", "get"): (EVERY_ROLE, None),
    ("tenants", "get"): (EVERY_ROLE, None),
    ("tenants", "post"): (ADMIN_MAKES, TENANT),
    ("tenants/{tenant}", "get"): (ACMES, None),
    ("tenants/{tenant}", "patch"): (_admin_changes(ACMES), TEXT),
    ("tenants/{tenant}", "delete"): (_admin_changes(ACMES, 409), None),  # it has an entitlement
    # Who sees the tenant is forbidden to pause it, unless its role is to operate.
    ("tenants/{tenant}/pause", "post"): ((401, 403, 404, 403, 403, 200, 200), {"reason": "a runaway job"}),
    ("tenants/{tenant}/resume", "post"): ((401, 403, 404, 403, 403, 200, 200), None),
    ("tenants/{tenant}/revoke-user", "post"): ((401, 403, 404, 200, 200, 403, 200), {"user": "ada"}),
    ("slos", "get"): (EVERY_ROLE, None),
    ("slos", "post"): (ADMIN_MAKES, SLO),
    ("slos/{slo}", "get"): (ACMES, None),
    ("slos/{slo}", "patch"): (_admin_changes(ACMES), TEXT),
    ("slos/{slo}", "delete"): (_admin_changes(ACMES, 409), None),
    ("tiers", "get"): (EVERY_ROLE, None),
    ("tiers", "post"): (ADMIN_MAKES, TIER),
    ("tiers/{tier}", "get"): (ACMES, None),
    ("tiers/{tier}", "patch"): (_admin_changes(ACMES), TEXT),
    ("tiers/{tier}", "delete"): (_admin_changes(ACMES, 409), None),
    ("pools", "get"): (EVERY_ROLE, None),
    ("pools", "post"): (ADMIN_MAKES, POOL),
    ("pools/{pool}", "get"): (SHARED, None),
    ("pools/{pool}", "patch"): (_admin_changes(SHARED), TEXT),
    ("pools/{pool}", "delete"): (_admin_changes(SHARED, 409), None),
    ("pools/{pool}/policy", "post"): ((401, 403, 403, 403, 403, 200, 200), {"policy": "fifo"}),
    ("backends", "get"): (EVERY_ROLE, None),
    ("backends", "post"): (ADMIN_MAKES, BACKEND),
    ("backends/{backend}", "get"): (STAFF_SEES, None),
    ("backends/{backend}", "patch"): (_admin_changes(STAFF_SEES), TEXT),
    ("backends/{backend}", "delete"): (_admin_changes(STAFF_SEES, 204), None),
    ("backends/{backend}/drain", "post"): (STAFF_DOES, None),
    ("backends/{backend}/undrain", "post"): (STAFF_DOES, None),
    ("adapters", "get"): (EVERY_ROLE, None),
    ("adapters", "post"): (ADMIN_MAKES, {"slug": "law", "pool": "llama", "model": "llama-law"}),
    ("adapters/{adapter}", "get"): (ACMES, None),
    ("adapters/{adapter}", "patch"): (_admin_changes(ACMES), {"source": "/adapters/sql"}),
    ("adapters/{adapter}", "delete"): (_admin_changes(ACMES, 409), None),
    ("entitlements", "get"): (EVERY_ROLE, None),
    ("entitlements", "post"): (ADMIN_MAKES, ENTITLEMENT),
    ("entitlements/{entitlement}", "get"): (ACMES, None),
    ("entitlements/{entitlement}", "patch"): (_admin_changes(ACMES), TEXT),
    ("entitlements/{entitlement}", "delete"): (_admin_changes(ACMES, 204), None),
    ("projects", "get"): (EVERY_ROLE, None),
    ("projects", "post"): (ADMIN_MAKES, {"slug": "new", "tenant": "acme"}),
    ("projects/{project}", "get"): (ACMES, None),
    ("projects/{project}", "patch"): (_admin_changes(ACMES), {"aliases": {"gpt-4o": "llama"}}),
    ("projects/{project}", "delete"): (_admin_changes(ACMES, 204), None),
    ("quotas", "get"): (EVERY_ROLE, None),
    ("quotas", "post"): (ADMIN_MAKES, {"tenant": "acme", "period": "day", "hard_tokens": 10}),
    ("quotas/{quota}", "get"): (ACMES, None),
    ("quotas/{quota}", "patch"): (_admin_changes(ACMES), {"hard_tokens": 99}),
    ("quotas/{quota}", "delete"): (_admin_changes(ACMES, 204), None),
    ("budgets", "get"): (EVERY_ROLE, None),
    ("budgets", "post"): (ADMIN_MAKES, {"tenant": "acme", "scope": "user", "name": "ada", "hard_amount": "10"}),
    ("budgets/{budget}", "get"): (ACMES, None),
    ("budgets/{budget}", "patch"): (_admin_changes(ACMES), {"hard_amount": "99"}),
    ("budgets/{budget}", "delete"): (_admin_changes(ACMES, 204), None),
    ("prices", "get"): (EVERY_ROLE, None),
    ("prices", "post"): (ADMIN_MAKES, {"pool": "llama", "valid_from": "2026-01-01T00:00:00Z"}),
    ("prices/{price}", "get"): (SHARED, None),
    ("prices/{price}", "patch"): (_admin_changes(SHARED), {"currency": "EUR"}),
    ("prices/{price}", "delete"): (_admin_changes(SHARED, 204), None),
    ("keys", "get"): (EVERY_ROLE, None),
    # An entitlement out of sight is an unknown name (400); Olga sees it but does not make keys.
    ("keys", "post"): ((401, 403, 400, 201, 201, 403, 201), {"name": "ci", "entitlement": "acme-llama"}),
    ("keys/{key}", "get"): (ACMES, None),
    ("keys/{key}", "patch"): ((401, 403, 404, 200, 200, 403, 200), {"name": "changed"}),
    ("keys/{key}/revoke", "post"): ((401, 403, 404, 200, 200, 403, 200), None),
    ("keys/{key}/rotate", "post"): ((401, 403, 404, 201, 201, 403, 201), {"overlap_s": 60}),
    ("tokens", "get"): (EVERY_ROLE, None),
    ("tokens", "post"): ((401, 403, 201, 201, 201, 201, 201), {"name": "ci"}),
    ("tokens/{token}", "get"): (OWN_OR_ADMIN, None),
    ("tokens/{token}/revoke", "post"): (OWN_OR_ADMIN, None),
    ("memberships", "get"): (EVERY_ROLE, None),
    ("memberships", "post"): (ADMIN_MAKES, {"user": "nora", "tenant": "acme", "role": "member"}),
    ("memberships/{membership}", "get"): (ACMES, None),
    ("memberships/{membership}", "patch"): (_admin_changes(ACMES), {"role": "member"}),
    ("memberships/{membership}", "delete"): (_admin_changes(ACMES, 204), None),
    ("group-rules", "get"): (EVERY_ROLE, None),
    ("group-rules", "post"): (ADMIN_MAKES, {"group": "staff", "tenant": "acme"}),
    ("group-rules/{group_rule}", "get"): (STAFF_SEES, None),
    ("group-rules/{group_rule}", "patch"): (_admin_changes(STAFF_SEES), {"group": "others"}),
    ("group-rules/{group_rule}", "delete"): (_admin_changes(STAFF_SEES, 204), None),
    ("people", "get"): (EVERY_ROLE, None),
    ("people", "post"): (ADMIN_MAKES, {"username": "ci"}),
    ("people/{person}", "get"): (STAFF_SEES, None),
    ("people/{person}/disable", "post"): (_admin_changes(STAFF_SEES), None),
    ("people/{person}/enable", "post"): (_admin_changes(STAFF_SEES), None),
    ("people/{person}/end-sessions", "post"): (_admin_changes(STAFF_SEES), None),
    ("people/{person}/reset-second-factor", "post"): (_admin_changes(STAFF_SEES), None),
    ("people/{person}/token", "post"): (_admin_changes(STAFF_SEES, 201), {"name": "ci"}),
    ("invitations", "get"): (EVERY_ROLE, None),
    ("invitations", "post"): (ADMIN_MAKES, {"name": "Ada", "role": "member", "tenant": "acme"}),
    ("invitations/{invitation}", "get"): (STAFF_SEES, None),
    ("invitations/{invitation}/revoke", "post"): (_admin_changes(STAFF_SEES), None),
    ("sessions", "get"): (EVERY_ROLE, None),
    ("sessions/{session}", "get"): (OWN_OR_ADMIN, None),
    ("sessions/{session}/revoke", "post"): ((401, 403, 404, 204, 404, 404, 204), None),
    ("audit", "get"): (EVERY_ROLE, None),
    ("audit/export", "get"): (EVERY_ROLE, None),
    ("owners", "get"): (EVERY_ROLE, None),
    ("audit/{audit}", "get"): (ACMES, None),
    ("engine-check", "post"): (_admin_changes(EVERY_ROLE), {"url": "http://127.0.0.1:1"}),
    ("setup", "post"): (_admin_changes(EVERY_ROLE, 201), {"tenant": TENANT}),
    ("schema", "get"): ((401, 200, 200, 200, 200, 200, 200), None),
    ("docs", "get"): ((401, 200, 200, 200, 200, 200, 200), None),
}
PARAMETERS = {
    "tenants": "tenant", "slos": "slo", "tiers": "tier", "pools": "pool", "backends": "backend",
    "entitlements": "entitlement", "keys": "key", "tokens": "token", "memberships": "membership", "audit": "audit",
    "quotas": "quota", "budgets": "budget", "prices": "price", "projects": "project", "adapters": "adapter",
    "group-rules": "group_rule",
    "people": "person", "invitations": "invitation", "sessions": "session",
}  # fmt: skip


Kept = tuple[worlds.World, dict[str, str]]


@pytest.fixture(scope="module")
def kept(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Kept]:
    """A world with a row of each kind, whose ids stand in paths."""
    ids: dict[str, str] = {}
    with worlds.kept(django_db_blocker, lambda world: ids.update(_ids(world))) as world:
        yield world, ids


@pytest.fixture
def world(kept: Kept) -> worlds.World:
    return copy.deepcopy(kept[0])


@pytest.fixture
def ids(kept: Kept) -> dict[str, str]:
    return kept[1]


def _session(user: Any) -> int:
    people.began(user=user, session_key="s" * 32, address="10.0.0.9", agent="a browser")
    return int(UserSession.objects.get(session_key="s" * 32).pk)


def _ids(world: worlds.World) -> dict[str, str]:
    adapter = services.save(actor=SYSTEM, instance=Adapter(slug="sql", pool=world.pool, model="llama-sql"))
    tier = world.entitlements["acme"].tier
    right = Entitlement(slug="acme-sql", tenant=world.tenants["acme"], pool=world.pool, adapter=adapter, tier=tier)
    services.save(actor=SYSTEM, instance=right)
    return {
        "adapter": "sql",
        "tenant": "acme",
        "slo": "interactive",  # premium's, which only acme has
        "tier": "premium",
        "pool": "llama",
        "backend": "gpu-1",
        "entitlement": "acme-llama",
        "key": world.keys["acme"].row.public_id,
        "token": world.tokens["alice"].row.public_id,
        "budget": str(services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], hard_amount=5)).pk),
        "quota": str(services.save(actor=SYSTEM, instance=Quota(tenant=world.tenants["acme"], hard_tokens=5)).pk),
        "project": services.save(actor=SYSTEM, instance=Project(slug="chat", tenant=world.tenants["acme"])).slug,
        "price": str(services.save(actor=SYSTEM, instance=Price(pool=world.pool)).pk),
        "membership": str(world.users["alice"].memberships.get().pk),
        "group_rule": str(services.save(actor=SYSTEM, instance=GroupRule(group="ops", role="operator")).pk),
        "person": str(people.make_service_account(actor=SYSTEM, username="bot", description="").pk),
        "invitation": people.invite(actor=SYSTEM, name="Ada", role="operator", tenant=None).row.public_id,
        "session": str(_session(world.users["alice"])),
        "audit": str(AuditEntry.objects.filter(tenant=world.tenants["acme"]).latest("pk").pk),
    }


def _veiled(ids: dict[str, str]) -> dict[str, str]:
    """What members call these rows."""
    models = {"membership": Membership, "session": UserSession, "audit": AuditEntry}
    return {name: str(veil(model, int(ids[name]))) for name, model in models.items()}


def _client(world: worlds.World, who: str) -> APIClient:
    client = APIClient()
    if who != "anonymous":
        client.force_login(world.users[who])
    return client


def _patterns(resolver: URLResolver, prefix: str = "") -> list[tuple[str, URLPattern]]:
    found = []
    for entry in resolver.url_patterns:
        text = prefix + str(entry.pattern).lstrip("^")
        if isinstance(entry, URLResolver):
            found += _patterns(entry, text)
        else:
            found.append((text, entry))
    return found


def _routes() -> dict[str, set[str]]:
    """Every route of the catalog under /api/v1/ with its verbs, named as in the table."""
    routes: dict[str, set[str]] = {}
    for text, pattern in _patterns(get_resolver()):
        if not text.startswith("api/v1/"):
            continue
        view = getattr(pattern.callback, "cls", None) or getattr(pattern.callback, "view_class", None)
        assert view is not None, f"{text}: a function view is outside the rights of tenants.access"
        if view.__module__.startswith(("telemetry.", "controlplane.")):
            continue  # its routes have a table of their own
        name = re.sub(r"/\?\$?$|\$$", "", text.removeprefix("api/v1/"))
        first = name.partition("/")[0]
        name = re.sub(r"\(\?P<\w+>.*?\)(?=/|$)", "{" + PARAMETERS.get(first, "?") + "}", name)
        actions = getattr(pattern.callback, "actions", None)
        verbs = set(actions) if actions else {verb for verb in VERBS if hasattr(view, verb)}
        routes.setdefault(name, set()).update(verbs & set(VERBS))
    return routes


def test_every_route_and_verb_has_a_row() -> None:
    found = {(route, verb) for route, verbs in _routes().items() for verb in verbs}
    assert len(found) > 40, "the walk over the URLconf found too little: it no longer sees the routes"
    assert found == set(MATRIX)


@pytest.mark.parametrize(("route", "verb"), MATRIX, ids=lambda value: value or "root")
def test_each_role_gets_the_answer_of_the_table(
    route: str, verb: str, world: worlds.World, ids: dict[str, str]
) -> None:
    answers, body = MATRIX[(route, verb)]
    seen = []
    for who in CAST:
        url = "/api/v1/" + route.format(**(ids if who in ("olga", "adam") else ids | _veiled(ids)))
        point = transaction.savepoint()
        seen.append(getattr(_client(world, who), verb)(url, body, format="json").status_code)
        transaction.savepoint_rollback(point)
    assert dict(zip(CAST, seen, strict=True)) == dict(zip(CAST, answers, strict=True))


LISTS = sorted(route for route, verb in MATRIX if verb == "post" and (route, "get") in MATRIX and "/" not in route)


@pytest.mark.parametrize("route", LISTS)
def test_carols_lists_show_nothing_of_acme(route: str, world: worlds.World) -> None:
    for query in ("", "?search=acme", "?tenant=acme", "?limit=1000"):
        for path in (route, "audit"):
            answer = _client(world, "carol").get(f"/api/v1/{path}{query}")
            if query.startswith("?tenant") and answer.status_code == 400:
                assert "There is no such parameter." in answer.json()["tenant"][0], "rows of no tenant"
                continue
            assert answer.status_code == 200
            assert "acme" not in answer.content.decode()
            assert "alice" not in answer.content.decode()
    assert AuditEntry.objects.filter(tenant=world.tenants["acme"]).exists()


@pytest.mark.parametrize("other", ["{}0", "no-such", "ACME", "acme%00", "-", "9999999999999999999999"])
def test_foreign_and_unknown_ids_get_the_same_answer(other: str, world: worlds.World) -> None:
    client = _client(world, "carol")
    foreign = client.get("/api/v1/tenants/acme")
    unknown = client.get(f"/api/v1/tenants/{other.format('acme')}")
    assert foreign.status_code == unknown.status_code == 404


def test_a_member_of_two_tenants_sees_both_and_no_third(world: worlds.World) -> None:
    services.save(actor=SYSTEM, instance=Tenant(slug="initech"))
    services.save(
        actor=SYSTEM, instance=Membership(user=world.users["carol"], tenant=world.tenants["acme"], role="member")
    )
    listed = _client(world, "carol").get("/api/v1/tenants").json()
    assert [row["slug"] for row in listed["results"]] == ["acme", "globex"]


def test_an_inactive_user_has_no_access_by_token_or_session(world: worlds.World) -> None:
    by_session = _client(world, "adam")
    by_token = APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['adam'].credential.text}")
    assert by_session.get("/api/v1/me").status_code == by_token.get("/api/v1/me").status_code == 200
    world.users["adam"].is_active = False
    world.users["adam"].save()
    assert by_session.get("/api/v1/me").status_code == 401
    assert by_token.get("/api/v1/me").status_code == 401


# --- access tokens: who sees and ends them, and what one may make


def _by(token: str) -> APIClient:
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {token}")


def _token(world: worlds.World, who: str, **given: Any) -> services.Issued:
    return services.issue_token(actor=SYSTEM, user=world.users[who], name="ci", **given)


@pytest.mark.parametrize("who", ["carol", "alice", "olga", "adam"])
def test_admins_list_everybodys_tokens_and_others_their_own(who: str, world: worlds.World) -> None:
    owners = set(world.tokens)
    listed = _client(world, who).get("/api/v1/tokens").json()["results"]
    assert {row["user"] for row in listed} == (owners if who == "adam" else {who})
    found = _client(world, who).get("/api/v1/tokens?user=alice").json()["results"]
    assert {row["user"] for row in found} == ({"alice"} if who in ("adam", "alice") else set())
    assert not any("digest" in row or "token" in row for row in listed)


def test_a_token_that_an_admin_revoked_opens_nothing(world: worlds.World) -> None:
    issued = _token(world, "olga")
    assert _by(issued.credential.text).get("/api/v1/me").status_code == 200
    answer = _client(world, "adam").post(f"/api/v1/tokens/{issued.row.public_id}/revoke")
    assert answer.json()["status"] == "revoked"
    assert _by(issued.credential.text).get("/api/v1/me").status_code == 401
    entry = AuditEntry.objects.filter(action="revoke", kind="accesstoken").latest("pk")
    assert (entry.actor, entry.object_id) == ("adam", str(issued.row))


def test_a_token_that_expires_makes_none_that_lives_longer(world: worlds.World) -> None:
    end = timezone.now() + timedelta(days=1)
    client = _by(_token(world, "alice", expires_at=end).credential.text)
    for later in (None, end + timedelta(seconds=1)):
        refused = client.post("/api/v1/tokens", {"name": "longer", "expires_at": later}, format="json")
        assert refused.status_code == 400
        assert "expires_at" in refused.json()
    made = client.post("/api/v1/tokens", {"name": "as long"}, format="json")
    assert made.status_code == 201
    assert datetime.fromisoformat(made.json()["expires_at"]) == end
    sooner = {"name": "shorter", "expires_at": end - timedelta(hours=1)}
    assert client.post("/api/v1/tokens", sooner, format="json").status_code == 201
    # one more step changes nothing
    second = _by(made.json()["token"])
    assert second.post("/api/v1/tokens", {"name": "x", "expires_at": None}, format="json").status_code == 400


def test_revoking_a_token_ends_all_that_was_made_with_it(world: worlds.World) -> None:
    first = _token(world, "alice")
    texts, other = [first.credential.text], _token(world, "alice").credential.text
    for _ in range(3):
        made = _by(texts[-1]).post("/api/v1/tokens", {"name": "next"}, format="json")
        assert made.status_code == 201
        texts.append(made.json()["token"])
    assert _by(texts[-1]).post(f"/api/v1/tokens/{first.row.public_id}/revoke").status_code == 200
    assert [_by(text).get("/api/v1/me").status_code for text in [*texts, other]] == [401] * 4 + [200]


def test_a_token_acts_with_the_rights_of_its_owner_and_makes_tokens_of_no_other(world: worlds.World) -> None:
    for who in ("alice", "adam"):
        client = _by(_token(world, who).credential.text)
        client.post("/api/v1/tokens", {"name": "of another", "user": "olga"}, format="json")
        assert client.post("/api/v1/tokens", {"name": "x"}, format="json").json()["user"] == who
    assert not world.users["olga"].access_tokens.filter(name="of another").exists()


def test_a_model_without_a_rule_is_closed() -> None:
    with pytest.raises(LookupError, match="no rule for Group"):
        Scope(user_id=1, username="adam", role=Role.ADMIN).visible(Group)


def test_prices_of_adapters_are_of_those_who_are_entitled_to_them(world: worlds.World) -> None:
    """Both are on one pool; the name of a fine-tuned model says what its owner works on, its price what it pays."""
    for tenant in ("acme", "globex"):
        adapter = services.save(
            actor=SYSTEM, instance=Adapter(slug=f"{tenant}-ft", pool=world.pool, model=f"{tenant}-secret")
        )
        services.save(
            actor=SYSTEM,
            instance=Entitlement(
                slug=f"{tenant}-ft", tenant=world.tenants[tenant], pool=world.pool, adapter=adapter,
                tier=world.entitlements[tenant].tier, concurrency=1,
            ),
        )  # fmt: skip
        services.save(actor=SYSTEM, instance=Price(pool=world.pool, model=adapter.model))
    seen = {}
    for who in ("alice", "carol", "olga"):
        client = APIClient()
        client.force_login(world.users[who])
        seen[who] = {row["model"] for row in client.get("/api/v1/prices").json()["results"]}
    everything = {"", "acme-secret", "globex-secret"}
    assert seen == {"alice": {"", "acme-secret"}, "carol": {"", "globex-secret"}, "olga": everything}
