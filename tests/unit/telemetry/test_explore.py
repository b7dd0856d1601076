"""The explorer of requests: filters by duration, counts by value, percentiles by group, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from telemetry.ledger import explore, writer
from tests.support import worlds
from tests.support.telemetry_world import NOW, globex_record, record, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    """acme's requests 0 to 9 waited 1 to 10 s; one of globex's waited 30 s; one of acme's was refused."""
    rows = [record(n, queued_s=NOW - 40, granted_s=NOW - 39 + n, first_token_s=NOW - 2) for n in range(10)]
    rows += [globex_record(20, queued_s=NOW - 40, granted_s=NOW - 10, backend="gpu-2"), refused(30)]
    writer.write(rows)
    return worlds.build()


def asked(world: worlds.World, who: str, path: str = "requests/explore", **query: Any) -> Any:
    api = APIClient()
    api.force_login(world.users[who])
    answer = api.get(f"/api/v1/{path}", query)
    return answer.json() if answer.status_code == 200 else answer.status_code


def test_who_waited_longer_than_eight_seconds_is_one_question(world: worlds.World) -> None:
    found = asked(world, "olga", "requests", waited_over=8)["results"]
    assert sorted(row["queue_ms"] for row in found) == pytest.approx([9000, 10_000, 30_000])
    both = asked(world, "olga", "requests", waited_over=8, waited_under=9.5, tenant="acme")["results"]
    assert [row["queue_ms"] for row in both] == pytest.approx([9000])
    assert asked(world, "olga", "requests", ttft_over=0.9, total_under=2)["results"] == []


def test_counts_and_percentiles_are_of_what_fits(world: worlds.World) -> None:
    whole = asked(world, "olga", group_by="tenant")
    assert whole["requests"] == 12
    assert {row["value"]: row["requests"] for row in whole["facets"]["outcome"]} == {"completed": 11, "refused": 1}
    acme, globex = whole["groups"]
    assert (acme["name"], acme["requests"], acme["waited_p50"], acme["waited_p95"]) == ("acme", 11, 5.0, 10.0)
    assert (globex["name"], globex["waited_p95"]) == ("globex", 30.0)
    narrow = asked(world, "olga", group_by="tenant", waited_over=8)
    assert [(row["name"], row["requests"]) for row in narrow["groups"]] == [("acme", 2), ("globex", 1)]
    longest = asked(world, "olga", group_by="tenant", sort="waited_p95")
    assert [row["name"] for row in longest["groups"]] == ["globex", "acme"]


def test_who_got_a_slot_on_arrival_waited_no_time_and_a_refusal_has_none() -> None:
    rows = [record(n, queued_s=None, granted_s=NOW - 30) for n in range(3)]
    writer.write([*rows, refused(30)])
    [acme] = asked(worlds.build(), "olga", group_by="tenant")["groups"]
    assert (acme["requests"], acme["waited_p50"], acme["waited_p95"]) == (4, 0.0, 0.0)


def test_members_sum_up_their_own_and_see_no_replica(world: worlds.World) -> None:
    own = asked(world, "carol")
    assert (own["requests"], [row["name"] for row in own["groups"]]) == (1, ["globex"])
    assert "backend" not in own["facets"]
    assert asked(world, "carol", group_by="backend") == 400
    assert asked(world, "carol", backend="gpu-2") == 400


def test_only_the_newest_are_summed_up_and_the_answer_tells_from_when_on(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_READ", 5)
    some = asked(world, "olga")
    assert some["requests"] == 5
    assert some["searched_to"] is not None


@pytest.mark.parametrize(
    "query", [{"waited_over": -1}, {"waited_over": "soon"}, {"group_by": "weather"}, {"sort": "x"}]
)
def test_what_makes_no_sense_is_refused(query: dict[str, Any], world: worlds.World) -> None:
    assert asked(world, "olga", **query) == 400


def test_requests_are_found_and_summed_up_by_their_user_and_fallback() -> None:
    rows = [record(n, user="ada" if n % 2 else "bob") for n in range(5)]
    rows += [globex_record(20, user="ada"), record(21, user="ada", instead_of="acme-big", instead_why="no_backend")]
    writer.write(rows)
    world = worlds.build()
    found = asked(world, "alice", "requests", user="ada")["results"]
    assert {(row["tenant"], row["user"]) for row in found} == {("acme", "ada")}
    assert len(found) == 3
    assert {row["value"]: row["requests"] for row in asked(world, "alice")["facets"]["user"]} == {"ada": 3, "bob": 3}
    [taken] = asked(world, "alice", "requests", instead_of="acme-big")["results"]
    assert (taken["instead_of"], taken["instead_why"]) == ("acme-big", "no_backend")
    span = {"from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"}
    used = asked(world, "alice", "usage", group_by="user", **span)["rows"]
    assert {row["user"]: row["requests"] for row in used} == {"ada": 3, "bob": 3}
    [hers] = asked(world, "olga", "usage", group_by="tenant", user="ada", tenant="globex", **span)["rows"]
    assert (hers["tenant"], hers["requests"]) == ("globex", 1)


def test_the_story_of_a_refusal_by_a_limit_names_it() -> None:
    admission = '{"answer":"refused","inflight":0,"concurrency":8,"kv":10,"limit":"user requests"}'
    writer.write([refused(30, reason="user_limit", admission=admission)])
    world = worlds.build()
    [row] = asked(world, "olga", "requests")["results"]
    told = asked(world, "olga", f"requests/{row['request_id']}")["story"]["checks"]
    [limits] = [check for check in told if check["rule"] == "limits"]
    assert (limits["state"], limits["note"]) == ("failed", "the limit of its user: requests a minute")
