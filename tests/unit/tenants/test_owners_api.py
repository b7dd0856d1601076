"""Which rows Kubernetes keeps, told before anybody tries to change one."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tenants.models import Owner
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    found = worlds.build()
    for kind, name, fields in (
        ("TokenPool", "llama", ["model", "replicas"]),
        ("Backend", "gpu-1", ["url", "slots"]),
        ("Tenant", "acme", []),
    ):
        uid = "uid-tenant" if kind == "Tenant" else "uid-pool"
        Owner.objects.create(kind=kind, name=name, namespace="llm", uid=uid, attributes=fields)
    return found


def asked(world: worlds.World, user: str, **query: str) -> list[dict]:
    api = APIClient()
    api.force_login(world.users[user])
    return api.get("/api/v1/owners", query).json()["results"]


def test_an_owner_says_which_resource_it_is_and_what_it_sets(world: worlds.World) -> None:
    assert asked(world, "adam", kind="TokenPool", name="llama") == [
        {
            "kind": "TokenPool", "name": "llama", "namespace": "llm", "resource": "TokenPool llm/llama",
            "fields_set": ["model", "replicas"],
        }
    ]  # fmt: skip
    assert asked(world, "adam", kind="TokenPool", name="other") == []
    assert len(asked(world, "adam")) == 3


def test_a_backend_is_changed_in_the_resource_of_its_pool(world: worlds.World) -> None:
    [backend] = asked(world, "adam", kind="Backend", name="gpu-1")
    assert backend["resource"] == "TokenPool llm/llama"


def test_members_are_told_nothing_of_where_rows_are_kept(world: worlds.World) -> None:
    member = next(name for name, user in world.users.items() if user.memberships.filter(role="member").exists())
    assert asked(world, member) == []


def test_it_can_be_read_only(world: worlds.World) -> None:
    api = APIClient()
    api.force_login(world.users["adam"])
    assert api.post("/api/v1/owners", {"kind": "Tenant"}, format="json").status_code == 405
