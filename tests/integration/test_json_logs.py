"""Every process of an instance logs JSON where that is set: each line, and nothing secret in it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.support.instance import Up, until

CANARY = "a prompt that nobody may log"


def lines(home: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (home / "logs" / f"{name}.log").read_text().splitlines()]


def test_each_line_of_each_process_is_an_object_with_its_pool_and_without_keys_or_prompts(tmp_path: Path) -> None:
    up = Up(tmp_path / "home", QUARTERMASTER_LOG_FORMAT="json", QUARTERMASTER_LOG_LEVEL="DEBUG").start().wait_ready()
    try:
        said = up.client().chat.completions.create(
            model=up.demo()["model"], messages=[{"role": "user", "content": CANARY}], max_tokens=4
        )
        assert said.usage is not None
        leads = until(up.leader)
        os.kill(up.pid(leads), signal.SIGKILL)
        other = "standby" if leads == "worker" else "worker"
        until(lambda: any("leads, epoch" in line["message"] for line in lines(up.home, other)))
        for name in ("web", "worker", "standby"):
            found = lines(up.home, name)
            assert found, name
            assert all({"time", "level", "logger", "process", "message"} <= line.keys() for line in found), name
        leading = [line for line in lines(up.home, other) if "leads, epoch" in line["message"]]
        assert leading
        assert all(line["pool"] for line in leading)
        secrets = [CANARY, up.demo()["keys"]["standard"], up.demo()["admin"]["token"]]
        for file in (up.home / "logs").glob("*.log"):
            text = file.read_text()
            assert not [secret for secret in secrets if secret in text], file.name
    finally:
        up.stop()
