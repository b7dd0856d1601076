"""The dashboard's past: points merged, written by steps, kept for so long, and read back by whoever may see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
from django.db import OperationalError
from django.test import Client

from scheduling.core.types import Standing
from telemetry.feed import history, past, snapshots
from telemetry.feed.window import Window
from telemetry.models import PastPoint
from tests.support import worlds
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, globex_record, record, sample

pytestmark = pytest.mark.django_db


def shot(at_s: float, **changes: Any) -> snapshots.Snapshot:
    window = Window()
    window.add([record(1, done_s=at_s, received_s=at_s - 3)], at_s)
    window.add([globex_record(2, done_s=at_s, received_s=at_s - 3)], at_s)
    standings = {"acme-llama": Standing(600.0, 0.25, 0.0), "globex-llama": Standing(30.0, -0.5, 0.1)}
    values: dict[str, Any] = {
        "kv_used": {"acme-llama": 2000},
        "served_per_s": {"acme-llama": 120.0},
        "standings": standings,
    }
    return snapshots.snapshot(sample(at_s, **(values | changes)), window, ENTITLEMENTS, 1)


def test_a_point_splits_the_pool_by_entitlement_tier_and_backend() -> None:
    point = history.point(shot(NOW))
    acme = point["entitlements"]["acme-llama"]
    assert acme == {
        "tenant": "acme", "running": 3, "waiting": 2, "tokens": 120.0, "kv": 2000, "weight": 600.0, "debt": 0.25,
        "burst": 0.0,
    }  # fmt: skip
    assert "kv" not in point["entitlements"]["globex-llama"]
    assert point["tiers"]["premium"]["total"] == 1
    assert point["backends"] == {"gpu-1": {"gpu": 0.9}}


def test_members_see_of_a_point_neither_other_entitlements_nor_tiers_nor_backends() -> None:
    seen = history.visible(history.point(shot(NOW)), frozenset({"globex"}))
    assert set(seen["entitlements"]) == {"globex-llama"}
    assert not {"tiers", "backends", "kv", "kv_tokens", "gpu"} & set(seen)
    assert "acme" not in msgspec.json.encode(seen).decode()


def test_merged_points_are_means_and_of_percentiles_the_highest() -> None:
    first, second = history.point(shot(NOW)), history.point(shot(NOW + 1, kv_used={}, served_per_s={}))
    second |= {"depth": first["depth"] + 10, "ttft_p95": 9000.0}
    both = history.merged([first, second])
    assert both["at"] == NOW + 1
    assert both["depth"] == first["depth"] + 5
    assert both["ttft_p95"] == 9000.0
    # What it did not use in the second half was nothing; what it was owed was not unknown in it.
    assert both["entitlements"]["acme-llama"]["kv"] == 1000
    assert both["entitlements"]["acme-llama"]["debt"] == 0.25
    assert both["entitlements"]["acme-llama"]["tenant"] == "acme"


def test_seconds_become_steps_of_ten_seconds_and_of_a_minute() -> None:
    kept = past.Past()
    begin = NOW // 60 * 60
    for second in range(130):
        kept.add(shot(begin + second))
    fine = PastPoint.objects.filter(step_s=10).order_by("at")
    assert list(fine.values_list("at", flat=True)) == [begin + 10 * i for i in range(12)]
    coarse = PastPoint.objects.get(step_s=60)
    assert coarse.at == begin
    assert msgspec.json.decode(coarse.point)["running"] == 10


def minutes_of(hours: float, begin: int, waiting: int = 2) -> None:
    """Rows of a minute as a leader writes them."""
    for at in range(begin, begin + int(hours * 3600), 60):
        point = history.point(shot(at + 59, waiting={"acme-llama": waiting}))
        PastPoint.objects.create(pool="llama", step_s=60, at=at, point=msgspec.json.encode(point).decode())


def run(kept: past.Past, begin: float, seconds: int) -> None:
    for second in range(seconds):
        kept.add(shot(begin + second))


def test_coarse_steps_are_made_of_what_is_stored_also_by_a_leader_that_came_later() -> None:
    begin = int(NOW // 1800 * 1800)
    minutes_of(1.5, begin)
    later = begin + 5400 + 900  # nobody led for a quarter of an hour
    run(past.Past(), later, 100)
    five = list(PastPoint.objects.filter(step_s=300).order_by("at").values_list("at", flat=True))
    half = list(PastPoint.objects.filter(step_s=1800).order_by("at").values_list("at", flat=True))
    assert five == list(range(begin, begin + 5400, 300))
    assert half == [begin, begin + 1800, begin + 3600]
    row = msgspec.json.decode(PastPoint.objects.get(step_s=1800, at=begin).point)
    assert row["at"] == begin + 1799
    assert row["tenants"]["acme"]["waiting"] == 2


def test_coarse_steps_are_made_a_few_at_a_time_and_once() -> None:
    begin = int(NOW // 1800 * 1800)
    minutes_of(3, begin)
    kept = past.Past()
    run(kept, begin + 10_800, 11)  # one look: the first step of ten seconds was written
    assert PastPoint.objects.filter(step_s=300).count() == 4
    run(kept, begin + 10_811, 120)
    assert PastPoint.objects.filter(step_s=300).count() == 36
    made = set(PastPoint.objects.filter(step_s__gte=300).values_list("id", flat=True))
    run(kept, begin + 10_931, 20)
    assert set(PastPoint.objects.filter(step_s__gte=300).values_list("id", flat=True)) == made


def test_where_coarse_steps_are_not_made_yet_finer_ones_stand_for_them() -> None:
    begin = int(NOW // 1800 * 1800)
    minutes_of(2, begin)
    first = msgspec.json.encode(history.point(shot(begin + 1799))).decode()
    PastPoint.objects.create(pool="llama", step_s=1800, at=begin, point=first)
    found = past.points("llama", begin, begin + 7200, 1800, begin + 7200)
    assert [p["at"] for p in found] == [begin + 1799, begin + 3599, begin + 5399, begin + 7199]


def test_a_database_that_is_away_delays_the_past_and_loses_nothing() -> None:
    kept = past.Past()
    with mock.patch.object(PastPoint.objects, "bulk_create", side_effect=OperationalError("away")):
        for second in range(25):
            kept.add(shot(NOW // 60 * 60 + second))
    assert not PastPoint.objects.exists()
    kept.add(shot(NOW // 60 * 60 + 25))
    assert PastPoint.objects.filter(step_s=10).count() == 2


def test_while_the_database_is_away_no_pool_takes_the_places_of_anothers_past() -> None:
    kept, pools, begin = past.Past(), [f"p{n}" for n in range(13)], int(NOW // 60 * 60)
    snapshot = shot(begin)
    with mock.patch.object(PastPoint.objects, "bulk_create", side_effect=OperationalError("away")):
        for at in range(begin, begin + 610, 10):
            for pool in pools:
                kept.add(snapshot | {"pool": pool, "at": float(at)})
    for second in range(610, 620):
        kept.add(snapshot | {"pool": "p0", "at": begin + second})
    assert [PastPoint.objects.filter(pool=pool, at=begin).count() for pool in pools] == [2] * 13


def test_the_past_is_kept_for_a_day_finely_and_for_a_week_coarsely() -> None:
    for step, age_s in ((10, 23 * 3600), (10, 25 * 3600), (60, 6 * 86_400), (60, 8 * 86_400)):
        PastPoint.objects.create(pool="llama", step_s=step, at=int(NOW - age_s), point="{}")
    assert past.forget(NOW) == 2
    assert set(PastPoint.objects.values_list("step_s", "at")) == {(10, NOW - 23 * 3600), (60, NOW - 6 * 86_400)}


@pytest.mark.parametrize(
    ("minutes", "step_s"), [(5, 1), (15, 1), (60, 10), (360, 60), (1440, 300), (2880, 300), (10_080, 1800)]
)
def test_a_window_is_read_in_steps_that_are_stored_and_at_most_nine_hundred(minutes: int, step_s: int) -> None:
    assert past.step_for(minutes * 60) == step_s
    assert step_s == 1 or step_s in past.KEPT_S
    assert minutes * 60 / step_s <= past.MAX_POINTS


class TestReading:
    """Over REST, long after the live store has forgotten it."""

    @pytest.fixture
    def world(self) -> worlds.World:
        return worlds.build()

    @pytest.fixture(autouse=True)
    def written(self) -> Iterator[float]:
        now_s = time.time()
        store = MemoryStore()
        latest = shot(now_s)
        store.store("llama", 1, 1, msgspec.json.encode(latest), msgspec.json.encode(history.point(latest)))
        for age_s in range(600, 7200, 10):
            at = int((now_s - age_s) // 10 * 10)
            point = msgspec.json.encode(history.point(shot(at + 9.5))).decode()
            PastPoint.objects.create(pool="llama", step_s=10, at=at, point=point)
        with mock.patch("telemetry.api.live.live_store", return_value=store):
            yield now_s

    def ask(self, world: worlds.World, who: str, query: str) -> Any:
        client = Client()
        client.force_login(world.users[who])
        answer = client.get(f"/api/v1/live/history?pool=llama&{query}")
        assert answer.status_code == 200, answer.content
        return answer.json()

    def test_an_hour_comes_in_steps_of_ten_seconds_and_ends_with_the_live_seconds(
        self, world: worlds.World, written: float
    ) -> None:
        seen = self.ask(world, "adam", "minutes=60")
        assert seen["step_s"] == 10
        times = [frame["at"] for frame in seen["frames"]]
        assert times == sorted(times)
        assert times[0] >= written - 3610
        assert times[-1] == pytest.approx(written, abs=1)
        assert len(times) > 250

    def test_a_moment_in_the_past_is_found_by_its_end(self, world: worlds.World, written: float) -> None:
        until = written - 5400
        seen = self.ask(world, "adam", f"minutes=5&until={until}")
        assert seen["step_s"] == 10
        assert all(until - 310 <= frame["at"] <= until + 10 for frame in seen["frames"])
        assert len(seen["frames"]) >= 29

    def test_a_member_is_told_its_own_past_only(self, world: worlds.World) -> None:
        seen = self.ask(world, "carol", "minutes=120")
        assert {name for frame in seen["frames"] for name in frame["entitlements"]} == {"globex-llama"}
        assert "acme" not in str(seen)
