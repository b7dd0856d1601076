"""Clients of a whole instance that send again as soon as they are answered, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.support.instance import Up

LATE_S = 60.0  # for a load to end after its time


def give_way() -> None:
    """This process goes last, also where the test is run with a real-time priority (``chrt -r 1``)."""
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
            given = self._port, self._request, self._clients, self.seconds
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


def under(*loads: Load) -> Counter[int]:
    """What these loads came to, all at once."""
    for load in loads:
        load.start()
    for load in loads:
        load.join(load.seconds + LATE_S)
        assert not load.is_alive(), "a request was not answered"
    return sum((load.statuses for load in loads), Counter())
