"""The leader of a running instance while a worker cuts queues anew, again and again, from 50,000 recorded requests.

    python -m tests.bench.bench_repartition_live [--rounds 4] [--seconds 15] [--every 1]

One replica with one slot, eight clients that wait for it. Turnaround: from the end of a request to the grant of the
next, both as the ledger has them: what the leader needs to hear of the free slot, to decide and to write. Stretches
with and without repartitions take turns; read the ratio, absolute times move with the machine. In the end every request
that was sent is in the ledger, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
from celery import Celery

from scheduling.core.percentiles import interpolated
from tests.support.instance import ROOT, Up

RECORDED, CLIENTS = 50_000, 8
FILL = f"""
import random, time
from tests.support.telemetry_world import record
from telemetry.ledger import writer
draw, now = random.Random(1), time.time()
for start in range(0, {RECORDED}, 2000):
    ledger.write([
        record(
            n, pool="POOL", tier="batch", entitlement="", input_tokens=max(1, round(draw.lognormvariate(6.5, 1.2))),
            received_s=now - 3000 + n * 2900 / {RECORDED}, granted_s=now - 2999 + n * 2900 / {RECORDED},
        )
        for n in range(start, start + 2000)
    ])
from django.utils import timezone
from tenants import tuning
from tenants.audit import Actor
from tenants.models import Pool, Trial
pool, at = Pool.objects.get(slug="POOL"), timezone.now()
Trial.objects.create(pool=pool, at=at, study=at, number=0, base=tuning.version_now(pool), reward=0.0, state="rejected",
    ended_at=at, window_from=at, window_until=at)
"""  # the trial: a study was made just now, none is due


def notify(app: Celery, pool: str) -> None:
    """What the leader does every ten seconds."""
    app.send_task("telemetry.tend_pool", (pool,), expires=30)


def broker_url(redis_url: str) -> str:
    """An embedded instance's Redis, in kombu's spelling."""
    parts = urlsplit(redis_url)
    return f"redis+socket://{parts.path}?virtual_host=0" if parts.scheme == "unix" else redis_url


def python(up: Up, code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Runs code with the instance's settings."""
    url = (up.home / "run" / "redis-url").read_text()
    environ = {**up.environ, "QUARTERMASTER_REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    setup = "import django; django.setup()\nfrom controlplane.celery import app\n"
    return subprocess.Popen([sys.executable, "-c", setup + code, *arguments], cwd=ROOT, env=environ)


async def client(session: aiohttp.ClientSession, up: Up, end: float, ends: list[int]) -> None:
    demo = up.demo()
    body = json.dumps({"model": demo["model"], "prompt": "one two three", "max_tokens": 1}).encode()
    headers = {"Authorization": f"Bearer {demo['keys']['batch']}", "Content-Type": "application/json"}
    while time.time() < end:
        async with session.post(f"{up.url}/v1/completions", data=body, headers=headers) as answer:
            await answer.read()
            ends.append(answer.status)


async def measure(
    up: Up, rounds: int, seconds: float, every_s: float, mode: Callable[[str], object]
) -> tuple[list[tuple[float, float]], list[int]]:
    """The stretches with repartitions [epoch s], and how requests ended."""
    end, ends, busy = time.time() + rounds * (2 * seconds + 4), [], []
    app = Celery(broker=broker_url((up.home / "run" / "redis-url").read_text().strip()))
    app.conf.broker_transport_options = {"global_keyprefix": "qm:celery:"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client(session, up, end, ends))
        for _ in range(rounds):
            await asyncio.sleep(seconds)
            if every_s:
                await asyncio.to_thread(mode, "automatic")
            begun = time.time()
            while time.time() < begun + seconds:
                if every_s:
                    await asyncio.to_thread(notify, app, up.demo()["pool"])
                await asyncio.sleep(every_s or seconds)
            busy.append((begun, time.time()))
            await asyncio.to_thread(mode, "off")
            await asyncio.sleep(2.0)  # the last one ends
    return busy, ends


def turnarounds(up: Up, since: float) -> list[tuple[float, float]]:
    """(when [epoch s], seconds) from a request's end to the next grant of one that waited."""
    with closing(sqlite3.connect(up.home / "db.sqlite3")) as database:
        rows = database.execute(
            "select queued_at, granted_at, done_at from telemetry_ledgerentry where granted_at is not null "
            "order by granted_at"
        ).fetchall()
    moments = [[None if cell is None else _epoch(cell) for cell in row] for row in rows]
    moments = [row for row in moments if row[1] >= since]
    ends = sorted(row[2] for row in moments)
    found, at = [], 0
    for queued, granted, _ in moments:
        while at < len(ends) and ends[at] <= granted:
            at += 1
        if at and queued is not None and queued < ends[at - 1]:
            found.append((granted, granted - ends[at - 1]))
    return found


def _epoch(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between repartitions; 0: none at all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qm-bench-") as folder:
        up = Up(Path(folder) / "home", QUARTERMASTER_SIM_REPLICAS="1", QUARTERMASTER_SIM_SLOTS="1")
        try:
            up.start().wait_ready()
            demo = up.demo()
            assert python(up, FILL.replace("POOL", demo["pool"])).wait(300) == 0
            api = httpx.Client(
                base_url=f"{up.url}/api/v1/pools/{demo['pool']}/",
                timeout=30,
                follow_redirects=True,
                headers=up.admin(),
            )
            api.post("policy", json={"policy": "ewsjf", "params": {"partition": "1-9000"}}).raise_for_status()
            settings = {"recut_s": 0.1, "most_requests": RECORDED, "every_s": 1e6, "drift_gap": 0.4}
            api.put("tuning", json={"mode": "off", "settings": settings}).raise_for_status()

            def mode(name: str) -> object:
                return api.put("tuning", json={"mode": name}).raise_for_status()

            began = time.time()
            busy, ends = asyncio.run(measure(up, options.rounds, options.seconds, options.every, mode))
            api.put("tuning", json={"mode": "off"}).raise_for_status()
            time.sleep(3)
            versions = api.get("versions").json()["count"]
            found = turnarounds(up, began + 2)
            with closing(sqlite3.connect(up.home / "db.sqlite3")) as database:
                kept, once = database.execute(
                    "select count(*), count(distinct request_id) from telemetry_ledgerentry where received_at >= ?",
                    (datetime.utcfromtimestamp(began).isoformat(" "),),
                ).fetchone()
        finally:
            up.stop()
    beside = [took for at, took in found if any(a <= at < b for a, b in busy)]
    alone = [took for at, took in found if not any(a <= at < b + 2 for a, b in busy)]
    print(f"{versions} versions; load of the machine {os.getloadavg()[0]:.1f}")
    for name, values in (("alone", alone), ("beside repartitions", beside)):
        told = ", ".join(f"p{round(100 * s)} {1e3 * interpolated(values, s):.2f} ms" for s in (0.5, 0.9, 0.99))
        print(f"turnaround {name}: {len(values)} grants, {told}")
    for share in (0.5, 0.9, 0.99):
        print(f"ratio of p{round(100 * share)}: {interpolated(beside, share) / interpolated(alone, share):.2f}")
    print(f"sent {len(ends)}, answered 200: {ends.count(200)}; in the ledger {kept}, of which {once} different")


if __name__ == "__main__":
    main()
