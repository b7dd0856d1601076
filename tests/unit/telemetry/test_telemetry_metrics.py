"""Metrics: one table, bounded labels, and a page that costs requests nothing."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduling.dispatch.ports import BackendStatus
from scheduling.dispatch.replicas.adapters import AdapterStatus
from scheduling.gateway.ports import GatewayMetrics
from telemetry import pool_gauges
from telemetry.feed import snapshots
from telemetry.feed.store import LiveStore, Stored
from telemetry.feed.window import Window
from telemetry.metrics import MAX_TENANTS, PREFIX, TABLE, Metrics
from telemetry.pool_gauges import PoolGauges
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, record, refused, sample

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    page = metrics.render().decode()
    return {
        (s.name.removeprefix(PREFIX), frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_the_page_in_docs_shows_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (\S+) \| (.*?) \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    expected = [
        (PREFIX + m.name, m.kind, m.unit or "-", ", ".join(f"`{x}`" for x in m.labels) or "-", m.help) for m in TABLE
    ]
    assert rows == expected


def test_every_metric_of_the_table_is_on_the_page_and_no_other() -> None:
    page = Metrics().render().decode()
    shown = set(re.findall(rf"^# TYPE {PREFIX}(\S+) (\w+)$", page, re.MULTILINE))
    assert shown == {(m.name, m.kind) for m in TABLE}


@pytest.mark.parametrize("metric", TABLE, ids=lambda m: m.name)
def test_names_follow_the_conventions(metric: object) -> None:
    assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not metric.name.endswith(("_ms", "_percent", "_count"))
    assert not {"request_id", "key", "model"} & set(metric.labels), "labels must stay few"


def test_an_ended_request_is_counted_under_what_it_was() -> None:
    metrics: GatewayMetrics = Metrics()
    metrics.ended(record(1))
    metrics.ended(record(2, slo_met=False))
    metrics.ended(refused(3))
    found = samples(metrics)
    acme = {"pool": "llama", "tenant": "acme"}
    assert found[key("requests_total", tier="premium", outcome="completed", reason="stop", **acme)] == 2
    assert found[key("requests_total", tier="premium", outcome="refused", reason="concurrency", **acme)] == 1
    assert found[key("tokens_total", direction="output", **acme)] == 202
    assert found[key("slo_violations_total", tier="premium", **acme)] == 1
    premium = {"pool": "llama", "tier": "premium"}
    assert found[key("time_to_first_token_seconds_count", **premium)] == 2
    assert found[key("time_to_first_token_seconds_sum", **premium)] == pytest.approx(1.0)
    assert found[key("time_to_first_token_seconds_bucket", le="0.3", **premium)] == 0
    assert found[key("time_to_first_token_seconds_bucket", le="0.75", **premium)] == 2
    assert found[key("queue_wait_seconds_bucket", le="+Inf", outcome="completed", **premium)] == 2


def test_tokens_of_a_refused_request_are_not_counted() -> None:
    metrics = Metrics()
    metrics.ended(refused(1, input_tokens=500))
    assert not [name for name, _ in samples(metrics) if name == "tokens_total"]


def test_a_request_without_a_key_counts_by_reason_only() -> None:
    metrics = Metrics()
    metrics.rejected("no_key", 401)
    metrics.rejected("no_key", 401)
    assert samples(metrics)[key("rejected_total", reason="no_key")] == 2


def test_tenants_beyond_the_first_thousand_count_as_other() -> None:
    metrics = Metrics()
    assert samples(metrics)[key("label_values_left_out", label="tenant")] == 0
    for n in range(MAX_TENANTS + 50):
        metrics.ended(record(n, tenant=f"t{n}"))
    metrics.ended(record(0, tenant="t0"))
    counted = {dict(labels)["tenant"]: v for (name, labels), v in samples(metrics).items() if name == "requests_total"}
    assert len(counted) == MAX_TENANTS + 1
    assert counted["other"] == 50
    assert counted["t0"] == 2
    assert samples(metrics)[key("label_values_left_out", label="tenant")] == 50


def test_gauges_of_the_process_can_be_set_and_a_wrong_name_is_told() -> None:
    metrics = Metrics()
    assert samples(metrics)[key("state_available")] == 0
    metrics.state_available(True)
    metrics.gauge("open_requests", 7)
    found = samples(metrics)
    assert (found[key("state_available")], found[key("open_requests")]) == (1, 7)
    with pytest.raises(KeyError, match="open_requests"):
        metrics.gauge("open_request", 1)


def test_the_room_on_the_disk_and_the_size_of_the_database_are_told(tmp_path: Path) -> None:
    (tmp_path / "db.sqlite3").write_bytes(b"x" * 5000)
    (tmp_path / "db.sqlite3-wal").write_bytes(b"x" * 700)
    found = samples(Metrics(home=tmp_path))
    assert 0 < found[key("home_disk_free_bytes")] <= found[key("home_disk_bytes")]
    assert found[key("sqlite_bytes")] == 5700
    gone = samples(Metrics(home=tmp_path / "gone"))
    assert key("home_disk_free_bytes") not in gone, "unknown is not empty"
    (tmp_path / "db.sqlite3").unlink()
    (tmp_path / "db.sqlite3-wal").unlink()
    assert key("sqlite_bytes") not in samples(Metrics(home=tmp_path))


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.rejected('a"b\nc\\', 400)
    assert samples(metrics)[key("rejected_total", reason='a"b\nc\\')] == 1


def test_pool_gauges_come_from_the_stored_snapshots_and_age_without_redis() -> None:
    store = MemoryStore()
    shot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    store.load_all = lambda known=None: {"llama": Stored(1, 1, shot)}  # type: ignore[method-assign]
    of_backend = {metric.name: metric.of_backend for metric in TABLE if metric.of_backend}
    gauges = PoolGauges(store, of_backend, clock=lambda: NOW + 4)
    gauges.refresh()
    found = gauges.samples()
    assert found.keys() <= {metric.name for metric in TABLE if metric.kind == "gauge"}
    assert found["queue_depth"] == [(("llama",), 7)]
    assert found["backend_up"] == [(("llama", "gpu-1"), 1.0)]
    assert found["entitlement_weight"] == [(("llama", "acme-llama"), 612.2)]
    assert found["entitlement_debt"] == [(("llama", "acme-llama"), 0.0235)]
    assert found["entitlement_burst"] == [(("llama", "acme-llama"), 0.25)]
    assert found["backend_gpu_utilization_ratio"] == [(("llama", "gpu-1"), 0.9)]
    assert found["snapshot_age_seconds"] == [(("llama",), 4.0)]
    assert found["backend_gpu_memory_used_bytes"] == []

    lost = MemoryStore()
    lost.available = False
    gauges._store = lost
    gauges.refresh()
    assert gauges.samples()["queue_depth"] == [(("llama",), 7)]


def test_entitlements_beyond_the_limit_are_one_value_and_counted() -> None:
    store = MemoryStore()
    shot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)

    def row(service_class: str, concurrency: int, **figures: float) -> dict[str, object]:
        return {"class": service_class, "concurrency": concurrency} | figures

    shot["entitlements"] = {
        "spot": row("spot", 99, weight=1.0),
        "small": row("elastic", 1, weight=50.0, debt=0.7, burst=0.1, bucket_gap=3),
        "busy": row("elastic", 2, weight=40.0, debt=-0.9, burst=0.4, bucket_gap=-8),
        "large": row("elastic", 3, debt=0.1),
        "owner": row("dedicated", 1, debt=0.2),
    }
    store.load_all = lambda known=None: {"llama": Stored(1, 1, shot)}  # type: ignore[method-assign]
    gauges = PoolGauges(store, {}, clock=lambda: NOW, shown=2)
    gauges.refresh()
    found = gauges.samples()
    assert found["entitlement_debt"] == [
        (("llama", "owner"), 0.2),
        (("llama", "large"), 0.1),
        (("llama", "_other"), 0.7),
    ]
    assert found["entitlement_weight"] == [(("llama", "_other"), 50.0)]
    assert found["entitlement_burst"] == [(("llama", "_other"), 0.4)]
    assert found["bucket_gap_tokens"] == [(("llama", "_other"), -8)], "the alert goes by either side of 0"
    assert found["label_values_left_out"] == [(("entitlement",), 3)]


@pytest.mark.parametrize("redis", [True, False])
def test_figures_that_nobody_renews_are_left_out_and_their_age_stays(
    redis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    shot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    store.load_all = lambda known=None: {"llama": None if known else Stored(1, 1, shot)}  # type: ignore[method-assign]
    real, passed_s = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed_s)
    # The leader's clock is an hour behind: its figures are new all the same.
    gauges = PoolGauges(store, {}, clock=lambda: NOW + 3600 + passed_s)
    gauges.refresh()
    assert gauges.samples()["running"] == [(("llama",), shot["running"])]
    if not redis:
        gauges._store = MemoryStore()
        gauges._store.available = False
    passed_s = 60.0
    gauges.refresh()
    found = {name: rows for name, rows in gauges.samples().items() if rows and not name.startswith("redis_")}
    assert found == {
        "snapshots_available": [((), float(redis))],
        "snapshot_age_seconds": [(("llama",), 3660.0)],
    }


def test_the_first_scrape_after_a_start_has_the_pools(redis_server: RedisServer, pool_id: str) -> None:
    store = LiveStore(redis_server.url)
    shot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1) | {"pool": pool_id}
    store.store(pool_id, 1, 1, msgspec.json.encode(shot), b"{}")
    metrics = Metrics(LiveStore(redis_server.url))
    try:
        found = samples(metrics)
        assert found[key("queue_depth", pool=pool_id)] == 7
        assert found[key("snapshots_available")] == 1
    finally:
        metrics.close()


def test_the_first_scrape_without_redis_says_so_and_shows_no_pool_as_empty(private_redis: RedisServer) -> None:
    private_redis.kill()
    metrics = Metrics(LiveStore(private_redis.url))
    try:
        found = samples(metrics)
        assert found[key("snapshots_available")] == 0
        assert not [name for name, labels in found if dict(labels).get("pool")]
    finally:
        metrics.close()


@pytest.mark.parametrize(
    ("state", "fails", "fires"),
    [("ready", False, False), ("asleep", False, False), ("waking", False, False), ("asleep", True, True),
     ("ejected", False, True)],
)  # fmt: skip
def test_the_shipped_rule_about_backends_fires_for_a_sleeper_only_where_it_cannot_be_woken(
    state: str, fails: bool, fires: bool
) -> None:
    status = BackendStatus("gpu-1", state, "its line", NOW, wake_fails=fails)
    store = MemoryStore()
    shot = snapshots.snapshot(sample(backends=[status]), Window(), ENTITLEMENTS, 1)
    store.load_all = lambda known=None: {"llama": Stored(1, 1, shot)}  # type: ignore[method-assign]
    gauges = PoolGauges(store, {}, clock=lambda: NOW)
    gauges.refresh()
    [(_, up)], [(_, asleep)] = (gauges.samples()[name] for name in ("backend_up", "backend_asleep"))
    assert (up == 0 and asleep != 1) is fires  # ... backend_up == 0 unless ... backend_asleep == 1


def test_adapters_of_replicas_are_a_gauge_where_they_are_known() -> None:
    states = {"sql": "loaded", "law": "missing", "new": "loading", "bad": "failed", "dark": "unknown"}
    states["stray"] = "unconfigured"
    status = BackendStatus("gpu-1", "ready", "answered a probe", NOW, adapters=AdapterStatus(states))
    store = MemoryStore()
    shot = snapshots.snapshot(sample(backends=[status]), Window(), ENTITLEMENTS, 1)
    store.load_all = lambda known=None: {"llama": Stored(1, 1, shot)}  # type: ignore[method-assign]
    gauges = PoolGauges(store, {}, clock=lambda: NOW)
    gauges.refresh()
    found = {labels[2]: value for labels, value in gauges.samples()["backend_adapter_loaded"]}
    assert found == {"sql": 1.0, "law": 0.0, "new": 0.0, "bad": 0.0}


def test_a_look_at_the_pools_that_goes_wrong_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_gauges, "REFRESH_S", 0.01)
    store = MemoryStore()
    shot = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    looks: list[object] = [RuntimeError("once")]

    def load_all(versions: object = None) -> dict[str, Stored | None]:
        if looks:
            raise looks.pop()  # type: ignore[misc]
        return {"llama": Stored(1, 1, shot)}

    store.load_all = load_all  # type: ignore[method-assign]
    gauges = PoolGauges(store, {}, clock=lambda: NOW)
    gauges.wanted()
    try:
        while not gauges.samples()["queue_depth"]:  # the test's own limit ends it
            time.sleep(0.01)
    finally:
        gauges.close()
