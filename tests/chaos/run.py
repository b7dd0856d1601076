"""Faults in random order under steady load: ``python -m tests.chaos.run --seed 7 --minutes 5`` (``make chaos SEED=7
MINUTES=5``).

Starts an instance as ``make up`` does, with two web processes, two simulated engines and a third one that misbehaves on
command. While mixed requests of three tenants arrive, processes are killed and frozen, Redis is restarted and, with
some seeds, flushed. In the end every request must have had one end, and nothing may be left
(``tests/chaos/history.py``).
The seed decides faults and requests; both are kept, with what clients saw, as JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import redis

from controlplane import sse
from tests.chaos.faults import Fault, schedule
from tests.chaos.history import Left, Seen, check, recovery
from tests.support.fake_engine import FakeEngine, Script
from tests.support.instance import Up

RATE = 12.0  # requests a second
LEAVES = 0.03  # share of clients that leave in the middle
CLIENT_S = 120.0  # a client that sees no end for so long was forgotten; a request may live 60 s
SETTINGS = {
    "QUARTERMASTER_SIM_REPLICAS": "2",
    "QUARTERMASTER_SIM_SLOTS": "24",
    "QUARTERMASTER_WEB_PROCESSES": "2",
    "QUARTERMASTER_REQUEST_TIMEOUT_S": "60",
    "QUARTERMASTER_FIRST_TOKEN_TIMEOUT_S": "15",
    "QUARTERMASTER_IDLE_TOKEN_TIMEOUT_S": "10",
}
BUDGET = {"tokens_per_s": 0.001, "burst_tokens": 1e9}  # buckets that refuse nothing and count everything
SETTLE_S = 90.0  # for everything to be as before: restarts, leases, the ledger's last rows


def _answer(status: int, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


BAD: dict[str, Script] = {
    **{status: Script(status=int(status)) for status in ("401", "404", "429", "500", "503")},
    "html": Script(raw=lambda _: _answer(200, "text/html", b"<html>502 Bad Gateway</html>")),
    "garbage": Script(raw=lambda _: b"\x00\x16\x03 this is no HTTP\r\n\r\n", then_close=True),
    "cut": Script(tokens=20, pause_s=0.02, cut_after=5),
    "hang": Script(stall_after=0),
    "hang-in-stream": Script(tokens=20, pause_s=0.02, stall_after=5),
    "refuse": Script(refuse=True),
}
GOOD = Script(pause_s=0.02)


class Run:
    """One run: the instance, its load, its faults, and what was seen."""

    def __init__(self, up: Up, engine: FakeEngine, seed: int, minutes: float, faults: list[Fault], rate: float) -> None:
        self.up = up
        self.engine = engine
        self.minutes = minutes
        self.faults = faults
        self.rate = rate
        self.rng = random.Random(seed)
        self.demo = up.demo()
        self.seen: list[Seen] = []
        self.came: list[tuple[float, Fault]] = []
        self.events: list[dict[str, Any]] = []
        self._began = 0.0
        self._bad = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.rows: list[dict[str, Any]] = []  # the ledger in the end
        self.redis = redis.Redis.from_url(
            (up.home / "run" / "redis-url").read_text(), decode_responses=True, socket_timeout=5
        )

    # --- before and after

    def prepare(self) -> None:
        """The third engine joins the pool; every entitlement gets a bucket that can be compared."""
        with httpx.Client(base_url=f"{self.up.url}/api/v1", headers=self.up.admin(), timeout=30) as api:
            row = {
                "slug": "moody", "pool": self.demo["pool"], "url": self.engine.url, "slots": 24, "kv_tokens": 200_000
            }  # fmt: skip
            api.post("/backends", json=row).raise_for_status()
            self.entitlements = [row["slug"] for row in api.get("/entitlements").json()["results"]]
            for slug in self.entitlements:
                api.patch(f"/entitlements/{slug}", json=BUDGET).raise_for_status()
        self._await(lambda: len(self.redis.hgetall(self._key("ready"))) == 3, "the third engine gets work")

    def _key(self, name: str) -> str:
        return f"qm:{{{self.demo['pool']}}}:{name}"

    def _await(self, done: Callable[[], bool], what: str, limit_s: float = SETTLE_S) -> bool:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            with suppress(redis.RedisError, OSError, httpx.HTTPError, ValueError):
                if done():
                    return True
            time.sleep(0.2)
        self.note("not reached", condition=what)
        return False

    def note(self, what: str, **facts: Any) -> None:
        at_s = round(time.monotonic() - self._began, 2) if self._began else 0.0
        self.events.append({"what": what, "at_s": at_s, **facts})
        print(f"{at_s:8.1f} s  {what} {facts or ''}", flush=True)

    # --- load

    async def load(self) -> None:
        timeout = aiohttp.ClientTimeout(total=CLIENT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            requests: set[asyncio.Task[None]] = set()
            due_s = 0.0
            while due_s < self.minutes * 60:
                due_s += self.rng.expovariate(self.rate)
                await asyncio.sleep(max(0.0, due_s - self._now()))
                one = Seen(self.rng.choice(("premium", "standard", "batch")), self._now(), self.rng.random() < 0.75)
                words, tokens, leaves = self.rng.randint(5, 150), self.rng.randint(5, 150), self.rng.random() < LEAVES
                self.seen.append(one)
                task = asyncio.create_task(self._one(session, one, words, tokens, leaves))
                requests.add(task)
                task.add_done_callback(requests.discard)
            self.note("load ends", open=len(requests))
            await asyncio.gather(*requests)

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _one(self, session: aiohttp.ClientSession, one: Seen, words: int, tokens: int, leaves: bool) -> None:
        body = {
            "model": self.demo["model"],
            "messages": [{"role": "user", "content": "word " * words}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": one.streamed,
        }
        if one.streamed:
            body["stream_options"] = {"include_usage": True}
        headers = {"Authorization": f"Bearer {self.demo['keys'][one.tenant]}"}
        try:
            url = f"{self.up.url}/v1/chat/completions"
            async with session.post(url, json=body, headers=headers) as answer:
                one.status = answer.status
                one.request_id = answer.headers.get("x-request-id", "")
                one.estimate = int(answer.headers.get("x-quartermaster-estimate-tokens", 0))
                if answer.status != 200:
                    one.reason = (await answer.json())["error"]["code"] or ""
                    one.end = "refused" if answer.status in (429, 503) else "failed"
                elif not one.streamed:
                    one.output_tokens = (await answer.json())["usage"]["completion_tokens"]
                    one.end = "completed"
                else:
                    await self._stream(answer, one, leaves)
        except aiohttp.ClientConnectorError:
            one.end = "not_connected"
        except TimeoutError:
            one.end = "hung"
        except (aiohttp.ClientError, OSError) as problem:
            one.end, one.reason = "reset", type(problem).__name__
        except (ValueError, KeyError, TypeError):
            one.end = "nonsense"  # an answer that is none of ours
        finally:
            one.ended_s = self._now()

    async def _stream(self, answer: aiohttp.ClientResponse, one: Seen, leaves: bool) -> None:
        done = False
        async for frame in sse.events(answer.content):
            if frame == sse.DONE:
                done = True
                continue
            if "error" in frame:
                one.end, one.reason = "failed", frame["error"].get("code") or ""
                return
            if frame.get("usage"):
                one.output_tokens = frame["usage"]["completion_tokens"]
            if leaves:
                one.end = "left"
                answer.close()
                return
        one.end = "completed" if done else "silent"

    # --- faults

    async def disturb(self) -> None:
        for fault in self.faults:
            await asyncio.sleep(max(0.0, fault.at_s - self._now()))
            self.came.append((self._now(), fault))
            self.note(fault.kind, target=fault.target, for_s=fault.for_s)
            with suppress(OSError, psutil.Error, redis.RedisError):
                await self._do(fault)

    async def _do(self, fault: Fault) -> None:
        if fault.kind == "kill":
            for victim in self._family(fault.target):
                victim.send_signal(signal.SIGKILL)
        elif fault.kind == "restart-redis":
            psutil.Process(self.up.pid("redis")).terminate()  # its supervisor starts it again
        elif fault.kind == "flush":
            await asyncio.to_thread(self.redis.flushall)
        elif fault.kind == "stop":
            victims = self._family(fault.target)
            for victim in victims:
                victim.send_signal(signal.SIGSTOP)
            self._later(fault.for_s, lambda: [v.send_signal(signal.SIGCONT) for v in victims if v.is_running()])
        else:
            self._bad += 1
            number = self._bad
            self.engine.script = BAD[fault.target]
            self._later(fault.for_s, lambda: self._be_good(number))

    def _family(self, name: str) -> list[psutil.Process]:
        process = psutil.Process(self.up.pid(name))
        return [*process.children(recursive=True), process]

    def _be_good(self, number: int) -> None:
        if number == self._bad:  # no later fault of the engine has begun
            self.engine.script = GOOD

    def _later(self, delay_s: float, do: Callable[[], Any]) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_s)
            with suppress(psutil.Error, OSError):
                do()

        task = asyncio.create_task(wait())
        self._tasks.add(task)

    # --- the whole

    async def run(self) -> list[str]:
        """Runs all of it; the laws that were broken."""
        self._began = time.monotonic()
        await asyncio.gather(self.load(), self.disturb())
        await asyncio.gather(*self._tasks)
        self.engine.script = GOOD
        self.note("clients saw", **dict(sorted(Counter(one.end for one in self.seen).items())))
        left = await asyncio.to_thread(self._settle)
        rows = self.rows = await asyncio.to_thread(self._ledger)
        self.note("ledger", rows=len(rows), **Counter(f"{row['outcome']}/{row['reason']}" for row in rows))
        self.note("left", **asdict(left))
        return check(self.seen, rows, left, self.came)

    def _settle(self) -> Left:
        """Waits until nothing is left to wait for; what is there then."""
        began = time.monotonic()
        self._await(lambda: self.up.get("/readyz")[0] == 200, "ready again")
        self._await(lambda: not self.redis.hgetall(self._key("totals")), "nothing in flight")
        idle = self._await(lambda: self._open() == 0, "nothing runs on the engines")
        self._await(lambda: self.redis.xlen(self._key("ledger")) == 0, "the ledger is stored")
        known = {one.request_id for one in self.seen if one.request_id and one.end != "refused"}
        self._await(lambda: known <= {row["request_id"] for row in self._ledger()}, "every row is there", 20)
        self.note("settled", after_s=round(time.monotonic() - began, 1))
        pipe = self.redis.pipeline()
        for command, name in (
            ("hgetall", "totals"),
            ("zcard", "leases"),
            ("zcard", "waiting"),
            ("hgetall", "buckets"),
            ("xlen", "ledger:unread"),
        ):
            getattr(pipe, command)(self._key(name))
        totals, leases, waiting, buckets, unread = pipe.execute()
        used = {
            ent: float(buckets[f"{ent}:depth"]) - float(buckets[f"{ent}:level"])
            for ent in self.entitlements
            if f"{ent}:level" in buckets
        }
        ready = self.up.get("/readyz")[0] == 200
        runs = 0 if idle else self._open()  # what runs again by now is a probe of a replica that was ejected
        return Left(totals, leases, waiting, runs, ready, used=used, set_aside=unread)

    def _open(self) -> int:
        ports = json.loads((self.up.home / "ports.json").read_text())
        simulated = [
            httpx.get(f"http://127.0.0.1:{port}/sim/stats").json()["open"]
            for name, port in ports.items()
            if name.startswith("engine")
        ]
        return sum(simulated) + self.engine.open

    def _ledger(self) -> list[dict[str, Any]]:
        columns = (
            "request_id", "entitlement", "outcome", "reason", "input_tokens", "output_tokens", "input_tokens_est",
            "output_bound",
        )  # fmt: skip
        database = sqlite3.connect(f"file:{self.up.home / 'db.sqlite3'}?mode=ro", uri=True, timeout=20)
        try:
            found = database.execute(f"select {', '.join(columns)} from telemetry_ledgerentry").fetchall()
        finally:
            database.close()
        return [dict(zip(columns, row, strict=True)) for row in found]


async def _run(folder: Path, seed: int, minutes: float, faults: list[Fault], rate: float) -> tuple[Run, list[str]]:
    up = Up(folder / "home", **SETTINGS)
    up.start()
    run: Run | None = None
    engine = None
    try:
        await asyncio.to_thread(up.wait_ready)
        engine = FakeEngine(up.demo()["model"])
        engine.script = GOOD
        await engine.start()
        run = Run(up, engine, seed, minutes, faults, rate)
        await asyncio.to_thread(run.prepare)
        return run, await run.run()
    finally:
        if engine is not None:
            await engine.stop()
        await asyncio.to_thread(up.stop)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--rate", type=float, default=RATE, help=f"requests a second ({RATE:g})")
    parser.add_argument("--flush", choices=("yes", "no"), help="whether Redis may be flushed; by the seed otherwise")
    parser.add_argument("--history", type=Path, help="where the JSON lines go")
    options = parser.parse_args()
    faults = schedule(options.seed, options.minutes, flush={"yes": True, "no": False}.get(options.flush or ""))
    path = options.history or Path(tempfile.gettempdir()) / f"quartermaster-chaos-{options.seed}.jsonl"
    print(f"seed {options.seed}, {options.minutes:g} minutes, {len(faults)} faults")
    with tempfile.TemporaryDirectory(prefix="qm-chaos-") as folder:
        run, broken = asyncio.run(_run(Path(folder), options.seed, options.minutes, faults, options.rate))
        if broken:  # what the processes said about it
            shutil.copytree(Path(folder) / "home" / "logs", path.with_suffix(".logs"), dirs_exist_ok=True)
    lines = [
        {"what": "run", "seed": options.seed, "minutes": options.minutes, "rate": options.rate},
        *run.events,
        *(one.as_json() for one in run.seen),
        *({"what": "row", **row} for row in run.rows),
        *({"what": "broken", "law": law} for law in broken),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"\n{'at':>7}  {'fault':<14}{'target':<16}{'for':>6}  served again after")
    for at_s, fault in run.came:
        after_s = recovery(run.seen, at_s, fault)
        after = "-" if after_s is None else f"{after_s:.1f} s"
        print(f"{at_s:6.1f}s  {fault.kind:<14}{fault.target:<16}{fault.for_s:5.1f}s  {after}")
    print(f"\nseed {options.seed}: {len(run.seen)} requests, {len(run.came)} faults, history in {path}")
    for law in broken[:30]:
        print(f"BROKEN: {law}")
    print(f"{len(broken)} laws broken" if broken else "every request ended once, nothing is left")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
