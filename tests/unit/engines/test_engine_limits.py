"""What an engine says and does bounds what was typed in: pure, and over HTTP against a simulated one."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.engine_limits import (
    LOOKS,
    ROUNDING,
    EngineFacts,
    SlotLimit,
    in_force,
    longest_of,
    slow_steps,
    slow_tokens,
)
from scheduling.core.capacity.prefill_credit import Counters
from scheduling.core.engine.prefill_speed import PrefillSpeed
from scheduling.engines.client import EngineProtocolError, EngineUnreachable, control_http
from scheduling.engines.kinds.vllm import VllmClient, keeps_prefixes, kv_tokens_of, parse_metrics
from scheduling.engines.prometheus_text import MOST_SERIES
from scheduling.engines.simulated.server import EngineOptions, serving
from tests.support.state_world import backend

TYPED = backend("b1", slots=1000, kv_tokens=10**9)
REAL = Path(__file__).parent / "vllm_0_32_metrics.txt"  # of a real server on a CPU, what is read here


@given(
    slots=st.none() | st.integers(1, 10**6),
    kv=st.none() | st.integers(1, 10**12),
    learned=st.none() | st.integers(1, 10**6),
    longest=st.integers(1, 10**6),
)
def test_nothing_typed_in_lets_more_into_an_engine_than_it_says(
    slots: int | None, kv: int | None, learned: int | None, longest: int
) -> None:
    spec, why = in_force(TYPED, EngineFacts(slots=slots, kv_tokens=kv), learned, longest)
    assert 1 <= spec.slots <= min(x for x in (TYPED.slots, slots, learned) if x is not None)
    assert spec.kv_tokens <= max(longest, min(x for x in (TYPED.kv_tokens, kv) if x is not None))
    cut = spec.slots < TYPED.slots or spec.kv_tokens < TYPED.kv_tokens * (1 - ROUNDING)
    assert bool(why) == cut, "what is cut is said, but for rounding"


@given(own=st.integers(1, 10**6), others=st.lists(st.integers(1, 10**6)), longest=st.integers(1, 10**6))
def test_only_a_context_shorter_than_anothers_and_than_the_pools_bounds_what_one_request_may_need(
    own: int, others: list[int], longest: int
) -> None:
    bound = longest_of(own, [own, *others], longest)
    assert (bound > 0) == (own < longest and any(other > own for other in others))
    assert bound <= own
    assert longest_of(None, [own, *others], longest) == 0, "not known"


def test_an_engine_that_says_nothing_leaves_what_was_typed() -> None:
    assert in_force(TYPED, EngineFacts(), None, 8192) == (TYPED, "")


def test_a_figure_that_is_less_than_the_engines_stands() -> None:
    typed = backend("b1", slots=4, kv_tokens=1000)
    assert in_force(typed, EngineFacts(slots=128, kv_tokens=400_000), None, 8192) == (typed, "")


class Looked:
    def __init__(self) -> None:
        self.limit, self.now_s = SlotLimit(), 0.0

    def look(self, running: int, waiting: int, leases: int, times: int = LOOKS) -> int | None:
        for _ in range(times):
            self.now_s += 1.0
            self.limit.seen(running, waiting, leases, self.now_s)
        return self.limit.slots


def test_a_limit_that_an_engine_does_not_say_is_learned_from_what_waits_inside_it() -> None:
    seen = Looked()
    assert seen.look(32, 20, 52, times=LOOKS - 1) is None, "not from a moment"
    assert seen.look(32, 20, 52, times=1) == 32


@pytest.mark.parametrize(
    ("running", "waiting", "leases"),
    [(32, 2, 34), (32, 50, 30), (0, 20, 20), (200, 0, 200)],
    ids=["few wait", "others fill it", "it only starts", "none wait"],
)
def test_what_says_nothing_of_a_limit_teaches_none(running: int, waiting: int, leases: int) -> None:
    assert Looked().look(running, waiting, leases, times=60) is None


def test_a_batch_that_changes_is_no_limit() -> None:
    seen = Looked()
    for running in (30, 40, 35, 50, 20) * 4:
        assert seen.look(running, 10, running + 10, times=1) is None


def test_what_was_learned_too_low_grows_back() -> None:
    seen = Looked()
    assert seen.look(10, 5, 15) == 10
    assert (seen.look(10, 0, 40, times=120) or 0) > 12


def test_what_only_waits_in_an_engine_of_few_slots_is_taken_back_and_tried_more_and_more_seldom() -> None:
    seen, over = Looked(), []
    assert seen.look(4, 3, 7) == 4
    for _ in range(1800):
        leases = seen.limit.slots or 0
        over.append((seen.look(min(4, leases), max(0, leases - 4), leases, times=1) or 0) - 4)
    assert max(over) == 1, "one more is tried"
    assert sum(over) <= 10 * LOOKS, "and waits there for a few seconds each time"


def test_what_a_try_shows_to_run_is_kept() -> None:
    seen = Looked()
    assert seen.look(4, 3, 7) == 4
    for _ in range(300):
        leases = seen.limit.slots or 0
        seen.look(leases, 0, leases, times=1)
    assert (seen.limit.slots or 0) >= 12, "its limit is elsewhere: each try follows soon"


def test_what_real_vllm_says_of_itself_is_read() -> None:
    page = REAL.read_text()
    found = parse_metrics(page)
    assert (found.kv_tokens, found.steps, found.engines) == (131_072, 802.0, 1)
    assert kv_tokens_of(page.replace('kv_cache_size_tokens="131072"', 'kv_cache_size_tokens="None"')) == 131_072
    assert kv_tokens_of(page.replace("vllm:cache_config_info", "other:cache_config_info")) is None


def test_an_engine_keeps_prefixes_only_where_all_engines_of_its_server_say_so() -> None:
    off = REAL.read_text()
    assert 'enable_prefix_caching="False"' in off
    on = off.replace('enable_prefix_caching="False"', 'enable_prefix_caching="True"')
    assert [parse_metrics(page).keeps_prefixes for page in (on, off, on + off, on + on)] == [True, False, False, True]
    assert not keeps_prefixes(on.replace("enable_prefix_caching", "other"))
    assert not keeps_prefixes("")


def asked(dev_mode: bool) -> EngineFacts:
    async def ask() -> EngineFacts:
        options = EngineOptions(
            model="m", slots=7, kv_tokens=4096, token_budget=300, priority_scheduling=True, dev_mode=dev_mode
        )
        async with serving(options) as server, control_http() as http:
            client = VllmClient(server.url, http=http, model="m")
            assert (await client.scrape()).kv_tokens == 4096
            return await client.facts()

    return asyncio.run(ask())


def test_an_engine_in_development_mode_says_its_schedulers_limits() -> None:
    assert asked(dev_mode=True) == EngineFacts(slots=7, step_tokens=300, max_model_len=4096, priority=True)


def test_one_that_is_not_says_its_context_alone() -> None:
    assert asked(dev_mode=False) == EngineFacts(max_model_len=4096)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"[]", b"{", b"null", b'{"vllm_config": "a text"}', b'{"vllm_config": {"scheduler_config": []}}',
        b'{"vllm_config": {"scheduler_config": {"max_num_seqs": "many", "max_num_batched_tokens": 1.5}}}',
        b'{"vllm_config": {"scheduler_config": {"max_num_seqs": -1, "max_num_batched_tokens": 1e300}}}',
        b'{"vllm_config": {"scheduler_config": {"max_num_seqs": 0, "max_num_batched_tokens": 0}}}',
        b"[" * 100_000, b"x" * 3_000_000,
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
def test_what_cannot_be_true_or_read_is_not_known(answer: bytes) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        models = {"data": [{"id": "m", "max_model_len": 100}]}
        return httpx.Response(200, content=json.dumps(models).encode() if "models" in request.url.path else answer)

    client = VllmClient("http://e:1", http=httpx.AsyncClient(transport=httpx.MockTransport(handle)), model="m")
    assert asyncio.run(client.facts()) == EngineFacts(max_model_len=100)


def test_one_that_does_not_answer_is_asked_again_later() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = VllmClient("http://e:1", http=httpx.AsyncClient(transport=httpx.MockTransport(handle)), model="m")
    with pytest.raises(EngineUnreachable):
        asyncio.run(client.facts())


def test_limits_of_several_engines_behind_one_server_add_up() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        told = {"scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "policy": "fcfs"}}
        return httpx.Response(200, json={"vllm_config": told} if "info" in request.url.path else {"data": []})

    client = VllmClient("http://e:1", http=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    assert asyncio.run(client.facts(4)) == EngineFacts(slots=256, step_tokens=8192, priority=False)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:cache_config_info{" + "a" * 1_000_000 + "} 1\n",
        "vllm:cache_config_info{" * 50_000 + "\n",
        "vllm:cache_config_info{" + 'a="' * 300_000 + "} 1\n",
        "vllm:cache_config_info{}\n" * 50_000,
        'vllm:cache_config_info{num_gpu_blocks="1",block_size="1"} 1\n' * 30_000,
    ],
)
def test_labels_of_any_length_are_read_in_time_that_grows_with_it(line: str):
    """2 MiB of a page are taken. One word of 40,000 letters held the leader's process for 20 s, a million for hours."""
    before_s = time.process_time()
    assert kv_tokens_of(line) is None
    assert not keeps_prefixes(line)
    assert time.process_time() - before_s < 2.0


def test_of_more_series_of_one_name_than_a_server_has_nothing_is_known() -> None:
    """80,000 fit into a page, and took the leader's process 0.2 s at each look."""
    page = "vllm:prompt_tokens_total 1\nvllm:num_requests_waiting 0\n"
    line = 'vllm:num_requests_running{engine="1"} 1\n'
    assert parse_metrics(page + line * MOST_SERIES).running == MOST_SERIES
    with pytest.raises(EngineProtocolError, match="no numbers"):
        parse_metrics(page + line * (MOST_SERIES + 1))


def test_steps_that_are_longer_than_the_promised_time_between_tokens_are_named_with_a_budget_that_is_not() -> None:
    told = slow_steps(2048, 0.2, 0.1)
    assert told.startswith("a full step of 2,048 tokens takes 0.20 s, and an SLO of this pool allows 0.1 s")
    assert told.endswith("--max-num-batched-tokens 1024")
    assert slow_steps(1024, 0.104, 0.1) == "", "it cannot be measured so exactly"
    assert slow_steps(1024, 0.119, 0.1).endswith(" 768"), "every token of premium was late in such steps"
    assert slow_steps(8192, 0.8, 0.1).endswith(" 1024")
    assert slow_steps(8192, 80.0, 0.1).endswith(" 256")
    assert slow_steps(256, 2.5, 0.1).endswith("promise a longer time or take a faster engine")


def test_steps_are_named_as_they_were_measured_where_the_engine_does_not_say_its_budget() -> None:
    speed = PrefillSpeed()
    for second in range(12):  # five steps a second, 900 tokens of prompts and 100 of answers in each
        speed.seen(Counters(float(second), 5.0 * second, 4500.0 * second, 500.0 * second, 1), True, 2048)
    assert speed.step() == (1000, pytest.approx(0.2))
    told = slow_steps(*speed.step(), 0.1, reported=False)
    assert told.startswith("a step takes, while prompts wait and it has some 1,000 tokens, 0.20 s")
    assert told.endswith("--max-num-batched-tokens 256")


def test_tokens_that_take_longer_on_average_than_is_promised_are_named() -> None:
    assert slow_tokens(0.08, 0.05).startswith("a token takes 80 ms on average, and the SLO allows 50 ms")
    assert slow_tokens(0.05, 0.05) == slow_tokens(0.0, 0.05) == slow_tokens(0.08, None) == ""


@pytest.mark.parametrize(
    ("step_tokens", "full_s", "tbt_s"),
    [(None, 20.0, 0.1), (2048, 0.0, 0.1), (2048, 20.0, None)],
)
def test_nothing_is_said_of_steps_where_a_figure_is_not_known(
    step_tokens: int | None, full_s: float, tbt_s: float | None
) -> None:
    assert slow_steps(step_tokens, full_s, tbt_s) == ""
