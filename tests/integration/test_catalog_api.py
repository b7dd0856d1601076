"""How the management API behaves beside rights: secrets once, errors that help, filters, pages, schema, audit."""

from __future__ import annotations

import ast
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import keys, services, specs
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Backend, Pool, Tenant
from tests.support import worlds

pytestmark = pytest.mark.django_db

API = "/api/v1/"


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def adam(world: worlds.World) -> APIClient:
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['adam'].credential.text}")


@pytest.fixture
def alice(world: worlds.World) -> APIClient:
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['alice'].credential.text}")


def test_a_keys_secret_is_in_one_answer_only(alice: APIClient) -> None:
    made = alice.post(API + "keys", {"name": "ci", "entitlement": "acme-llama"}, format="json")
    assert made.headers["Cache-Control"] == "no-store"
    text = made.json()["key"]
    credential = keys.parse(text)
    assert specs.load_catalog().keys[credential.public_id].digest == bytes.fromhex(credential.digest)
    for path in ("keys", f"keys/{credential.public_id}", "audit", "entitlements/acme-llama"):
        shown = alice.get(API + path).content.decode()
        assert credential.secret not in shown
        assert credential.digest not in shown


def test_rotating_gives_a_second_key_and_an_end_to_the_first(world: worlds.World, alice: APIClient) -> None:
    old = world.keys["acme"].row.public_id
    new = alice.post(f"{API}keys/{old}/rotate", {"overlap_s": 60}, format="json").json()
    assert new["id"] != old
    assert new["name"] == "acme key"
    assert alice.get(f"{API}keys/{old}").json()["expires_at"] is not None
    assert {old, new["id"]} <= set(specs.load_catalog().keys)


def test_a_revoked_key_leaves_the_catalog_and_stays_in_the_database(world: worlds.World, alice: APIClient) -> None:
    old = world.keys["acme"].row.public_id
    assert alice.post(f"{API}keys/{old}/revoke").json()["status"] == "revoked"
    assert alice.post(f"{API}keys/{old}/revoke").json()["status"] == "revoked"
    assert old not in specs.load_catalog().keys
    refused = alice.post(f"{API}keys/{old}/rotate", {}, format="json")
    assert refused.status_code == 400
    assert "revoked" in refused.content.decode()
    assert AuditEntry.objects.filter(action="revoke", actor="alice").count() == 1


def test_a_key_of_the_past_is_not_made(alice: APIClient) -> None:
    body = {"name": "ci", "entitlement": "acme-llama", "expires_at": (timezone.now() - timedelta(1)).isoformat()}
    refused = alice.post(API + "keys", body, format="json")
    assert refused.status_code == 400
    assert "has passed" in refused.json()["expires_at"][0]


def test_an_engines_key_is_written_and_never_read(world: worlds.World, adam: APIClient) -> None:
    answer = adam.patch(API + "backends/gpu-1", {"api_key": "canary-engine-key"}, format="json")
    assert answer.json()["has_api_key"] is True
    assert Backend.objects.get().api_key == "canary-engine-key"
    for path in ("backends", "backends/gpu-1", "audit"):
        assert "canary" not in adam.get(API + path).content.decode()


def test_a_misspelt_field_is_an_error_with_a_suggestion(adam: APIClient) -> None:
    refused = adam.patch(API + "pools/llama", {"queue_limt": 5}, format="json")
    assert refused.status_code == 400
    assert "Did you mean 'queue_limit'?" in refused.json()["queue_limt"][0]


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("pools/llama", {"policy": "fifoo"}, "policy", "did you mean 'fifo'"),
        ("pools/llama", {"max_model_len": 10}, "non_field_errors", "must not exceed"),
        ("pools/llama", {"slug": "other"}, "slug", "cannot change"),
        ("backends/gpu-1", {"url": "http://h/v1"}, "url", "must not have a path"),
        ("backends/gpu-1", {"pool": "nothing"}, "pool", "There is no pool 'nothing'"),
        ("entitlements/acme-llama", {"tokens_per_s": 5}, "non_field_errors", "needs a burst"),
        ("entitlements/acme-llama", {"tenant": "globex"}, "tenant", "cannot change"),
        ("entitlements/acme-llama", {"concurrency": 0}, "concurrency", "greater than or equal to 1"),
        ("slos/interactive", {"ttlt_s": 3}, "non_field_errors", "Give TTFT and TBT"),
    ],
)
def test_a_refused_value_names_its_field(adam: APIClient, path: str, body: dict, field: str, words: str) -> None:
    refused = adam.patch(API + path, body, format="json")
    assert refused.status_code == 400
    assert words in " ".join(refused.json()[field])


def test_what_is_needed_answers_409_and_says_by_whom(adam: APIClient) -> None:
    refused = adam.delete(API + "pools/llama")
    assert refused.status_code == 409
    assert "backend gpu-1" in refused.json()["detail"]
    assert Pool.objects.exists()


def test_a_change_answers_with_what_followed_from_it(adam: APIClient, alice: APIClient) -> None:
    answer = adam.patch(API + "entitlements/acme-llama", {"concurrency": 33}, format="json").json()
    assert answer["state"] == "degraded"
    assert "needs 33 slots" in answer["state_reason"]
    told = alice.get(API + "entitlements/acme-llama").json()
    assert (told["state"], told["state_reason"]) == ("degraded", "the pool has too little room for it")
    adam.patch(API + "backends/gpu-1", {"slots": 64}, format="json")
    assert adam.get(API + "entitlements/acme-llama").json()["state"] == "bound"


def test_filters_search_and_pages(adam: APIClient) -> None:
    assert adam.get(API + "entitlements?tenant=acme").json()["count"] == 1
    assert adam.get(API + "entitlements?state=expired").json()["count"] == 0
    assert adam.get(API + "tenants?search=glob").json()["count"] == 1
    page = adam.get(API + "audit?limit=2").json()
    assert len(page["results"]) == 2
    assert page["next"] is not None
    wrong = adam.get(API + "audit?since=yesterday")
    assert wrong.status_code == 400
    assert "2026-11-21T08:00:00Z" in wrong.json()["since"]
    assert adam.get(API + "backends?draining=maybe").status_code == 400
    assert adam.get(API + "tenants?search=%00").status_code == 400
    assert adam.get(API + "entitlements?tenant=%00").status_code == 400


def test_keys_are_filtered_by_whether_they_were_revoked(world: worlds.World, adam: APIClient) -> None:
    services.revoke_key(actor=SYSTEM, key=world.keys["acme"].row)
    found = {answer: adam.get(f"/api/v1/keys?revoked={answer}").json()["results"] for answer in ("true", "false")}
    assert [row["status"] for row in found["true"]] == ["revoked"]
    assert [row["status"] for row in found["false"]] == ["active"]


def test_a_slash_at_the_end_may_be_there(adam: APIClient) -> None:
    for path in ("tenants", "tenants/acme", "me", "policies"):
        assert adam.get(API + path).status_code == adam.get(API + path + "/").status_code == 200


def test_the_audit_tells_who_did_what_through_what(adam: APIClient) -> None:
    adam.post(API + "tenants", {"slug": "initech"}, format="json", HTTP_X_REQUEST_ID="abc")
    [entry] = adam.get(API + "audit?object=initech").json()["results"]
    assert (entry["actor"], entry["via"], entry["action"], entry["kind"]) == ("adam", "api", "create", "tenant")
    assert (entry["request_id"], entry["before"], entry["tenant"]) == ("abc", None, "initech")


def test_policies_are_listed_with_their_parameters(adam: APIClient) -> None:
    listed = {policy["name"]: policy for policy in adam.get(API + "policies").json()}
    assert {"fifo", "priority"} <= set(listed)
    assert all(policy["question"] for policy in listed.values())


def test_me_says_who_i_am_and_what_i_may(alice: APIClient, adam: APIClient) -> None:
    assert alice.get(API + "me").json() == {
        "username": "alice",
        "role": "member",
        "tenants": [{"slug": "acme", "description": ""}],
        "may_write": False,
        "may_operate": False,
        "sees_all": False,
    }
    assert adam.get(API + "me").json()["may_write"] is True


@pytest.mark.parametrize("state", ["unknown", "wrong secret", "revoked", "expired", "no token", "key"])
def test_all_bad_tokens_get_the_same_answer(state: str, world: worlds.World) -> None:
    issued = world.tokens["adam"]
    text = issued.credential.text
    match state:
        case "unknown":
            text = keys.make(keys.TOKEN_PREFIX).text
        case "wrong secret":
            text = text[:-43] + keys.make().secret
        case "revoked":
            services.revoke_token(actor=SYSTEM, token=issued.row)
        case "expired":
            type(issued.row).objects.update(expires_at=timezone.now())
        case "no token":
            text = "qma-"
        case "key":
            text = world.keys["acme"].credential.text
    answer = APIClient(HTTP_AUTHORIZATION=f"Bearer {text}").get(API + "me")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="quartermaster"'
    assert answer.json()["detail"].startswith("This access token is not valid.")


def test_a_browsers_session_needs_a_csrf_token_to_write(world: worlds.World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.users["adam"])
    assert client.get(API + "tenants").status_code == 200
    refused = client.post(API + "tenants", '{"slug": "initech"}', content_type="application/json")
    assert refused.status_code == 403
    assert not Tenant.objects.filter(slug="initech").exists()


def test_the_last_admin_stays(world: worlds.World, adam: APIClient) -> None:
    own = f"{API}memberships/{world.users['adam'].memberships.get().pk}"
    for refused in (adam.delete(own), adam.patch(own, {"role": "operator"}, format="json")):
        assert refused.status_code == 400
        assert "leave no one with the admin role" in refused.content.decode()
    adam.post(API + "people", {"username": "ci"}, format="json")
    adam.post(API + "memberships", {"user": "ci", "role": "admin"}, format="json")
    refused = adam.post(f"{API}people/{world.users['adam'].pk}/disable")
    assert refused.status_code == 400, "a program's account cannot sign in, and is no admin that remains"
    adam.post(API + "memberships", {"user": "nora", "role": "admin"}, format="json")
    assert adam.patch(own, {"role": "operator"}, format="json").status_code == 200
    assert adam.post(API + "tenants", {"slug": "initech"}, format="json").status_code == 403


def test_a_role_opens_and_closes_the_back_office(world: worlds.World, adam: APIClient) -> None:
    made = adam.post(API + "memberships", {"user": "nora", "role": "operator"}, format="json").json()
    world.users["nora"].refresh_from_db()
    assert world.users["nora"].is_staff
    adam.delete(f"{API}memberships/{made['id']}")
    world.users["nora"].refresh_from_db()
    assert not world.users["nora"].is_staff


def test_the_schema_describes_every_operation_in_words(adam: APIClient, world: worlds.World) -> None:
    client = Client()
    client.force_login(world.users["adam"])
    schema = client.get(API + "schema", HTTP_ACCEPT="application/json").json()
    operations = [
        (path, verb, operation)
        for path, verbs in schema["paths"].items()
        for verb, operation in verbs.items()
        if path.split("/")[3] in ("tenants", "tiers", "slos", "pools", "backends", "entitlements", "keys", "audit")
    ]
    assert len(operations) > 30
    assert not [(path, verb) for path, verb, operation in operations if not operation.get("summary")]
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(ids) == len(set(ids))


def test_the_catalogs_rows_are_written_in_services_alone() -> None:
    """``save``, ``create``, ``update`` and ``delete`` on rows elsewhere would escape the audit."""
    # floors and audit entries are no configuration; versions and trials are written within a change of the services;
    # people.py keeps who is signed in (identities, sessions), and records those whom the provider ends by itself;
    # second_factors.py and passkeys.py keep a library's rows, and record each change
    allowed = {
        "services.py", "epochs.py", "audit.py", "audit_chain.py", "records.py", "versions.py", "tuning.py", "people.py",
        "second_factors.py", "passkeys.py",
    }  # fmt: skip
    found, walked = [], 0
    for file in (Path(__file__).parents[2] / "tenants").rglob("*.py"):
        if file.name in allowed or "migrations" in file.parts:
            continue
        walked += 1
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            through_services = isinstance(owner, ast.Name) and owner.id in ("services", "formset")
            through_super = isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"
            writes = ("save", "delete", "bulk_create", "bulk_update", "get_or_create", "update_or_create")
            if node.func.attr in writes and not through_services and not through_super:
                found.append(f"{file}:{node.lineno}")
            if node.func.attr in ("create", "update") and ast.unparse(owner).endswith(("objects", "_default_manager")):
                found.append(f"{file}:{node.lineno}")
    assert found == []
    assert walked > 30
