"""A Redis that deletes keys when it is full loses state without an error: operators are told before it does."""

from __future__ import annotations

import logging
import time

import pytest

from scheduling.dispatch.redis_policy import EvictionWatch
from scheduling.state.memory import evicting_policy
from scheduling.state.resp import RespConnection
from telemetry.feed.store import LiveStore
from telemetry.pool_gauges import PoolGauges
from tests.integration.test_dispatch_service import FixedPools, serving, setup_of
from tests.support.dispatch_world import until
from tests.support.redis_server import RedisServer


def limit(server: RedisServer, most: str, policy: str) -> None:
    for name, value in (("maxmemory", most), ("maxmemory-policy", policy)):
        assert server.command("CONFIG", "SET", name, value).startswith(b"+OK")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "deletes" in r.getMessage()]


async def test_workers_name_a_policy_that_deletes_keys_once_and_say_when_it_is_mended(
    private_redis: RedisServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    resp = RespConnection(private_redis.url, name="test")
    await resp.start()
    watch = EvictionWatch(resp)
    limit(private_redis, "0", "volatile-lru")
    await watch.look()
    assert not said(caplog), "without a limit it is never full"
    limit(private_redis, "64mb", "volatile-lru")
    await watch.look()
    await watch.look()
    [told] = said(caplog)
    assert "maxmemory-policy is volatile-lru" in told
    limit(private_redis, "64mb", "noeviction")
    await watch.look()
    assert "no keys any more" in said(caplog)[-1]
    private_redis.command("ACL", "SETUSER", "default", "-info")
    await watch.look()
    assert len(said(caplog)) == 2, "what it does not say is not known"
    await resp.close()


async def test_each_worker_looks(private_redis: RedisServer, caplog: pytest.LogCaptureFixture):
    limit(private_redis, "64mb", "allkeys-lru")
    async with serving(setup_of(private_redis.url, FixedPools("llama"))):
        await until(lambda: bool(said(caplog)))


def test_metrics_say_it_or_nothing_where_redis_does_not(private_redis: RedisServer):
    gauges = PoolGauges(LiveStore(private_redis.url), {}, time.time)
    for policy, told in (("volatile-lru", [((), 1.0)]), ("noeviction", [((), 0.0)])):
        limit(private_redis, "64mb", policy)
        gauges.refresh()
        assert gauges.samples()["redis_evicts"] == told
    private_redis.command("ACL", "SETUSER", "default", "-info")
    gauges.refresh()
    assert "redis_evicts" not in gauges.samples()


def test_an_answer_without_a_policy_says_nothing():
    assert evicting_policy(b"# Memory\r\nused_memory:1\r\nmaxmemory:100\r\n") == ""
