"""A whole instance at ten times its load, by clients that come back at once: what it serves, and the exempt lane.

Figures are printed; what is asserted are counts and one time, with room for a machine that is busy with other tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import psutil
import pytest

from tests.support.instance import Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WINDOW_S = float(
    os.environ.get("OVERLOAD_WINDOW_S", "8")
)  # windows of 8 s differ by a tenth; 30 s by a few in a hundred
AT_1X = 40  # clients in a closed loop that fill the one replica of the instance
HEALTH_P99_S = 2.0  # promised are 0.2 s; a machine that is busy with other tests gets ten times that (before: 5 s)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    settings = {"QUARTERMASTER_SIM_REPLICAS": "1", "QUARTERMASTER_SIM_SLOTS": "16"}
    instance = Up(tmp_path_factory.mktemp("overload") / "home", **settings).start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


def give_way() -> None:
    """This process goes last, also where the test is run with a real-time priority (``chrt -r 1``)."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19)


class Load(threading.Thread):
    """``clients`` of one key, each sending its next request as soon as it has an answer, whatever it says.

    They are in a process of their own with the lowest priority: who makes the load must not take the core of what is
    measured, nor the interpreter of who measures.
    """

    def __init__(self, up: Up, tier: str, clients: int, seconds: float = WINDOW_S) -> None:
        super().__init__(daemon=True)
        self._port, self._clients, self._seconds = up.port, clients, seconds
        data = json.dumps({
            "model": up.demo()["model"], "messages": [{"role": "user", "content": "word " * 50}], "max_tokens": 32,
        }).encode()  # fmt: skip
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
            + up.demo()["keys"][tier].encode()
            + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
            + data
        )
        self.statuses: Counter[int] = Counter()
        self.told_s: list[float] = []  # Retry-After of each refusal
        self.cpu_s = 0.0  # of the process that made the load
        self._beside = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=give_way)
        self._beside.submit(time.monotonic).result()  # it has begun before anything is measured

    def run(self) -> None:
        with self._beside:
            given = self._port, self._request, self._clients, self._seconds
            self.statuses, self.told_s, self.cpu_s = self._beside.submit(drive, *given).result()


def drive(port: int, request: bytes, clients: int, seconds: float) -> tuple[Counter[int], list[float], float]:
    """What ``clients`` were answered, when they were told to come back, and the CPU time that this took [s]."""
    statuses, told_s = Counter[int](), list[float]()

    async def client(end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.monotonic() < end:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None, head
                await reader.readexactly(int(length[1]))
                if time.monotonic() < end:
                    statuses[int(head[9:12])] += 1
                    if (told := re.search(rb"retry-after-ms: (\d+)", head)) is not None:
                        told_s.append(int(told[1]) / 1000)
        finally:
            writer.close()

    async def crowd() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(client(end) for _ in range(clients)))

    before_s = time.process_time()
    asyncio.run(crowd())
    return statuses, told_s, time.process_time() - before_s


def under(up: Up, *loads: Load) -> Counter[int]:
    """What these loads came to, all at once."""
    for load in loads:
        load.start()
    for load in loads:
        load.join(WINDOW_S + 60)
        assert not load.is_alive(), "a request was not answered"
    return sum((load.statuses for load in loads), Counter())


def clocks(up: Up) -> dict[str, float]:
    """CPU [s] that each part of the instance has used."""
    used = Counter[str]()
    for pid in up.tree()[1:]:
        process = psutil.Process(pid)
        line = " ".join(process.cmdline())
        parts = ("web.serve", "simulated", "valkey", "celery")
        used[next((part for part in parts if part in line), "rest")] += sum(process.cpu_times()[:2])
    return dict(used)


def epoch(up: Up) -> str:
    found: list[str] = []

    def told() -> bool:  # a web process that has just begun has not looked yet
        found.extend(re.findall(r"quartermaster_leader_epoch\{[^}]*\} (\S+)", up.get("/metrics")[1].decode()))
        return bool(found)

    up.wait(told)
    return found[0]


def test_goodput_holds_at_ten_times_the_load(up: Up):
    under(up, Load(up, "standard", AT_1X, 3.0))  # everything is warm
    served = {}
    for times in (1, 2, 5, 10):
        before, load = clocks(up), Load(up, "standard", times * AT_1X)
        statuses = under(up, load)
        after = clocks(up)
        used = {part: round((after[part] - before.get(part, 0.0)) / WINDOW_S, 2) for part in after}
        used["load"] = round(load.cpu_s / WINDOW_S, 2)
        served[times] = statuses[200]
        print(
            f"{times:2d}x: {statuses[200] / WINDOW_S:.1f}/s served, {statuses[429] / WINDOW_S:.0f}/s refused, told to "
            f"come back after {median(load.told_s or [0.0]):.1f} s (p50); cores: {sum(used.values()):.2f}, {used}"
        )
        assert set(statuses) <= {200, 429}
    assert min(served.values()) >= 0.7 * served[1]


def test_health_login_and_the_leader_go_on_beside_a_key_that_storms(up: Up):
    before, statuses = epoch(up), Counter[tuple[str, int]]()
    times: dict[str, list[float]] = {"/healthz": [], "/readyz": [], "/login": []}
    storm = Load(up, "standard", 10 * AT_1X)
    storm.start()
    while storm.is_alive():
        for path, took in times.items():
            begun = time.monotonic()
            statuses[path, up.get(path)[0]] += 1
            took.append(time.monotonic() - begun)
        time.sleep(0.02)
    for path, took in times.items():
        took.sort()
        print(
            f"{path}: p50 {took[len(took) // 2] * 1000:.0f} ms, p99 {took[int(len(took) * 0.99)] * 1000:.0f} ms, "
            f"{len(took)} asked; {dict(storm.statuses)}"
        )
    took = times["/healthz"]
    assert took[int(len(took) * 0.99)] <= HEALTH_P99_S
    assert storm.statuses[429] > storm.statuses[200], "it was no storm"
    assert {status for _, status in statuses} == {200}, statuses
    assert epoch(up) == before, "the leader did not come to renew"
    counted = re.findall(r"quartermaster_storm_refusals_total\{[^}]*\} (\S+)", up.get("/metrics")[1].decode())
    assert sum(map(float, counted)) > 0


def test_a_calm_tenant_is_served_beside_a_key_that_storms(up: Up):
    rates = {}
    for beside in (0, AT_1X, 10 * AT_1X):  # at 1x the replica's batches are as full as in the storm: tokens take longer
        calm = Load(up, "premium", 4)
        under(up, calm, *([Load(up, "standard", beside)] if beside else []))
        rates[beside] = calm.statuses[200] / WINDOW_S
        assert set(calm.statuses) == {200}, "nothing of it is refused"
    print("premium/s beside so many standard clients:", rates)
