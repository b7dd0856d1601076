"""An upgrade and a rollback with requests in flight: all is killed at once, another version starts on what it left.

Nothing of it leaks: each request that ran has one row in the ledger, no lease and no total stays, requests are served.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from tests.support.instance import ROOT, Up
from tests.support.older_tree import TWELVE_WORDS, UpOf, older_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IN_FLIGHT = 16
SETTINGS = {
    "QUARTERMASTER_SIM_REPLICAS": "1",
    "QUARTERMASTER_SIM_SLOTS": "16",
    "QUARTERMASTER_WEB_PROCESSES": "1",
}


def state(up: Up) -> redis.Redis:
    return redis.Redis.from_url((up.home / "run" / "redis-url").read_text(), decode_responses=True)


def held(up: Up) -> set[str]:
    return set(state(up).hkeys(f"qm:{{{up.demo()['pool']}}}:held"))


def totals(up: Up) -> dict[str, str]:
    return state(up).hgetall(f"qm:{{{up.demo()['pool']}}}:totals")


def reasons(up: Up) -> dict[str, str]:
    """Request -> its end in the ledger."""
    with sqlite3.connect(f"file:{up.home / 'db.sqlite3'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT request_id, reason FROM telemetry_ledgerentry").fetchall()
    assert len({request for request, _ in rows}) == len(rows)
    return dict(rows)


def ask(up: Up, key: str, tokens: int) -> int:
    demo = up.demo()
    body = {"model": demo["model"], "messages": [{"role": "user", "content": "go on"}], "max_tokens": tokens}
    answer = httpx.post(
        f"{up.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {demo['keys'][key]}"}, timeout=60
    )
    return answer.status_code


def keep_busy(up: Up) -> set[str]:
    """Requests that run until their server dies; those that hold a slot."""

    def stream(key: str) -> None:
        demo = up.demo()
        body = {
            "model": demo["model"],
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": 4000,
            "stream": True,
            "ignore_eos": True,
        }
        try:
            with httpx.stream(
                "POST",
                f"{up.url}/v1/chat/completions",
                json=body,
                timeout=120,
                headers={"authorization": f"Bearer {demo['keys'][key]}"},
            ) as answer:
                for _ in answer.iter_raw():
                    pass
        except httpx.HTTPError:
            pass

    keys = sorted(up.demo()["keys"])
    for n in range(2 * IN_FLIGHT):
        threading.Thread(target=stream, args=(keys[n % len(keys)],), daemon=True).start()
    up.wait(lambda: len(held(up)) >= IN_FLIGHT // 2)
    time.sleep(2.0)  # Redis writes to its disk once a second
    return held(up)


def kill(up: Up) -> None:
    assert up.process is not None
    parent = psutil.Process(up.process.pid)
    for victim in [parent, *parent.children(recursive=True)]:
        victim.send_signal(signal.SIGKILL)
    up.process.wait()
    up.process = None


def take_over(before: Up, tree: Path, figure: Callable[[str], None]) -> Up:
    """Another tree on the same HOME. Everything that was in flight has ended, and it serves."""
    running = keep_busy(before)
    assert len(running) >= IN_FLIGHT // 2
    kill(before)
    after = UpOf(tree, before.home, **SETTINGS)
    began = time.monotonic()
    after.start().wait_ready()
    after.wait(lambda: running <= reasons(after).keys())
    ends = {reasons(after)[request] for request in running}
    after.wait(lambda: not held(after) and not totals(after))
    assert ask(after, "standard", 5) == 200
    after.wait(lambda: not held(after) and not totals(after))
    figure(f"{len(running)} in flight at the kill, each ended as {sorted(ends)} {time.monotonic() - began:.0f} s after")
    assert ends == {"gateway_lost"}
    return after


def test_an_upgrade_and_a_rollback_with_requests_in_flight_lose_and_leak_nothing(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    older = older_tree(tmp_path / "older")
    up: Up = UpOf(older, tmp_path / "home", **SETTINGS)
    up.start().wait_ready()
    try:
        up = take_over(up, ROOT, figure)
        assert up.get("/readyz")[0] == 200
        up = take_over(up, older, figure)
    finally:
        up.stop()


def test_an_upgrade_from_entries_of_twelve_words_loses_and_leaks_nothing(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    up: Up = UpOf(older_tree(tmp_path / "older", TWELVE_WORDS), tmp_path / "home", **SETTINGS)
    up.start().wait_ready()
    try:
        up = take_over(up, ROOT, figure)
    finally:
        up.stop()
