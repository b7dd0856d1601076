"""A time with more requests than are read: an even sample of it, that says so, and figures over the time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from telemetry.api import reach
from telemetry.ledger import explore, sampling, writer
from tests.support import worlds
from tests.support.telemetry_world import globex_record, record, refused

pytestmark = pytest.mark.django_db

ROWS = 1200
HOUR_S = 3600.0
_DRAW = random.Random(5)
MOMENTS_S = sorted(round(_DRAW.uniform(0.01, HOUR_S - 0.01), 2) for _ in range(ROWS))
BY_MINUTE = [sum(1 for age in MOMENTS_S if age // 60 == minute) for minute in range(60)]


@pytest.fixture
def begin() -> datetime:
    return (timezone.now() - timedelta(hours=2)).replace(microsecond=0)


@pytest.fixture
def world(begin: datetime, monkeypatch: pytest.MonkeyPatch) -> worlds.World:
    """An hour of requests at odd moments: first tokens take 1 s in its first half and 2 s in its second; a quarter
    is of globex."""
    monkeypatch.setattr(explore, "MOST_READ", 120)
    monkeypatch.setattr(sampling, "PROBE", 60)
    monkeypatch.setattr(sampling, "CANDIDATES", 1200)
    rows = []
    for n, age in enumerate(MOMENTS_S):
        at = begin.timestamp() + age
        make = globex_record if n % 4 == 0 else record
        first = at + (1 if age < HOUR_S / 2 else 2)
        rows.append(make(n, received_s=at, queued_s=at, granted_s=at, first_token_s=first, done_s=at + 3))
    writer.write(rows)
    return worlds.build()


def asked(world: worlds.World, begin: datetime, who: str = "olga", **query: Any) -> Any:
    times = {"from": begin.isoformat(), "to": (begin + timedelta(hours=1)).isoformat()}
    api = APIClient()
    api.force_login(world.users[who])
    answer = api.get("/api/v1/requests/explore", times | query)
    return answer.json() if answer.status_code == 200 else answer.status_code


def test_a_time_with_more_requests_is_read_evenly_and_the_answer_says_how_many_were(
    world: worlds.World, begin: datetime
) -> None:
    found = asked(world, begin)
    assert 0.05 < found["share"] < 0.3
    assert found["searched_to"] is None, "the whole time is looked at"
    assert found["requests"] == pytest.approx(ROWS, rel=0.35)
    tenants = {row["value"]: row["requests"] for row in found["facets"]["tenant"]}
    assert sum(tenants.values()) == pytest.approx(ROWS, rel=0.35)
    assert found["groups"][0]["ttft_p50"] in (1.0, 2.0)
    columns = {cell[0] // 6 for cell in found["heat"]["cells"]}
    assert columns == set(range(10)), "every part of the time has its share"


def test_what_is_read_at_once_is_counted_exactly(
    world: worlds.World, begin: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_READ", ROWS)
    found = asked(world, begin)
    assert (found["share"], found["requests"]) == (1.0, ROWS)
    assert sum(cell[2] for cell in found["heat"]["cells"]) == ROWS


def test_a_tenants_requests_are_sampled_by_its_own_number_of_them(world: worlds.World, begin: datetime) -> None:
    found = asked(world, begin, tenant="globex")
    assert 0.2 < found["share"] < 0.8
    assert found["requests"] == pytest.approx(ROWS / 4, rel=0.35)
    assert {row["value"] for row in found["facets"]["tenant"]} == {"globex"}
    own = asked(world, begin, "carol")
    assert own["requests"] == pytest.approx(ROWS / 4, rel=0.35)
    assert [row["name"] for row in own["groups"]] == ["globex"]


def test_what_is_rare_is_not_sampled_but_searched_for_from_the_newest_on(
    world: worlds.World, begin: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "NEIGHBOURS", 400)
    at = begin.timestamp() + HOUR_S - 30
    writer.write([record(ROWS + 1, received_s=at, queued_s=at, granted_s=at + 20, first_token_s=at + 21)])
    found = asked(world, begin, waited_over=8)
    assert (found["share"], found["requests"]) == (1.0, 1)
    assert found["searched_to"] is not None
    often = asked(world, begin, total_over=1)
    assert often["share"] < 1.0
    assert often["searched_to"] is None


def test_the_same_windows_are_read_whatever_the_load_and_a_denser_past_is_bounded(
    world: worlds.World, begin: datetime
) -> None:
    """The newest requests say how many there are; where the past was far busier, half of the sample is left out."""
    crowd = [
        record(5000 + n, received_s=begin.timestamp() + n / 4, granted_s=begin.timestamp() + n / 4, queued_s=None)
        for n in range(2400)
    ]
    writer.write(crowd)
    found = asked(world, begin)
    assert found["share"] < 0.1
    assert found["requests"] == pytest.approx(ROWS + 2400, rel=0.35)


def test_figures_over_time_are_of_each_step_and_unknown_where_nothing_was_read(
    world: worlds.World, begin: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_READ", ROWS + 10)
    writer.write([refused(4000, received_s=begin.timestamp() + 1, done_s=begin.timestamp() + 1)])
    found = asked(world, begin, over_time="true")["over_time"]
    figures = found["figures"]
    assert (found["from"], found["step_s"]) == (begin.timestamp(), 60.0)
    assert figures["requests"] == [BY_MINUTE[0] + 1, *BY_MINUTE[1:]]
    assert figures["refused"] == [1, *[0] * 59]
    assert (figures["ttft_p95"][0], figures["ttft_p95"][59]) == (1.0, 2.0)
    assert found["known_s"] == [60.0] * 60
    monkeypatch.setattr(explore, "MOST_READ", 300)
    part = asked(world, begin, over_time="true", waited_under=1)
    assert part["share"] < 1.0
    assert sum(part["over_time"]["figures"]["requests"]) == pytest.approx(ROWS, rel=0.35)


def test_time_that_was_not_read_is_unknown_and_time_without_requests_is_zero(
    world: worlds.World, begin: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"from": begin.isoformat(), "to": (begin + timedelta(hours=4)).isoformat(), "over_time": "true"}
    monkeypatch.setattr(explore, "MOST_READ", ROWS)
    found = asked(world, begin, **times)["over_time"]
    figures, known = found["figures"], found["known_s"]
    assert figures["requests"][20] == 0, "an hour after the last request: none came"
    assert (figures["requests"][45], known[45]) == (None, 0.0), "it has not been yet"
    assert figures["ttft_p95"][20] is None
    assert figures["attainment"][20] is None
    monkeypatch.setattr(reach, "NEIGHBOURS", 300)
    searched = asked(world, begin, over_time="true", waited_over=8)
    assert searched["over_time"]["figures"]["requests"][0] is None, "before it nothing was searched"
    assert searched["over_time"]["figures"]["requests"][59] == 0


def test_time_before_the_ledgers_first_request_is_unknown_and_not_without_requests(
    world: worlds.World, begin: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_READ", ROWS)
    times = {"from": (begin - timedelta(hours=1)).isoformat(), "over_time": "true"}
    for tenant in ("globex", "nobody"):
        found = asked(world, begin, **times, tenant=tenant)["over_time"]
        assert set(found["figures"]["requests"][:29]) == {None}, "the installation was not there, or keeps no more"
        assert set(found["known_s"][:29]) == {0.0}
        assert None not in found["figures"]["requests"][31:]


def test_a_member_is_not_told_when_another_tenant_sent_its_first_request(begin: datetime) -> None:
    world, times = worlds.build(), {"over_time": "true"}
    at_s = begin.timestamp()
    writer.write([globex_record(1, received_s=at_s + 1800, done_s=at_s + 1801)])
    alone = asked(world, begin, "carol", **times)["over_time"]
    writer.write([record(2, received_s=at_s + 60, done_s=at_s + 61)])
    assert asked(world, begin, "carol", **times)["over_time"] == alone
    assert asked(world, begin, "olga", **times)["over_time"]["known_s"] != alone["known_s"]


def test_a_ledger_without_requests_knows_of_no_time(begin: datetime) -> None:
    found = asked(worlds.build(), begin, over_time="true")["over_time"]
    assert set(found["figures"]["requests"]) == {None}


def test_figures_over_time_need_a_beginning(world: worlds.World) -> None:
    api = APIClient()
    api.force_login(world.users["olga"])
    assert api.get("/api/v1/requests/explore", {"over_time": "true"}).status_code == 400


def test_an_end_in_the_far_future_is_as_good_as_now(world: worlds.World, begin: datetime) -> None:
    found = asked(world, begin, to="2100-01-01T00:00:00Z", over_time="true")
    assert 0.01 < found["share"] < 0.3
    assert found["requests"] == pytest.approx(ROWS, rel=0.35)
    assert found["over_time"]["step_s"] * 60 == pytest.approx(2 * 3600, rel=0.1), "the two hours that have passed"


def test_an_end_before_the_beginning_holds_nothing(world: worlds.World, begin: datetime) -> None:
    found = asked(world, begin, to="1990-01-01T00:00:00Z", over_time="true")
    assert (found["requests"], found["share"], found["over_time"]) == (0, 1.0, None)


def test_windows_are_a_share_of_the_time_that_has_passed() -> None:
    begin = datetime(2026, 11, 23, tzinfo=UTC)
    time = sampling.Span(begin, begin + timedelta(hours=1), begin + timedelta(minutes=30))
    found = sampling.windows(time, 0.25)
    assert len(found) == 30
    assert sum(((until - since) for since, until in found), timedelta()) == timedelta(minutes=7.5)
