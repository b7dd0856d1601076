"""A real vLLM on the CPU with the plugin in it, for tests that are marked ``vllm``."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import Slo
from scheduling.engines.prometheus_text import total
from scheduling.engines.vllm_plugin.settings import Settings, settings_of
from tests.support.plugin_digest import Kind
from tests.support.plugin_load import Answer, ask
from tests.support.ports import free_port
from tests.support.real_vllm import ROOT, real_vllm
from tests.support.recorded_steps import differing, read

MODEL = serve.MODEL_NAME
PREFIX = "quartermaster_plugin_"
SCHEDULER = "scheduling.engines.vllm_plugin.Scheduler"
HOLDER = Kind("holder", 20, 1200, Slo(ttlt_s=600.0))


@dataclass(frozen=True, slots=True)
class Plugged:
    url: str
    log: str  # where the plugin is read
    settings: Settings
    record: Path

    def metric(self, name: str) -> float:
        value = total(httpx.get(self.log + "/metrics", trust_env=False).text, (PREFIX + name,))
        assert value is not None
        return value

    def waiting(self) -> float:
        """By vLLM's own count, which goes on where the plugin's log ends."""
        return total(httpx.get(self.url + "/metrics", trust_env=False).text, ("vllm:num_requests_waiting",)) or 0.0

    def rows(self, kind: str) -> list[dict[str, Any]]:
        lines = httpx.get(self.log + "/steps", trust_env=False).text.splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]


def plugged(
    folder: Path, given: dict[str, Any], *options: str, scheduler: str = SCHEDULER, module: str = ""
) -> Iterator[Plugged]:
    """``scheduler``: another class than the plugin's own. ``module``: as :func:`real_vllm` has it."""
    port, record = free_port(), folder / "decisions.jsonl"
    config = {"quartermaster": {"port": port, "record": str(record), **given}}
    with real_vllm(
        folder,
        *("--scheduler-cls", scheduler),
        *("--additional-config", json.dumps(config)),
        *options,
        environ={"PYTHONPATH": str(ROOT)},
        module=module,
    ) as url:
        yield Plugged(url, f"http://127.0.0.1:{port}", settings_of(config), record)


def parity(engine: Plugged) -> None:
    rows = read(engine.record)
    steps, differ = differing(rows, engine.settings)
    assert differ == [], f"of {steps} steps"
    assert steps > 100


@asynccontextmanager
async def seats_taken(engine: Plugged) -> AsyncIterator[aiohttp.ClientSession]:
    """All seats are taken; the first one is free some time before the others, which are waited for at the end."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        kinds = [replace(HOLDER, output=600), *[HOLDER] * (serve.SLOTS - 1)]
        holders = [send(http, engine, kind) for kind in kinds]
        async with asyncio.timeout(120):
            while not (steps := engine.rows("step")) or steps[-1]["decodes"] < serve.SLOTS:
                await asyncio.sleep(0.05)
        yield http
        await asyncio.gather(*holders)


def send(http: aiohttp.ClientSession, engine: Plugged, kind: Kind) -> asyncio.Task[Answer]:
    return asyncio.create_task(ask(http, engine.url, MODEL, kind, random.Random(kind.name)))


async def in_turn(http: aiohttp.ClientSession, engine: Plugged, *kinds: Kind) -> list[str]:
    """The names of those that are sent, one a little after the other, in the order of their first tokens."""
    tasks = []
    for kind in kinds:
        tasks.append(send(http, engine, kind))
        async with asyncio.timeout(60):
            while engine.waiting() < len(tasks):
                await asyncio.sleep(0.02)
    answers = await asyncio.gather(*tasks)
    return [answer.kind for answer in sorted(answers, key=lambda answer: answer.sent_s + answer.ttft_s)]
