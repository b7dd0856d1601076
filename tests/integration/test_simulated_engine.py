"""The simulated engine over its socket: with the OpenAI SDK, with our control client, and when told to fail."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from controlplane import sse
from scheduling.core.engine.step_time import load_preset
from scheduling.engines.client import EngineRefused, control_http
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from scheduling.engines.simulated.text import count_tokens
from tests.support.gateway_world import until

HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
X: dict[str, Any] = {"model": "demo", "prompt": "x"}
FAST = EngineOptions(model="demo", speed=20, slots=8, kv_tokens=8192, seed=3)


@pytest.fixture
async def server() -> AsyncIterator[SimulatedServer]:
    async with serving(FAST) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with control_http() as client:
        yield client


def sdk(server: SimulatedServer, **kwargs: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, **kwargs)


def idle(server: SimulatedServer) -> bool:
    engine = server.engine
    return not engine.running and not engine.waiting and engine.free_blocks == engine.total_blocks


async def fault(http: httpx.AsyncClient, server: SimulatedServer, **what: Any) -> None:
    answer = await http.post(server.url + "/sim/fault", json=what)
    assert answer.status_code == 200, answer.text


# --- as a client sees it


async def test_the_sdk_lists_completes_and_streams_and_tokens_equal_usage(server: SimulatedServer) -> None:
    async with sdk(server) as client:
        models = [model async for model in client.models.list()]
        assert [model.id for model in models] == ["demo"]
        assert models[0].model_extra["max_model_len"] == 8192

        chat = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "tell me a story"}],
            max_tokens=40,
        )
        assert chat.usage is not None
        said = chat.choices[0].message.content
        assert said is not None
        assert count_tokens(said) == chat.usage.completion_tokens
        assert chat.usage.prompt_tokens == 8

        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "tell me a story"}],
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        words = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
        assert "".join(words) == said, "a prompt has one answer"
        usage = chunks[-1].usage
        assert usage is not None
        assert len(words) == usage.completion_tokens == chat.usage.completion_tokens
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        assert reasons == [chat.choices[0].finish_reason]

        whole = await client.completions.create(
            model="demo",
            prompt=[1, 2, 3, 4],
            max_tokens=7,
            extra_body={
                "ignore_eos": True,
            },
        )
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 7)
        assert whole.choices[0].finish_reason == "length"
        text = await client.completions.create(model="demo", prompt="a b c", stream=True, max_tokens=3)
        assert len([c async for c in text]) <= 3


async def test_answers_end_by_themselves_or_at_their_bound(server: SimulatedServer) -> None:
    async with sdk(server) as client:
        ends: dict[str, list[int]] = {"stop": [], "length": []}
        answers = await asyncio.gather(
            *(client.completions.create(model="demo", prompt=f"prompt number {i}", max_tokens=130) for i in range(24))
        )
        for answer in answers:
            assert answer.usage is not None
            ends[answer.choices[0].finish_reason].append(answer.usage.completion_tokens)
        assert ends["stop"]
        assert ends["length"]
        assert all(tokens <= 130 for tokens in ends["stop"])
        assert set(ends["length"]) == {130}
        at_least = await client.completions.create(
            model="demo",
            prompt="prompt number 1",
            max_tokens=2000,
            extra_body={"min_tokens": 1500},
        )
        assert at_least.usage is not None
        assert at_least.usage.completion_tokens >= 1500


async def test_a_bound_beyond_the_context_ends_where_the_context_does(
    server: SimulatedServer, http: httpx.AsyncClient
) -> None:
    answer = await http.post(
        server.url + "/v1/completions",
        json={"model": "demo", "prompt": [1] * 8186, "max_tokens": 100, "ignore_eos": True},
    )
    assert answer.json()["usage"]["completion_tokens"] == 6
    assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_usage_in_every_chunk_when_asked_for(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    answer = await http.post(
        server.url + "/v1/chat/completions",
        json={
            "model": "demo",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )
    frames = sse.events_of(answer.text)
    assert frames.pop() == sse.DONE
    counts = [frame["usage"]["completion_tokens"] for frame in frames]
    assert counts == [0, 1, 2, 3, 4, 5, 5]


async def test_several_answers_to_one_request(server: SimulatedServer) -> None:
    async with sdk(server) as client:
        chat = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "x"}],
            n=3,
            max_tokens=9,
            extra_body={"ignore_eos": True},
        )
        assert [choice.index for choice in chat.choices] == [0, 1, 2]
        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (5, 27)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param", "says"),
    [
        ("chat/completions", {**HELLO, "model": "other"}, 404, "NotFoundError", "model", "`other` does not exist"),
        ("chat/completions", {"model": "demo"}, 400, "Bad Request", "body.messages", "messages"),
        ("chat/completions", {**HELLO, "messages": []}, 400, "BadRequestError", None, "at least one message"),
        ("completions", {**X, "max_tokens": "many"}, 400, "Bad Request", "body.max_tokens", "max_tokens"),
        ("completions", {**X, "max_tokens": 0}, 400, "BadRequestError", "max_tokens", "at least 1, got 0"),
        ("completions", {**X, "max_tokens": 9000}, 400, "BadRequestError", "max_tokens", "max_model_len=8192"),
        ("completions", {**X, "prompt": [1] * 9000}, 400, "BadRequestError", "input_tokens", "9000 input tokens"),
        ("completions", {**X, "prompt": [1] * 8192}, 400, "BadRequestError", "max_tokens", "got 0"),
        ("completions", {**X, "prompt": [[1], "x", 3.5]}, 400, "Bad Request", "body.prompt", "token ids"),
        ("completions", {**X, "prompt": ""}, 400, "BadRequestError", "prompt", "non-empty"),
        ("completions", {**X, "min_tokens": 20}, 400, "BadRequestError", None, "min_tokens"),
        ("completions", {**X, "n": 0}, 400, "BadRequestError", None, "n must"),
        ("completions", {**X, "stream_options": {}}, 400, "BadRequestError", "stream_options", "stream=True"),
    ],
)
async def test_mistakes_are_answered_in_vllms_shape(
    server: SimulatedServer,
    http: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    status: int,
    kind: str,
    param: str | None,
    says: str,
) -> None:
    answer = await http.post(f"{server.url}/v1/{path}", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert says in error["message"]
    assert idle(server)


async def test_broken_json_wrong_paths_and_methods(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    broken = await http.post(server.url + "/v1/completions", content=b'{"model":')
    assert broken.status_code == 400
    assert "JSON" in broken.json()["error"]["message"]
    assert (await http.get(server.url + "/v1/completions")).status_code == 405
    assert (await http.get(server.url + "/nothing")).json() == {"detail": "Not Found"}


async def test_unparsable_http_is_refused_and_pipelined_requests_are_answered_in_order(server: SimulatedServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"NONSENSE\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'{"model":"demo","prompt":"x","max_tokens":3,"ignore_eos":true}'
    post = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    writer.write(post + b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    both = await reader.read()
    assert both.index(b"text_completion") < both.index(b'{"version"')
    writer.close()


async def test_a_server_with_a_key_wants_it(http: httpx.AsyncClient) -> None:
    async with serving(EngineOptions(model="demo", api_key="hidden")) as server:
        with pytest.raises(EngineRefused, match="401"):
            await VllmClient(server.url, http=http).models()
        assert (await VllmClient(server.url, http=http, api_key="hidden").models())[0].id == "demo"
        assert await VllmClient(server.url, http=http).health()


# --- what it holds


async def test_slots_and_kv_are_never_exceeded_and_all_free_at_the_end(server: SimulatedServer) -> None:
    async with sdk(server) as client:
        watched = asyncio.create_task(_watch(server))
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model="demo",
                    prompt=[1] * 900,
                    max_tokens=300 + i,
                    extra_body={"ignore_eos": True},
                )
                for i in range(24)
            )
        )
        watched.cancel()
        for i, answer in enumerate(answers):  # KV holds no 8 of them: some were preempted and computed again
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 300 + i
    assert server.engine.totals.preemptions > 0
    assert server.engine.totals.generation_tokens == sum(range(300, 324))
    assert idle(server)


async def _watch(server: SimulatedServer) -> None:
    while True:
        assert len(server.engine.running) <= 8
        assert server.engine.free_blocks >= 0
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_the_socket_frees_slot_and_kv(server: SimulatedServer, stream: bool) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        sent = asyncio.create_task(
            client.post(
                server.url + "/v1/completions",
                json={
                    "model": "demo",
                    "prompt": "x",
                    "max_tokens": 8000,
                    "ignore_eos": True,
                    "stream": stream,
                },
            )
        )
        await until(lambda: bool(server.engine.running) and server.engine.running[0].generated > 3)
        sent.cancel()
        await asyncio.wait([sent])
        await until(lambda: idle(server))
    assert server.engine.totals.aborted == 1


async def test_a_full_queue_answers_busy(http: httpx.AsyncClient) -> None:
    async with serving(EngineOptions(model="demo", slots=1, max_queued=1)) as server:
        body = {"model": "demo", "prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}
        async with (
            http.stream("POST", server.url + "/v1/completions", json=body),
        ):
            await until(lambda: len(server.engine.running) == 1)
            async with http.stream("POST", server.url + "/v1/completions", json=body):
                refused = await http.post(server.url + "/v1/completions", json=body)
                assert refused.status_code == 503
                assert "currently busy" in refused.json()["error"]["message"]
                assert "retry-after" not in refused.headers
        await until(lambda: idle(server))


# --- what it tells


async def test_our_control_client_reads_it(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    control = VllmClient(server.url, http=http)
    assert await control.health()
    assert [(m.id, m.max_model_len) for m in await control.models()] == [("demo", 8192)]
    before = await control.scrape()
    assert await control.probe()
    after = await control.scrape()
    assert after.progress > before.progress
    assert (after.generation_tokens, after.prompt_tokens, after.successes) == (1, 1, 1)
    assert after.gpu_util is not None
    assert 0 <= after.gpu_util <= 1
    assert after.gpu_mem_total_bytes == pytest.approx(80 * 2**30, rel=1e-4)
    assert after.gpu_mem_used_bytes is not None
    assert after.gpu_mem_used_bytes > 16e9
    async with http.stream(
        "POST",
        server.url + "/v1/completions",
        json={
            "model": "demo",
            "prompt": [1] * 100,
            "max_tokens": 8000,
            "ignore_eos": True,
            "stream": True,
        },
    ):
        await until(lambda: bool(server.engine.running))
        busy = await control.scrape()
        assert (busy.running, busy.waiting) == (1, 0)
        assert busy.kv_usage is not None
        assert busy.kv_usage > 0
        assert (await http.get(server.url + "/load")).json() == {"server_load": 1}
    page = (await http.get(server.url + "/metrics")).text
    assert 'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="demo",le="+Inf"}' in page
    assert "vllm:inter_token_latency_seconds_sum" in page


async def test_tokenize_counts_as_the_engine_does(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    prompt = await http.post(server.url + "/tokenize", json={"model": "demo", "prompt": "a b incomprehensibilities"})
    assert prompt.json()["count"] == 8
    assert len(prompt.json()["tokens"]) == 8
    messages = [{"role": "user", "content": [{"type": "text", "text": "a b c"}]}]
    chat = await http.post(server.url + "/tokenize", json={"model": "demo", "messages": messages})
    assert chat.json()["count"] == 7


# --- when told to fail


async def test_a_stalled_engine_gives_no_token_until_it_is_released(
    server: SimulatedServer, http: httpx.AsyncClient
) -> None:
    await fault(http, server, stall=True)
    control = VllmClient(server.url, http=http)
    sent = asyncio.create_task(control.probe())
    await until(lambda: server.engine.waiting == 1)
    assert await control.health()
    assert (await control.scrape()).generation_tokens == 0
    assert (await http.get(server.url + "/sim/stats")).json()["stalled"] is True
    await fault(http, server, stall=False)
    assert await sent
    await fault(http, server, stall=0.05)
    assert await control.probe()


async def test_a_hanging_server_answers_nothing_but_health(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    await fault(http, server, hang=True)
    control = VllmClient(server.url, http=http)
    assert await control.health()
    probe = await control.probe(timeout_s=0.2)
    assert not probe
    assert "did not answer" in probe.why
    late = asyncio.create_task(control.models(timeout_s=20))
    await asyncio.sleep(0.05)
    await fault(http, server, hang=False)
    assert (await late)[0].id == "demo"
    assert server.engine.totals.finished_length == 0, "the probe had gone and was not run"


async def test_errors_and_cuts_come_at_the_rate_asked_for(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    control = VllmClient(server.url, http=http, model="demo")
    await fault(http, server, error_rate=1.0)
    probe = await control.probe()
    assert not probe
    assert "500" in probe.why
    await fault(http, server, error_rate=0.0, cut_rate=1.0)
    async with sdk(server) as client:
        stream = await client.completions.create(
            model="demo",
            prompt="x",
            max_tokens=20,
            stream=True,
            extra_body={
                "ignore_eos": True,
            },
        )
        got, error = 0, None
        try:
            async for _ in stream:
                got += 1
        except Exception as broken:  # what the SDK raises for a cut stream depends on its HTTP library
            error = broken
        assert error is not None
        assert 0 < got < 20
    assert not await control.probe()
    await until(lambda: idle(server))
    await fault(http, server, cut_rate=0.0)
    assert await control.probe()


async def test_a_fault_that_does_not_exist_changes_nothing(server: SimulatedServer, http: httpx.AsyncClient) -> None:
    for wrong in ({"explode": True}, {"error_rate": 2}, {"slow": 0}, {"hang": "yes"}):
        answer = await http.post(server.url + "/sim/fault", json=wrong)
        assert answer.status_code == 400
    shown = (await http.get(server.url + "/sim/fault")).json()
    assert shown == {
        "stall": False, "error_rate": 0.0, "cut_rate": 0.0, "hang": False, "slow": 1.0, "load_s": 0.0,
        "load_fails": False,
    }  # fmt: skip


async def test_a_slow_replica_takes_longer(http: httpx.AsyncClient) -> None:
    async with serving(EngineOptions(model="demo", speed=50)) as server:
        control = VllmClient(server.url, http=http)
        await control.probe()
        before_s = server.engine.totals.latency.sum
        await fault(http, server, slow=400)
        await control.probe()
        # a lower bound only: a busy machine makes the quick one slow as well
        shortest_s = load_preset("llama-3-8b-a100").step_time.t0 / 50
        assert server.engine.totals.latency.sum - before_s >= 400 * shortest_s


# --- as a process


async def test_as_a_process_it_says_where_it_listens_and_ends_on_sigterm(http: httpx.AsyncClient) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "scheduling.engines.simulated",
        "--model",
        "demo",
        "--port",
        "0",
        "--speed",
        "100",
        "--preset",
        "qwen3-8b-gb10",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert "qwen3-8b-gb10 (fitted), 16 slots" in line
        url = line.split(" on ")[1].split(": ")[0]
        assert await VllmClient(url, http=http).probe()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_limits_that_cannot_work_are_said_at_the_start() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "scheduling.engines.simulated",
        "--model",
        "demo",
        "--kv-tokens",
        "64",
        "--max-model-len",
        "4096",
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert b"max_model_len 4096 does not fit into 64 KV tokens" in stderr
