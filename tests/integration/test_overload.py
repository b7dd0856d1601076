"""A whole instance at ten times its load, by clients that come back at once: what it serves, and the exempt lane.

Figures are printed; what is asserted are counts and one time, with room for a machine that is busy with other tests.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

import psutil
import pytest

from tests.support.instance import Up
from tests.support.instance_load import Load, under

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
    under(Load(up, "standard", AT_1X, 3.0))  # everything is warm
    served = {}
    for times in (1, 2, 5, 10):
        before, load = clocks(up), Load(up, "standard", times * AT_1X, WINDOW_S)
        statuses = under(load)
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
    storm = Load(up, "standard", 10 * AT_1X, WINDOW_S)
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
        calm = Load(up, "premium", 4, WINDOW_S)
        under(calm, *([Load(up, "standard", beside, WINDOW_S)] if beside else []))
        rates[beside] = calm.statuses[200] / WINDOW_S
        assert set(calm.statuses) == {200}, "nothing of it is refused"
    print("premium/s beside so many standard clients:", rates)
