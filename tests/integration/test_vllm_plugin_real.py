"""The plugin in a real vLLM on the CPU: it decides, others can read what it did, and the simulator decides alike.

Needs ``python -m controlplane.embedded.vllm_cpu`` before. The classes over vLLM's own are driven without a model, too
(``tests/support/vllm_plugin_drive.py``, in vLLM's environment): so the asynchronous scheduler, which vLLM never uses on
a CPU, is tried, and adapters, of which the tiny model has none.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import Slo
from scheduling.engines.prometheus_text import total
from scheduling.engines.vllm_plugin.settings import Settings, settings_of
from scheduling.engines.vllm_plugin.versions import METHODS
from tests.support.plugin_digest import Kind
from tests.support.plugin_load import CHAT, Answer, ask, drive
from tests.support.ports import free_port
from tests.support.real_vllm import FOLDER, ROOT, real_vllm
from tests.support.recorded_steps import differing, read, victim_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MODEL = serve.MODEL_NAME
STEP = {"t0": 0.002, "a": 1.5e-5, "b": 2e-5, "c": 1e-7, "e": 4e-9}
PREFIX = "quartermaster_plugin_"


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

    def rows(self, kind: str) -> list[dict[str, Any]]:
        lines = httpx.get(self.log + "/steps", trust_env=False).text.splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]


def plugged(folder: Path, given: dict[str, Any], *options: str) -> Iterator[Plugged]:
    port, record = free_port(), folder / "decisions.jsonl"
    config = {"quartermaster": {"port": port, "record": str(record), **given}}
    with real_vllm(
        folder,
        *("--scheduler-cls", "scheduling.engines.vllm_plugin.Scheduler"),
        *("--additional-config", json.dumps(config)),
        *options,
        environ={"PYTHONPATH": str(ROOT)},
    ) as url:
        yield Plugged(url, f"http://127.0.0.1:{port}", settings_of(config), record)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """Deadlines order and limit steps; there is KV cache enough."""
    given = {"policy": "hybrid", "step_time": STEP, "learn": False, "record_steps": 100_000}
    # What is found in the prefix cache is not in a recording: prompts of tests that ran before must not be found.
    yield from plugged(tmp_path_factory.mktemp("roomy"), given, "--no-enable-prefix-caching")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """A KV cache that requests fill; who is surely long gives way."""
    given = {
        "policy": "gittins", "policy_params": {"bucket_tokens": 40}, "bucket_tokens": 40, "record_steps": 100_000,
    }  # fmt: skip
    yield from plugged(tmp_path_factory.mktemp("full"), given, "--num-gpu-blocks-override", "34")


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """As it comes: the default policy, step times to be learned, prefix caching."""
    yield from plugged(tmp_path_factory.mktemp("learning"), {})


def parity(engine: Plugged) -> None:
    rows = read(engine.record)
    steps, differ = differing(rows, engine.settings)
    assert differ == [], f"of {steps} steps"
    assert steps > 100


def test_it_says_what_it_is_and_that_it_acts(roomy: Plugged) -> None:
    state = httpx.get(roomy.log + "/state", trust_env=False).json()
    assert state["degraded"] == ""
    assert (state["policy"], state["asynchronous"]) == ("hybrid", "false")
    assert state["vllm"].startswith("0.32.")


async def test_the_token_budget_follows_the_slack_and_the_simulator_decides_alike(roomy: Plugged) -> None:
    chat = replace(
        CHAT, slo=Slo(ttft_s=1.0, tbt_s=0.01), output=60
    )  # no engine makes a token beside full steps so soon
    before = roomy.metric("digests_total")
    answers = await drive(roomy.url, MODEL, 8, long=5, chats_per_s=4, chat=chat)
    assert all(answer.completed for answer in answers)
    steps = [row for row in roomy.rows("step") if row["slack_s"] is not None and row["prefill"]]
    full = [row for row in steps if row["budget"] + row["decodes"] == 2048]
    short = [row for row in steps if row["budget"] + row["decodes"] < 2048]
    assert full
    assert short
    assert max(row["slack_s"] for row in short) < 0.15, "what is due later leaves time for a full step"
    assert roomy.metric("shortened_steps_total") > 0
    assert roomy.metric("prefills_gave_way_total") > 0
    assert roomy.metric("digests_total") - before == len(answers)
    assert roomy.metric("degraded") == 0
    parity(roomy)


async def test_waiting_requests_are_served_in_the_policys_order(roomy: Plugged) -> None:
    """All seats taken; what promises most is served first, though it came last."""
    holder = Kind("holder", 20, 600, Slo(ttlt_s=600.0))
    later, soon = Kind("later", 20, 2, Slo(ttlt_s=500.0)), Kind("soon", 20, 2, Slo(ttft_s=1.0, tbt_s=1.0))
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:

        def send(kind: Kind) -> asyncio.Task[Answer]:
            return asyncio.create_task(ask(http, roomy.url, MODEL, kind, random.Random(kind.name)))

        holders = [send(holder) for _ in range(serve.SLOTS)]
        async with asyncio.timeout(60):
            while len(roomy.rows("admitted")) < serve.SLOTS or roomy.rows("step")[-1]["decodes"] < serve.SLOTS:
                await asyncio.sleep(0.1)
        first = send(later)
        await asyncio.sleep(0.2)
        second = send(soon)
        one, other = await asyncio.gather(first, second)
        await asyncio.gather(*holders)
    assert other.sent_s + other.ttft_s < one.sent_s + one.ttft_s


async def test_prompts_found_in_the_prefix_cache_are_logged_as_such(learning: Plugged) -> None:
    alike = Kind("alike", 2000, 2, Slo(ttft_s=5.0, tbt_s=1.0), shared=1900)
    await drive(learning.url, MODEL, 1.0, long=1, chats_per_s=0.0, prompt=alike)
    mine = [row for row in learning.rows("admitted") if row["prompt"] == 2000]
    assert mine[-1]["cached"] >= 1024
    assert all(row["queued_s"] >= 0 for row in mine)


async def test_a_full_cache_preempts_by_what_is_left_of_each(full: Plugged) -> None:
    short = Kind("short", 100, 160, Slo(ttlt_s=60.0), expected=((40.0, 400.0), (0.8, 0.2)))
    long = Kind("long", 200, 300, Slo(ttlt_s=60.0), expected=((100.0, 300.0), (0.5, 0.5)))
    answers = await drive(full.url, MODEL, 6, long=24, chats_per_s=6, chat=long, prompt=short)
    assert all(answer.completed for answer in answers)
    assert full.metric("degraded") == 0
    victims = [row for row in read(full.record) if row["kind"] == "victim"]
    assert len(victims) >= 5
    for row in victims:
        assert victim_of(row, "gittins", {"bucket_tokens": 40}) == row["victim"]


async def test_step_times_are_learned_and_the_default_policy_serves(learning: Plugged) -> None:
    chat = replace(CHAT, slo=Slo(ttft_s=1.0, tbt_s=0.08))
    for seed in range(1, 7):  # on a busy machine a fit may say so little that it is not used, and the next one does
        answers = await drive(learning.url, MODEL, 8, long=6, chats_per_s=8, chat=chat, seed=seed)
        assert all(answer.completed for answer in answers)
        assert learning.metric("degraded") == 0
        page = httpx.get(learning.log + "/metrics", trust_env=False).text
        error = total(page, (PREFIX + "step_time_error",))
        if error is not None:
            assert 0 < error <= 0.5
            return
    raise AssertionError(f"no model of step times after {learning.metric('steps_total'):.0f} steps")


async def test_requests_that_are_abandoned_block_nothing(learning: Plugged) -> None:
    abandoned = asyncio.create_task(drive(learning.url, MODEL, 30, long=6, chats_per_s=0.0, seed=12))
    await asyncio.sleep(1.0)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    again = await drive(learning.url, MODEL, 1.0, long=1, chats_per_s=0.0, seed=13)
    assert all(answer.completed for answer in again)
    assert learning.metric("degraded") == 0


def test_vllms_own_classes_have_the_interface_and_serve_with_ours_over_them() -> None:
    """Both schedulers of vLLM, without a model: asynchronous, prefix cache, adapters, a full cache, cancelling."""
    if not (FOLDER / "installed.json").exists():
        pytest.skip(f"no vLLM in {FOLDER}")
    done = subprocess.run(
        [str(FOLDER / "venv" / "bin" / "python"), "-m", "tests.support.vllm_plugin_drive", str(FOLDER / "model")],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(FOLDER), **serve.environ(FOLDER), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["methods"]) == set(METHODS)
    for name in ("sync", "async", "adapters", "full"):
        assert found[name]["unfinished"] == 0
        assert found[name]["degraded"] == ""
        assert found[name]["steps"] > 50
    assert found["async"]["class"] == "AsyncScheduler"
    assert found["async"]["in_flight_most"] >= 2
    assert found["full"]["victims"] > 0
    assert found["sync"]["cached"] > 0
