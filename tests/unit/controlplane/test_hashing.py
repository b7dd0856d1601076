"""The line before the process that hashes passwords, and the counts of passwords that were tried."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psutil
import pytest
import redis
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from controlplane.web import hashing
from controlplane.web.cache import JsonSerializer
from controlplane.web.login_attempts import LocalStore, Places, RedisStore, Store, network_of
from tests.support.redis_server import RedisServer


@pytest.fixture
def helper() -> Iterator[hashing.Helper]:
    made = hashing.Helper()
    yield made
    made.stop()


def process(helper: hashing.Helper) -> psutil.Process:
    """The one that need not give way: the first hashes are its."""
    assert helper._quick.running is not None
    return psutil.Process(helper._quick.running.pid)


@contextmanager
def stopped(helper: hashing.Helper) -> Iterator[None]:
    """Its process answers nothing meanwhile, however fast the machine is; whoever gave it up has ended it."""
    with stopped_process(process(helper).pid):
        yield


@contextmanager
def stopped_process(pid: int) -> Iterator[None]:
    one = psutil.Process(pid)
    one.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            one.resume()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_helper_hashes_as_django_does(helper: hashing.Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_helper", helper)
    for password, salt in (("correct horse", "salt"), ("p\u00e4ss\nw\u00f6rd ", "s a"), ("", "x")):
        ours = hashing.PasswordHasher().encode(password, salt, 1000)
        assert ours == PBKDF2PasswordHasher().encode(password, salt, 1000)
        assert hashing.PasswordHasher().verify(password, ours)


def running(wait_s: float = 60.0) -> hashing.Helper:
    """A helper whose process is there already."""
    made = hashing.Helper(wait_s=wait_s, hash_s=60.0)
    assert made.pbkdf2("sha256", b"x", b"salt", 1)
    return made


def test_the_line_is_short_and_a_request_that_finds_it_full_is_refused_at_once() -> None:
    helper = running()

    def one(number: int) -> bool:
        try:
            return len(helper.pbkdf2("sha256", b"%d" % number, b"salt", 1)) == 32
        except hashing.HashingBusy:
            return False

    try:
        with ThreadPoolExecutor(40) as pool:
            with stopped(helper):
                asked = [pool.submit(one, number) for number in range(40)]
                until(lambda: sum(each.done() for each in asked) == 40 - 1 - hashing.LINE)
                assert not any(each.result() for each in asked if each.done())
            assert sum(each.result() for each in asked) == 1 + hashing.LINE
        assert one(0), "it goes on"
    finally:
        helper.stop()


def test_where_strangers_fill_the_line_who_goes_ahead_is_next() -> None:
    helper, ended = running(), []

    def one(name: str, known: bool) -> None:
        hashing.ahead.set(known)
        with suppress(hashing.HashingBusy):
            helper.pbkdf2("sha256", name.encode(), b"salt", 1)
            ended.append(name)

    try:
        with ThreadPoolExecutor(40) as pool, stopped(helper):
            asked = [pool.submit(one, "stranger", False) for _ in range(30)]
            until(lambda: sum(each.done() for each in asked) == 30 - 1 - hashing.LINE)
            pool.submit(one, "known", True)
            until(lambda: helper._ahead == 1)
        assert ended.index("known") <= 2, "after the one that was being hashed, not after all"
        assert len(ended) == 1 + hashing.LINE + 1
    finally:
        helper.stop()


def test_nobody_waits_longer_than_he_may() -> None:
    helper = running(wait_s=0.05)
    helper._hash_s = 5.0  # then the first one gives up, and whoever still waited has its turn
    try:
        with ThreadPoolExecutor(1) as pool, stopped(helper):
            pool.submit(helper.pbkdf2, "sha256", b"x", b"salt", 1)
            until(lambda: helper._hashing)
            with pytest.raises(hashing.HashingBusy):
                helper.pbkdf2("sha256", b"x", b"salt", 1)
    finally:
        helper.stop()


def test_an_answer_that_comes_too_late_is_nobody_elses() -> None:
    helper = running()
    try:
        helper._hash_s = 0.1
        with stopped(helper), pytest.raises(hashing.HashingBusy):
            helper.pbkdf2("sha256", b"late", b"salt", 1)
        helper._hash_s = 60.0
        assert helper.pbkdf2("sha256", b"x", b"salt", 7) == hashlib.pbkdf2_hmac("sha256", b"x", b"salt", 7)
    finally:
        helper.stop()


def test_a_few_hashes_need_not_give_way_and_those_of_a_flood_do_but_it_slows_nobody_who_goes_ahead(
    helper: hashing.Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "QUICK_EVERY_S", 1e9)  # no more in the time of the test
    for _ in range(hashing.QUICK):
        assert helper.pbkdf2("sha256", b"x", b"salt", 1)
    assert helper._giving_way.running is None
    assert helper.pbkdf2("sha256", b"x", b"salt", 1)
    assert helper._giving_way.running is not None
    own = psutil.Process().nice()
    assert process(helper).nice() == own
    assert psutil.Process(helper._giving_way.running.pid).nice() == min(19, own + hashing.NICE)

    def known() -> bytes:
        hashing.ahead.set(True)
        return helper.pbkdf2("sha256", b"x", b"salt", 1)

    with ThreadPoolExecutor(1) as pool, stopped_process(helper._giving_way.running.pid):
        assert pool.submit(known).result(60), "which the process that gives way has not answered"


def test_time_gives_hashes_back_that_need_not_give_way(helper: hashing.Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(hashing.QUICK + 1):
        helper.pbkdf2("sha256", b"x", b"salt", 1)
    assert helper._giving_way.running is not None
    monkeypatch.setattr(hashing, "QUICK_EVERY_S", 1e-9)
    with stopped_process(helper._giving_way.running.pid):
        assert helper.pbkdf2("sha256", b"x", b"salt", 1)


def test_a_helper_that_died_is_replaced_and_a_stopped_one_is_gone(helper: hashing.Helper) -> None:
    first = helper.pbkdf2("sha256", b"x", b"salt", 5)
    process(helper).kill()
    assert helper.pbkdf2("sha256", b"x", b"salt", 5) == first
    pid = process(helper).pid
    helper.stop()
    assert not psutil.pid_exists(pid)


# --- counts


TOGETHER = 40


class ReadThenWrite(RedisStore):
    """What there was before: reads, adds, writes. All have read before the first one writes."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._have_read = threading.Barrier(TOGETHER)

    def take(self, key: str, limit: int, window_s: int) -> int:
        count = int(self._redis.get(key) or 0)
        self._have_read.wait()
        if count >= limit:
            return window_s
        self._redis.set(key, count + 1, ex=window_s)
        return 0


def _admitted(store: Store, key: str) -> int:
    start = threading.Barrier(TOGETHER)

    def one(_: int) -> bool:
        start.wait()
        return store.take(key, 10, 300) == 0

    with ThreadPoolExecutor(TOGETHER) as pool:
        return sum(pool.map(one, range(TOGETHER)))


def test_ten_of_forty_at_the_same_moment_are_admitted(redis_url: str) -> None:
    stores: dict[str, Callable[[], Store]] = {"redis": lambda: RedisStore(redis_url), "local": LocalStore}
    for name, make in stores.items():
        assert _admitted(make(), f"test:atomic:{name}:{uuid.uuid4()}") == 10
    assert _admitted(ReadThenWrite(redis_url), f"test:atomic:broken:{uuid.uuid4()}") > 10, "the test would not notice"


def test_a_count_ends_by_itself_and_refusals_do_not_prolong_it(redis_url: str) -> None:
    store, client = RedisStore(redis_url), redis.Redis.from_url(redis_url)
    client.set("test:ends", 3)  # without an end, as a crash between two commands would leave it
    assert store.take("test:ends", 10, 300) == 0
    assert 0 < client.ttl("test:ends") <= 300
    client.set("test:ends", 10, ex=40)
    assert [store.take("test:ends", 10, 300) <= 40 for _ in range(3)] == [True] * 3
    assert int(client.get("test:ends") or 0) == 10
    store.give_back("test:never")
    assert client.get("test:never") is None


def test_a_process_remembers_a_bounded_number_of_names() -> None:
    now = [0.0]
    store = LocalStore(most=100, clock=lambda: now[0])
    for number in range(1000):
        assert store.take(f"name-{number}", 10, 300) == 0
    assert len(store) == 100
    for _ in range(9):
        store.take("name-999", 10, 300)
    assert store.take("name-999", 10, 300) == 300
    now[0] = 301.0
    assert store.take("name-999", 10, 300) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("", "unix:", False),
    ],
)
def test_an_ipv6_network_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


def test_one_address_does_not_take_all_places() -> None:
    places = Places(most=4, per_address=2)
    assert [places.enter("a") for _ in range(3)] == [True, True, False]
    assert [places.enter(name) for name in ("b", "c", "d")] == [True, True, False]
    places.leave("a")
    assert places.enter("d")


def test_strangers_do_not_take_the_places_of_who_has_signed_in_from_there() -> None:
    places = Places(most=2, per_address=2)
    assert [places.enter(name) for name in ("a", "b", "c")] == [True, True, False]
    assert [places.enter("c", known=True) for _ in range(3)] == [True, True, False]
    assert not places.enter("d", known=True)


def test_the_cache_holds_data_and_whole_numbers_that_redis_can_count(redis_server: RedisServer) -> None:
    serializer = JsonSerializer()
    for value in (3, True, None, "x", {"a": [1, 2.5]}):
        kept = serializer.dumps(value)
        assert serializer.loads(kept if isinstance(kept, bytes) else b"%d" % kept) == value
    for foreign in (b"\x80\x04N.", b"", b"[" * 100_000, b"cos\nsystem\n(S'true'\ntR."):
        assert serializer.loads(foreign) is None
