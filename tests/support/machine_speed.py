"""``python -m tests.support.machine_speed``: of how many parts of the tests CI runs one on this machine."""

from __future__ import annotations

import math
import time

LOOP = 2_000_000
USUAL_S = 0.075  # what the loop takes on a machine on which CI takes forty minutes
ROOM = 1.5  # so many times slower, a machine still runs all tests within CI's time
MOST = 4


def parts(loop_s: float) -> int:
    """1 where ``loop_s`` [s] are those of a machine that is quick enough for all tests; else as many as it is times
    slower than usual, so that a part takes it as long as all tests usually take."""
    slower = loop_s / USUAL_S
    return 1 if slower <= ROOM else min(math.ceil(slower), MOST)


def loop_s() -> float:
    """CPU time of a fixed amount of work [s], the best of five: others on the machine only add to it."""
    return min(_once() for _ in range(5))


def _once() -> float:
    began = time.process_time()
    total = 0
    for number in range(LOOP):
        total += number * number
    return time.process_time() - began


if __name__ == "__main__":
    print(parts(loop_s()))
