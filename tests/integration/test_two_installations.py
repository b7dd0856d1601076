"""Two installations on one Redis: the second leads no pool, and says why. One installation is never in its own way."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from controlplane.gateway_config import installation_marks
from scheduling.dispatch import installation
from scheduling.state.installation import KEPT_MS, KEY, claim
from scheduling.state.resp import RespConnection
from scheduling.state.types import StateUnavailable
from tests.integration.test_dispatch_service import FixedPools, serving, setup_of
from tests.support.dispatch_world import until
from tests.support.redis_server import RedisServer


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "EVERY_S", 0.05)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


async def test_a_second_installation_leads_no_pool_until_the_first_is_gone(
    private_redis: RedisServer, caplog: pytest.LogCaptureFixture
):
    first, second = (replace(setup_of(private_redis.url, FixedPools("llama")), installation=(m,)) for m in ("aa", "bb"))
    async with serving(first) as one:
        await until(lambda: bool(one.leading()))
        async with serving(replace(second, load_catalog=FixedPools("llama", "qwen").load)) as two:
            await until(lambda: bool(errors(caplog)))
            await until(lambda: set(two.dispatchers) == {"llama", "qwen"})
            [told] = errors(caplog)
            assert "used by another installation (qm:installation is aa, this one's mark is bb)" in told
            assert "QUARTERMASTER_REDIS_URL" in told
            assert not two.leading(), "nobody leads qwen either: the two would share tasks and feed, too"
            await one.dispatchers["llama"].resign()
            await until(lambda: bool(one.leading()))
            assert not two.leading()
            private_redis.command("SET", KEY, "bb")  # as where the first has ended, and its mark
            await until(lambda: set(two.leading()) == {"llama", "qwen"})
            assert not one.leading(), "it gives up what it leads"


async def test_workers_of_one_installation_follow_one_another(private_redis: RedisServer):
    async with serving(replace(setup_of(private_redis.url, FixedPools("llama")), installation=("aa",))) as one:
        await until(lambda: bool(one.leading()))
        async with serving(replace(setup_of(private_redis.url, FixedPools("llama")), installation=("aa",))) as two:
            await until(lambda: bool(two.dispatchers))
            await one.dispatchers["llama"].resign()
            await until(lambda: bool(one.leading()) or bool(two.leading()))
        await until(lambda: bool(one.leading()))


async def test_a_mark_ends_by_itself_and_is_kept_by_each_of_its_processes(private_redis: RedisServer):
    resp = RespConnection(private_redis.url)
    await resp.start()
    try:
        assert await claim(resp, "aa") == "aa"
        await resp.call("PEXPIRE", KEY, 1000)
        assert await claim(resp, "bb") == "aa"
        assert await resp.call("PTTL", KEY) <= 1000, "another's claim does not keep it"
        assert await claim(resp, "aa") == "aa"
        assert KEPT_MS - 1000 < await resp.call("PTTL", KEY) <= KEPT_MS
        await resp.call("FLUSHALL")
        assert await claim(resp, "bb") == "bb"
        await resp.call("PERSIST", KEY)  # as a copy that was made key by key has it: RESTORE takes 0 for no end
        assert await claim(resp, "aa") == "bb"
        assert 0 < await resp.call("PTTL", KEY) <= KEPT_MS, "a mark that nobody keeps locks nobody out for ever"
    finally:
        await resp.close()


async def test_a_full_redis_that_nobody_marked_has_a_leader(private_redis: RedisServer):
    private_redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    async with serving(replace(setup_of(private_redis.url, FixedPools("llama")), installation=("aa",))) as one:
        await until(lambda: bool(one.leading()))  # the pool's keys are there
    private_redis.command("DEL", KEY)
    private_redis.command("CONFIG", "SET", "maxmemory", "1")
    resp = RespConnection(private_redis.url)
    await resp.start()
    try:
        with pytest.raises(StateUnavailable):
            await resp.call("SET", "qm:test", "x")
        async with serving(replace(setup_of(private_redis.url, FixedPools("llama")), installation=("aa",))) as two:
            await until(lambda: bool(two.leading()))
    finally:
        await resp.close()


async def test_workers_lead_while_the_secret_key_of_their_installation_is_changed(private_redis: RedisServer):
    """One after another gets the new key and knows the former one; then some have the former one and know the new."""
    pools = setup_of(private_redis.url, FixedPools("llama"))
    async with serving(replace(pools, installation=("old",))) as one:
        await until(lambda: bool(one.leading()))
        async with serving(replace(pools, installation=("new", "old"))) as two:
            await until(lambda: bool(two.leading()))
            assert private_redis.command("GET", KEY).endswith(b"new\r\n")
        await until(lambda: not one.leading(), 20)
    async with serving(replace(pools, installation=("new", "old"))) as two:
        await until(lambda: bool(two.leading()))
        async with serving(replace(pools, installation=("old", "new"))) as three:
            await until(lambda: bool(three.dispatchers))
            await two.dispatchers["llama"].resign()
            await until(lambda: bool(two.leading()) or bool(three.leading()))


async def test_while_redis_is_away_nothing_changes(private_redis: RedisServer):
    async with serving(replace(setup_of(private_redis.url, FixedPools("llama")), installation=("aa",))) as one:
        await until(lambda: bool(one.leading()))
        private_redis.kill()
        private_redis.start()
        await until(lambda: bool(one.leading()), 20)


def test_the_mark_is_that_of_the_secret_and_does_not_show_it(settings: Any) -> None:
    mark = installation_marks()[0]
    assert mark == installation_marks()[0]
    assert mark not in settings.SECRET_KEY
    settings.SECRET_KEY = "another " * 8
    assert len(installation_marks()[0]) == len(mark) == 16
    assert installation_marks()[0] != mark
