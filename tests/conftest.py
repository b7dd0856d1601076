"""Fixtures that more than one folder of tests uses.

Redis is always real (the bundled server): scripts and failures are what the tests are about. One server serves the
whole session; a test isolates itself by its ``pool_id``, and takes ``private_redis`` to flush, kill or freeze a server.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from _pytest.nodeid import coerce_node_id
from threadpoolctl import threadpool_limits

from controlplane.web import login_attempts
from controlplane.web.hashing import PasswordHasher
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from tests.support import migrated
from tests.support.connected import connected
from tests.support.database_tests import misplaced
from tests.support.redis_server import RedisServer

_pools = itertools.count(1)

hypothesis.settings.register_profile("here", deadline=None)  # no test asserts how long something takes
hypothesis.settings.load_profile("here")


# Begun first, so that at the end of a run no process works on one of them while the others are idle.
LONG = (
    "test_state_model", "test_compose_backup", "test_replay_client", "test_compose_proxy", "test_up", "test_passwords",
    "test_batches", "test_tenants_access_matrix", "test_broken_engines", "test_engine_kinds", "test_api_inputs",
    "test_rollout_streams", "test_same_answers", "test_sick_replica", "test_audit_writers", "test_compose_parts",
    "test_kubernetes_rules", "test_estimates_command", "test_up_postgresql", "test_tuning_api", "test_tuning_loop",
    "test_search", "test_tuning_shift", "test_lab_compare",
)  # fmt: skip
MARKED = ("bench", "browser", "chaos", "kubernetes")  # folders whose every test has the marker of that name, or slow
PARTS = {"test_state_model": 3}  # a third of its 100 s of CPU each; none of its tests needs what another one made


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="K/N", help="only each Nth test, by its name: part K, from 0, of N such parts")


class NamedAtOnce:
    """Says what failed when it does: of a run that is stopped from outside, pytest's own summary never comes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.outcome not in ("passed", "skipped") and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)  # of what passes the second time, all that is said
            why = f"\n  {crash.path}:{crash.lineno}: {crash.message[:500]}" if crash else ""
            terminal.write_line(f"\n{report.outcome} ({report.when}): {report.nodeid}{why}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamedAtOnce(config))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A folder that the run leaves out as a whole, Playwright and all, is not even imported."""
    name = collection_path.name
    left_out = name in MARKED and f"not {name}" in config.option.markexpr
    return (left_out and collection_path.parent == Path(__file__).parent) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For several processes (``--dist loadgroup``): each takes a file at a time, and what empties the database at its
    end, seeded rows included, comes after everything else."""
    if sample := config.getoption("--sample"):
        part, parts = map(int, sample.split("/"))
        chosen = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part % parts]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen
    if wrong := misplaced(items):
        raise pytest.UsageError(f"{wrong[0]} uses the database: see tests/support/database_tests.py")
    if unmarked := [item for item in items if not _marked(item)]:
        raise pytest.UsageError(f"{unmarked[0].nodeid} has neither its folder's marker nor slow: `make test` misses it")
    for item in items:
        group = item.path.stem + ("-last" if _empties(item) else "")
        if parts := PARTS.get(item.path.stem):
            group += f"-{zlib.crc32(item.name.encode()) % parts}"
        if config.getoption("loadgroup", False):
            # As xdist 3.8 tells groups, but pytest 9.2 has no `_nodeid` any more: what xdist writes there is lost.
            item._id = coerce_node_id(f"{item.nodeid}@{group}")
    items.sort(key=lambda item: (_empties(item), LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)))


def _marked(item: pytest.Item) -> bool:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return folder not in MARKED or any(item.get_closest_marker(name) for name in (folder, "slow"))


def _empties(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("django_db")
    return bool(marker and marker.kwargs.get("transaction")) or "transactional_db" in getattr(item, "fixturenames", ())


def pytest_collection() -> None:
    """Nothing is garbage before the tests run: looking for some took a quarter of the time of collecting."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: looking through them again and again was 6 % of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_wrong_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests guessed in this process closes no door for this one."""
    monkeypatch.setattr(login_attempts, "_local", login_attempts.LocalStore())


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """A hash takes a third of a second by intent. Where the tests' own process makes one, it has the same way with less
    work; what hashing costs is the business of ``test_passwords.py``, against a web process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PasswordHasher, "iterations", 1_000)
        yield


@pytest.fixture(scope="session", autouse=True)
def _authorities_read_once() -> Iterator[None]:
    """Each HTTP client reads the authorities of the whole Internet when it is made: 40 ms of CPU, for thousands of them
    that speak to a loopback port in the clear. They share one context here; a test that names others has them read."""
    with pytest.MonkeyPatch.context() as patch:
        for library in ("httpx", "httpx2"):  # the second is what OpenAI's SDK goes by
            made = importlib.import_module(f"{library}._config").create_ssl_context
            patch.setattr(f"{library}._transports.default.create_ssl_context", _read_once(made))
        yield


def _read_once(create: Callable[..., Any]) -> Callable[..., Any]:
    def named() -> tuple[str | None, ...]:
        return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")

    trusting, this_machines = cache(create), named()

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
        if verify is True and cert is None and (not trust_env or named() == this_machines):
            return trusting(trust_env=trust_env)
        return create(verify, cert, trust_env)

    return context


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_matrices() -> None:
    """As in every process of ours (``controlplane``). pytest-randomly imports numpy before that is said where one
    process runs all tests, and threads that wait for each other in a loop took nine tenths of the CPU."""
    threadpool_limits(1)


@pytest.fixture(scope="session", autouse=True)
def _one_migrated_database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where :mod:`tests.support.migrated` keeps it: beside the folders of all processes of this run. Where these are
    several, their test databases are copies of it, too; one process alone is quicker without."""
    base = tmp_path_factory.getbasetemp()
    beside = "PYTEST_XDIST_WORKER" in os.environ
    os.environ["PYTEST_MIGRATED_FOLDER"] = str((base.parent if beside else base) / "migrated")
    if beside:
        migrated.fill_test_databases()


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says what a test measured: to who reads its output, and to the table of faults (``tests/chaos/table.py``)."""

    def say(text: str) -> None:
        print(f"\n{text}")
        record_property("figure", text)

    return say


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The session's server. Never flush or stop it."""
    server = RedisServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
def private_redis() -> Iterator[RedisServer]:
    """A server of this test's own, to kill, freeze, flush and start again."""
    server = RedisServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def pool_id() -> str:
    """A pool no other test of this session uses."""
    return f"pool-{next(_pools)}"


@pytest_asyncio.fixture
async def resp(redis_url: str) -> AsyncIterator[RespConnection]:
    """The lean client, connected to the session's server."""
    connection = RespConnection(redis_url, name="test")
    yield await connected(connection)
    await connection.close()


@pytest_asyncio.fixture
async def blocking_resp(redis_url: str) -> AsyncIterator[RespConnection]:
    """A connection for blocking reads (``PoolStore.events``)."""
    connection = RespConnection(redis_url, name="test-blocking", call_timeout=5.0)
    yield await connected(connection)
    await connection.close()


@pytest.fixture
def pool_store(resp: RespConnection, blocking_resp: RespConnection, pool_id: str) -> PoolStore:
    """An empty pool's state on the session's server: no leader yet, no replica ready."""
    return PoolStore(resp, pool_id, blocking=blocking_resp)
