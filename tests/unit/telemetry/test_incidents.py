"""An alert as an incident, and rules that are tried on the past."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from telemetry.alerts import rehearsal
from telemetry.alerts.leaderless import NO_LEADER, NO_REDIS, REFUSED
from telemetry.feed import history
from telemetry.feed.past import Past
from telemetry.ledger import writer
from telemetry.models import Alert, AlertRule, PastPoint, PoolEvent
from tests.support import worlds
from tests.support.telemetry_world import globex_record, record, refused
from tests.unit.telemetry.test_alert_rules import shot

pytestmark = pytest.mark.django_db

MINUTE = 60
NOW_S = 1_790_000_040  # a whole minute


def api(world: worlds.World, who: str) -> APIClient:
    client = APIClient()
    client.force_login(world.users[who])
    return client


# --- incidents


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def incident_of(kind: str = "queue_age", **changes: Any) -> Alert:
    """Began ten minutes ago, for 60 s before that; over five minutes ago."""
    rule = AlertRule.objects.create(name="own", kind=kind, threshold=5, for_s=60)
    alert = Alert.objects.create(kind=kind, name="own 1", rule=rule, pool="llama", line="It waits.", **changes)
    began = timezone.now() - timedelta(minutes=10)
    Alert.objects.filter(pk=alert.pk).update(at=began, resolved_at=began + timedelta(minutes=5))
    return Alert.objects.get(pk=alert.pk)


def seconds_after(alert: Alert, s: float) -> dict[str, Any]:
    when = alert.at.timestamp() + s
    return {"received_s": when, "queued_s": when, "granted_s": when + 1, "first_token_s": when + 2, "done_s": when + 3}


def test_an_incident_tells_what_went_before_and_whom_it_hurt_how(world: worlds.World) -> None:
    alert = incident_of()
    writer.write(
        [
            record(1, **seconds_after(alert, 10), slo_met=False),
            record(2, **seconds_after(alert, -30)),  # while its condition began to hold
            globex_record(3, **seconds_after(alert, 20), outcome="failed", reason="backend_lost", slo_met=None),
            refused(4, received_s=alert.at.timestamp() + 5, done_s=alert.at.timestamp() + 5),
            record(5, **seconds_after(alert, 301), slo_met=False),  # after its end
            record(6, **seconds_after(alert, 10), pool="qwen", slo_met=False),
        ]
    )
    for s, line in ((-120, "Replica gpu-1 is ejected"), (-3000, "long ago"), (20, "Replica gpu-1 is ready")):
        PoolEvent.objects.create(pool="llama", at=alert.at + timedelta(seconds=s), kind="backend", line=line)
    told = api(world, "olga").get(f"/api/v1/alerts/{alert.pk}/incident").json()
    assert told["effect"]["total"] == {"requests": 4, "refused": 1, "failed": 1, "late": 1, "waited": 3}
    assert [(row["tenant"], row["requests"], row["late"]) for row in told["effect"]["tenants"]] == [
        ("acme", 3, 1), ("globex", 1, 0),
    ]  # fmt: skip
    lines = [event["line"] for event in told["events"] if event["kind"] == "backend"]
    assert lines == ["Replica gpu-1 is ejected", "Replica gpu-1 is ready"], "oldest first, and nothing from long ago"
    assert told["alert"]["id"] == alert.pk


def test_what_was_under_way_when_it_began_is_in_its_effect(world: worlds.World) -> None:
    """A replica that is killed is ejected within a second, and told of a minute later."""
    alert = incident_of("backend_health", subject="gpu-1")
    Alert.objects.filter(pk=alert.pk).update(began_at=alert.at - timedelta(seconds=70))
    lost = {"outcome": "failed", "reason": "backend_lost", "slo_met": None}
    writer.write(
        [
            record(1, **seconds_after(alert, -90) | {"done_s": alert.at.timestamp() - 70.5}, **lost),  # by its ejection
            record(2, **seconds_after(alert, -300) | {"done_s": alert.at.timestamp() - 20}, slo_met=False),
            record(3, **seconds_after(alert, -90) | {"done_s": alert.at.timestamp() - 80}),  # over before
            record(4, **seconds_after(alert, -69)),
        ]
    )
    told = api(world, "olga").get(f"/api/v1/alerts/{alert.pk}/incident").json()
    assert told["effect"]["total"] == {"requests": 3, "refused": 0, "failed": 1, "late": 1, "waited": 3}
    assert told["effect"]["from"] == Alert.objects.get().began_at.isoformat().replace("+00:00", "Z")


def test_without_redis_it_is_redis_that_has_to_be_started(world: worlds.World) -> None:
    told = {}
    for value in (NO_LEADER, NO_REDIS, REFUSED):
        Alert.objects.all().delete()
        AlertRule.objects.all().delete()
        alert = incident_of("no_leader", value=value)
        told[value] = api(world, "olga").get(f"/api/v1/alerts/{alert.pk}/incident").json()["actions"]
    assert [(row[0]["do"], row[0]["text"].split()[1]) for row in told.values()] == [
        ("workers", "a"), ("redis", "Redis,"), ("redis", "Redis"),
    ]  # fmt: skip


def test_who_sent_more_than_before_is_named_and_can_be_paused(world: worlds.World) -> None:
    alert = incident_of()
    burst = [globex_record(n, **seconds_after(alert, -90 - n)) for n in range(20)]
    steady = [record(100 + n, **seconds_after(alert, -61 - 60 * n)) for n in range(34)]
    writer.write([*burst, *steady])
    told = api(world, "olga").get(f"/api/v1/alerts/{alert.pk}/incident").json()
    assert [(row["tenant"], row["per_minute"], row["before"]) for row in told["grown"]] == [("globex", 4.0, 0.0)]
    first = told["actions"][0]
    assert (first["do"], first["of"]) == ("pause", "globex")
    assert first["text"] == "globex sent many requests after none: pause it, or lower its share."


def test_load_before_the_ledger_began_is_unknown_and_accuses_no_tenant(world: worlds.World) -> None:
    alert = incident_of()
    writer.write([globex_record(n, **seconds_after(alert, -90 - n)) for n in range(20)])
    told = api(world, "olga").get(f"/api/v1/alerts/{alert.pk}/incident").json()
    assert [(row["tenant"], row["before"]) for row in told["grown"]] == [("globex", None)]
    assert "pause" not in {action["do"] for action in told["actions"]}


def test_load_before_is_of_the_time_that_the_ledger_has_and_a_steady_tenant_has_not_grown(world: worlds.World) -> None:
    alert = incident_of()
    writer.write([record(n, **seconds_after(alert, -61 - 10 * n)) for n in range(72)])  # for twelve minutes
    told = api(world, "olga").get(f"/api/v1/alerts/{alert.pk}/incident").json()
    assert told["grown"] == []


@pytest.mark.parametrize(
    ("kind", "asked", "late", "offered"),
    [("kv_cache", 2, 0, ["drain", "credit", "refused"]), ("backend_health", 3, 1, ["backend", "scale", "refused"])],
)
def test_a_replicas_incident_counts_what_ran_there_and_one_that_is_out_what_its_pool_was_asked(
    kind: str, asked: int, late: int, offered: list[str], world: worlds.World
) -> None:
    alert = incident_of(kind, subject="gpu-1")
    writer.write(
        [
            record(1, **seconds_after(alert, 10), outcome="failed", reason="backend_lost"),
            record(2, **seconds_after(alert, 10), backend="gpu-2", slo_met=False),
            refused(4, received_s=alert.at.timestamp() + 5, done_s=alert.at.timestamp() + 5),
        ]
    )
    told = api(world, "adam").get(f"/api/v1/alerts/{alert.pk}/incident").json()
    total = told["effect"]["total"]
    assert (total["failed"], total["requests"], total["late"]) == (1, asked, late)
    assert [action["do"] for action in told["actions"]] == offered


@pytest.mark.parametrize(("who", "status"), [("carol", 404), ("alice", 404), ("olga", 200), ("adam", 200)])
def test_incidents_are_for_those_who_may_know_of_everybody(world: worlds.World, who: str, status: int) -> None:
    alert = incident_of(tenant="acme")
    assert api(world, who).get(f"/api/v1/alerts/{alert.pk}/incident").status_code == status


# --- would have fired


def past(pool: str, minutes: dict[int, dict[str, Any]]) -> None:
    """Points by minutes before NOW_S."""
    PastPoint.objects.bulk_create(
        PastPoint(pool=pool, step_s=60, at=NOW_S - MINUTE * before, point=msgspec.json.encode(point).decode())
        for before, point in minutes.items()
    )


def tried(kind: str, threshold: float | None = 10.0, **changes: Any) -> rehearsal.Rehearsed:
    return rehearsal.rehearse(AlertRule(kind=kind, threshold=threshold, **changes), ["llama"], NOW_S)


def test_a_rule_would_have_fired_as_often_as_its_condition_lasted_long_enough() -> None:
    wrong, right = {"oldest": 30.0}, {"oldest": 1.0}
    past("llama", {60: wrong, 59: wrong, 58: right, 57: right, 40: wrong, 39: right, 20: wrong, 19: wrong, 18: wrong})
    twice = tried("queue_age", for_s=120)
    assert [(f.at, f.until) for f in twice.firings] == [
        (NOW_S - 59 * MINUTE, NOW_S - 57 * MINUTE), (NOW_S - 19 * MINUTE, None),
    ]  # fmt: skip
    assert len(tried("queue_age", for_s=60).firings) == 3
    assert twice.known == 9
    assert twice.known + twice.unknown == 7 * 24 * 60


def test_a_gap_is_neither_wrong_nor_right_and_lets_nothing_last_over_it() -> None:
    wrong = {"oldest": 30.0}
    past("llama", {60: wrong, 30: wrong})
    assert tried("queue_age", for_s=120).firings == [], "two single minutes half an hour apart"


def test_what_is_not_stored_is_unknown_and_not_never() -> None:
    past("llama", {n: {"completed": 1.0} for n in range(1, 20)})  # points of a release without the oldest wait
    for kind in ("queue_age", "backend_health", "kv_cache", "quota", "cost", "no_leader"):
        assert (tried(kind).known, tried(kind).unknown) == (0, 7 * 24 * 60), kind


def test_shares_and_percentiles_are_judged_by_the_rules_own_conditions() -> None:
    bad = {"completed": 0.5, "refused": 0.5, "ttft_p95": 4000.0, "attainment": 0.5, "failed": 0.0, "cancelled": 0.0}
    acme = {"waiting": 0, "running": 1} | bad | {"attainment": 0.2}
    past("llama", {3: bad | {"tenants": {"acme": acme}}, 2: {**bad, "refused": 0.0, "completed": 0.01}})
    assert len(tried("refusals", 0.4, for_s=0).firings) == 1
    assert [f.value for f in tried("ttft", 3.0, for_s=0).firings] == [4.0]
    assert [f.value for f in tried("slo_attainment", 0.9, for_s=0, tenant="acme").firings] == [0.2]
    assert tried("slo_attainment", 0.1, for_s=0).firings == []


def test_a_tier_that_missed_its_slo_is_seen_in_the_past() -> None:
    busy = {"completed": 5.0, "attainment": 0.957}
    tiers = {"batch": {"asked": 267.0, "kept": 267.0}, "premium": {"asked": 35.0, "kept": 25.0}}
    past("llama", {3: busy | {"judged": tiers}, 2: busy | {"judged": {"premium": {"asked": 0.0, "kept": 0.0}}}})
    assert [f.value for f in tried("slo_attainment", 0.9, for_s=0).firings] == [pytest.approx(25 / 35)]

    one = shot()
    one["slo"]["by_tier"] = {"premium": {"asked": 40, "total": 30, "violations": 6}, "spot": {"asked": 0}}
    point = history.merged([history.point(one) | history.watched(one)] * 2)
    assert point["judged"] == {"premium": {"asked": 40.0, "kept": 24.0}}
    assert rehearsal.as_snapshot(point, "llama")["slo"]["by_tier"] == {"premium": {"attainment": 0.6, "asked": 40.0}}
    assert "judged" not in history.slim(point).keys() | history.visible(point, {"acme"}).keys()


def test_what_leaders_store_says_what_rules_about_replicas_and_queues_need() -> None:
    down = shot(oldest_wait_s=12)
    down["backends"]["gpu-1"] |= {"state": "ejected", "engine_waiting": 7, "kv_usage": 0.97}
    point = history.merged([history.point(down) | history.watched(down)] * 2)
    assert (point["oldest"], point["watched"]) == (12.0, {"gpu-1": {"out": 1.0, "engine": 7.0, "kv_used": 0.97}})
    assert not {"oldest", "watched"} & history.slim(point).keys(), "no chart draws them"
    assert not {"oldest", "watched"} & history.visible(point, {"acme"}).keys(), "members do not see them"
    seen = rehearsal.as_snapshot(point, "llama")
    assert seen["backends"]["gpu-1"]["state"] == "ejected"
    firings: list[rehearsal.Firing] = []
    rehearsal.judge(AlertRule(kind="backend_health", for_s=0), "llama", [(0, point), (60, point)], firings)
    assert [(f.subject, f.until) for f in firings] == [("gpu-1", None)]


def test_the_stored_minute_has_what_rules_need() -> None:
    keeper = Past()
    for s in range(0, 130, 5):
        keeper.add(shot(NOW_S + s, oldest_wait_s=12))
    minute = msgspec.json.decode(PastPoint.objects.filter(step_s=60).earliest("at").point)
    assert (minute["oldest"], list(minute["watched"])) == (12.0, ["gpu-1"])


def test_operators_try_a_rule_under_its_own_name_and_nothing_is_stored(world: worlds.World) -> None:
    AlertRule.objects.all().delete()
    AlertRule.objects.create(name="late", kind="queue_age", threshold=5)
    body = {"name": "late", "kind": "queue_age", "threshold": 1, "for_s": 0}
    path = "/api/v1/alert-rules/rehearsal"
    answer = api(world, "olga").post(path, body, format="json").json()
    assert (answer["fired"], answer["known"], answer["days"]) == (None, 0.0, 7), "unknown is not never"
    assert AlertRule.objects.get().threshold == 5
    assert api(world, "carol").post(path, body, format="json").status_code == 404
    assert api(world, "olga").post(path, body | {"kind": "weather"}, format="json").status_code == 400
