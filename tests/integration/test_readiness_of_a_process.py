"""``/readyz?of=process``, which the chart's readiness probe asks: whether this process may be asked at all."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.chart import SECRET, one, render
from tests.support.redis_server import RedisServer
from tests.support.web_process import WebProcess


def test_a_process_that_has_never_reached_redis_takes_no_place_of_another(
    tmp_path: Path, private_redis: RedisServer
) -> None:
    """An upgrade with a wrong address stops at its first pod."""
    private_redis.kill()
    process = WebProcess(tmp_path / "home", private_redis.url)
    process.migrate()
    process.start()
    try:
        for _ in range(3):
            assert process.get("/readyz?of=process") == (503, b'{"ready": false}')
        private_redis.start()
        while process.get("/readyz?of=process")[0] != 200:
            pass
    finally:
        process.stop()


def test_a_pod_is_in_the_service_before_there_is_a_pool_and_while_redis_is_away(
    tmp_path: Path, private_redis: RedisServer
) -> None:
    """Else nobody could open the console to make the first pool, or to see what is wrong."""
    web = one(render(SECRET), "Deployment", "-web")["spec"]["template"]["spec"]["containers"][0]
    asked = web["readinessProbe"]["httpGet"]["path"]
    process = WebProcess(tmp_path / "home", private_redis.url, drain_s="8", leave_s="6")
    process.migrate()
    process.start()
    try:
        assert process.get(asked) == (200, b'{"ready": true}')
        status, text = process.get("/readyz")
        assert (status, json.loads(text)["waiting_for"]) == (503, ["a pool: none is configured"])
        private_redis.kill()
        assert process.get(asked)[0] == 200
        assert process.get("/login")[0] == 200
        assert process.get("/readyz")[0] == 503
        assert process.process is not None
        process.process.terminate()
        while process.get(asked)[0] == 200:
            assert process.process.poll() is None
        assert process.get(asked)[0] == 503, "it serves on, and says that it goes"
    finally:
        process.stop()
