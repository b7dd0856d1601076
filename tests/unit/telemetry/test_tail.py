"""Following the ledger's end: each row once or twice, as it is stored, and never a row that is somebody else's."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from telemetry.ledger import tail, writer
from telemetry.models import LedgerEntry
from tests.support import worlds
from tests.support.telemetry_world import NOW, globex_record, record, refused

pytestmark = pytest.mark.django_db


def asked(world: worlds.World, who: str, **query: Any) -> Any:
    api = APIClient()
    api.force_login(world.users[who])
    answer = api.get("/api/v1/requests/tail", query)
    return answer.json() if answer.status_code == 200 else answer.status_code


def names(answer: Any) -> list[str]:
    return [row["request_id"] for row in answer["results"]]


def id_of(n: int) -> str:
    return str(record(n).request_id)


def test_only_what_was_stored_since_is_sent_in_the_order_in_which_it_ended() -> None:
    world = worlds.build()
    writer.write([record(1), record(2)])
    first = asked(world, "olga")
    assert names(first) == [id_of(2), id_of(1)]
    assert names(asked(world, "olga", place=first["place"])) == []
    writer.write([record(3, received_s=NOW - 600)])  # it came long before the others
    writer.write([record(4)])
    second = asked(world, "olga", place=first["place"])
    assert (names(second), second["whole"]) == ([id_of(4), id_of(3)], True)
    assert names(asked(world, "olga", place=second["place"])) == []


def test_filters_hold_and_a_place_goes_on_where_nothing_fitted() -> None:
    world = worlds.build()
    writer.write([record(1)])
    place = asked(world, "olga", outcome="refused")["place"]
    writer.write([record(2), refused(3), record(4, queued_s=NOW - 40, granted_s=NOW - 20)])
    found = asked(world, "olga", outcome="refused", place=place)
    assert names(found) == [str(refused(3).request_id)]
    assert names(asked(world, "olga", waited_over=8, place=place)) == [id_of(4)]
    assert names(asked(world, "olga", outcome="refused", place=found["place"])) == []


def test_a_member_follows_only_the_requests_of_their_own_tenants_and_learns_no_numbers() -> None:
    world = worlds.build()
    writer.write([record(1), globex_record(2)])
    found = asked(world, "carol")
    theirs = {row["tenant"] for row in found["results"]}
    assert theirs == {"globex"}
    assert names(asked(world, "carol", tenant="acme")) == []
    assert found["place"].startswith("gAAAA"), "sealed"
    assert asked(world, "carol", place="17 3") == 400


def test_a_members_answers_are_the_same_however_many_requests_others_send(monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.build()
    monkeypatch.setattr(tail, "FURTHEST", 4)
    monkeypatch.setattr(tail, "LATE", 4)
    writer.write([globex_record(1), record(2)])
    late = LedgerEntry.objects.get(request_id=id_of(2))
    LedgerEntry.objects.filter(pk=late.pk).delete()
    writer.write([globex_record(3)])
    first = asked(world, "carol")
    assert len(names(first)) == 2
    late.save(force_insert=True)  # another tenant's row that appears late is no reason to read hers again
    assert names(asked(world, "carol", place=first["place"])) == []
    writer.write([globex_record(4), *(record(n) for n in range(10, 30))])
    again = asked(world, "carol", place=first["place"])
    assert (names(again), again["whole"]) == ([str(globex_record(4).request_id)], True)
    assert len(names(asked(world, "carol"))) == 3


def test_of_more_than_are_sent_the_newest_are_and_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.build()
    monkeypatch.setattr(tail, "MOST_ROWS", 3)
    place = asked(world, "olga")["place"]
    writer.write([record(n) for n in range(5)])
    found = asked(world, "olga", place=place)
    assert (names(found), found["whole"]) == ([id_of(4), id_of(3), id_of(2)], False)


def test_who_comes_back_after_hours_searches_no_more_than_the_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "FURTHEST", 4)
    place = tail.since(Q(), None).place
    writer.write([*(refused(n) for n in range(3)), *(record(n) for n in range(10, 16))])
    found = tail.since(Q(outcome="refused"), place)
    assert (found.rows, found.whole) == ([], False)


def test_a_row_that_appears_under_a_lower_number_than_the_last_is_not_lost() -> None:
    writer.write([record(n) for n in range(4)])
    late = LedgerEntry.objects.get(request_id=id_of(1))
    LedgerEntry.objects.filter(pk=late.pk).delete()  # its writer has the number, and is not done
    place = tail.since(Q(), None).place
    late.save(force_insert=True)
    again = tail.since(Q(), place)
    assert late.request_id in {row.request_id for row in again.rows}
    assert tail.since(Q(), again.place).rows == []


def test_the_newest_rows_are_found_by_number_whatever_the_filter() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL chooses by its statistics")
    writer.write([record(n) for n in range(4)])
    with CaptureQueriesContext(connection) as asked_for:
        assert len(tail.since(Q(tenant="acme", outcome="completed"), tail.Place(0, 0)).rows) == 4
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {asked_for.captured_queries[-1]['sql']}")
        ways = [str(row[-1]) for row in cursor.fetchall()]
    assert ways == ["SEARCH telemetry_ledgerentry USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]
