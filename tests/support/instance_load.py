"""Clients of a whole instance that send again as soon as they are answered, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.support.instance import Up

LATE_S = 60.0  # for a load to end after its time


def request_with(up: Up, key: str) -> bytes:
    """A short completion, as bytes."""
    data = json.dumps({
        "model": up.demo()["model"], "messages": [{"role": "user", "content": "word " * 50}], "max_tokens": 32,
    }).encode()  # fmt: skip
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
        + key.encode()
        + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
        + data
    )


def give_way() -> None:
    """This process goes after what is measured: last of all, or under a real-time priority above 1 (``chrt -f 2``) with
    priority 1, so that other work of the machine does not hold it up either."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR) and os.sched_getparam(0).sched_priority > 1:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    else:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.nice(19)


class Load(threading.Thread):
    """``clients`` of one key, each sending its next request as soon as it has an answer, whatever it says.

    They are in a process of their own with the lowest priority: who makes the load must not take the core of what is
    measured, nor the interpreter of who measures.
    """

    def __init__(self, up: Up, tier: str, clients: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._port, self._clients, self.seconds = up.port, clients, seconds
        self._request = request_with(up, up.demo()["keys"][tier])
        self.statuses: Counter[int] = Counter()
        self.told_s: list[float] = []  # Retry-After of each refusal
        self.cpu_s = 0.0  # of the process that made the load
        self._beside = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=give_way)
        self._beside.submit(time.monotonic).result()  # it has begun before anything is measured

    def run(self) -> None:
        with self._beside:
            given = self._port, self._request, self._clients, self.seconds
            self.statuses, self.told_s, self.cpu_s = self._beside.submit(drive, *given).result()


def drive(port: int, request: bytes, clients: int, seconds: float) -> tuple[Counter[int], list[float], float]:
    """What ``clients`` were answered, when they were told to come back, and the CPU time that this took [s]."""
    statuses, told_s = Counter[int](), list[float]()

    async def client(end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.monotonic() < end:
                head = await answer(reader, writer, request)
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


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The head of what a request is answered, in lower case; the rest is read."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    await reader.readexactly(int(length[1]))
    return head


class Arrivals(threading.Thread):
    """Requests that come at random, ``per_s`` of them, each with the next of ``requests``, whatever became of those
    before: clients that wait as they are told, of whom there are always others. In a process of its own likewise."""

    def __init__(self, up: Up, requests: list[bytes], per_s: float, seconds: float) -> None:
        super().__init__(daemon=True)
        self._given = up.port, requests, per_s, seconds
        self.seconds = seconds
        self.statuses: Counter[int] = Counter()
        self._beside = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=give_way)
        self._beside.submit(time.monotonic).result()

    def run(self) -> None:
        with self._beside:
            self.statuses = self._beside.submit(arrive, *self._given).result()


def arrive(port: int, requests: list[bytes], per_s: float, seconds: float) -> Counter[int]:
    """What they were answered."""
    statuses = Counter[int]()
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(request: bytes) -> None:
        connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        head = await answer(*connection, request)
        statuses[int(head[9:12])] += 1
        idle.append(connection)

    async def crowd() -> None:
        rng, tasks, number = random.Random(1), set[asyncio.Task[None]](), 0
        due = time.monotonic()
        end = due + seconds
        while due < end:
            due += rng.expovariate(per_s)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.add(task := asyncio.create_task(one(requests[number % len(requests)])))
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.gather(*tasks)

    asyncio.run(crowd())
    return statuses


def under(*loads: Load) -> Counter[int]:
    """What these loads came to, all at once."""
    for load in loads:
        load.start()
    for load in loads:
        load.join(load.seconds + LATE_S)
        assert not load.is_alive(), "a request was not answered"
    return sum((load.statuses for load in loads), Counter())
