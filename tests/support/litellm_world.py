"""A real LiteLLM proxy with our bridge, in an environment of its own: its dependencies never enter ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

from tests.support.instance import LIMIT_S, ROOT
from tests.support.ports import free_port

BRIDGE = ROOT / "deploy" / "litellm"
STARTS_S = 3 * LIMIT_S  # importing LiteLLM alone takes seconds of a whole core

# what LiteLLM's own table of keys says; its database needs a query engine from the network
KEYS = """
from litellm.proxy._types import UserAPIKeyAuth

import quartermaster_litellm

TEAMS = {"sk-research": "team-research", "sk-support": "team-support", "sk-nobody": "team-nobody"}


async def auth(request, api_key):
    if api_key.startswith("qm-"):
        return await quartermaster_litellm.auth(request, api_key)
    team = TEAMS[api_key]
    return UserAPIKeyAuth(api_key=api_key, key_alias="team-research", team_id=team, team_alias="team-research")
"""


class Proxy:
    """LiteLLM with deploy/litellm as its folder, in front of the given Quartermaster."""

    def __init__(self, folder: Path, url: str, keys: dict[str, str], more_models: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / "litellm.out"
        shutil.copytree(BRIDGE, folder / "config")
        (folder / "config" / "stand_in.py").write_text(KEYS)
        config = folder / "config" / "config.yaml"
        shipped = config.read_text()
        changed = shipped.replace("# custom_auth: quartermaster_litellm.auth", "custom_auth: stand_in.auth #")
        assert changed != shipped
        config.write_text(changed.replace("litellm_settings:", more_models + "litellm_settings:", 1))
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("QUARTERMASTER_", "LITELLM_"))} | {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_MASTER_KEY": "sk-" + os.urandom(16).hex(),
            "QUARTERMASTER_URL": url,
            "QUARTERMASTER_API_BASE": f"{url}/v1",
            "QUARTERMASTER_KEYS_FILE": str(folder / "config" / "quartermaster_keys.yaml"),
            **keys,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, python: Path) -> Proxy:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [python, python.with_name("litellm"), "--config", "config.yaml",
                 "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=self.folder / "config", env=self.environ, stdout=output, stderr=output,
            )  # fmt: skip
        return self

    def wait_ready(self) -> Proxy:
        assert self.process is not None
        end = time.monotonic() + STARTS_S
        while True:
            assert self.process.poll() is None, self.output.read_text()[-3000:]
            assert time.monotonic() < end, self.output.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health/liveliness", timeout=5):
                    return self
            except OSError:
                time.sleep(0.2)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
