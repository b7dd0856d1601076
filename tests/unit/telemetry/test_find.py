"""What the command palette finds, for whom; and the colours that tenants keep."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from telemetry.ledger import writer
from telemetry.models import Alert
from tenants.models import Tenant
from tests.support import worlds
from tests.support.telemetry_world import globex_record, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    writer.write([record(1), globex_record(2)])
    return worlds.build()


def asked(world: worlds.World, who: str, path: str, **query: Any) -> Any:
    api = APIClient()
    api.force_login(world.users[who])
    answer = api.get(f"/api/v1/{path}", query)
    return answer.json() if answer.status_code == 200 else answer.status_code


def found(world: worlds.World, who: str, q: str) -> set[tuple[str, str]]:
    return {(row["kind"], row["id"]) for row in asked(world, who, "find", q=q)["found"]}


def test_objects_are_found_by_a_part_of_their_name(world: worlds.World) -> None:
    assert {("tenant", "acme"), ("entitlement", "acme-llama")} <= found(world, "olga", "acm")
    assert ("pool", "llama") in found(world, "olga", "LLAM")
    assert ("backend", "gpu-1") in found(world, "olga", "gpu")


def test_a_key_is_found_by_its_public_id_however_it_is_written(world: worlds.World) -> None:
    number = world.keys["acme"].row.public_id
    assert ("key", number) in found(world, "olga", f"qm-{number}")
    assert ("key", number) in found(world, "olga", number[:5])
    [line] = [row for row in asked(world, "olga", "find", q=number)["found"] if row["kind"] == "key"]
    assert (line["tenant"], line["state"]) == ("acme", "")


def test_a_keys_secret_is_refused_before_it_is_looked_for(world: worlds.World) -> None:
    number = world.keys["acme"].row.public_id
    assert asked(world, "olga", "find", q=f"qm-{number}.secret") == 400


def test_requests_and_alerts_are_found_by_their_number(world: worlds.World) -> None:
    alert = Alert.objects.create(kind="scaling_failed", name="x", line="It failed")
    assert ("request", record(1).request_id) in found(world, "olga", record(1).request_id)
    assert ("alert", str(alert.pk)) in found(world, "olga", str(alert.pk))
    kinds = {kind for kind, _ in found(world, "carol", str(alert.pk))}  # a key's name may begin with the same figure
    assert "alert" not in kinds


def test_members_find_their_own_only(world: worlds.World) -> None:
    assert found(world, "carol", "acme") == set()
    assert found(world, "carol", world.keys["acme"].row.public_id) == set()
    assert found(world, "carol", "gpu") == set()
    assert found(world, "carol", record(1).request_id) == set()
    assert ("tenant", "globex") in found(world, "carol", "glob")


@pytest.mark.parametrize("q", ["", "x" * 101])
def test_what_makes_no_question_is_refused(world: worlds.World, q: str) -> None:
    assert asked(world, "olga", "find", q=q) == 400


def test_a_tenant_keeps_its_colour_whoever_comes_and_goes(world: worlds.World) -> None:
    before = asked(world, "olga", "tenant-colors")["colors"]
    assert len(set(before.values())) == len(before), "the first eight differ"
    Tenant.objects.create(slug="aaa")
    after = asked(world, "olga", "tenant-colors")["colors"]
    assert {name: after[name] for name in before} == before
    assert asked(world, "carol", "tenant-colors")["colors"] == {"globex": before["globex"]}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL reads a table of two rows as a whole")
@pytest.mark.parametrize("query", [{"q": "req_01a2"}, {"request_id": "req_01a2"}])
def test_a_request_is_looked_for_in_an_index_and_not_among_all_rows(world: worlds.World, query: dict[str, str]) -> None:
    with CaptureQueriesContext(connection) as queries:
        asked(world, "olga", "find" if "q" in query else "requests", **query)
    asked_for = [q["sql"] for q in queries if "telemetry_ledgerentry" in q["sql"] and "req_01a2" in q["sql"]]
    assert asked_for
    for sql in asked_for:
        with connection.cursor() as cursor:
            plan = " ".join(str(row) for row in cursor.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())
        assert "(request_id>? AND request_id<?)" in plan


def test_a_request_is_found_by_the_beginning_of_its_number_and_by_no_other_part(world: worlds.World) -> None:
    number = record(1).request_id
    assert ("request", number) in found(world, "olga", number[:-1])
    assert ("request", number) not in found(world, "olga", number[1:])
