"""What cannot be seen, and since when: kept by the web process, whether or not anybody looks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import psycopg
import pytest
from django.db import InternalError, OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings

from controlplane.web import error_pages
from scheduling.core.types import QuotaSpec
from scheduling.dispatch.ports import BackendStatus
from telemetry.alerts.watch import AlertWatch
from telemetry.api import common, live
from telemetry.feed import snapshots
from telemetry.feed.publisher import Publisher
from telemetry.feed.sources import Outage, Sources, SourceWatch
from telemetry.feed.store import Heads, LiveStore, LiveUnavailable
from telemetry.feed.window import Window
from telemetry.ledger.quotas import UsageFeed
from telemetry.models import AlertRule
from tests.support import worlds
from tests.support.ports import free_port
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, sample

ALL = {"llama": frozenset({"acme", "globex"})}


def read_only() -> InternalError:
    """As Django hands on what psycopg raises of a server that takes no writes."""
    error = InternalError("cannot execute UPDATE in a read-only transaction")
    error.__cause__ = psycopg.errors.ReadOnlySqlTransaction()
    return error


@dataclass
class Clock:
    s: float = NOW

    def __call__(self) -> float:
        return self.s


@dataclass
class Place:
    """A web process's view of the world, which the test breaks."""

    clock: Clock = field(default_factory=Clock)
    published: dict[str, float] = field(default_factory=dict)
    rules: dict[str, float] = field(default_factory=dict)
    pools: dict[str, frozenset[str]] | None = field(default_factory=lambda: dict(ALL))
    redis: bool = True
    refuses_with: str = ""  # what Redis answers to who would write
    answered_s: float | None = None
    failing: bool = False

    def __post_init__(self) -> None:
        self.sources = Sources(self.clock)
        self.watch = SourceWatch(self.sources, self, self, lambda: self.pools)

    def heads(self) -> Heads:
        if not self.redis:
            raise LiveUnavailable("ConnectionError")
        return Heads(self.published, self.rules)

    def refuses(self) -> str:
        return self.refuses_with

    def pass_s(self, seconds: int, *, led: bool = True, watched: bool = True, database: bool = True) -> None:
        for _ in range(seconds):
            self.clock.s += 1
            if led:
                self.published["llama"] = self.clock.s
            if led and watched:
                self.rules["llama"] = self.clock.s
            self.failing = not database
            if database:
                self.answered_s = self.clock.s
            self.watch.look()


@pytest.fixture
def place() -> Place:
    return Place()


def test_while_everything_answers_nothing_is_away(place: Place) -> None:
    place.pass_s(60)
    assert place.sources.outages() == []
    assert place.sources.unwatched(None) == []


def test_an_outage_is_told_from_the_moment_something_was_last_seen_however_late_one_asks(place: Place) -> None:
    place.pass_s(10)
    place.redis = False
    place.pass_s(600)
    assert place.sources.outages() == [Outage("redis", NOW + 10)]
    assert place.sources.unwatched(None) == [Outage("rules", NOW + 10, pool="llama")]
    place.redis = True
    place.pass_s(1)
    assert place.sources.outages() == []


def test_a_process_that_was_started_in_an_outage_says_at_least_since_its_start(place: Place) -> None:
    place.redis = False
    place.pass_s(30, database=False)
    assert place.sources.outages() == [Outage("database", NOW, at_least=True), Outage("redis", NOW, at_least=True)]


def test_a_pool_without_a_leader_is_away_since_its_last_snapshot_also_for_a_process_started_later(place: Place) -> None:
    place.published, place.rules = {"llama": NOW - 300}, {"llama": NOW - 303}
    place.pass_s(1, led=False)
    assert place.sources.outages() == [Outage("leader", NOW - 300, pool="llama")]
    assert place.sources.unwatched(None) == [Outage("rules", NOW - 303, pool="llama")]


def test_a_leader_that_cannot_write_is_not_missing_and_redis_is_told_of_with_its_code(place: Place) -> None:
    place.pass_s(10)
    place.refuses_with = "OOM"
    place.pass_s(2)
    assert place.sources.outages() == [], "whoever leads writes"
    place.pass_s(10, led=False)
    (away,) = place.sources.outages()
    assert away == Outage("redis", NOW + 12, refuses="OOM")
    assert away.as_json() == {"source": "redis", "since": NOW + 12, "refuses": "OOM"}
    place.sources.tell_redis(True)  # the hub read something
    assert place.sources.outages() == [away]
    place.refuses_with = ""
    place.pass_s(1, led=False)
    assert place.sources.outages() == [Outage("leader", NOW + 12, pool="llama")]
    place.pass_s(1)
    assert place.sources.outages() == []


def test_a_pool_that_never_had_a_leader_is_told_as_well(place: Place) -> None:
    place.pass_s(3, led=False)
    assert place.sources.outages() == [], "it may just have been made"
    place.pass_s(10, led=False)
    assert place.sources.outages() == [Outage("leader", NOW + 1, at_least=True, pool="llama")]


def test_rules_that_nobody_looks_at_are_not_fine_although_the_leader_publishes(place: Place) -> None:
    place.pass_s(30)
    place.pass_s(15, watched=False)
    assert place.sources.outages() == []
    place.pass_s(10, watched=False)
    assert place.sources.outages() == [Outage("rules", NOW + 30, pool="llama")]


def test_a_database_whose_answer_does_not_come_is_away_although_nobody_refused(place: Place) -> None:
    place.pass_s(10)
    for _ in range(10):  # a frozen one: the catalog waits and has not failed
        place.clock.s += 1
        place.published["llama"] = place.clock.s
        place.watch.look()
    assert place.sources.outages() == [Outage("database", NOW + 10)]


@pytest.mark.django_db
def test_pages_answer_at_once_while_the_database_refuses_and_wait_for_one_that_is_slow(
    place: Place, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    place.pass_s(10)
    monkeypatch.setattr(error_pages, "sources", place.sources)
    for path in ("/", "/login", "/admin/", "/api/v1/me"):
        place.pass_s(5, database=False)
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(path, headers={"accept": "text/html"})
        assert (answer.status_code, len(asked)) == (503, 0)
        assert "since 2026-09-21 14:13:30 UTC" in answer.content.decode()
    place.pass_s(1)
    assert client.get("/login").status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login", "/api/v1/me"])
def test_what_a_read_only_postgresql_does_not_take_is_no_fault_of_the_page(client: Client, path: str) -> None:
    client.raise_request_exception = False
    with mock.patch.object(error_pages.DatabaseUnavailable, "refusal", side_effect=read_only()):
        answer = client.post(path, headers={"accept": "text/html" if path == "/login" else "application/json"})
    assert answer.status_code == 503
    assert "read-only" in answer.content.decode()
    assert "Retry-After" in answer


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a server that became a standby")
@pytest.mark.django_db(transaction=True)
def test_pages_of_a_postgresql_that_became_read_only_say_so_and_go_on_reading(client: Client) -> None:
    client.raise_request_exception = False
    world = worlds.build()
    client.force_login(world.users["adam"])
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        try:
            written = client.post("/api/v1/tenants", {"slug": "new", "name": "New"}, content_type="application/json")
            read = client.get("/api/v1/tenants")
        finally:
            cursor.execute("SET default_transaction_read_only = off")
    assert (written.status_code, written.json()["code"]) == (503, "database_read_only")
    assert read.status_code == 200


def test_a_member_is_told_of_the_pools_of_its_tenants_only(place: Place) -> None:
    place.pools = {"llama": frozenset({"acme"}), "qwen": frozenset({"globex"})}
    place.pass_s(1)
    place.pass_s(30, led=False)
    assert [away.pool for away in place.sources.outages(frozenset({"globex"}))] == ["qwen"]
    assert place.sources.pools(frozenset({"globex"})) == ["qwen"]
    assert [away.pool for away in place.sources.unwatched(frozenset({"globex"}))] == ["qwen"]
    assert place.sources.pools(None) == ["llama", "qwen"]


def test_which_pools_there_are_is_unknown_until_the_catalog_was_read(place: Place) -> None:
    place.pools = None
    place.pass_s(1, led=False)
    assert place.sources.pools(None) is None


def test_a_deleted_pool_is_not_missed(place: Place) -> None:
    place.pass_s(5)
    place.pools = {}
    place.pass_s(60, led=False)  # its last snapshot is still stored
    assert place.sources.outages() == []


def test_a_watch_that_fails_leaves_the_rules_unlooked_at(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, float]] = []
    watch = AlertWatch(lambda: None, lambda pool, at_s: looked.append((pool, at_s)))
    snapshot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    watch.look(snapshot, {})
    assert looked == [("llama", NOW)]

    def away(*_: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(AlertWatch, "_look", away)
    watch.look(snapshot | {"at": NOW + 10}, {})
    assert looked == [("llama", NOW)]


def test_a_database_that_takes_nothing_is_one_line_and_not_one_of_each_rule_and_tenant(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    AlertRule.objects.bulk_create(
        AlertRule(name=name, kind="queue_age", threshold=1.0, for_s=0, severity="warning") for name in ("a", "b")
    )
    AlertRule.objects.exclude(name__in=("a", "b")).delete()
    monkeypatch.setattr(AlertWatch, "_judge", mock.Mock(side_effect=read_only()))
    AlertWatch(lambda: None).look(snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1), {})
    monkeypatch.setattr(UsageFeed, "_check_tenant", mock.Mock(side_effect=read_only()))
    limits = {name: (QuotaSpec("day", 100, 1000),) for name in ("acme", "globex")}
    feed = UsageFeed(mock.Mock(put=lambda pool, usage: {pool: usage}), lambda: limits)
    for second in range(3):
        feed.publish("llama", 1, NOW + second)
    assert [("does not answer" in line.getMessage(), line.exc_info) for line in caplog.records] == [(True, None)] * 2


def backend(**changes: Any) -> BackendStatus:
    known: dict[str, Any] = {"engine_running": 10, "kv_usage": 0.4, "output_tokens_per_s": 500.0, "gpu_util": 0.9}
    return BackendStatus("gpu-1", "ready", "answered", **({"observed_s": NOW} | known | changes))


def test_a_replica_that_was_not_seen_lately_keeps_its_row_and_loses_its_figures() -> None:
    old = backend(observed_s=NOW - 30)
    snapshot = snapshots.snapshot(sample(backends=[old]), Window(), ENTITLEMENTS, 1)
    row = snapshot["backends"]["gpu-1"]
    assert row == {"running": 10, "slots": 32, "state": "ready", "why": "answered", "observed_s": NOW - 30,
                   "unseen_since": NOW - 30}  # fmt: skip
    assert snapshot["tokens_per_s"] == {}, "what it did when it was seen is not what it does, and neither is nothing"
    member = snapshots.visible(snapshot, frozenset({"acme"}))
    assert member is not None
    assert member["backends"]["gpu-1"] == {"state": "ready", "unseen_since": NOW - 30}
    fresh = snapshots.snapshot(sample(backends=[backend()]), Window(), ENTITLEMENTS, 1)["backends"]["gpu-1"]
    assert (fresh["engine_running"], "unseen_since" in fresh) == (10, False)


def test_a_new_leader_knows_since_when_a_replica_is_unseen_from_the_one_before() -> None:
    publisher = Publisher(MemoryStore(), lambda message: None)
    publisher.publish(sample(backends=[backend(observed_s=NOW - 30)]), Window(), ENTITLEMENTS)
    unseen = replace(backend(observed_s=0.0), state="probing")
    for second in (1, 2):
        snapshot = publisher.publish(sample(NOW + second, epoch=2, backends=[unseen]), Window(), ENTITLEMENTS)
        assert snapshot is not None
        assert snapshot["backends"]["gpu-1"]["unseen_since"] == NOW - 30


@pytest.fixture
def without_redis(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The API of a process whose Redis answered a minute ago."""
    clock = Clock(NOW)
    seen = Sources(clock)
    seen.tell_redis(True)
    seen.tell_pools({"llama": frozenset({"acme"})})
    clock.s += 60
    monkeypatch.setattr(common, "sources", seen)
    monkeypatch.setattr("telemetry.api.alerts.sources", seen)
    live.store_at.cache_clear()
    with override_settings(QUARTERMASTER_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0"):
        yield


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["live", "live/history?pool=llama", "pools/llama/queue", "requests/req_000000000000000000000001"]
)
def test_what_only_redis_knows_is_answered_by_503_with_code_and_since(path: str, without_redis: Any) -> None:
    world = worlds.build()
    client = Client()
    client.force_login(world.users["olga"])
    pool = worlds.Pool.objects.values_list("slug", flat=True)[0]
    answer = client.get(f"/api/v1/{path.replace('llama', pool)}")
    told = answer.json()
    assert answer.status_code == 503
    assert (told["code"], told["source"], told["since"]) == ("redis_away", "redis", NOW)
    assert "Redis has not answered since 2026-09-21 14:13:20 UTC" in told["detail"]


@pytest.mark.django_db
def test_no_open_alert_is_not_all_well_where_nobody_looks_at_the_rules(without_redis: Any) -> None:
    world = worlds.build()
    common.sources.tell_redis(False)
    client = Client()
    client.force_login(world.users["olga"])
    told = client.get("/api/v1/alerts/open").json()
    assert told["open"] == 0
    assert [(row["source"], row["pool"]) for row in told["unwatched"]] == [("rules", "llama")]


def test_heads_come_from_a_real_redis(private_redis: Any) -> None:
    store = LiveStore(private_redis.url)
    store.store("llama", 1, 1, b"{}", b"{}")
    store.rules_looked_at("llama", NOW)
    heads = store.heads()
    assert heads.rules == {"llama": NOW}
    assert heads.published.keys() == {"llama"}
    private_redis.kill()
    with pytest.raises(LiveUnavailable):
        store.heads()
