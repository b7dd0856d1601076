"""Guessed passwords, forged addresses and poisoned caches against a real web process with a real Redis."""

from __future__ import annotations

import asyncio
import collections
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from controlplane.web.login_attempts import AT_ONCE, FAILURES, PER_ADDRESS, RIGHT
from tests.support import migrated
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
# Where a test counts guesses, what one costs is not its subject: the same hash with less work.
ROUNDS = "from controlplane.web.hashing import PasswordHasher; PasswordHasher.iterations = {}"
QUICK, SLOWER = 1_000, 60_000  # a tenth of what one costs in an installation: many times what a request does
SERVE = "; from controlplane.web.serve import main; main()"
USERS = f"""
{ROUNDS.format(QUICK)}
from django.contrib.auth import get_user_model
for name in ("ada", "grace"):
    get_user_model().objects.create_user(name, password={PASSWORD!r}, is_staff=True, is_superuser=True)
"""
pytestmark = pytest.mark.timeout(300)
PROXY = "127.0.0.2"  # where a proxy would come from; every 127.x.y.z is this machine


class Web:
    """A web process alone: no worker, no engines. ``rounds``: of a hash; None: as many as in an installation."""

    def __init__(self, home: Path, redis: RedisServer, *, rounds: int | None = QUICK, **given: str) -> None:
        self.program = ["-m", "controlplane.web.serve"] if rounds is None else ["-c", ROUNDS.format(rounds) + SERVE]
        self.port = free_port()
        self.redis = redis
        self.log = home / f"web-{self.port}.log"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")} | {
            "QUARTERMASTER_HOME": str(home),
            "QUARTERMASTER_PORT": str(self.port),
            "QUARTERMASTER_REDIS_URL": redis.url,
            "QUARTERMASTER_DRAIN_S": "0",
            **given,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Web:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program], cwd=ROOT, env=self.environ, stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200:
                    return self
            except httpx.HTTPError:
                time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(30)

    @contextmanager
    def browser(self, source: str = "127.0.0.1", **headers: str) -> Iterator[Browser]:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            transport=httpx.HTTPTransport(local_address=source),
            timeout=60,
        ) as client:
            yield Browser(client)


class Browser:
    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def login(self, name: str, password: str) -> httpx.Response:
        """One password, tried again for as long as others are being checked."""
        while "passwords_busy" in (answer := self.once(name, password)).text:
            time.sleep(0.2)
        return answer

    def once(self, name: str, password: str) -> httpx.Response:
        self.client.cookies.clear()
        page = self.client.get("/login").text
        found = re.search(r'csrfmiddlewaretoken" value="([^"]+)', page)
        assert found is not None, page
        form = {"username": name, "password": password, "csrfmiddlewaretoken": found.group(1)}
        return self.client.post("/login", data=form, headers={"accept": "application/json"})

    def wrong(self, name: str, times: int = FAILURES) -> list[int]:
        return [self.login(name, f"wrong {n}").status_code for n in range(times)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    migrated.put_into(folder)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")}
    environ |= {"QUARTERMASTER_HOME": str(folder), "QUARTERMASTER_REDIS_URL": ""}
    subprocess.run([sys.executable, "manage.py", "shell", "-c", USERS], cwd=ROOT, env=environ, check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


@contextmanager
def running(home: Path, redis: RedisServer, *, rounds: int | None = QUICK, **given: str) -> Iterator[Web]:
    web = Web(home, redis, rounds=rounds, **given).start()
    try:
        yield web
    finally:
        web.stop()


@pytest.fixture(scope="module")
def web(home: Path, redis: RedisServer) -> Iterator[Web]:
    """Behind a proxy at ``PROXY``, with HTTP Basic."""
    with running(
        home, redis, QUARTERMASTER_TRUSTED_PROXIES=f"{PROXY}, 10.1.0.0/16", QUARTERMASTER_BASIC_AUTH="on"
    ) as web:
        yield web


@pytest.fixture(scope="module")
def full_web(home: Path, redis: RedisServer) -> Iterator[Web]:
    """One in which a hash takes the third of a second of an installation: wrong passwords of quick hashes as well."""
    with running(home, redis, rounds=None) as web:
        yield web


@pytest.fixture(scope="module")
def slower_web(home: Path, redis: RedisServer) -> Iterator[Web]:
    """One in which requests come much faster than hashes are made. At the full price ten of them outlast the five
    minutes for which a guess counts, on a machine that others use."""
    with running(home, redis, rounds=SLOWER) as web:
        yield web


@pytest.fixture(autouse=True)
def _nothing_counted(redis: RedisServer) -> None:
    redis.flush()


async def _guess(web: Web, count: int, name: str) -> collections.Counter[Any]:
    """``count`` guesses at the same moment, each until it was checked or refused."""
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{web.port}", limits=limits, timeout=120) as client:
        page = (await client.get("/login")).text
        found = re.search(r'csrfmiddlewaretoken" value="([^"]+)', page)
        assert found is not None

        async def one(number: int) -> Any:
            form = {"username": name, "password": f"wrong {number}", "csrfmiddlewaretoken": found.group(1)}
            while True:
                answer = await client.post("/login", data=form, headers={"accept": "application/json"})
                if "passwords_busy" not in answer.text:
                    return answer.status_code
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) > 0
                await asyncio.sleep(2)

        return collections.Counter(await asyncio.gather(*(one(n) for n in range(count))))


def test_of_a_hundred_guesses_at_the_same_moment_ten_are_checked(slower_web: Web) -> None:
    assert asyncio.run(_guess(slower_web, 100, "ada")) == {200: FAILURES, 429: 100 - FAILURES}


def test_another_spelling_of_a_name_is_no_other_name(web: Web) -> None:
    with web.browser() as browser:
        seen = [browser.login(name, "wrong").status_code for name in ("ada", " ada", "ADA", "\uff41da") * 4]
    assert seen.count(200) == FAILURES


def test_wrong_passwords_from_one_address_do_not_keep_the_name_out_elsewhere(web: Web) -> None:
    with web.browser(PROXY, x_forwarded_for="203.0.113.5") as stranger:
        assert stranger.wrong("ada") == [200] * FAILURES
        refused = stranger.login("ada", PASSWORD)
        assert refused.status_code == 429
        assert refused.json()["code"] == "too_many_passwords"
        assert 0 < int(refused.headers["retry-after"]) <= 300
        assert stranger.login("grace", PASSWORD).status_code == 302, "only this name, from there"
    with web.browser(PROXY, x_forwarded_for="203.0.113.6") as owner:
        assert owner.login("ada", PASSWORD).status_code == 302


def test_an_ipv6_stranger_has_one_address_and_not_as_many_as_he_likes(web: Web) -> None:
    for number in range(FAILURES):
        with web.browser(PROXY, x_forwarded_for=f"2001:db8:1:2:{number:x}::1") as stranger:
            assert stranger.wrong("ada", 1) == [200]
    with web.browser(PROXY, x_forwarded_for="2001:db8:1:2:ffff::1") as stranger:
        assert stranger.wrong("ada", 1) == [429]
    with web.browser(PROXY, x_forwarded_for="2001:db8:1:3::1") as neighbour:
        assert neighbour.wrong("ada", 1) == [200]


@pytest.mark.parametrize(
    "forged", ["203.0.113.{n}", "10.1.0.1, 203.0.113.{n}", "{n}.0.113.9, 127.0.0.2"], ids=["one", "chain", "proxy"]
)
def test_who_is_no_proxy_cannot_choose_an_address(web: Web, forged: str) -> None:
    seen = []
    for number in range(FAILURES + 1):
        with web.browser("127.0.0.3", x_forwarded_for=forged.format(n=number)) as stranger:
            seen += stranger.wrong("ada", 1)
    assert seen == [200] * FAILURES + [429]


def test_behind_two_proxies_the_last_hop_that_is_none_counts(web: Web) -> None:
    seen = []
    for number in range(FAILURES + 1):  # what the client wrote itself stands at the left
        with web.browser(PROXY, x_forwarded_for=f"198.51.100.{number}, 203.0.113.7, 10.1.0.9") as stranger:
            seen += stranger.wrong("ada", 1)
    assert seen == [200] * FAILURES + [429]


def test_a_stranger_who_tries_many_names_is_refused_and_leaves_few_counts(web: Web, redis: RedisServer) -> None:
    with web.browser("127.0.0.4") as browser:
        seen = []
        for number in range(PER_ADDRESS + 20):
            while (answer := browser.client.get("/api/v1/me", auth=(f"name{number}", "wrong"))).status_code == 429:
                if answer.json()["code"] == "too_many_passwords":
                    break
            seen.append(answer.status_code)
    assert collections.Counter(seen) == {401: PER_ADDRESS, 429: 20}
    keys = redis.command("DBSIZE")
    assert int(keys[1:]) <= 2 * PER_ADDRESS + 10


def test_a_right_password_costs_nothing_of_the_allowance(web: Web) -> None:
    with web.browser() as browser:
        for _ in range(FAILURES + 2):
            answer = browser.client.get("/api/v1/me", auth=("ada", PASSWORD))
            assert answer.status_code == 200


def test_who_signs_in_again_and_again_is_refused_before_anything_is_hashed_and_others_are_not(web: Web) -> None:
    def seen(name: str, number: int, password: str = PASSWORD) -> httpx.Response:
        with web.browser(PROXY, x_forwarded_for=f"203.0.113.{number}") as browser:
            return browser.login(name, password)

    assert {seen("ada", 200 + n, "wrong").status_code for n in range(20)} == {200}, "a stranger's count for nothing"
    assert {seen("ada", n).status_code for n in range(RIGHT)} == {302}
    refused = seen("Ada ", RIGHT)
    assert refused.status_code == 429
    assert refused.json()["code"] == "too_many_passwords"
    assert f"{RIGHT} times in five minutes" in refused.json()["detail"]
    assert 0 < int(refused.headers["retry-after"]) <= 300
    assert seen("grace", RIGHT).status_code == 302


def _helpers(web: Web) -> list[psutil.Process]:
    """The processes that hash, those that give way last."""
    assert web.process is not None
    found = (p for p in psutil.Process(web.process.pid).children() if "hashlib" in " ".join(p.cmdline()))
    return sorted(found, key=lambda p: p.nice())


def test_the_hashes_of_many_guesses_give_way_and_a_first_one_does_not(full_web: Web) -> None:
    assert asyncio.run(_guess(full_web, 12, "grace"))[200] == FAILURES
    assert full_web.process is not None
    quick, giving_way = _helpers(full_web)
    assert quick.nice() == psutil.Process(full_web.process.pid).nice() < giving_way.nice()
    for helper in (quick, giving_way):
        helper.kill()  # another takes its place
    with full_web.browser("127.0.0.5") as browser:
        assert browser.login("ada", PASSWORD).status_code == 302


def test_strangers_at_many_addresses_do_not_keep_out_who_has_signed_in_from_hers(web: Web) -> None:
    def once(name: str, address: str) -> int:
        with web.browser(PROXY, x_forwarded_for=address) as browser:
            return browser.once(name, PASSWORD).status_code

    def next_stranger(number: int) -> Future[int]:
        return several.submit(once, f"nobody-{number}", f"198.51.100.{number}")

    assert once("ada", "203.0.113.1") == 302
    helpers = _helpers(web)
    with ThreadPoolExecutor(AT_ONCE + 2) as several:
        for helper in helpers:
            helper.suspend()
        try:
            asked = [next_stranger(number) for number in range(AT_ONCE + 1)]
            wait(asked, timeout=60, return_when=FIRST_COMPLETED)
            assert once("grace", "203.0.113.1") == 429
            ada = several.submit(once, "ada", "203.0.113.1")
            assert not wait([ada], timeout=0.5).done
        finally:
            for helper in helpers:
                helper.resume()
        assert ada.result() == 302


def test_what_somebody_wrote_to_redis_is_never_run(web: Web, redis: RedisServer, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'run'}",)

    with web.browser() as browser:
        assert browser.wrong("ada", 1) == [200]
        _poison(redis, pickle.dumps(Evil()))
        assert browser.wrong("ada", 2) == [200, 200]
        assert browser.login("ada", PASSWORD).status_code == 302
        assert browser.client.get("/api/v1/me").status_code == 200
    assert not (tmp_path / "run").exists()


def _poison(redis: RedisServer, value: bytes) -> None:
    import redis as library

    client = library.Redis.from_url(redis.url)
    keys = [*client.scan_iter("qm:cache*"), *client.scan_iter("qm:login*")]
    assert keys
    for key in keys:
        client.set(key, value)


def test_guesses_are_counted_while_redis_is_away(home: Path) -> None:
    server = RedisServer()
    server.start()
    try:
        with running(home, server) as web:
            server.kill()
            assert asyncio.run(_guess(web, 30, "ada")) == {200: FAILURES, 429: 30 - FAILURES}
    finally:
        server.stop()


def test_basic_is_off_by_default_and_nothing_is_hashed_for_it(home: Path, redis: RedisServer) -> None:
    with running(home, redis) as web, web.browser() as browser:
        answer = browser.client.get("/api/v1/me", auth=("ada", PASSWORD))
        assert answer.status_code == 401
        assert "access token" in answer.json()["detail"]
        assert web.process is not None
        assert not psutil.Process(web.process.pid).children()


def test_only_a_trusted_proxy_says_that_a_client_came_by_https(home: Path, redis: RedisServer) -> None:
    with running(home, redis, QUARTERMASTER_HTTPS="on", QUARTERMASTER_TRUSTED_PROXIES=PROXY) as web:
        with web.browser(PROXY, x_forwarded_proto="https") as client:
            answer = client.client.get("/login")
            assert answer.status_code == 200
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with web.browser(PROXY, x_forwarded_proto="http") as client:
            assert client.client.get("/login").status_code == 301
        with web.browser("127.0.0.1", x_forwarded_proto="https") as client:
            answer = client.client.get("/login")  # a redirect would lead to the same address, again and again
            assert (answer.status_code, "QUARTERMASTER_TRUSTED_PROXIES" in answer.text) == (400, True)
