"""The plugin in a real vLLM on the CPU: it decides, others can read what it did, and the simulator decides alike.

Needs ``python -m controlplane.embedded.vllm_cpu`` before. The classes over vLLM's own are driven without a model, too
(``tests/support/vllm_plugin_drive.py``, in vLLM's environment). What else vLLM can do beside it, and errors:
``test_vllm_plugin_beside.py``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import Slo
from scheduling.engines.prometheus_text import total
from scheduling.engines.vllm_plugin.versions import METHODS
from tests.support.plugged_vllm import MODEL, PREFIX, Plugged, in_turn, parity, plugged, seats_taken
from tests.support.plugin_digest import Kind
from tests.support.plugin_load import CHAT, LONG, drive
from tests.support.real_vllm import FOLDER, ROOT
from tests.support.recorded_steps import read, victim_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

STEP = {"t0": 0.002, "a": 1.5e-5, "b": 2e-5, "c": 1e-7, "e": 4e-9}
# No engine makes a token beside full steps so soon: what was gained by an early first token is used up.
TIGHT = replace(CHAT, slo=Slo(ttft_s=1.0, tbt_s=0.005), output=150)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """Deadlines order and limit steps; there is KV cache enough."""
    given = {
        "policy": "hybrid", "modifiers": {"relegate": {}}, "step_time": STEP, "learn": False, "record_steps": 100_000,
    }  # fmt: skip
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


def test_it_says_what_it_is_and_that_it_acts(roomy: Plugged) -> None:
    state = httpx.get(roomy.log + "/state", trust_env=False).json()
    assert state["degraded"] == ""
    assert (state["policy"], state["asynchronous"]) == ("relegate+hybrid", "false")
    assert state["vllm"].startswith("0.32.")


async def test_the_token_budget_follows_the_slack_and_the_simulator_decides_alike(roomy: Plugged) -> None:
    before = roomy.metric("digests_total")
    answers = await drive(roomy.url, MODEL, 8, long=5, chats_per_s=4, chat=TIGHT)
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
    later, soon = Kind("later", 20, 2, Slo(ttlt_s=500.0)), Kind("soon", 20, 2, Slo(ttft_s=60.0, tbt_s=1.0))
    async with seats_taken(roomy) as http:
        assert await in_turn(http, roomy, later, soon) == ["soon", "later"]


async def test_what_cannot_be_in_time_any_more_gives_way_and_is_served_later(roomy: Plugged) -> None:
    """Its deadline is the first of all, so that it would be next without relegation."""
    lost = Kind("lost", 3000, 2, Slo(ttft_s=0.001, tbt_s=1.0))
    saved = Kind("saved", 20, 2, Slo(ttft_s=60.0, tbt_s=1.0))
    async with seats_taken(roomy) as http:
        assert await in_turn(http, roomy, lost, saved) == ["saved", "lost"]


async def test_a_prompt_in_progress_gives_way_to_an_arrival_and_computes_nothing_twice(roomy: Plugged) -> None:
    """A question gets its tokens while the rest of a long prompt that was begun before has to wait."""
    questions: set[str] = set()
    for seed in range(21, 27):  # steps have to be short: in a full one there is room for both
        answers = await drive(roomy.url, MODEL, 6, long=5, chats_per_s=4, chat=TIGHT, seed=seed)
        assert all(answer.completed for answer in answers)
        size: dict[str, int] = {}
        done: dict[str, int] = {}
        gave_way: set[str] = set()
        for row in read(roomy.record):
            if row["kind"] != "step":
                continue
            size |= {said["id"]: said["input_tokens"] for said in row["arrived"]}
            now = dict(map(tuple, row["tokens"]))
            begun = {name for name, count in done.items() if count + now.get(name, 0) < size[name]}
            new = {name for name in now if name not in done and size[name] == TIGHT.prompt}
            if new:
                gave_way |= begun
            if begun:
                questions |= new
            for name, count in now.items():
                done[name] = done.get(name, 0) + count
        if questions:
            break
    assert questions
    assert {done[name] for name in gave_way} == {LONG.prompt}, "each token of theirs was computed once"


async def test_prompts_found_in_the_prefix_cache_are_logged_as_such(learning: Plugged) -> None:
    alike = Kind("alike", 2000, 2, Slo(ttft_s=5.0, tbt_s=1.0), shared=1900)
    await drive(learning.url, MODEL, 1.0, long=1, chats_per_s=0.0, prompt=alike)
    mine = [row for row in learning.rows("admitted") if row["prompt"] == 2000]
    assert mine[-1]["cached"] >= 1024
    assert all(row["queued_s"] >= 0 for row in mine)


async def test_what_the_prefix_cache_lacks_of_a_prompt_is_computed_in_chunks(learning: Plugged) -> None:
    """More than one step takes is missing, beside answers that are being written."""
    alike = Kind("alike in part", 4000, 2, Slo(ttft_s=60.0, tbt_s=1.0), shared=1200)
    await drive(learning.url, MODEL, 0.1, long=1, chats_per_s=0.0, prompt=alike, seed=31)
    last = learning.rows("step")[-1]["number"]
    answers = await drive(learning.url, MODEL, 2.0, long=1, chats_per_s=4.0, prompt=alike, seed=32)
    assert all(answer.completed for answer in answers)
    sent = [answer for answer in answers if answer.kind == alike.name]
    found = [row["cached"] for row in learning.rows("admitted") if row["prompt"] == 4000][-len(sent) :]
    assert set(found) == {1152}, "whole blocks of 128 of the 1,200 tokens that they share"
    steps = [row for row in learning.rows("step") if row["number"] > last]
    prompts = sum(answer.prompt for answer in answers)
    assert sum(row["prefill"] for row in steps) == prompts - sum(found), "nothing was computed twice"
    assert max(row["prefill"] for row in steps) <= 2048
    assert learning.metric("degraded") == 0


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
    seed = 0
    while learning.metric("steps_total") < 4000:  # on a busy machine a fit may say so little that it is not used
        seed += 1
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
