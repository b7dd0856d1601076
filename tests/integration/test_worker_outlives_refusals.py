"""A worker whose Redis refuses what Celery asks lives on: it leads pools, which must not change hands over that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import migrated
from tests.support.instance import ROOT, until
from tests.support.redis_server import RedisServer

ASKS_S = 3.0  # Celery asks once a second

REFUSALS = {
    "no replica": (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
    "became a replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "no rights": (("ACL", "SETUSER", "qm", "resetkeys"), ("ACL", "SETUSER", "qm", "~qm:*")),
    "out of memory": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
}


@pytest.mark.slow
def test_a_worker_outlives_what_redis_refuses_for_a_while(private_redis: RedisServer, tmp_path: Path):
    private_redis.command("ACL", "SETUSER", "qm", "on", ">word", "~qm:*", "&qm:*", "+@all")
    migrated.put_into(tmp_path / "home")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")} | {
        "QUARTERMASTER_HOME": str(tmp_path / "home"),
        "QUARTERMASTER_REDIS_URL": private_redis.url.replace("redis://", "redis://qm:word@"),
        "QUARTERMASTER_BACK_OFFICE": "off",
    }
    words = "--app controlplane.celery --quiet worker --concurrency 1 --without-gossip --without-mingle"
    output = tmp_path / "worker.log"
    with output.open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", *words.split(), "--without-heartbeat"],
            cwd=ROOT, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def asks_for_tasks() -> bool:
        assert worker.poll() is None, output.read_text()
        return b"cmd=brpop" in private_redis.command("CLIENT", "LIST")

    try:
        until(asks_for_tasks)
        for begin, end in REFUSALS.values():
            private_redis.command(*begin)
            time.sleep(ASKS_S)
            private_redis.command(*end)
            until(asks_for_tasks)
        assert "Traceback" not in output.read_text()
    finally:
        worker.terminate()
        until_over(worker.wait)


def until_over(wait: Callable[[float], object]) -> None:
    try:
        wait(30)
    except subprocess.TimeoutExpired:
        pytest.fail("the worker does not end")
