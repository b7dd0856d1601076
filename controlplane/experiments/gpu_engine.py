"""A vLLM server for one part of ``experiment gpu``: started with our scheduler inside, deciding or only watching."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx

from controlplane.embedded.vllm_cpu import install, serve
from controlplane.experiments.instance import ROOT, ExperimentError, free_port
from scheduling.core.engine.calibration import LoggedStep
from scheduling.engines.vllm_plugin.fit import steps_of
from scheduling.engines.vllm_plugin.settings import PORT_ABOVE

READY_S: Final = 420.0  # weights are read, graphs are captured
STOP_S: Final = 30.0
# vLLM decides, and the plugin's log says what it did: so all modes are measured alike.
WATCHING: Final = {"order": False, "chunks": False, "preempt_prefills": False, "victims": False}


@dataclass(frozen=True, slots=True)
class Server:
    """How servers of this run are started. ``command``: a shell command with ``{port}``; empty: the CPU build with a
    tiny random model, installed into ``home`` if it is not there."""

    command: str
    model: str
    slots: int
    max_model_len: int
    home: Path

    def argv(self, port: int) -> tuple[list[str], dict[str, str]]:
        """The command and what to add to its environment. Raises CannotStart where the CPU build cannot be had."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        if self.command:
            return shlex.split(self.command.replace("{port}", str(port))), {"PYTHONPATH": path}
        folder = install.install(self.home, lambda line: print(line, flush=True))
        return serve.command(folder, port), serve.environ(folder) | {"PYTHONPATH": path}


class Engine:
    """``with Engine(server, order, plugin, log) as engine:`` one server that has answered a request."""

    def __init__(self, server: Server, order: str, plugin: Mapping[str, Any], log: Path) -> None:
        self._server, self._log = server, log
        while (port := free_port()) + PORT_ABOVE > 65_000:
            pass
        self.url, self._steps_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + PORT_ABOVE}/steps"
        argv, self._environ = server.argv(port)
        config = {"quartermaster": {"port": port + PORT_ABOVE, "log_steps": 100_000, **plugin}}
        self._argv = [
            *argv, "--scheduling-policy", order, "--scheduler-cls", "scheduling.engines.vllm_plugin.Scheduler",
            "--additional-config", json.dumps(config),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Engine:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # the operator's own command
                self._argv, env=os.environ | self._environ, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._await()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Its whole group: vLLM's engine core is a process of its own."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def steps(self) -> list[dict[str, Any]]:
        """What its scheduler logged, at most the last 100,000 steps and requests."""
        text = httpx.get(self._steps_url, timeout=60, trust_env=False).text
        return [json.loads(line) for line in text.splitlines()]

    def _await(self) -> None:
        assert self._process is not None
        end = time.monotonic() + READY_S
        body = {"model": self._server.model, "prompt": [5, 6, 7], "max_tokens": 1}
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                if httpx.post(self.url + "/v1/completions", json=body, timeout=60, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        tail = self._log.read_text(errors="replace")[-2000:]
        raise ExperimentError(f"the engine did not answer; its log {self._log} ends with:\n{tail}")


def logged(rows: list[dict[str, Any]]) -> list[LoggedStep]:
    """A log's steps, for a fit."""
    return steps_of(json.dumps(row) for row in rows if row["kind"] == "step")
