"""What the log and the pages say while Redis or the database is away: once, in words, and 503 instead of 500."""

from __future__ import annotations

import asyncio
import logging
import time

import psycopg
import pytest
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import settings
from django.db import DatabaseError, InternalError, OperationalError
from django.test import Client
from psycopg_pool import ConnectionPool, PoolTimeout

from controlplane.log_dedup import QUIET_S, Repeats
from tests.support.ports import free_port


def log_record(message, *args, error=None, level=logging.ERROR):
    info = (type(error), error, None) if error is not None else None
    return logging.LogRecord("library", level, __file__, 1, message, args, info)


def test_a_repetition_is_left_out_until_it_has_been_quiet_for_long():
    times = [0.0]
    repeats = Repeats(clock=lambda: times[-1])
    first = log_record("cannot connect to %s", "a", error=ConnectionError("refused\nby it"))
    assert repeats.filter(first)
    assert first.getMessage() == "cannot connect to a (ConnectionError: refused by it); repetitions are left out"
    assert first.exc_info is None
    for at_s in (1.0, QUIET_S, 2 * QUIET_S - 1):  # each within a minute of the one before
        times.append(at_s)
        assert not repeats.filter(log_record("cannot connect to %s", "b", error=ConnectionError()))
    assert repeats.filter(log_record("another matter"))
    assert repeats.filter(log_record("cannot connect to %s", "b", error=TimeoutError()))
    assert repeats.filter(log_record("connected", level=logging.INFO))
    assert repeats.filter(log_record("connected", level=logging.INFO))
    times.append(3 * QUIET_S)
    assert repeats.filter(log_record("cannot connect to %s", "b", error=ConnectionError()))


def test_a_logger_that_was_configured_twice_says_it_once():
    record = log_record("cannot connect", error=ConnectionError("refused"))
    assert Repeats().filter(record)
    assert Repeats().filter(record)
    assert record.getMessage() == "cannot connect (ConnectionError: refused); repetitions are left out"


def test_faults_of_our_own_are_never_left_out():
    repeats = Repeats(database_only=True)
    for _ in range(2):
        fault = log_record("Internal Server Error: %s", "/", error=ValueError("ours"))
        assert repeats.filter(fault)
        assert fault.exc_info
    assert repeats.filter(log_record("Internal Server Error: %s", "/", error=OperationalError("away")))
    assert not repeats.filter(log_record("Internal Server Error: %s", "/admin/", error=OperationalError("away")))


def test_a_task_that_ends_while_redis_is_away_is_one_line_and_what_else_a_worker_says_stays():
    repeats = Repeats(begins="Couldn't ")
    ended = log_record("Couldn't ack %r, reason:%r", "id", "network", error=ConnectionError("refused"))
    assert repeats.filter(ended)
    assert ended.exc_info is None
    again = log_record("Couldn't ack %r, reason:%r", "id", "network", error=ConnectionError("refused"))
    assert not repeats.filter(again)
    for _ in range(2):
        assert repeats.filter(log_record("Task %s exceeded its time limit", "id"))
    ours = [f for f in logging.getLogger("celery.worker.request").filters if isinstance(f, Repeats)]
    assert ours
    assert ours[0].filter(log_record("Task %s exceeded its time limit", "id"))


def test_pipelines_that_are_given_up_on_a_full_disk_are_one_line():
    library = next(f for f in logging.getLogger("psycopg").filters if isinstance(f, Repeats))
    given_up = "error ignored terminating %r: %s"
    said = [library.filter(log_record(given_up, object(), "pipeline aborted", level=logging.WARNING)) for _ in range(3)]
    assert said == [True, False, False]


def test_another_reason_of_postgresql_is_no_repetition():
    pool = next(f for f in logging.getLogger("psycopg.pool").filters if isinstance(f, Repeats))
    refused = "error connecting in %r: connection to server at port 5432 failed: Connection refused"
    expired = "error connecting in %r: connection to server at port 5432 failed: certificate verify failed"
    assert [pool.filter(log_record(refused, f"pool-{n}", level=logging.WARNING)) for n in (1, 2)] == [True, False]
    assert [pool.filter(log_record(expired, f"pool-{n}", level=logging.WARNING)) for n in (3, 4)] == [True, False]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kombu.asynchronous.hub", "Error in timer: %r"),
        ("controlplane.tuning.starter", "tuning of pool %s could not be started"),
        ("controlplane.batches.starter", "open batches could not be announced (%s)"),
    ],
)
def test_what_is_tried_every_few_seconds_of_an_outage_is_told_once(name: str, message: str):
    ours = [f for f in logging.getLogger(name).filters if isinstance(f, Repeats)]
    lines = [log_record(message, "llama", error=ConnectionError("refused")) for _ in range(2)]
    assert [all(f.filter(line) for f in ours) for line in lines] == [True, False]
    assert not lines[0].exc_info


def test_a_task_that_fails_because_the_database_is_away_is_one_line():
    def shown(error):
        record = log_record(
            "Task %(name)s[%(id)s] raised unexpected: %(exc)s", {"name": "a", "id": "b", "exc": error}, error=error
        )
        passes = all(f.filter(record) for f in logging.getLogger("celery.app.trace").filters)
        return passes and ("with a traceback" if record.exc_info else "one line")

    assert [shown(OperationalError("away")) for _ in range(2)] == ["one line", False]
    read_only = InternalError("cannot execute UPDATE in a read-only transaction")
    read_only.__cause__ = psycopg.errors.ReadOnlySqlTransaction()
    assert [shown(read_only) for _ in range(2)] == ["one line", False]
    assert [shown(ValueError("ours")) for _ in range(2)] == ["with a traceback"] * 2


class Tries(logging.Filter):
    """What a library's logger was given, before our filter."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def filter(self, record):
        self.count += 1
        return True


@pytest.fixture
def fresh_log():
    """A library's logger with a filter that remembers nothing in place of the process's own."""
    undo = []

    def make(name):
        library = logging.getLogger(name)
        ours = [f for f in library.filters if isinstance(f, Repeats)]
        assert ours, f"the settings put no filter on {name}"
        tries, fresh = Tries(), Repeats()
        for old in ours:
            library.removeFilter(old)
        library.addFilter(tries)
        library.addFilter(fresh)
        undo.append((library, ours, (tries, fresh)))
        return tries

    yield make
    for library, ours, added in undo:
        for f in added:
            library.removeFilter(f)
        for f in ours:
            library.addFilter(f)


async def test_an_outage_of_redis_is_one_line_of_the_channel_layer_and_frames_arrive_again_after_it(
    private_redis, caplog, fresh_log
):
    layer = RedisPubSubChannelLayer(hosts=[{"address": private_redis.url, "socket_timeout": None}], prefix="test")
    tries = fresh_log("channels_redis.pubsub")
    channel = await layer.new_channel()
    try:
        await layer.group_add("live", channel)
        private_redis.kill()
        async with asyncio.timeout(30):
            while tries.count < 3:  # one a second
                await asyncio.sleep(0.1)
        private_redis.start()
        async with asyncio.timeout(30):
            while True:
                await layer.group_send("live", {"type": "frame"})
                try:
                    async with asyncio.timeout(0.5):
                        assert (await layer.receive(channel))["type"] == "frame"
                        break
                except TimeoutError:
                    continue
        said = [r.getMessage() for r in caplog.records if r.name == "channels_redis.pubsub"]
        assert len(said) <= 2  # the break itself, and that nothing listens any more
        assert len(set(said)) == len(said)
    finally:
        await layer.flush()


def test_an_outage_of_postgresql_is_one_line_of_its_pool(caplog, fresh_log):
    tries = fresh_log("psycopg.pool")
    nobody = f"postgresql://user:hidden@127.0.0.1:{free_port()}/none"
    with ConnectionPool(nobody, min_size=1, open=True) as pool:
        end = time.monotonic() + 30
        while tries.count < 2:  # after one second, then two, then four
            assert time.monotonic() < end
            with pytest.raises(PoolTimeout):
                pool.getconn(timeout=0.2)
    said = [r.getMessage() for r in caplog.records if r.name == "psycopg.pool"]
    assert len(said) == 1
    assert "hidden" not in caplog.text


def _away(*_, **__):
    raise OperationalError("connection to server failed")


@pytest.fixture
def without_database(monkeypatch):
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", _away)
    client = Client(raise_request_exception=False)
    client.cookies[settings.SESSION_COOKIE_NAME] = "x" * 32
    return client


def test_pages_say_503_while_the_database_is_away(without_database, caplog):
    for path in ("/", "/admin/", "/requests"):
        answer = without_database.get(path, headers={"accept": "text/html"})
        assert answer.status_code == 503
        assert answer["Retry-After"]
        assert "<h1" in answer.content.decode()
        assert "database does not answer" in answer.content.decode()
    answer = without_database.get("/api/v1/me", headers={"accept": "application/json"})
    assert answer.status_code == 503
    assert "database does not answer" in answer.json()["detail"]
    assert sum(r.name == "django.request" for r in caplog.records) <= 1


def test_a_fault_of_our_own_stays_a_500(monkeypatch):
    def broken(*_, **__):
        raise DatabaseError("a column is missing")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", broken)
    client = Client(raise_request_exception=False)
    client.cookies[settings.SESSION_COOKIE_NAME] = "x" * 32
    answer = client.get("/")
    assert answer.status_code == 500
    assert "The error was logged" in answer.content.decode()
    assert "column" not in answer.content.decode()
