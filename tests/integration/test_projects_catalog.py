"""Projects and their keys in the catalog: who may make them, what they open, what goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from rest_framework.test import APIClient

from scheduling.core.types import RateLimits
from tenants import manifest, services
from tenants.audit import SYSTEM
from tenants.models import ApiKey, AuditEntry, CatalogVersion, Entitlement, Project
from tenants.specs import load_catalog
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    """Acme has a project with an entitlement of its own beside one for all its projects; Globex has a project."""
    world = worlds.build()
    for tenant in ("acme", "globex"):
        services.save(actor=SYSTEM, instance=Project(slug=f"{tenant}-chat", tenant=world.tenants[tenant]))
    services.save(
        actor=SYSTEM,
        instance=Entitlement(
            slug="acme-own", tenant=world.tenants["acme"], project=Project.objects.get(slug="acme-chat"),
            pool=world.pool, tier=worlds.tier("standard"), concurrency=1,
        ),
    )  # fmt: skip
    return world


def _client(world: worlds.World, who: str) -> APIClient:
    client = APIClient()
    client.force_login(world.users[who])
    return client


def _make(world: worlds.World, who: str, **fields: object) -> tuple[int, dict]:
    answer = _client(world, who).post("/api/v1/keys", {"name": "ci"} | fields, format="json")
    return answer.status_code, answer.json()


def test_a_key_of_a_project_opens_what_the_project_may_use(world: worlds.World) -> None:
    status, made = _make(world, "alice", project="acme-chat", user="ada@example.com")
    assert status == 201
    assert made["opens"] == ["acme-llama", "acme-own"]
    assert (made["entitlement"], made["tenant"], made["user"]) == (None, "acme", "ada@example.com")
    catalog = load_catalog()
    assert set(catalog.projects["acme-chat"].entitlements) == {"acme-llama", "acme-own"}
    assert catalog.projects["globex-chat"].entitlements == ("globex-llama",)
    assert catalog.keys[made["id"]].project == "acme-chat"
    other = services.save(actor=SYSTEM, instance=Project(slug="acme-code", tenant=world.tenants["acme"]))
    assert load_catalog().projects[other.slug].entitlements == ("acme-llama",)  # not what belongs to acme-chat


def test_a_subset_opens_what_it_names_and_names_only_what_the_project_may_use(world: worlds.World) -> None:
    status, made = _make(world, "alice", project="acme-chat", entitlements=["acme-own"])
    assert (status, made["opens"]) == (201, ["acme-own"])
    status, refused = _make(world, "alice", project="acme-chat", entitlements=["globex-llama"])
    missing = _make(world, "alice", project="acme-chat", entitlements=["nowhere-lla"])[1]
    assert status == 400
    # an entitlement of others is refused as one that does not exist
    assert str(refused).replace("globex-llama", "X") == str(missing).replace("nowhere-lla", "X")


def test_a_subset_whose_entitlement_is_deleted_opens_nothing_rather_than_all(world: worlds.World) -> None:
    made = _make(world, "alice", project="acme-chat", entitlements=["acme-own"])[1]
    services.delete(actor=SYSTEM, instance=Entitlement.objects.get(slug="acme-own"))
    assert _client(world, "alice").get(f"/api/v1/keys/{made['id']}").json()["opens"] == []
    assert load_catalog().keys[made["id"]].subset == ("acme-own",)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"project": "acme-chat", "entitlement": "acme-llama"},
        {"entitlement": "acme-llama", "entitlements": ["acme-llama"]},
        {"project": "globex-chat"},
        {"project": "acme-chat", "entitlements": ["acme-own", "acme-own"]},
        {"project": "acme-chat", "entitlements": "acme-own"},
    ],
)
def test_a_key_names_one_owner_of_its_own_tenant(world: worlds.World, fields: dict) -> None:
    assert _make(world, "alice", **fields)[0] == 400
    assert _make(world, "carol", project="acme-chat")[0] == 400
    assert _make(world, "olga", project="acme-chat")[0] == 403


def test_members_see_their_tenants_projects_and_keys_and_no_others(world: worlds.World) -> None:
    _make(world, "alice", project="acme-chat")
    for who, seen in (("alice", {"acme-chat"}), ("carol", {"globex-chat"}), ("olga", {"acme-chat", "globex-chat"})):
        rows = _client(world, who).get("/api/v1/projects").json()["results"]
        assert {row["slug"] for row in rows} == seen
    assert "acme-chat" not in str(_client(world, "carol").get("/api/v1/keys").json())
    keys = _client(world, "olga").get("/api/v1/keys", {"tenant": "acme"}).json()["results"]
    assert sorted((row["project"], row["entitlement"]) for row in keys if row["project"]) == [("acme-chat", None)]
    assert {row["tenant"] for row in keys} == {"acme"}
    assert len(keys) == 2


def test_a_rotated_key_keeps_what_it_opens(world: worlds.World) -> None:
    made = _make(world, "alice", project="acme-chat", entitlements=["acme-own"], user="ada")[1]
    answer = _client(world, "alice").post(f"/api/v1/keys/{made['id']}/rotate", {}, format="json").json()
    kept = ("project", "entitlements", "opens", "user", "name", "entitlement")
    assert [answer[name] for name in kept] == [made[name] for name in kept]
    assert answer["id"] != made["id"]


def test_a_user_who_leaves_loses_all_keys_of_the_tenant_at_once_and_no_other(world: worlds.World) -> None:
    mine = {_make(world, "alice", project="acme-chat", user="ada")[1]["id"]}
    mine.add(_make(world, "alice", entitlement="acme-llama", user="ada")[1]["id"])
    others = {_make(world, "alice", project="acme-chat", user="bob")[1]["id"]}
    others.add(_make(world, "carol", project="globex-chat", user="ada")[1]["id"])
    version = CatalogVersion.objects.get().version
    for who, status in (("carol", 404), ("olga", 403), ("nora", 403)):
        answer = _client(world, who).post("/api/v1/tenants/acme/revoke-user", {"user": "ada"}, format="json")
        assert answer.status_code == status
    answer = _client(world, "bob").post("/api/v1/tenants/acme/revoke-user", {"user": "ada"}, format="json")
    assert (answer.status_code, set(answer.json()["revoked"])) == (200, mine)
    assert CatalogVersion.objects.get().version == version + 1
    keys = load_catalog().keys
    assert not mine & keys.keys()
    assert others <= keys.keys()
    again = _client(world, "bob").post("/api/v1/tenants/acme/revoke-user", {"user": "ada"}, format="json")
    assert again.json() == {"revoked": []}
    empty = _client(world, "bob").post("/api/v1/tenants/acme/revoke-user", {"user": ""}, format="json")
    assert empty.status_code == 400


def test_deleting_a_project_ends_its_keys_with_an_entry_each(world: worlds.World) -> None:
    project = services.save(actor=SYSTEM, instance=Project(slug="brief", tenant=world.tenants["acme"]))
    key = services.issue_key(actor=SYSTEM, project=project, name="k").row
    version = CatalogVersion.objects.get().version
    services.delete(actor=SYSTEM, instance=project)
    assert not ApiKey.objects.filter(public_id=key.public_id).exists()
    assert key.public_id not in load_catalog().keys
    assert CatalogVersion.objects.get().version == version + 1
    deleted = AuditEntry.objects.filter(action="delete").values_list("kind", "tenant__slug")
    assert set(deleted) == {("apikey", "acme"), ("project", "acme")}


def test_an_entitlement_belongs_to_a_project_of_its_own_tenant(world: worlds.World) -> None:
    row = world.entitlements["acme"]
    row.project = Project.objects.get(slug="globex-chat")
    with pytest.raises(ValidationError, match="another tenant"):
        services.save(actor=SYSTEM, instance=row)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("aliases", ["a"], "Write aliases by name"),
        ("aliases", {"a": 1}, "Write aliases by name"),
        ("aliases", {f"a{n}": "b" for n in range(101)}, "At most 100"),
        ("fallbacks", {"a": "b"}, "Write the fallback of"),
        ("fallbacks", {"a": {"to": "b", "when": ["sometimes"]}}, "unavailable, no_room"),
        ("fallbacks", {"a": {"to": "b", "when": []}}, "must list some"),
        ("fallbacks", {"a": {"to": "a", "when": ["no_room"]}}, "its own fallback"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(
    world: worlds.World, field: str, value: object, said: str
) -> None:
    answer = _client(world, "adam").patch("/api/v1/projects/acme-chat", {field: value}, format="json")
    assert (answer.status_code, list(answer.json())) != (200, [])
    assert answer.status_code == 400
    assert said in str(answer.json())


def test_a_file_makes_projects_and_moves_entitlements_into_them(world: worlds.World, tmp_path: Path) -> None:
    _make(world, "alice", project="acme-chat", entitlements=["acme-own"])
    file = tmp_path / "catalog.yaml"
    file.write_text(manifest.export())
    call_command("apply", "-f", str(file), "--yes", "--prune")
    assert manifest.export() == file.read_text()
    file.write_text(
        "apiVersion: quartermaster/v1\nkind: List\nitems:\n"
        "- kind: Project\n  metadata: {name: acme-code}\n  spec:\n    tenantRef: {name: acme}\n"
        "    aliases: {gpt-4o: meta/llama}\n    defaultModel: meta/llama\n"
        "    fallbacks: {meta/llama: {to: acme-llama, when: [unavailable]}}\n"
        "- kind: TokenEntitlement\n  metadata: {name: acme-llama}\n  spec:\n    projectRef: {name: acme-code}\n"
    )
    call_command("apply", "-f", str(file), "--yes")
    project = load_catalog().projects["acme-code"]
    assert project.entitlements == ("acme-llama",)
    assert project.aliases == {"gpt-4o": "meta/llama"}
    assert (project.fallbacks["meta/llama"].to, project.default_model) == ("acme-llama", "meta/llama")
    assert load_catalog().projects["acme-chat"].entitlements == ("acme-own",)


LIMITS = {"requests_per_minute": 60, "concurrency": 2, "user_tokens_per_minute": 5000}


def test_limits_of_a_key_and_of_its_users_reach_the_gateways(world: worlds.World) -> None:
    made = _make(world, "alice", project="acme-chat", **LIMITS)[1]
    assert {name: made[name] for name in LIMITS} == LIMITS
    assert made["tokens_per_minute"] is None
    key = load_catalog().keys[made["id"]]
    assert (key.limits, key.user_limits) == (RateLimits(60, 0, 2), RateLimits(0, 5000, 0))
    other = _make(world, "alice", entitlement="acme-llama")[1]
    plain = load_catalog().keys[other["id"]]
    assert (plain.limits, plain.user_limits) == (None, None)
    rotated = _client(world, "alice").post(f"/api/v1/keys/{made['id']}/rotate", {}, format="json").json()
    assert {name: rotated[name] for name in LIMITS} == LIMITS


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", 10**10, True])
def test_a_limit_is_a_whole_number_of_at_least_one(world: worlds.World, wrong: object) -> None:
    status, refused = _make(world, "alice", project="acme-chat", requests_per_minute=wrong)
    assert (status, list(refused)) == (400, ["requests_per_minute"])
    answer = _client(world, "adam").patch("/api/v1/projects/acme-chat", {"user_concurrency": wrong}, format="json")
    assert (answer.status_code, list(answer.json())) == (400, ["user_concurrency"])


def test_limits_of_a_projects_users_are_set_and_lifted(world: worlds.World) -> None:
    client = _client(world, "adam")
    answer = client.patch("/api/v1/projects/acme-chat", {"user_requests_per_minute": 5}, format="json")
    assert answer.json()["user_requests_per_minute"] == 5
    assert load_catalog().projects["acme-chat"].user_limits == RateLimits(5, 0, 0)
    client.patch("/api/v1/projects/acme-chat", {"user_requests_per_minute": None}, format="json")
    assert load_catalog().projects["acme-chat"].user_limits is None


def test_limits_stand_in_files_and_change_by_them(world: worlds.World, tmp_path: Path) -> None:
    made = _make(world, "alice", project="acme-chat", **LIMITS)[1]
    file = tmp_path / "catalog.yaml"
    file.write_text(manifest.export())
    call_command("apply", "-f", str(file), "--yes", "--prune")
    assert manifest.export() == file.read_text()
    file.write_text(
        "apiVersion: quartermaster/v1\nkind: List\nitems:\n"
        "- kind: Project\n  metadata: {name: acme-chat}\n  spec:\n    userLimits: {concurrency: 3}\n"
        f"- kind: ApiKey\n  metadata: {{name: {made['id']}}}\n  spec:\n"
        "    limits: {requestsPerMinute: 30, concurrency: null}\n    userLimits: {tokensPerMinute: 100}\n"
    )
    call_command("apply", "-f", str(file), "--yes")
    catalog = load_catalog()
    assert catalog.projects["acme-chat"].user_limits == RateLimits(0, 0, 3)
    assert catalog.keys[made["id"]].limits == RateLimits(30, 0, 0)
    assert catalog.keys[made["id"]].user_limits == RateLimits(0, 100, 0)


def test_a_key_changes_where_it_may_and_nobody_else_changes_it(world: worlds.World) -> None:
    made = _make(world, "alice", project="acme-chat", user="ada")[1]
    url = f"/api/v1/keys/{made['id']}"
    later = "2099-01-01T00:00:00Z"
    fields = {
        "name": "search", "user": "grace", "entitlements": ["acme-own"], "requests_per_minute": 5,
        "user_concurrency": 2, "expires_at": later,
    }  # fmt: skip
    answer = _client(world, "alice").patch(url, fields, format="json")
    assert answer.status_code == 200, answer.content
    assert {name: answer.json()[name] for name in fields} == fields
    assert answer.json()["opens"] == ["acme-own"]
    spec = load_catalog().keys[made["id"]]
    assert (spec.user, spec.subset, spec.limits, spec.user_limits) == (
        "grace", ("acme-own",), RateLimits(5, 0, 0), RateLimits(0, 0, 2)
    )  # fmt: skip
    entry = AuditEntry.objects.filter(kind="apikey").order_by("-pk").first()
    assert entry is not None
    assert (entry.action, entry.actor, entry.after["requests_per_minute"]) == ("change", "alice", 5)
    for who, status in (("carol", 404), ("olga", 403)):
        assert _client(world, who).patch(url, {"name": "x"}, format="json").status_code == status
    for fields in ({"requests_per_minute": None}, {"entitlements": []}, {"expires_at": None}):
        assert _client(world, "alice").patch(url, fields, format="json").status_code == 200
    assert load_catalog().keys[made["id"]].limits is None


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"project": "acme-code"}, "project"),
        ({"entitlement": "acme-llama"}, "entitlement"),
        ({"entitlements": ["globex-llama"]}, "entitlements"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"concurrency": 0}, "concurrency"),
        ({"id": "abcdefghijkl", "digest": "00"}, "digest"),
    ],
)
def test_what_a_key_belongs_to_is_fixed_and_a_wrong_change_names_its_field(
    world: worlds.World, wrong: dict, where: str
) -> None:
    services.save(actor=SYSTEM, instance=Project(slug="acme-code", tenant=world.tenants["acme"]))
    made = _make(world, "alice", project="acme-chat")[1]
    answer = _client(world, "alice").patch(f"/api/v1/keys/{made['id']}", wrong, format="json")
    assert answer.status_code == 400
    assert where in answer.json()
    assert _client(world, "alice").get(f"/api/v1/keys/{made['id']}").json() == {
        name: value for name, value in made.items() if name != "key"
    }


def test_a_revoked_key_stays_as_it_is(world: worlds.World) -> None:
    made = _make(world, "alice", project="acme-chat")[1]
    client = _client(world, "alice")
    client.post(f"/api/v1/keys/{made['id']}/revoke", {}, format="json")
    answer = client.patch(f"/api/v1/keys/{made['id']}", {"name": "again"}, format="json")
    assert answer.status_code == 400
    assert "revoked" in str(answer.json())
    assert ApiKey.objects.get(public_id=made["id"]).name == "ci"
