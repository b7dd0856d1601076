"""The control client for one replica, against answers made by hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from scheduling.engines import prometheus_text as prom
from scheduling.engines.client import (
    MAX_BODY_BYTES,
    EngineModel,
    EngineProtocolError,
    EngineRefused,
    EngineUnreachable,
    control_http,
)
from scheduling.engines.kinds.vllm import VllmClient, kv_tokens_of, parse_metrics

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 200.0
vllm:prompt_tokens_by_source_total{engine="0",source="x"} 999.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 7.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
"""
DCGM = """# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="A } b"} 40
DCGM_FI_DEV_GPU_UTIL{gpu="1"} 60 1700000000
DCGM_FI_DEV_FB_USED{gpu="0"} 1024
DCGM_FI_DEV_FB_USED{gpu="1"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0"} 3072
DCGM_FI_DEV_FB_FREE{gpu="1"} 3072
"""

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, **kwargs: str) -> VllmClient:
    return VllmClient("http://replica:1/", http=httpx.AsyncClient(transport=httpx.MockTransport(handler)), **kwargs)


TOKEN_TIMES = """vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01"} 7.0
vllm:inter_token_latency_seconds_count{engine="0"} 900.0
vllm:inter_token_latency_seconds_count{engine="1"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0"} 18.0
vllm:inter_token_latency_seconds_sum{engine="1"} 2.5
"""


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (TOKEN_TIMES, (20.5, 1000.0)),
        (TOKEN_TIMES.replace("inter_token_latency", "time_per_output_token"), (20.5, 1000.0)),
        ("", (None, 0.0)),
        (TOKEN_TIMES.replace(" 18.0", " -18.0"), (None, 0.0)),
        (TOKEN_TIMES.replace(" 900.0", " 1e300"), (None, 0.0)),
        (TOKEN_TIMES.replace("_count", "_number"), (None, 0.0)),
    ],
    ids=["vLLM's", "an older vLLM's", "missing", "below zero", "too many", "a sum alone"],
)
def test_times_between_tokens_are_summed_over_engines_and_unknown_where_they_cannot_be_true(
    page: str, said: tuple[float | None, float]
) -> None:
    metrics = parse_metrics(PAGE + page)
    assert (metrics.between_tokens_s, metrics.between_tokens) == said


def test_the_share_of_working_multiprocessors_is_preferred_to_the_share_of_time_with_any_kernel() -> None:
    assert parse_metrics(PAGE + DCGM + 'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.25\n').gpu_util == 0.25
    assert parse_metrics(PAGE + DCGM + 'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0\n').gpu_util == 0.0


def test_metrics_are_summed_over_engines_and_usage_is_averaged() -> None:
    m = parse_metrics(PAGE)
    assert (m.running, m.waiting, m.kv_usage) == (7, 1, 0.5)
    assert (m.generation_tokens, m.prompt_tokens, m.successes, m.preemptions) == (1500, 200, 12, 2)
    assert m.progress == (1500, 200, 12)
    assert m.gpu_util is None


def test_engines_behind_a_server_count_before_their_first_request() -> None:
    """As vLLM 0.32 with --data-parallel-size 2 and two API processes shows them: cold, and after a request to one."""
    cold = """vllm:prompt_tokens_total{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 0.0
"""
    one = """vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
"""
    both = one + one.replace('engine="0"', 'engine="1"')
    seen = [parse_metrics(page) for page in (cold, cold + one, cold + both)]
    assert [m.engines for m in seen] == [2, 2, 2]
    assert [(m.running, m.waiting) for m in seen] == [(0, 0), (1, 0), (2, 0)]


def test_what_was_cached_is_of_prompts_that_are_done() -> None:
    """As vLLM 0.32 counts while it computes 15,000 tokens, 12,288 of them cached, and afterwards: hits come first."""
    hits = 'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 12288.0\n'
    cached = 'vllm:prompt_tokens_cached_total{engine="0",model_name="m"} %s\n'
    assert [parse_metrics(PAGE + hits + cached % said).cached_tokens for said in ("0.0", "12288.0")] == [0, 12288]
    assert parse_metrics(PAGE + hits).cached_tokens == 12288, "a release that does not say"


def test_an_older_vllm_says_gpu_cache_usage() -> None:
    assert parse_metrics(PAGE.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")).kv_usage == 0.5


def test_a_page_of_another_server_is_a_clear_error() -> None:
    with pytest.raises(EngineProtocolError, match="vLLM"):
        parse_metrics("up 1\n")


def test_gpu_figures_on_the_same_page_are_read() -> None:
    m = parse_metrics(PAGE + DCGM)
    assert (m.gpu_util, m.gpu_mem_used_bytes, m.gpu_mem_total_bytes) == (0.5, 2 * 2**30, 8 * 2**30)


@pytest.mark.parametrize(
    ("page", "values"),
    [
        ("a 1", [1.0]),
        ("a 1\n", [1.0]),
        ('b 2\na{x="y z"} 3\n', [3.0]),
        ("ab 2\na_b 4\n", []),
        ("a NaN\na +Inf\na 5\n", [5.0]),
        ("a\na x\n", []),
        ("", []),
        ("# a 1\n", []),
    ],
)
def test_series_are_found_by_their_whole_name(page: str, values: list[float]) -> None:
    assert prom.samples(page, "a") == values


async def test_gpu_figures_come_from_an_exporter_where_one_is_named_and_its_absence_fails_nothing() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "dcgm":
            assert "authorization" not in request.headers, "the replica's key must not go elsewhere"
            return httpx.Response(200, text=DCGM)
        assert request.headers["authorization"] == "Bearer k"
        return httpx.Response(200, text=PAGE)

    assert (await client(handler, api_key="k", dcgm_url="http://dcgm:9400/metrics").scrape()).gpu_util == 0.5

    def dead(request: httpx.Request) -> httpx.Response:
        if request.url.host == "dcgm":
            raise httpx.ConnectError("refused")
        return httpx.Response(200, text=PAGE)

    assert (await client(dead, dcgm_url="http://dcgm:9400/metrics").scrape()).gpu_util is None


async def test_models_give_their_context_length() -> None:
    body = {"object": "list", "data": [{"id": "m", "max_model_len": 4096, "owned_by": "vllm"}, {"id": "n"}]}
    assert await client(lambda _: httpx.Response(200, json=body)).models() == [
        EngineModel("m", 4096),
        EngineModel("n", None),
    ]
    with pytest.raises(EngineProtocolError, match="/v1/models"):
        await client(lambda _: httpx.Response(200, text="<html>")).models()


async def test_a_model_that_generates_nothing_is_probed_for_a_vector() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/v1/completions":
            return httpx.Response(404, json={"detail": "Not Found"})
        assert json.loads(request.content)["model"] == "m"
        return httpx.Response(200 if len(asked) == 2 else 500, json={"data": [{}]})

    probe = await client(handler, model="m").probe()
    assert probe
    assert probe.why.startswith("one answer without tokens in ")
    assert not await client(handler, model="m").probe(), "one that fails at it is not well"
    assert asked == ["/v1/completions", "/pooling"] * 2


async def test_a_probe_is_a_generation_and_only_a_token_counts() -> None:
    asked: list[dict[str, object]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"usage": {"completion_tokens": 1}})

    probe = await client(handler).probe()
    assert probe
    assert asked[0]["model"] == "m"
    assert asked[0]["max_tokens"] == 1

    empty = await client(lambda _: httpx.Response(200, json={"usage": {"completion_tokens": 0}}), model="m").probe()
    assert not empty
    assert "without a token" in empty.why


async def test_failures_are_typed_and_say_what_failed() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text="engine dead")

    with pytest.raises(EngineRefused, match=r"GET /metrics answered 500: engine dead") as caught:
        await client(refuse, api_key="topsecret").scrape()
    assert caught.value.status == 500
    assert not await client(refuse).health()
    probe = await client(refuse, model="m", api_key="topsecret").probe()
    assert not probe
    assert "500" in probe.why
    assert "topsecret" not in probe.why

    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(EngineUnreachable, match="did not answer within 2 s"):
        await client(silent).scrape()


@pytest.mark.parametrize("figure", ["1e308", "-3", "1e15", "9" * 400, "1e999", "NaN"])
@pytest.mark.parametrize(
    "name",
    ["num_requests_running", "num_requests_waiting", "generation_tokens_total", "iteration_tokens_total_count"],
)
def test_a_figure_that_cannot_be_true_is_a_failed_look_and_nothing_worse(name: str, figure: str) -> None:
    page = "".join(f"{line}\n" for line in PAGE.splitlines() if not line.startswith(f"vllm:{name}{{"))
    page += f'vllm:{name}{{engine="0"}} {figure}\nvllm:{name}{{engine="1"}} {figure}\n'
    if "total" in name and figure in ("NaN", "1e999", "9" * 400):  # "nothing known yet"
        told = parse_metrics(page)
        assert (told.steps is None) if "iteration" in name else (told.generation_tokens is None)
        return
    with pytest.raises(EngineProtocolError, match=name):
        parse_metrics(page)


@pytest.mark.parametrize("figure", ["1e308", "-0.5", "7", "-1e308"])
def test_shares_and_bytes_that_cannot_be_true_are_not_known(figure: str) -> None:
    page = PAGE.replace("0.25", figure).replace("0.75", figure)
    gpu = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0"}} {figure}000\nDCGM_FI_DEV_FB_USED{{gpu="0"}} {figure}e99\n'
    told = parse_metrics(page + gpu + 'DCGM_FI_DEV_FB_FREE{gpu="0"} 1\n')
    assert (told.kv_usage, told.gpu_util, told.gpu_mem_used_bytes, told.gpu_mem_total_bytes) == (None,) * 4


def test_a_cache_that_cannot_be_is_not_known() -> None:
    page = 'vllm:cache_config_info{{block_size="{}",num_gpu_blocks="{}"}} 1.0\n'
    assert kv_tokens_of(page.format(16, 1000)) == 16_000
    for size, blocks in ((16, "9" * 4000), (-16, 1000), (-16, -1000), (0, 5), ("x", 5), (10**9, 10**9)):
        assert kv_tokens_of(page.format(size, blocks)) is None


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/health"])
async def test_an_answer_is_read_to_its_limit_and_never_unpacked(path: str) -> None:
    packed = gzip.compress(b"0" * (64 * 1024 * 1024))

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"] == "identity"
        return httpx.Response(200, stream=Pieces([packed]), headers={"content-encoding": "gzip"})

    with pytest.raises(EngineProtocolError):
        await client(answer)._call("GET", path, timeout_s=1)
    pieces = Pieces([b"x" * 65_536] * 1600)
    with pytest.raises(EngineProtocolError):
        await client(lambda request: httpx.Response(200, stream=pieces))._call("GET", path, timeout_s=5)
    assert pieces.given <= MAX_BODY_BYTES // 65_536 + 1


async def test_a_call_ends_in_time_however_slowly_its_answer_drips() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, control_http() as http:
        async with asyncio.timeout(10):
            with pytest.raises(EngineUnreachable):
                await VllmClient(f"http://127.0.0.1:{port}", http=http).scrape(timeout_s=0.5)


async def test_an_engine_that_resets_the_connection_is_told_in_words() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, control_http() as http:
        with pytest.raises(EngineUnreachable, match=r"failed: the connection was cut$"):
            await VllmClient(f"http://127.0.0.1:{port}", http=http).models()


async def test_only_models_that_can_be_are_listed() -> None:
    cards = [{"id": "m" * 5000}, {"id": "a", "max_model_len": 10**23}, {"id": "b", "max_model_len": -1}, {"id": "c"}]
    body = {"data": cards + [{"id": f"n{i}"} for i in range(5000)]}
    models = await client(lambda request: httpx.Response(200, json=body)).models()
    assert [m.id for m in models[:4]] == ["a", "b", "c", "n0"]
    assert {m.max_model_len for m in models} == {None}
    assert len(models) <= 1000


class Pieces(httpx.AsyncByteStream):
    """A body in pieces, which counts those that were taken."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.given = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.given += 1
            yield piece


@pytest.mark.parametrize("host", ["xn--a", "xn--", "\u2603", "999.9.9.9", "[v1.a]", "a" * 64])
async def test_a_host_that_is_no_name_is_a_replica_that_does_not_answer(host: str) -> None:
    """Any other error would end the term of its pool's leader, and with each new one again."""
    async with control_http() as http:
        with pytest.raises(EngineUnreachable):
            await VllmClient(f"http://{host}:9", http=http).scrape()
