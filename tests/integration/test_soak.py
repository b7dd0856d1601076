"""Nothing grows under steady load (docs/reference/promises.md, 28): a sample of ``make soak``, and what it notices."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.support import soak
from tests.support.instance import Up
from tests.support.soak import Soak

MINUTES, WARM_S, RATE = 0.8, 20.0, 12.0
# In less than a minute caches still fill and a few connections come and go: far above that, far below any leak.
SHORT = {"rss_mib": 300.0, "files": 300.0, "threads": 300.0, "tasks": 9000.0, "lasting_keys": 600.0, "redis_mib": 300.0}
LEAKY = Path(soak.__file__).parent / "leaky"


def series(name: str, per_hour: float, jumps: float = 0.0) -> Soak:
    made = Soak()
    for n in range(200):
        made.note(n * 30.0, name, 100 + per_hour * n * 30 / 3600 + (jumps if n % 7 == 0 else 0))
    return made


def test_a_slope_is_noticed_and_jumps_are_none() -> None:
    assert soak.slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert series("web.rss_mib", 5).grown(0)
    assert not series("web.rss_mib", 0.5, jumps=20).grown(0)
    assert not series("web.rss_mib", -5).grown(0)
    assert series("redis.lasting_keys", 60).grown(0)
    assert not series("redis.keys", 60).grown(0)  # those that expire come and go with the load


def test_what_levels_off_is_told_from_what_grows_on() -> None:
    made = Soak()
    made.ends["200"] = 60_000
    for n in range(601):
        made.note(n, "web.rss_mib", 100 + min(n, 200) * 0.1)  # 20 MiB in the first third
        made.note(n, "worker.rss_mib", 100 + n * 0.1)
    assert [round(grown, 3) for grown in made.by_parts("web.rss_mib", 3)] == [10.0, 0.0, 0.0]
    assert [round(grown, 3) for grown in made.by_parts("worker.rss_mib", 3)] == [10.0, 10.0, 10.0]


def soaked(folder: Path, **settings: str) -> Soak:
    up = Up(folder / "home", **settings)
    up.start()
    try:
        up.wait_ready()
        return asyncio.run(soak.run(up, MINUTES, RATE))
    finally:
        up.stop()


@pytest.mark.slow
def test_nothing_grows_under_steady_load(tmp_path: Path) -> None:
    seen = soaked(tmp_path)
    assert seen.ends["200"] > RATE * MINUTES * 60 / 2
    assert seen.grown(WARM_S, SHORT) == []


@pytest.mark.slow
def test_a_web_process_that_keeps_something_of_every_request_is_noticed(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(LEAKY), os.environ.get("PYTHONPATH", "")]))
    seen = soaked(tmp_path, PYTHONPATH=path, QM_LEAK="memory,files,tasks,threads,keys")
    grown = "\n".join(seen.grown(WARM_S, SHORT))
    for figure in ("web.rss_mib", "web.files", "web.tasks", "web.threads", "redis.lasting_keys"):
        assert figure in grown
