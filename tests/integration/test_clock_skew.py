"""How far each process' clock is from Redis' is measured, shown and alarmed; unknown is not zero."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.web.health import Readiness
from scheduling.catalog import CatalogCache
from scheduling.core.types import Catalog
from scheduling.state.skew import ClockSkew
from scheduling.state.types import StateUnavailable
from telemetry.feed import snapshots
from telemetry.feed.window import Window
from telemetry.metrics import Metrics
from telemetry.pool_gauges import PoolGauges
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until
from tests.support.gateway_world import gateway_world
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import ENTITLEMENTS, sample

OFF_S = 40.0


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + OFF_S)


@pytest.mark.usefixtures("ahead")
async def test_a_gateway_and_a_leader_tell_how_far_their_clocks_are_off(redis_url: str):
    async with gateway_world(redis_url, "skew", lead=False) as world:
        telemetry = Telemetry()
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), telemetry=telemetry):
            await until(lambda: bool(world.metrics.gauges.get("clock_skew_seconds")))
            await until(lambda: bool(telemetry.samples) and telemetry.samples[-1].clock_skew_s is not None)
    for found in (world.metrics.gauges["clock_skew_seconds"], telemetry.samples[-1].clock_skew_s):
        assert found is not None
        assert abs(found - OFF_S) < 0.6
    taken = telemetry.samples[-1]
    assert abs(taken.at_s - time.time()) < 60 - OFF_S, "dated by another clock than what is compared with it"


@pytest.mark.usefixtures("ahead")
async def test_readyz_tells_the_skew_and_without_redis_that_it_is_not_known(private_redis: RedisServer):
    catalog = Catalog(1, {}, {}, {})
    readiness = Readiness(CatalogCache(lambda: catalog, lambda: 1), private_redis.url)
    await readiness.start()
    _, report = await readiness.look()
    assert abs(report["clock_skew_s"] - OFF_S) < 0.6
    await readiness.stop()
    private_redis.stop()
    away = Readiness(CatalogCache(lambda: catalog, lambda: 1), private_redis.url)
    await away.start()
    assert (await away.look())[1]["clock_skew_s"] is None
    await away.stop()


async def test_a_slow_answer_says_nothing_and_an_old_one_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    answers: list[Any] = [lambda: time.time() - 3.0]

    async def read() -> float:
        return float(answers[0]())

    def away() -> float:
        raise StateUnavailable("away")

    skew = ClockSkew(read)
    assert skew.seconds is None
    await skew.measure()
    assert skew.seconds == pytest.approx(3.0, abs=0.3)
    real = time.monotonic
    late = iter((0.0, 0.0, 5.0, 5.0, 5.0))
    monkeypatch.setattr(time, "monotonic", lambda: real() + next(late, 5.0))
    answers[0] = lambda: time.time() - 9.0
    assert skew.seconds == pytest.approx(3.0, abs=0.3)
    await skew.measure()
    assert skew.seconds == pytest.approx(3.0, abs=0.3)
    answers[0] = away
    monkeypatch.setattr(time, "monotonic", lambda: real() + 31.0)
    await skew.measure()
    assert skew.seconds is None


def page(metrics: Metrics) -> str:
    return "\n".join(line for line in metrics.render().decode().splitlines() if "clock_skew_seconds{" in line)


def test_metrics_show_the_skew_of_each_process_only_where_it_is_known():
    metrics = Metrics()
    assert page(metrics) == ""
    metrics.gauge("clock_skew_seconds", -1.5)
    assert page(metrics) == 'quartermaster_clock_skew_seconds{pool="",process="web"} -1.5'
    metrics.gauge("clock_skew_seconds", None)
    assert page(metrics) == ""
    gauges = PoolGauges(None, {}, time.time)  # type: ignore[arg-type]
    for skew_s, expected in ((2.25, [(("leader", "llama"), 2.25)]), (None, [])):
        shot = snapshots.snapshot(sample(clock_skew_s=skew_s), Window(), ENTITLEMENTS, 1)
        gauges._snapshots = {"llama": shot | {"epoch": 1, "seq": 1}}
        assert gauges.samples()["clock_skew_seconds"] == expected


def test_the_alert_is_for_more_than_a_second_either_way():
    path = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
    rules = [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    (rule,) = [rule for rule in rules if rule["alert"] == "QuartermasterClockSkew"]
    assert "abs(quartermaster_clock_skew_seconds)" in rule["expr"]
    assert rule["expr"].endswith("> 1")
