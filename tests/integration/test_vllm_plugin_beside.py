"""The plugin in a real vLLM on the CPU beside what else vLLM can do, asynchronous scheduling and LoRA adapters, and
with an error in it. Needs ``python -m controlplane.embedded.vllm_cpu`` before.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from scheduling.core.types import Slo
from scheduling.engines.prometheus_text import total
from tests.support import tiny_lora
from tests.support.plugged_vllm import MODEL, PREFIX, Plugged, in_turn, plugged, seats_taken
from tests.support.plugin_digest import FAILS_AT, Kind
from tests.support.plugin_load import CHAT, LONG, drive
from tests.support.real_vllm import FOLDER

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LATER, SOON = Kind("later", 20, 2, Slo(ttlt_s=500.0)), Kind("soon", 20, 2, Slo(ttft_s=60.0, tbt_s=1.0))


async def said(url: str, model: str, words: str = "The quick brown fox") -> str:
    body = {"model": model, "prompt": words, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


# --- asynchronous scheduling


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    given = {"policy": "hybrid"}
    module = "tests.support.vllm_async_on_cpu"
    yield from plugged(tmp_path_factory.mktemp("async"), given, "--async-scheduling", module=module)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    given = {"policy": "hybrid"}
    yield from plugged(tmp_path_factory.mktemp("failing"), given, scheduler="tests.support.failing_scheduler.Scheduler")


async def test_steps_that_are_scheduled_ahead_are_decided_too(asynchronous: Plugged) -> None:
    state = httpx.get(asynchronous.log + "/state", trust_env=False).json()
    assert (state["asynchronous"], state["degraded"]) == ("true", "")
    chat = replace(CHAT, slo=Slo(ttft_s=1.0, tbt_s=0.005), output=150)
    seed = 0
    while asynchronous.metric("shortened_steps_total") == 0:  # step times are learned first
        seed += 1
        assert seed < 20, f"no step was shortened in {asynchronous.metric('steps_total'):.0f}"
        answers = await drive(asynchronous.url, MODEL, 6, long=4, chats_per_s=6, chat=chat, seed=seed)
        assert all(answer.completed for answer in answers)
        assert {answer.output for answer in answers} == {chat.output, LONG.output}
    assert asynchronous.metric("prefills_gave_way_total") > 0
    assert asynchronous.metric("degraded") == 0


async def test_waiting_requests_are_in_the_policys_order_where_steps_are_scheduled_ahead(
    asynchronous: Plugged,
) -> None:
    async with seats_taken(asynchronous) as http:
        assert await in_turn(http, asynchronous, LATER, SOON) == ["soon", "later"]


async def test_answers_are_the_same_where_steps_are_scheduled_ahead(asynchronous: Plugged, failing: Plugged) -> None:
    words = ["The quick brown fox", "one two three", "hello"]
    assert [await said(asynchronous.url, MODEL, one) for one in words] == [
        await said(failing.url, MODEL, one) for one in words
    ]


# --- an error


async def test_an_error_leaves_vllms_own_order_and_everything_is_served(failing: Plugged) -> None:
    async with seats_taken(failing) as http:
        if not failing.metric("degraded"):
            assert await in_turn(http, failing, LATER, SOON) == ["soon", "later"]
    async with seats_taken(failing) as http:
        held = await in_turn(http, failing, LATER, Kind("breaks", FAILS_AT, 2, Slo(ttlt_s=500.0)), SOON)
        assert held == ["later", "breaks", "soon"], "as they came"
    page = httpx.get(failing.log + "/metrics", trust_env=False).text
    assert total(page, (PREFIX + "degraded",)) == 1
    assert f'{PREFIX}errors_total{{where="decide"}} 1\n' in page
    state = httpx.get(failing.log + "/state", trust_env=False).json()
    assert state["degraded"] == "decide: ZeroDivisionError: as the test wants it"
    answers = await drive(failing.url, MODEL, 2, long=3, chats_per_s=6, seed=5)
    assert all(answer.completed for answer in answers)
    assert failing.metric("errors_total") == 1, "said once"


# --- adapters


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """Two adapters, of which a step can have one."""
    if not (FOLDER / "installed.json").exists():
        pytest.skip(f"no vLLM in {FOLDER}")
    folder: Path = tmp_path_factory.mktemp("adapted")
    for seed, name in enumerate(("sql", "law")):
        python = FOLDER / "venv" / "bin" / "python"
        subprocess.run(
            [python, tiny_lora.__file__, FOLDER / "model", folder / name, str(seed)], check=True, timeout=300
        )
    yield from plugged(
        folder,
        {"policy": "hybrid"},
        *("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", str(tiny_lora.RANK)),
        *("--lora-modules", f"sql={folder / 'sql'}", f"law={folder / 'law'}"),
    )


async def test_adapters_answer_beside_each_other_while_prompts_give_way(adapted: Plugged) -> None:
    names = (MODEL, "sql", "law")
    alone = [await said(adapted.url, name) for name in names]
    assert len(set(alone)) == 3, "three models answer in three ways"
    loads = [
        asyncio.create_task(drive(adapted.url, name, 6, long=2, chats_per_s=3, seed=seed))
        for seed, name in enumerate(names)
    ]
    await asyncio.sleep(1.0)
    beside = [await said(adapted.url, name) for name in names]
    for answers in await asyncio.gather(*loads):
        assert all(answer.completed for answer in answers)
        assert {answer.kind for answer in answers} == {CHAT.name, LONG.name}
    # Not the base model's: in one step with an adapter, vLLM 0.32 on a CPU computes it with that adapter's weights,
    # without the plugin, too.
    assert beside[1:] == alone[1:]
    assert adapted.metric("prefills_gave_way_total") > 0
    assert adapted.metric("degraded") == 0
    assert adapted.metric("digests_total") > 0
