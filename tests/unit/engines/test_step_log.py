"""The log of steps that the scheduler inside a vLLM keeps, as the leader's client reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from scheduling.core.engine.calibration import LoggedStep
from scheduling.engines.client import EngineProtocolError, EngineRefused
from scheduling.engines.kinds import kind_of
from scheduling.engines.kinds.vllm_plugin import PORT_ABOVE, VllmPluginClient

STEP = {"kind": "step", "number": 7, "prefill": 100, "decodes": 3, "kv_dec": 900, "pp": 5000.0, "seconds": 0.02}
HEAD = {"kind": "log", "began": "19a", "last": 7, "limits": {"slots": 32, "step_tokens": 2048}, "degraded": ""}


def client(answer: Callable[[httpx.Request], httpx.Response], url: str = "http://gpu-1:8000") -> VllmPluginClient:
    return VllmPluginClient(url, http=httpx.AsyncClient(transport=httpx.MockTransport(answer)), api_key="secret")


def page(*rows: dict[str, Any]) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(200, text="".join(json.dumps(row) + "\n" for row in rows))


async def test_it_is_read_on_the_engines_host_without_the_engines_key() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return page(HEAD, STEP)(request)

    read = await client(answer).steps(5, "19a")
    assert str(asked[0].url) == f"http://gpu-1:{8000 + PORT_ABOVE}/steps?after=5&began=19a"
    assert "authorization" not in asked[0].headers
    assert read.steps == (LoggedStep(100, 3, 900, 5000.0, 0.02),)
    assert (read.last, read.began) == (7, "19a")
    assert (read.limits.slots, read.limits.step_tokens) == (32, 2048)


@pytest.mark.parametrize(
    ("url", "log"),
    [("http://gpu-1", "http://gpu-1:1080"), ("https://gpu-1", "http://gpu-1:1443"),
     ("http://[fd00::1]:8000", "http://[fd00::1]:9000"), ("http://gpu-1:65000", "")],
)  # fmt: skip
async def test_its_port_follows_from_the_engines(url: str, log: str) -> None:
    reader = client(page(HEAD), url)
    assert reader.log_url == log
    if not log:
        with pytest.raises(EngineProtocolError, match="no port 1000 above"):
            await reader.steps(0, "")


@pytest.mark.parametrize(
    "rows",
    [(), (STEP,), (HEAD, HEAD), (HEAD, STEP | {"seconds": 0}), (HEAD, STEP | {"pp": -1.0}),
     (HEAD, STEP | {"prefill": "many"}), (HEAD | {"last": -1},), (HEAD, STEP | {"seconds": 1e300}),
     (HEAD, STEP | {"seconds": 1e-310}), (HEAD, STEP | {"pp": 1e300}), (HEAD, STEP | {"decodes": 2**62})],
)  # fmt: skip
async def test_what_is_no_log_of_steps_is_an_error_and_no_figure(rows: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(EngineProtocolError, match="/steps"):
        await client(page(*rows)).steps(0, "")


async def test_an_engine_without_the_port_is_refused_or_unreachable() -> None:
    with pytest.raises(EngineRefused, match="GET steps answered 404"):
        await client(lambda _: httpx.Response(404)).steps(0, "")
    with pytest.raises(EngineProtocolError, match="keep no log"):
        await kind_of("vllm").make("http://gpu-1", http=httpx.AsyncClient()).steps(0, "")


async def test_limits_that_vllm_does_not_tell_are_its_schedulers() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/steps":
            return page(HEAD)(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 4096}]})
        return httpx.Response(404)

    facts = await client(answer).facts()
    assert (facts.slots, facts.step_tokens, facts.max_model_len) == (32, 2048, 4096)
    assert (await client(answer).facts(2)).slots is None, "what one says is not what two have"
