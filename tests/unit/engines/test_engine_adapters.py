"""Adapters of engines: listed with their parent, loaded by the calls that vLLM and SGLang document."""

from __future__ import annotations

import json

import httpx
import pytest

from scheduling.engines.client import EngineModel, EngineProtocolError, EngineRefused, EngineUnreachable, control_http
from scheduling.engines.kinds import kind_of
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.engines.simulated.__main__ import parse_options
from scheduling.engines.simulated.server import EngineOptions, serving

OPTIONS = EngineOptions(model="base", adapters=(("sql", "/adapters/sql"),), runtime_lora=True, prefix_cache=True)


async def test_a_server_lists_its_adapters_with_their_parent_and_loads_others():
    async with serving(OPTIONS) as server, control_http() as http:
        client = VllmClient(server.url, http=http)
        assert [(m.id, m.parent) for m in await client.models()] == [("base", ""), ("sql", "base")]
        await client.load_adapter("law", "/adapters/law")
        assert [m.id for m in await client.models()] == ["base", "sql", "law"]
        with pytest.raises(EngineRefused, match="already been loaded") as again:
            await client.load_adapter("law", "/adapters/law")
        assert again.value.status == 400
        unloaded = await http.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": "law"})
        assert unloaded.status_code == 200
        assert (await http.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": "law"})).status_code == 404
        assert [m.id for m in await client.models()] == ["base", "sql"]


async def test_an_answer_names_the_adapter_and_finds_no_prompt_of_its_base_in_the_cache():
    prompt = "the harbour has a handbook " * 40
    async with serving(OPTIONS) as server, httpx.AsyncClient(base_url=server.url) as http:
        cached = []
        for model in ("base", "sql", "sql", "base"):
            body = {"model": model, "prompt": prompt, "max_tokens": 2}
            answer = (await http.post("/v1/completions", json=body)).json()
            assert answer["model"] == model
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        assert cached == [False, False, True, True]
        missing = await http.post("/v1/completions", json={"model": "law", "prompt": "x", "max_tokens": 1})
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")


async def test_a_server_that_was_not_started_for_it_has_no_such_call_and_a_slow_one_is_not_waited_for():
    async with serving(EngineOptions(model="base")) as server, control_http() as http:
        with pytest.raises(EngineRefused) as refused:
            await VllmClient(server.url, http=http).load_adapter("sql", "/adapters/sql")
        assert refused.value.status == 404
    async with serving(OPTIONS) as server, control_http() as http:
        assert server.api is not None
        server.api.faults.load_s = 60.0
        with pytest.raises(EngineUnreachable, match=r"/v1/load_lora_adapter did not answer within 0\.1 s"):
            await VllmClient(server.url, http=http).load_adapter("law", "/adapters/law", timeout_s=0.1)


async def test_sglang_is_asked_as_it_documents_and_other_servers_are_not_asked():
    asked: list[tuple[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"success": True, "loaded_adapters": {"sql": "/adapters/sql"}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await kind_of("sglang").make("http://replica", http=http).load_adapter("sql", "/adapters/sql")
        with pytest.raises(EngineProtocolError):
            await kind_of("openai").make("http://replica", http=http).load_adapter("sql", "/adapters/sql")
    assert asked == [("/load_lora_adapter", {"lora_name": "sql", "lora_path": "/adapters/sql"})]
    assert {name: kind_of(name).loads_adapters for name in ("vllm", "sglang", "openai")} == {
        "vllm": True, "sglang": True, "openai": False,
    }  # fmt: skip


async def test_a_parent_of_any_length_is_cut():
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": "a", "parent": "p" * 5000}, {"id": "b", "parent": None}]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        models = await VllmClient("http://replica", http=http).models()
    assert models == [EngineModel("a", None, "p" * 256), EngineModel("b", None)]


def test_the_simulated_server_takes_vllms_options(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    options = parse_options(["--model", "m", "--enable-lora", "--lora-modules", "sql=/a/sql", "--max-cpu-loras", "2"])
    assert (options.adapters, options.max_adapters, options.runtime_lora) == ((("sql", "/a/sql"),), 2, True)
    monkeypatch.delenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    assert not parse_options(["--model", "m", "--enable-lora"]).runtime_lora
    with pytest.raises(SystemExit):
        parse_options(["--model", "m", "--lora-modules", "sql=/a/sql"])
