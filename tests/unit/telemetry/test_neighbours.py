"""Whom a request waited for: who had the slots meanwhile, who went first, and who may know."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from rest_framework.test import APIClient

from scheduling.core.ledger.record import LedgerRecord
from telemetry.ledger import neighbours, writer
from telemetry.ledger.neighbours import Run, Waited, holders
from telemetry.ledger.queue import QueueUnavailable
from telemetry.models import LedgerEntry
from tests.support import worlds
from tests.support.telemetry_world import MemoryStore, globex_record, record, refused

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
S = AT.timestamp()


def test_only_time_in_which_somebody_waited_counts() -> None:
    waited = Waited([(10, 20), (15, 25), (40, 50)])
    assert waited.seconds == 25
    runs = [Run("acme", 0, 0, 12), Run("globex", 0, 18, 45), Run("globex", 30, 30, 39), Run("dune", 0, 60, 90)]
    rows = holders(waited, runs)
    assert [(row["tenant"], row["slot_s"], row["requests"]) for row in rows] == [("globex", 12, 1), ("acme", 2, 1)]
    assert [row["share"] for row in rows] == [pytest.approx(12 / 14, abs=1e-4), pytest.approx(2 / 14, abs=1e-4)]


def test_it_agrees_with_counting_second_by_second() -> None:
    rng = random.Random(5)
    waits = [(a := rng.uniform(0, 90), a + rng.uniform(0, 9)) for _ in range(12)]
    runs = [Run("x", 0, a := rng.uniform(-5, 95), a + rng.uniform(0, 20)) for _ in range(30)]
    step = 0.01
    ticks = [i * step for i in range(-500, 13_000)]
    open_ = [t for t in ticks if any(a <= t < b for a, b in waits)]
    counted = sum(sum(r.granted_s <= t < r.done_s for r in runs) for t in open_) * step
    assert holders(Waited(waits), runs)[0]["slot_s"] == pytest.approx(counted, rel=0.01)


def test_who_came_later_and_went_first_overtook_and_who_came_before_did_not() -> None:
    waited = Waited([(10, 20)])
    assert waited.overtaken_by(Run("x", 11, 12, 30))
    assert not waited.overtaken_by(Run("x", 9, 12, 30)), "it was there first"
    assert not waited.overtaken_by(Run("x", 21, 22, 30)), "nobody waited any more"


def times(received: float, queued: float | None, granted: float | None, done: float) -> dict[str, Any]:
    return {
        "received_s": S + received,
        "queued_s": None if queued is None else S + queued,
        "granted_s": None if granted is None else S + granted,
        "first_token_s": None,
        "done_s": S + done,
    }


def story_rows() -> list[LedgerRecord]:
    """acme's 1 waits from 0 to 10 s; globex holds slots and one of its requests overtakes."""
    return [
        record(1, **times(0, 0, 10, 12)),
        globex_record(2, **times(-5, None, -5, 8)),  # held a slot from before
        globex_record(3, **times(-1, -1, 4, 9), why="elastic band, due 3 s after arrival"),
        globex_record(4, **times(5, 5, 8, 11), why="elastic band, due 1 s after arrival"),  # came later, went first
        record(5, **times(20, None, 20, 30)),  # nobody waited then
    ]


@pytest.mark.django_db
def test_a_waits_steps_count_down_to_its_grant_and_name_who_went_just_before() -> None:
    writer.write(story_rows())
    found = neighbours.ahead_of(LedgerEntry.objects.get(request_id=record(1).request_id))
    assert found is not None
    assert found["steps"] == [[0.0, 2], [4000.0, 1], [8000.0, 0]]
    assert (found["count"], found["overtook"], found["tenants"]) == (2, 1, {"globex": 2})
    assert found["last"]["request_id"] == record(4).request_id
    assert found["last"]["why"] == "elastic band, due 1 s after arrival"
    assert neighbours.ahead_of(LedgerEntry.objects.get(request_id=record(5).request_id)) is None


@pytest.mark.django_db
def test_long_waits_keep_their_first_and_last_step() -> None:
    writer.write(
        [
            record(1, **times(0, 0, 100, 101)),
            *(globex_record(2 + i, **times(-1, -1, 0.1 * i + 0.05, 200)) for i in range(500)),
        ]
    )
    found = neighbours.ahead_of(LedgerEntry.objects.get(request_id=record(1).request_id))
    assert found is not None
    assert found["steps"][0] == [0.0, 500]
    assert found["steps"][-1][1] == 0
    assert len(found["steps"]) <= neighbours.MAX_STEPS + 1


@pytest.mark.django_db
def test_a_tenants_neighbours_are_those_who_ran_while_it_waited() -> None:
    writer.write([*story_rows(), refused(6, received_s=S + 1, done_s=S + 1)])
    found = neighbours.neighbours("acme", AT - timedelta(seconds=1), AT + timedelta(minutes=1))
    (pool,) = found["pools"]
    assert (found["received"], found["refused"], pool["requests"]) == (3, {"concurrency": 1}, 1)
    assert (pool["waited_s"], pool["longest_s"], pool["whole"]) == (10, 10, True)
    assert [(row["tenant"], row["slot_s"], row["requests"], row["overtook"]) for row in pool["held"]] == [
        ("globex", 8 + 5 + 2, 3, 1)
    ]


@pytest.mark.django_db
def test_what_is_too_much_to_read_is_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write([*story_rows(), record(7, **times(2, 2, 3, 4))])
    for most, whole in ((2, True), (1, False)):
        monkeypatch.setattr(neighbours, "MAX_WAITS", most)
        (pool,) = neighbours.neighbours("acme", AT - timedelta(seconds=1), AT + timedelta(minutes=1))["pools"]
        assert (pool["requests"], pool["whole"]) == (most, whole)
    monkeypatch.setattr(neighbours, "MAX_WAITS", 2)
    monkeypatch.setattr(neighbours, "MAX_RUNS", 1)
    (pool,) = neighbours.neighbours("acme", AT - timedelta(seconds=1), AT + timedelta(minutes=1))["pools"]
    assert not pool["whole"]


@pytest.mark.django_db
def test_what_waits_and_runs_now_counts_as_well() -> None:
    hog = Run("dune", S - 900, S - 900, S + 60)
    until = AT + timedelta(minutes=1)
    found = neighbours.neighbours("acme", AT, until, waiting=[("llama", S + 20)], running=[("llama", hog)])
    (pool,) = found["pools"]
    assert [(row["tenant"], row["slot_s"]) for row in pool["held"]] == [("dune", 40)]


@pytest.mark.django_db
@pytest.mark.parametrize(("who", "status"), [("alice", 404), ("carol", 404), ("olga", 200), ("adam", 200)])
def test_members_are_not_told_who_else_is_there(who: str, status: int) -> None:
    world = worlds.build()
    writer.write(story_rows())
    api = APIClient()
    api.force_login(world.users[who])
    away = mock.patch("telemetry.api.neighbours.queue_store", side_effect=QueueUnavailable)
    with away, mock.patch("telemetry.api.live.live_store", return_value=MemoryStore()):
        assert api.get("/api/v1/tenants/acme/neighbours?minutes=60").status_code == status
        told = api.get(f"/api/v1/requests/{record(1).request_id}")
    if who in ("olga", "adam"):
        assert told.json()["story"]["ahead"]["tenants"] == {"globex": 2}
    else:
        assert "globex" not in told.content.decode()
