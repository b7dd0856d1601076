"""A Redis user that may touch what is ours and administer nothing: every process works, and Redis refuses nothing."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
import redis

from tests.support.instance import ROOT, Up
from tests.support.redis_server import RedisServer

GUIDE = ROOT / "docs" / "guide" / "operations.md"


def documented_rules() -> list[str]:
    """As the guide has them."""
    found = re.search(r"ACL SETUSER quartermaster on >PASSWORD (.*)", GUIDE.read_text(encoding="utf-8"))
    assert found
    return found[1].split()


@pytest.mark.slow
def test_an_instance_runs_as_the_user_that_the_guide_describes(private_redis: RedisServer, tmp_path: Path):
    with redis.Redis.from_url(private_redis.url) as admin:
        admin.execute_command("ACL", "SETUSER", "qm", "on", ">pass/word", *documented_rules())
        url = private_redis.url.replace("redis://", "redis://qm:pass%2Fword@")
        instance = Up(tmp_path / "home", QUARTERMASTER_REDIS_URL=url).start()
        try:
            instance.wait_ready()
            assert instance.client().chat.completions.create(
                model=instance.demo()["pool"], messages=[{"role": "user", "content": "hello"}], max_tokens=3
            ).choices  # fmt: skip
            page = urllib.request.Request(f"{instance.url}/api/v1/live", headers=instance.admin())
            with urllib.request.urlopen(page, timeout=10) as answer:
                assert json.load(answer)
            assert instance.get("/metrics")[0] == 200
            # Celery's worker asks for its next task: what it may not do has ended it by then
            instance.wait(lambda: b"brpop" in private_redis.command("CLIENT", "LIST"))
            instance.wait(lambda: "ready." in (instance.home / "logs" / "worker.log").read_text())
        finally:
            instance.stop()
        assert admin.acl_log() == []
        assert "Traceback" not in (instance.home / "logs" / "worker.log").read_text()
