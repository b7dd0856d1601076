"""The process that leads leaves a pool whose slots are all busy: another leads, and no slots stand empty meanwhile.

A slot counts as empty while requests wait and fewer run than before (some slots are kept free for baselines). How long
it took is said as a figure; what is asserted is at how many looks most slots were empty.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
import redis

from tests.support.instance import Up
from tests.support.instance_load import Load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLOTS, CLIENTS, WATCHED_S = 16, 60, 20.0
HARDLY = 0.1  # of the looks, at which most slots stood empty while requests waited; estimated without hand-outs: 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    epoch: int
    running: int
    waiting: int


class Watch(threading.Thread):
    """Looks at shared state a hundred times a second, until it is told to stop."""

    def __init__(self, up: Up) -> None:
        super().__init__(daemon=True)
        self._redis = redis.Redis.from_url((up.home / "run" / "redis-url").read_text().strip(), decode_responses=True)
        self._prefix = f"qm:{{{up.demo()['pool']}}}:"
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.01):
            pipe = self._redis.pipeline(transaction=False)
            pipe.hget(self._prefix + "meta", "epoch")
            pipe.hmget(self._prefix + "totals", "run", "wait")
            epoch, (running, waiting) = pipe.execute()
            self.samples.append(Sample(time.monotonic(), int(epoch or 0), int(running or 0), int(waiting or 0)))

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        self._redis.close()


def empty_s(samples: list[Sample], slots: float) -> float:
    """What stood empty of ``slots`` while requests waited, in seconds of all of them."""
    return sum(
        (after.at - now.at) * max(0, slots - now.running) / slots
        for now, after in itertools.pairwise(samples)
        if now.waiting > 0
    )


def mostly_empty(samples: list[Sample], slots: float) -> float:
    """The share of the looks at which less than half of ``slots`` ran although requests waited."""
    return sum(sample.waiting > 0 and sample.running < slots / 2 for sample in samples) / len(samples)


@pytest.mark.parametrize("also_standby", [False, True], ids=["with a standby", "and the standby as well"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_slots_stand_empty_for_moments_only_when_the_leader_leaves(
    tmp_path: Path, number: signal.Signals, also_standby: bool, figure: Callable[[str], None]
) -> None:
    up = Up(tmp_path / "home", QUARTERMASTER_SIM_REPLICAS="1", QUARTERMASTER_SIM_SLOTS=str(SLOTS)).start()
    try:
        up.wait_ready()
        up.wait(lambda: up.leader() and (up.home / "run" / "standby.pid").exists())
        # of a class without a baseline: what is kept free for baselines stays as it is
        load = Load(up, "batch", CLIENTS, 2 * WATCHED_S + 30)
        load.start()
        watch = Watch(up)
        up.wait(lambda: watch.samples and watch.samples[-1].waiting > 0)
        time.sleep(5)
        watch.samples.clear()
        time.sleep(WATCHED_S)
        leader = up.leader()
        pids = [up.pid(name) for name in ("worker", "standby") if also_standby or name == leader]
        before, epoch, left = list(watch.samples), watch.samples[-1].epoch, time.monotonic()
        usual = median(sample.running for sample in before)
        for pid in pids:
            os.kill(pid, number)
        time.sleep(WATCHED_S)
        up.wait(lambda: watch.samples[-1].epoch > epoch)
        led = len(watch.samples)
        up.wait(lambda: any(s.waiting > 0 and s.running >= usual for s in watch.samples[led:]))  # who follows fills it
        watch.stop()
        load.join(120)
        after = [sample for sample in watch.samples if sample.at >= left]
        led_s = next(sample.at - left for sample in after if sample.epoch > epoch)
        waited = sum(sample.waiting > 0 for sample in before + after) / len(before + after)
        lost_s, usual_s = empty_s(after, usual), empty_s(before, usual)
        figure(
            f"{number.name} of {'both' if also_standby else 'the leader'}: another leads after {led_s:.2f} s; empty in "
            f"the {WATCHED_S:g} s after it {lost_s:.2f} s of {usual:g} slots, before it {usual_s:.2f}"
        )
        assert usual > SLOTS / 2
        assert waited > 0.9, "it was no overload"
        assert set(load.statuses) <= {200, 429}
        assert mostly_empty(after, usual) - mostly_empty(before, usual) <= HARDLY
    finally:
        up.stop()
