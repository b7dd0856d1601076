"""The kinds of alert rules beside the first five, what operators say of alerts, and the stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from scheduling.dispatch.ports import BackendStatus
from telemetry.alerts import lifecycle
from telemetry.alerts.conditions import limit_in_words, right, seen, wrong
from telemetry.alerts.leaderless import REFUSED, LeaderWatch
from telemetry.alerts.watch import AlertWatch
from telemetry.events import A_MINUTE, Happenings, changes
from telemetry.feed import snapshots
from telemetry.feed.sources import LEADER, REDIS, Outage
from telemetry.feed.window import WINDOW_S, Window
from telemetry.models import Alert, AlertRule, PoolEvent
from tenants import audit
from tenants.models import AuditEntry
from tests.support import worlds
from tests.support.telemetry_world import ENTITLEMENTS, NOW, globex_record, record, refused, sample

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_shipped_rules() -> None:
    AlertRule.objects.all().delete()


def rule(kind: str, threshold: float | None = 0.5, **changes: Any) -> AlertRule:
    return AlertRule.objects.create(
        **({"name": f"a {kind}", "kind": kind, "threshold": threshold, "for_s": 0} | changes)
    )


def shot(records: Sequence[Any] = (), at_s: float = NOW, **changes: Any) -> dict[str, Any]:
    window = Window()
    window.expire(at_s - WINDOW_S)
    for one in records:
        window.add([one], at_s)
    return snapshots.snapshot(sample(at_s, **changes), window, ENTITLEMENTS, 1)


def nothing() -> None:
    """Delivery is not started."""


# --- what is seen


def test_refusals_and_failures_are_shares_of_what_ended() -> None:
    ended = [record(n) for n in range(6)]
    ended += [refused(10 + n) for n in range(3)]
    ended += [globex_record(20, outcome="failed", reason="backend_lost", slo_met=False)]
    now = shot(ended)
    assert seen(rule("refusals"), now, {})[""].value == pytest.approx(0.3, abs=0.005)
    assert seen(rule("failures"), now, {})[""].value == pytest.approx(0.1, abs=0.005)  # rates have three digits
    assert seen(rule("refusals", name="few", tenant="globex"), now, {}) == {}, "one request says nothing"


def test_the_first_tokens_p95_is_in_seconds_and_not_of_a_handful() -> None:
    ended = [record(n, first_token_s=NOW - 1.0) for n in range(12)]
    (found,) = seen(rule("ttft", 1.0), shot(ended), {}).values()
    assert found.value == pytest.approx(2.0, rel=0.02)
    assert seen(rule("ttft", 1.0, name="b"), shot(ended[:3]), {}) == {}


def test_of_an_engine_that_is_not_seen_neither_queue_nor_cache_is_judged() -> None:
    busy = shot(backends=[BackendStatus("gpu-1", "ready", "answered", NOW, 10, 4, 0.97)])
    queue, cache = rule("engine_queue", 2), rule("kv_cache", 0.95)
    assert {n: s.value for n, s in seen(queue, busy, {}).items()} == {"gpu-1": 4.0}
    assert wrong(cache, seen(cache, busy, {})["gpu-1"].value)
    assert seen(queue, shot(backends=[BackendStatus("gpu-1", "ready", "answered", NOW - 60, 10, 4, 0.97)]), {}) == {}


def test_a_replicas_gpus_are_judged_where_they_are_measured() -> None:
    measured = BackendStatus("gpu-1", "ready", "answered", NOW, gpu_util=0.98)
    other = BackendStatus("gpu-2", "ready", "answered", NOW)
    watched = rule("gpu", 0.95)
    (found,) = seen(watched, shot(backends=[measured, other]), {}).items()
    assert found[0] == "gpu-1"
    assert wrong(watched, found[1].value)
    assert "its GPUs are 98% busy" in found[1].line


def test_costs_are_of_tenants_and_of_no_pool() -> None:
    costs = {"acme": (12.5, "USD"), "globex": (1.0, "EUR")}
    found = seen(rule("cost", 10), shot(), {}, costs)
    assert {name: wrong(AlertRule.objects.get(), one.value) for name, one in found.items()} == {
        "acme": True,
        "globex": False,
    }
    assert "12.50 USD" in found["acme"].line


def test_a_costly_tenant_is_told_of_once_for_all_pools_and_sums_are_not_made_at_every_look() -> None:
    rule("cost", 10)
    asked: list[float] = []

    def costs(now_s: float) -> dict[str, tuple[float, str]]:
        asked.append(now_s)
        return {"acme": (12.5, "USD")}

    watch = AlertWatch(nothing, costs=costs)
    for step in range(4):
        watch.look(shot(at_s=NOW + 5 * step), {})
    (alert,) = Alert.objects.all()
    assert (alert.pool, alert.tenant, alert.subject) == ("", "acme", "acme")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("kind", "threshold", "words"),
    [
        ("slo_attainment", 0.9, ", below 90%"),
        ("refusals", 0.2, ", above 20%"),
        ("ttft", 2.0, ", longer than 2 s"),
        ("engine_queue", 3, ", above 3"),
        ("no_leader", None, ""),
    ],
)
def test_limits_are_said_in_their_units(kind: str, threshold: float | None, words: str) -> None:
    assert limit_in_words(rule(kind, threshold)) == words


# --- no leader


def test_a_pool_without_a_leader_is_told_of_by_whoever_sees_it_and_ended_by_the_next_leader() -> None:
    own = rule("no_leader", None, for_s=10)
    rang: list[int] = []
    watch = LeaderWatch(lambda: rang.append(1))
    other = LeaderWatch(nothing)  # of another web process
    away = [Outage(LEADER, NOW, pool="llama"), Outage(REDIS, NOW)]
    for each in (watch, other):
        each.look([], NOW - 1)
    watch.look(away, NOW + 6)
    assert not Alert.objects.exists(), "not for ten seconds yet"
    watch.look(away, NOW + 12)
    other.look(away, NOW + 13)
    (alert,) = Alert.objects.all()
    assert (alert.pool, alert.rule, alert.state, rang) == ("llama", own, "open", [1])
    leads = AlertWatch(nothing)
    for step in range(4):
        leads.look(shot(at_s=NOW + 20 + 5 * step), {})
    assert Alert.objects.get().state == "resolved"
    assert right(own, 0.0)


def test_without_redis_every_pool_is_told_of_with_the_cause_once_and_until_it_is_led_again() -> None:
    rule("no_leader", None, for_s=10)
    rang: list[int] = []
    watch = LeaderWatch(lambda: rang.append(1), pools=lambda: ["llama", "qwen"])
    watch.look([], NOW - 1)
    watch.look([Outage(REDIS, NOW)], NOW + 6)
    assert not Alert.objects.exists(), "not for ten seconds yet"
    watch.look([Outage(REDIS, NOW)], NOW + 12)
    watch.look([Outage(LEADER, NOW - 1, pool="llama")], NOW + 18)  # Redis answers again, and nobody leads yet
    assert [(a.pool, a.line[:32], a.began_at.timestamp()) for a in Alert.objects.order_by("pool")] == [
        ("llama", "Redis has not answered since 202", NOW), ("qwen", "Redis has not answered since 202", NOW),
    ]  # fmt: skip
    assert rang == [1]
    leads = AlertWatch(nothing)
    for step in range(4):
        leads.look(shot(at_s=NOW + 20 + 5 * step), {})
    assert [a.pool for a in Alert.objects.filter(resolved_at=None)] == ["qwen"]


def test_a_redis_that_refuses_is_told_of_as_such() -> None:
    rule("no_leader", None, for_s=10)
    watch = LeaderWatch(nothing, pools=lambda: ["llama"])
    watch.look([], NOW - 1)
    watch.look([Outage(REDIS, NOW, refuses="OOM")], NOW + 12)
    alert = Alert.objects.get()
    assert alert.line.startswith("Redis has refused what it is asked (OOM) since 202")
    assert alert.value == REFUSED


def test_an_alert_says_when_what_it_is_about_began() -> None:
    rule("queue_age", 5, for_s=10)
    rule("backend_health", None, for_s=10)
    watch = AlertWatch(nothing)
    for step in range(4):
        now = shot(at_s=NOW + 5 * step)
        now["queue"]["oldest_s"] = 9.0
        now["backends"]["gpu-1"] |= {"state": "ejected", "why": "refused", "down_since": NOW - 3.5}
        watch.look(now, {})
    began = {alert.kind: alert.began_at.timestamp() - NOW for alert in Alert.objects.all()}
    assert began == {"queue_age": 0.0, "backend_health": -3.5}, "as its rule saw it, and as its replica was lost"


@pytest.mark.parametrize(
    ("since_s", "at_least"),
    [pytest.param(NOW - 3600, False, id="stopped an hour ago"), pytest.param(NOW + 2, True, id="never started before")],
)
def test_a_start_is_no_outage_until_the_leader_had_time_to_appear(since_s: float, at_least: bool) -> None:
    rule("no_leader", None, for_s=10)
    watch = LeaderWatch(nothing)
    away = [Outage(LEADER, since_s, at_least=at_least, pool="llama")]
    for second in range(0, 59, 2):
        watch.look(away, NOW + second)
    assert not Alert.objects.exists()
    watch.look(away, NOW + 65)
    assert Alert.objects.get().pool == "llama", "it never appeared"


def test_a_leader_that_was_seen_after_a_start_and_went_is_told_of_at_once() -> None:
    rule("no_leader", None, for_s=10)
    watch = LeaderWatch(nothing)
    watch.look([], NOW)
    watch.look([Outage(LEADER, NOW + 5, pool="llama")], NOW + 16)
    assert Alert.objects.get().pool == "llama"


# --- what operators say of alerts


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def client(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    api.force_login(world.users[who])
    return api


def fired(own: AlertRule, at_s: float = NOW) -> Alert:
    lifecycle.fire(own, pool="llama", subject="", tenant="acme", line="it is late", value=99.0, at_s=at_s)
    return Alert.objects.get(resolved_at=None)


@pytest.mark.parametrize("verb", ["acknowledge", "silence"])
def test_only_operators_and_admins_say_something_of_an_alert(verb: str, world: worlds.World) -> None:
    alert = fired(rule("queue_age", 60))
    body: dict[str, Any] = {"note": "on it"} | ({"minutes": 5} if verb == "silence" else {})
    answers = {
        who: client(world, who).post(f"/api/v1/alerts/{alert.pk}/{verb}", body, format="json").status_code
        for who in ("carol", "alice", "olga", "adam")
    }
    assert answers == {"carol": 404, "alice": 404, "olga": 200, "adam": 200}
    entries = AuditEntry.objects.filter(kind="alert")
    assert [(e.actor, e.action) for e in entries.order_by("id")] == [("olga", verb), ("adam", verb)]


def test_a_silenced_alert_is_not_counted_nor_sent_and_the_next_of_its_kind_neither(
    world: worlds.World, settings: Any
) -> None:
    settings.QUARTERMASTER_ALERT_WEBHOOK = "http://hooks.test/"
    own = rule("queue_age", 60)
    alert, olga = fired(own), client(world, "olga")
    assert olga.get("/api/v1/alerts/open").json()["open"] == 1
    olga.post(f"/api/v1/alerts/{alert.pk}/silence", {"minutes": 60, "note": "known"}, format="json")
    assert olga.get("/api/v1/alerts/open").json()["open"] == 0
    assert not lifecycle._due(timezone.now() - timedelta(days=2), ()).exists()
    lifecycle.resolve(Alert.objects.all(), "over")
    again = fired(own, NOW + 60)
    assert (again.silenced_by, again.note) == ("olga", "known")
    assert olga.get("/api/v1/alerts/open").json()["open"] == 0
    Alert.objects.update(silenced_until=timezone.now() - timedelta(seconds=1))
    assert olga.get("/api/v1/alerts/open").json()["open"] == 1, "a silence ends by itself"
    assert lifecycle._due(timezone.now() - timedelta(days=2), ()).exists()


def test_a_silence_can_be_ended_and_has_a_bound(world: worlds.World) -> None:
    alert, olga = fired(rule("queue_age", 60)), client(world, "olga")
    path = f"/api/v1/alerts/{alert.pk}/silence"
    assert olga.post(path, {"minutes": 60}, format="json").json()["silenced_by"] == "olga"
    assert olga.post(path, {"minutes": 0}, format="json").json()["silenced_until"] is None
    assert olga.post(path, {"minutes": 99_999_999}, format="json").status_code == 400


# --- events


def test_what_changed_between_two_snapshots() -> None:
    before, now = shot(), shot(at_s=NOW + 1, policy="fifo@2")
    now["backends"]["gpu-1"] |= {"state": "ejected", "why": "connection refused"}
    assert list(changes(before, now)) == [
        ("policy", "fifo@2", "Policy fifo@2 decides, was priority@1"),
        ("backend", "gpu-1", "Replica gpu-1 is ejected, was ready: connection refused"),
    ]
    assert list(changes(None, now)) == [("leader", "worker-1", "worker-1 leads, epoch 1")]
    assert list(changes(now, now)) == []


def test_a_replica_that_comes_and_goes_does_not_fill_the_table() -> None:
    happenings = Happenings()
    for step in range(400):
        now = shot(at_s=NOW + step / 10)
        if step % 2:
            now["backends"]["gpu-1"]["state"] = "ejected"
        happenings.add(now)
    assert PoolEvent.objects.count() == A_MINUTE


def test_one_stream_of_what_happened_for_operators(world: worlds.World) -> None:
    PoolEvent.objects.create(
        pool="llama", at=datetime.now(UTC), kind="backend", subject="gpu-1", line="Replica gpu-1 is ejected"
    )
    PoolEvent.objects.create(pool="qwen", at=datetime.now(UTC), kind="backend", subject="x", line="elsewhere")
    alert = fired(rule("queue_age", 60))
    lifecycle.acknowledge(alert, audit.Actor("olga", "api"), "")
    answer = client(world, "olga").get("/api/v1/events", {"pool": "llama"}).json()
    lines = [event["line"] for event in answer["events"]]
    assert "Replica gpu-1 is ejected" in lines
    assert "it is late" in lines
    assert "elsewhere" not in lines
    times = [event["at"] for event in answer["events"]]
    assert times == sorted(times, reverse=True)
    assert client(world, "alice").get("/api/v1/events").status_code == 404
    trial, study = ("trial", "qwen 2026-11-27T09:42:53 3"), ("study", "qwen 2026-11-27T09:42:53")
    for kind, of in (("pool", "llama"), ("pool", "qwen"), trial, study, ("tier", "premium")):
        AuditEntry.objects.create(kind=kind, object_id=of, action="change", actor="olga")
    AuditEntry.objects.create(kind="request", object_id="/login", action="log in", actor="olga")
    told = client(world, "olga").get("/api/v1/events", {"pool": "llama"}).json()["events"]
    assert "olga logged in" not in {event["line"] for event in told}
    assert {e["line"] for e in told if e["actor"] == "olga"} >= {"olga changed pool llama", "olga changed tier premium"}
    assert not [e["line"] for e in told if "qwen" in e["line"]], "changes of another pool are not this one's"
    wrong_way = {"from": "2026-11-23T10:00:00Z", "to": "2026-11-23T09:00:00Z"}
    assert client(world, "olga").get("/api/v1/events", wrong_way).status_code == 400
