"""How far one page of the ledger is searched, and that going on finds everything once."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from telemetry.api import reach
from telemetry.ledger import writer
from tests.support import worlds
from tests.support.telemetry_world import NOW, record

pytestmark = pytest.mark.django_db

ROWS = 60


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture(autouse=True)
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests a second, newest last; a few of them are not like the others."""
    monkeypatch.setattr(reach, "CANDIDATES", 10)
    monkeypatch.setattr(reach, "NEIGHBOURS", 20)
    special: dict[int, dict[str, Any]] = {
        n: {"tier": "batch", "tenant": "globex", "entitlement": "globex-llama"} for n in (0, 9, 10, 11, 31, 40, 41)
    }
    writer.write([record(n, received_s=NOW - 100 + n // 3, **special.get(n, {})) for n in range(ROWS)])


def page(world: worlds.World, who: str, query: str) -> dict[str, Any]:
    api = APIClient()
    api.force_login(world.users[who])
    answer = api.get(f"/api/v1/requests?{query}")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def walk(world: worlds.World, who: str, query: str) -> list[dict[str, Any]]:
    """Every page, the first of ``query``, each other where the one before says."""
    pages = [page(world, who, query)]
    while pages[-1]["next"] is not None:
        assert len(pages) < ROWS, "this never ends"
        pages.append(page(world, who, pages[-1]["next"].partition("?")[2]))
    return pages


def numbers(pages: list[dict[str, Any]]) -> list[int]:
    return [int(row["request_id"][4:], 16) for each in pages for row in each["results"]]


def test_a_filter_that_nothing_matches_is_searched_in_parts_down_to_the_beginning(world: worlds.World) -> None:
    pages = walk(world, "adam", "tier=none")
    ends = [each["searched_to"] for each in pages]
    assert len(pages) > 2
    assert numbers(pages) == []
    assert ends[-1] is None
    assert ends[:-1] == sorted(set(ends[:-1]), reverse=True)


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_going_on_finds_every_match_once_whatever_a_page_holds(limit: int, world: worlds.World) -> None:
    assert sorted(numbers(walk(world, "adam", f"tier=batch&limit={limit}"))) == [0, 9, 10, 11, 31, 40, 41]


def test_a_page_looks_no_further_than_it_says(world: worlds.World) -> None:
    first = page(world, "adam", "tier=batch")
    assert sorted(numbers([first])) == [40, 41]
    assert all(row["received_at"] >= first["searched_to"] for row in first["results"])


def test_a_full_page_says_nothing_of_how_far_it_was_searched(world: worlds.World) -> None:
    first = page(world, "adam", "tier=premium&limit=5")
    assert len(first["results"]) == 5
    assert first["searched_to"] is None
    assert first["next"] is not None


@pytest.mark.parametrize(
    "query", ["tenant=globex", "entitlement=globex-llama", "request_id=req_00000000000000000000000"]
)
def test_one_filter_with_an_index_finds_its_rows_wherever_they_are(query: str, world: worlds.World) -> None:
    first = page(world, "adam", query)
    assert 0 in numbers([first])
    assert first["searched_to"] is None


def test_of_several_filters_the_rarest_decides_how_far_a_page_reaches(world: worlds.World) -> None:
    first = page(world, "adam", "tenant=globex&slo_met=true")  # seven candidates: all of them are looked at
    assert sorted(numbers([first])) == [0, 9, 10, 11, 31, 40, 41]
    assert first["searched_to"] is None
    assert page(world, "adam", "tenant=acme&slo_met=false")["searched_to"] is not None


def test_a_time_that_was_asked_for_bounds_the_search(world: worlds.World) -> None:
    newest = page(world, "adam", "limit=1")["results"][0]["received_at"]
    assert page(world, "adam", f"tier=none&from={newest}")["searched_to"] is None


def test_a_member_reads_nothing_of_others_requests_from_how_far_it_was_searched(world: worlds.World) -> None:
    """Carol sees globex's seven requests, which one page holds, however many others had meanwhile."""
    for query in ("slo_met=false", "tenant=acme&slo_met=false", "pool=llama&slo_met=false", "tier=none"):
        found = page(world, "carol", query)
        assert (found["searched_to"], found["next"], found["results"]) == (None, None, [])


def test_a_member_goes_on_through_its_own_requests(world: worlds.World) -> None:
    pages = walk(world, "alice", "slo_met=false")
    assert len(pages) > 2
    assert numbers(pages) == []
    assert len(numbers(walk(world, "alice", "slo_met=true"))) == ROWS - 7
