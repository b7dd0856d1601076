"""2,000 requests in flight and waiting while worker, gateway, Redis and an engine are killed one after another.

Each request ends once and explicitly, slots return, nobody has to touch anything (docs/reference/promises.md: 1, 2, 5,
6, 20, 27). The instance is the one `make up` starts, with two web processes so that a killed gateway leaves another
standing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis

from controlplane.replay.client import Replay, Sender
from scheduling.simulator.trace import TraceRequest
from scheduling.state.types import LEASE_MS
from tests.support.instance import Up

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

REQUESTS = 2_000
PATIENCE_S = 120.0  # with what has to become true in the end
SEED = int(os.environ.get("CHAOS_SEED", "1"))


class Watched:
    """An instance, its Redis and its engines, seen from outside."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.pool = up.demo()["pool"]
        self.redis = redis.Redis.from_url((up.home / "run" / "redis-url").read_text(), decode_responses=True)
        self.history: list[dict[str, Any]] = []

    def note(self, what: str, **facts: Any) -> None:
        self.history.append({"at": round(time.time(), 3), "what": what, **facts})
        print(f"[{time.strftime('%H:%M:%S')}] {what} {facts or ''}")

    def totals(self) -> dict[str, str]:
        return self.redis.hgetall(f"qm:{{{self.pool}}}:totals")

    def leases(self) -> dict[str, str]:
        """Request -> the gateway that holds it."""
        held = self.redis.hgetall(f"qm:{{{self.pool}}}:held")
        return {request: next(p for p in entry.split(" ") if p.startswith("gw-")) for request, entry in held.items()}

    def in_flight(self) -> int:
        totals = self.totals()
        return int(totals.get("run", 0)) + int(totals.get("wait", 0))

    def state_ms(self) -> int:
        """State time (docs/internals/state.md), now."""
        seconds, micros = self.redis.time()
        offset = self.redis.hget(f"qm:{{{self.pool}}}:clock", "offset")
        return seconds * 1000 + micros // 1000 + int(float(offset or 0))

    def latest_end_ms(self, gateways: Collection[str]) -> float:
        """When the last lease of these ends if nobody renews it [ms of state time]; 0: they hold none."""
        owners = self.leases()
        ends = self.redis.zrange(f"qm:{{{self.pool}}}:leases", 0, -1, withscores=True)
        return max((end for request, end in ends if owners.get(request) in gateways), default=0)

    def epoch(self) -> int:
        return int(self.redis.hget(f"qm:{{{self.pool}}}:meta", "epoch") or 0)

    def kill(self, name: str) -> int:
        pid = self.up.pid(name)
        self.note(f"SIGKILL {name}", pid=pid)
        for victim in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            victim.send_signal(signal.SIGKILL)
        return pid

    async def until(self, what: str, condition: Any, limit_s: float) -> float:
        """Seconds until ``condition()`` is true; fails after ``limit_s``."""
        began = time.monotonic()
        while True:
            try:
                if condition():
                    took = time.monotonic() - began
                    self.note(what, after_s=round(took, 2))
                    return took
            except (redis.RedisError, OSError, httpx.HTTPError):
                pass
            assert time.monotonic() - began < limit_s, f"not within {limit_s} s: {what}"
            await asyncio.sleep(0.1)

    def open_generations(self) -> int:
        ports = json.loads((self.up.home / "ports.json").read_text())
        count = 0
        for name, port in ports.items():
            if name.startswith("engine"):
                count += httpx.get(f"http://127.0.0.1:{port}/sim/stats").json()["open"]
        return count


@pytest.fixture
def instance(tmp_path: Path):
    up = Up(
        tmp_path / "home", QUARTERMASTER_SIM_REPLICAS="4", QUARTERMASTER_SIM_SLOTS="64", QUARTERMASTER_WEB_PROCESSES="2"
    )
    up.start().wait_ready()
    watched = Watched(up)
    try:
        yield watched
    finally:
        up.stop()
        out = Path(os.environ.get("CHAOS_HISTORY", str(tmp_path / "history.jsonl")))
        out.write_text("".join(json.dumps(line) + "\n" for line in watched.history))
        print(f"seed {SEED}, history in {out}")


async def test_every_request_ends_once_and_slots_return_whatever_is_killed(instance: Watched) -> None:
    rng = random.Random(SEED)
    trace = [TraceRequest(10.0 * i / REQUESTS, rng.randint(50, 400), rng.randint(200, 500)) for i in range(REQUESTS)]
    demo = instance.up.demo()
    replay = Replay(
        demo["base_url"], demo["model"], [Sender("batch", "batch", demo["keys"]["batch"], 1.0)], trace,
        seed=SEED, timeout_s=400,
    )  # fmt: skip
    run = asyncio.create_task(replay.run())
    await asyncio.sleep(11)
    await instance.until("2,000 requests are in flight or waiting", lambda: replay.progress.sent == REQUESTS, 30)
    instance.note("state", in_flight=instance.in_flight(), open=replay.progress.open)
    await instance.until("half of them are in Redis", lambda: instance.in_flight() > REQUESTS / 2, 60)

    epoch = instance.epoch()
    instance.kill(instance.up.leader())
    await instance.until("another leader decides", lambda: instance.epoch() > epoch, 30)

    await instance.until("both gateways hold leases", lambda: len(set(instance.leases().values())) == 2, 30)
    gateways = set(instance.leases().values())
    instance.kill("web-1")
    await asyncio.sleep(1)  # what it had written is read
    told_before = {row.request_id for row in replay.rows if row.outcome == "refused"}
    dead = gateways - await _renewing_gateways(instance, seconds=4)
    assert len(dead) == 1
    assert instance.latest_end_ms(dead) <= instance.state_ms() + LEASE_MS, "what nobody renews ends within a lease"
    await instance.until(
        "the dead gateway holds no slot", lambda: not dead & set(instance.leases().values()), PATIENCE_S
    )
    await instance.until("two gateways serve again", lambda: instance.up.pid("web-1") and _alive(instance, "web-1"), 30)

    done = replay.progress.completed
    instance.kill("redis")
    await instance.until("Redis answers again", lambda: instance.redis.ping(), 30)
    await instance.until("requests complete again", lambda: replay.progress.completed > done, 30)

    instance.kill("engine-0")
    await instance.until("the engine is back", lambda: _alive(instance, "engine-0"), 60)

    await asyncio.wait_for(run, 400)
    held = instance.leases()
    assert instance.latest_end_ms(held.values()) <= instance.state_ms() + LEASE_MS
    await instance.until("all slots are free", lambda: instance.in_flight() == 0, PATIENCE_S)
    assert instance.totals() == {}
    assert instance.open_generations() == 0

    check_history(instance, replay, told_before)


def _alive(instance: Watched, name: str) -> bool:
    return psutil.pid_exists(instance.up.pid(name))


async def _renewing_gateways(instance: Watched, seconds: float) -> set[str]:
    """Gateways whose leases are being renewed."""
    key = f"qm:{{{instance.pool}}}:leases"
    first = dict(instance.redis.zrange(key, 0, -1, withscores=True))
    owners = instance.leases()
    await asyncio.sleep(seconds)
    second = dict(instance.redis.zrange(key, 0, -1, withscores=True))
    return {owners[r] for r, score in second.items() if r in owners and score > first.get(r, score)}


def check_history(instance: Watched, replay: Replay, told_before: set[str]) -> None:
    """One pass over what clients saw and what the ledger holds. ``told_before``: refused up to a gateway's death."""
    rows = replay.rows
    assert len(rows) == REQUESTS
    by_end = Counter((row.outcome, row.reason) for row in rows)
    instance.note("clients saw", **{f"{outcome}/{reason}": n for (outcome, reason), n in sorted(by_end.items())})
    assert not any(row.outcome == "cancelled" for row in rows)

    known = {row.request_id: row for row in rows if row.request_id}
    database = sqlite3.connect(instance.up.home / "db.sqlite3")
    end = time.monotonic() + 30
    while True:
        ledger = dict(database.execute("select request_id, outcome || '/' || reason from telemetry_ledgerentry"))
        if known.keys() <= ledger.keys() or time.monotonic() > end:
            break
        time.sleep(0.5)
    entries = database.execute("select count(*), count(distinct request_id) from telemetry_ledgerentry").fetchone()
    instance.note("ledger", rows=entries[0], requests=entries[1], **Counter(ledger.values()))
    assert entries[0] == entries[1]
    # Refusals that Redis has not taken live in their gateway's memory. Where Redis was silent for a moment before the
    # gateway was killed, they died with it; they held nothing.
    lost = known.keys() - ledger.keys()
    instance.note("refusals that died with their gateway", n=len(lost & told_before))
    assert lost <= told_before, f"{len(lost - told_before)} answered requests are not in the ledger"
    odd = {
        request_id: (row.outcome, row.reason, ledger[request_id])
        for request_id, row in known.items()
        if request_id in ledger and not ledger[request_id].startswith(row.outcome)
    }
    # A gateway that dies between the client's last byte and its own last word leaves "gateway_lost" behind a stream
    # that was complete: nobody is left who could tell. Everything else must agree.
    unexplained = {r: facts for r, facts in odd.items() if facts[2] != "failed/gateway_lost"}
    instance.note("client and ledger differ", n=len(odd), unexplained=len(unexplained))
    assert not unexplained
    assert len(odd) <= REQUESTS * 0.02
