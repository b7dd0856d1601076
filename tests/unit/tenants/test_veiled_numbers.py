"""What a member reads of its own rows does not say how many rows others made."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from django.utils import timezone
from rest_framework.test import APIClient

from telemetry.models import Alert, SavedView
from tenants import audit, services
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Membership, Quota
from tenants.veiled import HALF_BITS, unveil, veil
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def client(world: worlds.World, name: str) -> APIClient:
    api = APIClient()
    api.force_authenticate(world.users[name])
    return api


def rows_of(api: APIClient, path: str) -> list[dict[str, Any]]:
    answer = api.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    told = answer.json()
    found: list[dict[str, Any]] = told if isinstance(told, list) else told["results"]
    return found


def make(world: worlds.World, name: str, tenant: str) -> None:
    """One row of each kind that this tenant's member reads of itself."""
    user = world.users[name]
    view = client(world, name).post("/api/v1/saved-views", {"name": f"v{random.random()}", "query": "a=b"}, "json")
    assert view.status_code == 201, view.content
    Quota.objects.filter(tenant=world.tenants[tenant]).delete()
    services.save(actor=SYSTEM, instance=Quota(tenant=world.tenants[tenant], period="day", soft_tokens=9))
    UserSession.objects.create(user=user, ip="10.0.0.9", user_agent="x", session_key=f"s{random.random()}"[:40])
    one = f"q{random.random()}"
    Alert.objects.create(kind="quota", name=one, severity="warning", subject="s", tenant=tenant, line="l")


PLACES = {
    "audit": AuditEntry,
    "saved-views": SavedView,
    "sessions": UserSession,
    "alerts": Alert,
    "memberships": Membership,
}


@pytest.mark.parametrize("path", PLACES)
def test_a_member_is_told_no_number_by_which_others_rows_could_be_counted(world: worlds.World, path: str) -> None:
    make(world, "carol", "globex")
    for _ in range(3):
        make(world, "alice", "acme")
    make(world, "carol", "globex")
    model: Any = PLACES[path]
    told = [row["id"] for row in rows_of(client(world, "carol"), path)]
    assert told
    stored = set(model._default_manager.values_list("pk", flat=True))
    assert not stored & set(told)
    assert {unveil(model, number) for number in told} <= stored
    assert all(number < 2**53 for number in told), "JavaScript has it exactly"
    assert {row["id"] for row in rows_of(client(world, "olga"), path)} <= stored, "who sees all rows may count them"


def test_an_entry_of_the_audit_log_has_no_place_in_the_chain_for_a_member(world: worlds.World) -> None:
    make(world, "carol", "globex")
    member, operator = client(world, "carol"), client(world, "olga")
    for entry in rows_of(member, "audit/"):
        assert (entry["number"], entry["digest"]) == (None, "")
    assert all(entry["number"] and entry["digest"] for entry in rows_of(operator, "audit/"))
    digests = list(AuditEntry.objects.values_list("digest", flat=True))
    for form in ("csv", "jsonl"):
        told = member.get(f"/api/v1/audit/export/?as={form}").content.decode()
        assert "quota" in told
        assert not any(digest in told for digest in digests)
        assert any(digest in operator.get(f"/api/v1/audit/export/?as={form}").content.decode() for digest in digests)


def test_a_member_finds_its_rows_by_the_numbers_that_it_was_told_and_by_no_others(world: worlds.World) -> None:
    make(world, "carol", "globex")
    api = client(world, "carol")
    for path in ("audit", "memberships", "sessions", "saved-views"):
        told = rows_of(api, path if path == "saved-views" else f"{path}/")[0]["id"]
        found = api.get(f"/api/v1/{path}/{told}")
        assert (found.status_code, found.json()["id"]) == (200, told)
        for wrong in (unveil(PLACES[path], told), told + 1, 2 ** (2 * HALF_BITS), 10**18 - 1, 0):
            assert api.get(f"/api/v1/{path}/{wrong}").status_code == 404, (path, wrong)
    view = rows_of(api, "saved-views")[0]["id"]
    assert api.patch(f"/api/v1/saved-views/{view}", {"name": "other"}, "json").json()["id"] == view
    assert api.delete(f"/api/v1/saved-views/{view}").status_code == 204
    session = rows_of(api, "sessions/")[0]["id"]
    assert api.post(f"/api/v1/sessions/{session}/revoke").status_code == 204
    assert not UserSession.objects.filter(user=world.users["carol"]).exists()


def test_each_row_has_a_number_of_its_own_that_another_model_does_not_share() -> None:
    numbers = [0, 1, 2, 3, 2**26, 2**40, 2**52 - 1]
    veiled = [veil(AuditEntry, number) for number in numbers]
    assert len(set(veiled)) == len(numbers)
    assert [unveil(AuditEntry, number) for number in veiled] == numbers
    assert not set(veiled) & {veil(SavedView, number) for number in numbers}


def test_a_member_fills_the_audit_log_with_no_exports(world: worlds.World) -> None:
    api = client(world, "carol")
    for _ in range(audit.READS_A_MINUTE):
        assert api.get("/api/v1/audit/export").status_code == 200
    before = AuditEntry.objects.count()
    for _ in range(5):
        answer = api.get("/api/v1/audit/export")
        assert answer.status_code == 429
        assert answer["Retry-After"] == "60"
        assert "exported 20 times in a minute" in answer.json()["detail"]
    assert AuditEntry.objects.count() == before
    assert client(world, "alice").get("/api/v1/audit/export").status_code == 200, "others have their own"
    AuditEntry.objects.filter(outcome="read").update(at=timezone.now() - timedelta(minutes=2))
    assert api.get("/api/v1/audit/export").status_code == 200


def test_a_member_makes_and_changes_so_much_in_a_minute_and_ends_what_there_is_all_the_same(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "WRITES_A_MINUTE", 5)
    AuditEntry.objects.update(at=timezone.now() - timedelta(minutes=2))
    api = client(world, "carol")
    asked = {"name": "k", "entitlement": "globex-llama"}
    made = [api.post("/api/v1/keys", asked, "json").json()["id"] for _ in range(3)]
    for name in ("a", "b"):
        assert api.patch(f"/api/v1/keys/{made[0]}", {"name": name}, "json").status_code == 200
    before = AuditEntry.objects.count()
    for answer in (
        api.patch(f"/api/v1/keys/{made[0]}", {"name": "c"}, "json"),
        api.post("/api/v1/keys", asked, "json"),
        api.post(f"/api/v1/keys/{made[1]}/rotate", {}, "json"),
        api.post("/api/v1/tokens", {"name": "t"}, "json"),
    ):
        assert (answer.status_code, answer["Retry-After"]) == (429, "60")
        assert "5 changes in a minute" in answer.json()["detail"]
    assert AuditEntry.objects.count() == before
    assert api.get("/api/v1/keys").status_code == 200
    assert api.post(f"/api/v1/keys/{made[2]}/revoke").status_code == 200, "what is stolen can be ended at any time"
    assert client(world, "bob").post("/api/v1/tokens", {"name": "t"}, "json").status_code == 201
    adam = client(world, "adam")
    assert {adam.patch("/api/v1/tenants/acme", {"description": str(n)}, "json").status_code for n in range(8)} == {200}
