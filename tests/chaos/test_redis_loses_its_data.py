"""A whole instance under load whose Redis is flushed three times: every answered request is in the ledger, once."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import redis

from tests.support.instance import Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS, FLUSHES = 12, 3


def rows(up: Up) -> list[str]:
    with sqlite3.connect(f"file:{up.home / 'db.sqlite3'}?mode=ro", uri=True) as database:
        return [request for (request,) in database.execute("SELECT request_id FROM telemetry_ledgerentry")]


def test_no_ledger_row_is_lost_by_flushes_under_load(tmp_path: Path, figure: Callable[[str], None]) -> None:
    up = Up(tmp_path / "home", QUARTERMASTER_SIM_SLOTS="16", QUARTERMASTER_WEB_PROCESSES="2")
    up.start().wait_ready()
    answered: set[str] = set()
    served: list[int] = []
    back_s: list[float] = []
    stop = threading.Event()

    def client(n: int) -> None:
        demo = up.demo()
        keys = sorted(demo["keys"])
        body = {"model": demo["model"], "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5 + 8 * n}
        headers = {"authorization": f"Bearer {demo['keys'][keys[n % len(keys)]]}"}
        with httpx.Client(base_url=up.url, headers=headers, timeout=60) as http:
            while not stop.is_set():
                answer = http.post("/v1/chat/completions", json=body)
                answered.add(answer.headers["x-request-id"])
                served.append(answer.status_code)
                if answer.status_code != 200:
                    stop.wait(0.1)

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(CLIENTS)]
    try:
        for thread in threads:
            thread.start()
        state = redis.Redis.from_url((up.home / "run" / "redis-url").read_text())
        for _ in range(FLUSHES):
            before = served.count(200)
            up.wait(lambda before=before: served.count(200) >= before + 60)
            state.flushall()
            time.sleep(1.0)
            flushed, again = time.monotonic() - 1.0, served.count(200) + CLIENTS  # beyond those that ran
            up.wait(lambda again=again: served.count(200) > again)
            back_s.append(time.monotonic() - flushed)
        before = served.count(200)
        up.wait(lambda: served.count(200) >= before + 20)
        stop.set()
        for thread in threads:
            thread.join(100)
        end = time.monotonic() + 60
        while (missing := answered - set(rows(up))) and time.monotonic() < end:
            time.sleep(0.5)
        figure(
            f"{FLUSHES} FLUSHALL: {len(answered)} answered, {served.count(200)} served, {len(missing)} without a row; "
            f"served again after {', '.join(f'{s:.1f}' for s in back_s)} s"
        )
        assert not missing
        found = rows(up)
        assert len(found) == len(set(found))
    finally:
        stop.set()
        up.stop()
