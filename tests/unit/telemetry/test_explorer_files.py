"""The explorer's other orders, heat map, files and saved views."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from rest_framework.test import APIClient

from telemetry.ledger import explore, writer
from telemetry.models import SavedView
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


def api(world: worlds.World, who: str) -> APIClient:
    client = APIClient()
    client.force_login(world.users[who])
    return client


def asked(world: worlds.World, who: str, path: str, **query: Any) -> Any:
    answer = api(world, who).get(f"/api/v1/{path}", query)
    return answer.json() if answer.status_code == 200 else answer.status_code


# --- order


def test_the_longest_waits_can_be_listed_first(world: worlds.World) -> None:
    found = asked(world, "olga", "requests", order="waited")
    waits = [row["queue_ms"] for row in found["results"]]
    assert waits[:3] == pytest.approx([30_000, 10_000, 9000])
    assert waits == sorted(waits, reverse=True)
    assert (found["next"], found["searched_to"], len(waits)) == (None, None, 11), "who never waited has no wait"
    assert [row["tenant"] for row in asked(world, "carol", "requests", order="waited")["results"]] == ["globex"]
    assert asked(world, "olga", "requests", order="colour") == 400


def test_another_order_holds_for_the_newest_only_and_says_so(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_READ", 5)
    monkeypatch.setattr(explore, "LARGEST_ROWS", 2)
    found = asked(world, "olga", "requests", order="total")
    assert len(found["results"]) == 2
    assert found["searched_to"] is not None


# --- the heat map


def test_the_heat_map_counts_every_request_that_has_the_duration(world: worlds.World) -> None:
    heat = asked(world, "olga", "requests/explore", heat="waited")["heat"]
    assert sum(n for _, _, n in heat["cells"]) == 11
    rows = {level for _, level, _ in heat["cells"]}
    assert rows <= set(range(len(heat["levels_s"]) + 1))
    of_30_s = next(i for i, bound in enumerate(heat["levels_s"]) if bound > 30)
    assert [n for _, level, n in heat["cells"] if level == of_30_s] == [1]
    only = asked(world, "olga", "requests/explore", heat="waited", waited_over=20)["heat"]
    assert sum(n for _, _, n in only["cells"]) == 1


def test_the_heat_map_spans_the_time_that_was_asked_for() -> None:
    writer.write([record(1, received_s=NOW - 100)])
    since, until = "2026-09-21T14:00:00Z", "2026-09-21T15:00:00Z"
    world = worlds.build()
    heat = asked(world, "olga", "requests/explore", **{"from": since, "to": until})["heat"]
    assert heat["to"] - heat["from"] == pytest.approx(3600.0)
    nothing = asked(world, "olga", "requests/explore", tenant="nobody")["heat"]
    assert (nothing["from"], nothing["cells"]) == (None, [])


# --- files


def lines(world: worlds.World, who: str, **query: Any) -> list[dict[str, str]]:
    answer = api(world, who).get("/api/v1/requests/export", {"format": "csv"} | query)
    assert answer.status_code == 200
    assert answer["Content-Disposition"].endswith('.csv"')
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_a_file_has_what_the_list_has_and_the_same_filters(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "CHUNK", 3)
    found = lines(world, "olga")
    assert len({row["request_id"] for row in found}) == len(found) == 12
    assert [row["received_at"] for row in found] == sorted((row["received_at"] for row in found), reverse=True)
    waits = sorted(float(row["waited_s"]) for row in lines(world, "olga", waited_over=8.5))
    assert waits == pytest.approx([9, 10, 30], abs=1e-3)
    told = asked(world, "olga", "requests/export", format="json")
    assert {row["request_id"] for row in told["requests"]} == {row["request_id"] for row in found}
    assert told["searched_to"] is None


def test_members_get_their_own_requests_and_no_replica_in_a_file(world: worlds.World) -> None:
    [own] = lines(world, "carol")
    assert own["tenant"] == "globex"
    assert "backend" not in own
    assert "backend" in lines(world, "olga")[0]
    assert "acme" not in json.dumps(asked(world, "carol", "requests/export", format="json"))


def test_a_file_is_bounded_and_says_from_when_on_it_is_whole(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_READ", 5)
    answer = api(world, "olga").get("/api/v1/requests/export", {"format": "csv"})
    assert len(b"".join(answer.streaming_content).splitlines()) == 6
    assert answer["x-quartermaster-searched-to"]


def test_no_value_of_a_file_is_run_by_a_spreadsheet() -> None:
    writer.write([record(1, model="=HYPERLINK(1)")])
    assert lines(worlds.build(), "olga")[0]["model"] == "'=HYPERLINK(1)"


# --- saved views


def test_a_view_is_kept_for_who_saved_it_without_the_row_that_was_open(world: worlds.World) -> None:
    alice = api(world, "alice")
    made = alice.post(
        "/api/v1/saved-views", {"name": "slow", "query": "?waited_over=8&tenant=acme&request=req_1"}, format="json"
    )
    assert (made.status_code, made.json()["query"]) == (201, "waited_over=8&tenant=acme")
    path = f"/api/v1/saved-views/{made.json()['id']}"
    assert [row["name"] for row in alice.get("/api/v1/saved-views").json()] == ["slow"]
    assert alice.patch(path, {"name": "slower"}, format="json").json()["name"] == "slower"
    adam = api(world, "adam")
    assert adam.get("/api/v1/saved-views").json() == [], "also not an admin's"
    assert {
        adam.get(path).status_code,
        adam.patch(path, {}, format="json").status_code,
        adam.delete(path).status_code,
    } == {404}
    assert alice.delete(path).status_code == 204
    assert APIClient().get("/api/v1/saved-views").status_code == 401


def test_views_are_few_short_and_named_once(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = api(world, "alice")

    def save(name: str, query: str = "tenant=acme") -> int:
        return alice.post("/api/v1/saved-views", {"name": name, "query": query}, format="json").status_code

    assert [save("a"), save("a"), save("b", "x" * 1001), save("c", "&".join(f"a{n}=1" for n in range(50)))] == [
        201, 400, 400, 400,
    ]  # fmt: skip
    monkeypatch.setattr("telemetry.api.views.MOST_VIEWS", 1)
    assert save("d") == 400
    assert SavedView.objects.count() == 1
